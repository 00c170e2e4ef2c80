"""Graphs: overlay, underlay, distances, files, named overlays and generators."""

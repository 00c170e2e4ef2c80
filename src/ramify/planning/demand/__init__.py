"""Demand: which classes match what is published, counted from events, windows and samples."""

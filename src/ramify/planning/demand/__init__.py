"""Demand: who wants what is published, counted from events, windows and samples."""

"""Majumder et al. (2009): subscription groups with one tree each."""

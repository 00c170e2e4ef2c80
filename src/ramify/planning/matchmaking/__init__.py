"""Matchmaking, planned: which direction of which tree link carries advertisements, which subscriptions."""

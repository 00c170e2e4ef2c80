"""Matchmaking, live: advertisements and subscriptions find each other without a coordinator."""

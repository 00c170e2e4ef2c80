"""Routing by a plan: the pure router and its drivers."""

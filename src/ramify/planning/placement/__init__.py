"""Placement: users attached to brokers within capacities, at the least cost of access and core links."""

"""Choosing: plans weighed against each other, revised for subscriptions, compared and replaced."""

"""Seeded generators of events and subscriptions, the papers' models among them."""

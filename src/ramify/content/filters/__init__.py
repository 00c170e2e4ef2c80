"""Filters: the algebra, its three spellings, the grid over a content space, and subscriptions."""

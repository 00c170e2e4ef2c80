"""Filters: the algebra, its four spellings, the grid over a content space, and subscriptions."""

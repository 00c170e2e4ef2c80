"""The matcher: many filters compiled to an index, whole batches of events at a time."""

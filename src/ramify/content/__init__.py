"""Content: events, filters and the matcher. Knows nothing of networks."""

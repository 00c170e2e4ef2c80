"""What is said and who wants it: events, filters and the matcher. Knows nothing of networks."""

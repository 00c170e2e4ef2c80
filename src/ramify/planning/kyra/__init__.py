"""What Kyra is made of: cliques, zones, subscription movement, routing trees, rings, drift."""

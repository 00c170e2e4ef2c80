"""The brokers and their links, with costs: overlay and underlay graphs, generators, readers, distances."""

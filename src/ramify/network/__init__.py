"""Who is connected, at what cost: overlay and underlay graphs, generators, readers, distances."""

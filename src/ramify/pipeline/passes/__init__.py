"""One pass over many events: sources, matching, counting, pricing, and the tables it fills."""

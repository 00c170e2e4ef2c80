"""Events: their form, their readers and their batches. Knows nothing of filters."""

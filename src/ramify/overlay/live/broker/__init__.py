"""The live broker: inputs, steps, its log, its clients and their quotas."""

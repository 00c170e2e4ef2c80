"""The coordinator: its term as leader, samples, re-plans, moves."""

"""Structured Streaming: samples in, panes out, sliding windows over them."""

"""Connections to NATS servers: streams, pulls, the control store, keys and TLS."""

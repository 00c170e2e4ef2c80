"""Routing by a plan: headers, the router of one broker, the simulator of all. Pure."""

"""The schemes: each module turns a problem into a plan and imports no other scheme."""

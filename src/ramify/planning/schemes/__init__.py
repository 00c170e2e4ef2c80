"""Schemes: algorithms that make plans. One catalog names them all; the papers do not know each other."""

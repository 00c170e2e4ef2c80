"""How large a filter may be, in any spelling."""

__all__ = ["FILTER_DEPTH", "FILTER_TEXT"]

FILTER_TEXT = 10 * 1024
"""Characters of a filter as it is written."""

FILTER_DEPTH = 32
"""Parentheses, or objects and arrays, inside each other."""

"""Ramify: a content-based publish/subscribe overlay that plans its own dissemination trees.

Importing this package starts nothing: no Spark, no event loop, no log handlers.
"""

__version__ = "0.1.0"

"""Histories of a live overlay: what clients did and saw, and whether the promise was kept. Pure.

Knows nothing of the rest of the package: a checker that shared code with what it checks would share its
mistakes.
"""

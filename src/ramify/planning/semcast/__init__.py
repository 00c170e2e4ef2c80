"""SemCast's parts: statistics, hierarchies, channel expressions, merging, trees, membership, coordinators.

`planning.schemes.semcast` puts them together.
"""

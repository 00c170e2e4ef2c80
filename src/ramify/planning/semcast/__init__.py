"""SemCast's parts: statistics, hierarchies, channel expressions, merging, legs and trees, who is late,
membership, joins and leaves as messages, coordinators.

`planning.schemes.semcast` puts them together.
"""

"""The use cases: read a log, study it, compare schemes, price, simulate, explain and diff plans.

What `ramify` offers to Python is here, and commands do nothing but call it and print. Nothing is imported
with this package: Spark, and whatever is compiled, are loaded by the module that needs them.
"""

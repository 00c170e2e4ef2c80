"""Settings that all tests share."""

from hypothesis import settings

# A shared machine may pause for longer than Hypothesis expects of a test.
# The printed blob replays a failure.
settings.register_profile("ci", deadline=None, print_blob=True, max_examples=100)
settings.load_profile("ci")

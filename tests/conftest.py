"""Settings that all tests share."""

import os

from hypothesis import settings

# A shared machine may pause for longer than Hypothesis expects. The printed blob replays a failure.
# On CI (where the variable CI is set) the same examples are drawn every time, so that a change is judged by
# itself; elsewhere every run draws new ones and keeps looking for what was missed.
settings.register_profile(
    "ramify",
    deadline=None,
    print_blob=True,
    max_examples=100,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("ramify")

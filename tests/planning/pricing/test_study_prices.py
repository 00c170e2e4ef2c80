"""A study walks no event twice: the log's price is that of its windows, and references are shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.network.graphs.specs import overlay_from
from ramify.planning.choosing.study import SHARES, Study, compare, prepare
from ramify.planning.choosing.weigh import together
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally
from ramify.planning.pricing.price import Price, price
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.shared.grids import grid_for
from ramify.workloads.catalog import workload_from

SPECS = ("mst", "unicast", "explicit", "kyra", "semcast", "broadcast")


@pytest.fixture(scope="module")
def study() -> Study:
    overlay = overlay_from("majumder:30")
    workload = workload_from("kyra:values=40,events=400", overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    grid = grid_for(classes)
    counted = Tally(classes, overlay, workload.attachments, split=Split(SHARES, seed=1), grid=grid)
    for batch in workload.batches():
        counted.add(batch)
    return prepare(overlay, classes, counted.windows(), workload.attachments, grid=grid, hours=2)


@settings(max_examples=12, deadline=None)
@given(spec=st.sampled_from(SPECS), seed=st.integers(0, 3))
def test_the_windows_add_up_to_the_log(study: Study, spec: str, seed: int) -> None:
    plan = make_plan(spec, study.problem, seed)
    windows = (study.problem.demand, study.validation, study.test)
    added = together(study.whole, [price(plan, window) for window in windows])
    walked = price(plan, study.whole)
    for name in Price.__dataclass_fields__:
        if name not in ("layout", "yardstick", "hops", "ms", "given"):
            np.testing.assert_array_equal(getattr(added, name), getattr(walked, name), err_msg=name)
    assert added.per_month == walked.per_month
    assert np.isnan(added.ms.mean)
    np.testing.assert_array_equal(added.broker_bytes, walked.broker_bytes)


def test_windows_that_are_not_the_log_are_refused(study: Study) -> None:
    priced = price(make_plan("mst", study.problem), study.test)
    with pytest.raises(AssertionError, match="parts of the log"):
        together(study.whole, [priced])


def test_all_rows_have_the_same_references(study: Study) -> None:
    found = compare(study, ["mst", "kyra"], today="unicast")
    for window in ("train", "validation", "test"):
        held = {id(getattr(row, window).yardstick) for row in found.everything}
        assert len(held) == 1
    assert all(row.allowed for row in found.everything)

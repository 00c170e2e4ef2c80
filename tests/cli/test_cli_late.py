"""What `ramify plan` says of subscriptions whose latency bound is not kept: in its JSON and in its text."""

import json

import pytest

from ramify.cli import plan
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.planning.choosing.study import compare, prepare
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.windows import Windows
from ramify.studies.findings import Findings

STRICT, LENIENT = "semcast-delay:late=refuse", "semcast-delay"


def compared() -> Findings:
    """Nothing gets from a to c in less than 10 ms; c allows 9."""
    links = [Link.symmetric(x, y, 1.0, latency_ms=5.0) for x, y in ("ab", "bc")]
    overlay = Overlay.build("line", ["a", "b", "c"], links)
    hasty = Subscription("hasty", "h", "c", sql="x = 1", latency_ms=9.0)
    rows = [hasty, Subscription("s", "s", "b", sql="x = 1")]
    classes = Classes.collapse(rows, overlay, {})
    # the events are b's: late is who may be late, whatever was seen
    seen = Demand.of([(1, (0, 1), 20, 500)])
    study = prepare(overlay, classes, Windows((seen, seen, seen), seen), {})
    return Findings(study, compare(study, [LENIENT, STRICT], today="mst"))


def test_who_is_refused_or_late_is_in_the_json() -> None:
    told = json.loads(json.dumps(compared().figures(), allow_nan=False))["schemes"]
    (late,) = told[LENIENT]["late"]
    (refused,) = told[STRICT]["refused"]
    for row in (late, refused):
        assert (row["id"], row["broker"], row["bound_ms"]) == ("hasty", "c", 9.0)
        assert row["ms"] >= 10.0
    assert told[LENIENT]["refused"] == told[STRICT]["late"] == told["mst"]["late"] == []
    assert not told[STRICT]["allowed"]
    assert told[LENIENT]["train"] is not None


def test_who_is_refused_or_late_is_in_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    plan._show(compared())
    said = capsys.readouterr().err
    assert f"discarded: {STRICT}: semcast-delay refuses 1 subscription: 'hasty' at c allows 9 ms" in said
    assert f"late: {LENIENT}: 1 of its subscriptions: 'hasty' at c allows 9 ms, and 1" in said

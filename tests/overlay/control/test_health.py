"""A broker's word and reason, from figures: `routing` is said of none that does not move."""

import pytest

from ramify.overlay.control.health import SILENT_S, STALLED_S, HealthFigures, health

TABLE = [
    ({}, "routing", ""),
    ({"waiting": {"*": 900}, "waiting_s": STALLED_S - 1}, "routing", ""),
    ({"leased": False, "ready": False}, "lost", "no lease"),
    ({"age_s": SILENT_S}, "silent", "15 s ago"),
    ({"ready": False, "trouble": "no answer"}, "starting", "no answer"),
    ({"renewed": False, "waiting": {"*": 3}, "waiting_s": 60.0}, "cut off", "control server"),
    ({"caught_up": False}, "catching up", "leader decided"),
    (
        {"full_s": 9.0, "holders": {"link_v1": 7, "client_c": 4_000}},
        "log full",
        "client_c has not read 4,000",
    ),
    ({"full_s": 9.0, "stuck_s": 9.0}, "log full", "no room for 9 s"),
    ({"stuck_s": 30.0, "trouble": "insufficient storage"}, "stuck", "insufficient storage"),
    (
        {"waiting": {"*": 2, "v1": 5}, "waiting_s": STALLED_S},
        "stalled",
        "the lane from v1 waits (5 messages)",
    ),
    ({"waiting": {"*": 2}, "waiting_s": 99.0, "trouble": "why"}, "stalled", "committed for 99 s: why"),
    ({"unreached": {"v2": "", "v1": "refused"}}, "routing", "servers of v1 (refused), v2"),
    ({"silence": "no answer", "waiting_s": 99.0, "waiting": {"v1": 1}}, "stuck", "no answer"),
    ({"ready": False, "silence": "no route", "trouble": "old"}, "starting", "no route"),
]


@pytest.mark.parametrize(("figures", "word", "reason"), TABLE)
def test_the_worst_that_is_true_is_said(figures: dict[str, object], word: str, reason: str) -> None:
    found = health(HealthFigures(**figures))  # type: ignore[arg-type]
    assert found.word == word
    assert reason in found.why


def test_all_but_routing_say_why() -> None:
    words = [health(HealthFigures(**figures)) for figures, _, _ in TABLE]  # type: ignore[arg-type]
    assert all(each.why for each in words if each.word != "routing")

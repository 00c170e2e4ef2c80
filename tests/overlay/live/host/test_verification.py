"""What a look at the status says that events wait for: the checker holds stalls against it."""

import time
from dataclasses import replace

import pytest

from ramify.overlay.control.records import Status
from ramify.overlay.live.host.overview import BrokerView, EpochView, Overview
from ramify.overlay.live.host.verification import tells_of


def view(state: str = "routing", age_s: float = 1.0, **said: object) -> Overview:
    now = time.time()
    status = Status("v0", "s", now, now, routing=True, **said)  # type: ignore[arg-type]
    return Overview("coordinator", brokers=[BrokerView("v0", state, status, age_s)])


def test_all_is_well_and_nothing_waits() -> None:
    assert tells_of(view()) == ((), ())


@pytest.mark.parametrize(
    ("seen", "what"),
    [
        (view("catching up"), "catching up"),
        (view("lost"), "lost"),
        (view(age_s=60.0), "no word"),
        (view(trouble="no answer"), "no answer"),
        (view(suspended={"alice": "quota"}), "suspended alice (quota)"),
        (view(lag_published=3), "3 wait in IN"),
        (view(lag_links={"v1": 2}), "2 wait in v1"),
        (view(lag_clients={"bob": 1}), "1 wait in bob"),
        (replace(view(), epochs=[EpochView(2, "draining", 1, "p", {"v1": "has 3 left"})]), "v1 has 3 left"),
        (replace(view(), leader=None), "no coordinator leads"),
        (Overview(None), "no brokers"),
        (Overview(None, brokers=[BrokerView("v0", "lost", None, None)]), "no word"),
    ],
)
def test_whatever_holds_events_up_is_told(seen: Overview, what: str) -> None:
    tells, _ = tells_of(seen)
    assert any(what in each for each in tells), tells

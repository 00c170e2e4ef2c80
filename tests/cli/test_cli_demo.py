"""The live part of the demo, over a third of its regions: it re-plans, and accounts for every delivery."""

from pathlib import Path

import pytest

from ramify.cli import demo
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.workloads.catalog import workload_from


def test_the_live_part_replans_and_accounts_for_every_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_REPLAN_EVERY_S", 3.0)
    overlay = overlay_from("azure-regions")
    day = workload_from("demo:events=600,subscriptions=40", overlay, 1)
    night = workload_from("demo:events=600,subscriptions=40,stand_ins=2", overlay, 1)
    run_to_end(demo._Story(overlay, day, night, 300, tmp_path / "live").run())
    said = " ".join(capsys.readouterr().out.split())
    assert "Re-planned while events flowed: mult -> " in said
    assert "0 lost, 0 doubled" in said

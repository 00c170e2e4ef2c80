"""Write docs/reliability.md: what is promised, how it is tested, and what the long runs found: `make docs`.

    python docs/generate_reliability.py [FILE]

The promises and their tests are here; a test that does not exist is an error. The figures are those of
docs/results/reliability.json, which the runs themselves write (`make chaos RESULTS=1`).
"""

import ast
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "docs" / "results" / "reliability.json"

CHAOS = "overlay/live/system/test_live_chaos.py:test_a_short_storm_breaks_no_promise"
KILLS = "overlay/live/system/test_live_kills.py:test_kills_stops_and_switches_lose_and_double_nothing"
SYSTEM = "overlay/live/system/test_live_system.py"


@dataclass(frozen=True)
class Promise:
    """A sentence, and the tests that would fail without it, as file:name below tests/."""

    text: str
    tests: Sequence[str]


PROMISES = [
    Promise(
        "An acknowledged event reaches every subscription that was active before its publish, once, through "
        "kills and restarts of everything.",
        [
            KILLS,
            f"{SYSTEM}:test_whatever_is_killed_stopped_or_woken_nothing_is_lost_or_doubled",
            f"{SYSTEM}:test_active_before_a_publish_gets_it_and_removed_before_a_publish_does_not",
            CHAOS,
        ],
    ),
    Promise(
        "It does so through switches between any two plans.",
        [
            "overlay/live/system/test_live_switch.py:"
            "test_a_switch_between_any_two_schemes_loses_and_doubles_nothing",
            "overlay/live/broker/test_live_controlled.py:test_plans_are_switched_under_load_drained_and_retired",
        ],
    ),
    Promise(
        "It does so while clients move.",
        [
            "overlay/live/system/test_live_moving.py:"
            "test_clients_move_there_and_back_under_load_and_nothing_is_lost_or_doubled",
            "overlay/live/system/test_live_moving.py:"
            "test_whatever_is_killed_during_a_move_it_goes_on_to_its_end",
        ],
    ),
    Promise(
        "It does so without a coordinator, where brokers make matches.",
        [
            "overlay/live/system/test_live_matchmaking.py:"
            "test_routers_and_servers_that_end_lose_and_double_nothing",
            CHAOS,
        ],
    ),
    Promise(
        "A step that was cut by a crash is finished, and never done twice.",
        [
            "overlay/live/broker/test_live_log.py:test_a_step_cut_between_its_writes_is_finished_without_doubles",
            "overlay/live/broker/test_live_log.py:test_a_second_writer_is_fenced_and_a_superseded_one_is_told",
        ],
    ),
    Promise(
        "A full disk loses nothing, and the server works again once there is room.",
        [
            "overlay/live/host/test_live_full_disk.py:"
            "test_a_full_disk_loses_nothing_and_the_server_comes_back_with_the_room",
            "overlay/live/broker/test_live_log.py:test_a_full_log_says_so_and_goes_on_when_there_is_room",
        ],
    ),
    Promise(
        "A process or server that lives and does not work is started again.",
        [
            "overlay/live/host/test_live_full_disk.py:test_a_process_that_hangs_is_started_again",
            "overlay/live/host/test_live_probes.py:"
            "test_a_control_server_that_lives_and_does_not_answer_is_started_again",
        ],
    ),
    Promise(
        "No message of a client stops a broker, whatever its bytes.",
        [
            "overlay/live/broker/test_live_bad_input.py:test_no_header_stops_a_broker",
            "overlay/live/wire/test_live_connection.py:test_a_reader_survives_every_bad_message",
        ],
    ),
    Promise(
        "What one client sends costs the others little.",
        [
            "overlay/live/broker/test_live_inputs.py:"
            "test_a_step_takes_few_messages_with_ten_thousand_records_each",
            "overlay/live/coordinator/test_live_fairness.py:"
            "test_hard_filters_neither_cost_the_lease_nor_delay_others",
            "overlay/live/wire/test_live_client_limits.py:"
            "test_a_client_that_opens_connections_without_end_is_refused_and_others_are_served",
            "overlay/live/wire/test_live_client_limits.py:"
            "test_a_connection_with_too_many_subscriptions_is_closed_and_others_are_served",
        ],
    ),
    Promise(
        "A client past its quota or lease is suspended and told; the others go on.",
        [
            "overlay/live/broker/test_live_quotas.py:"
            "test_past_its_quota_a_client_is_suspended_and_others_go_on",
        ],
    ),
    Promise(
        "A store that comes back with less than it had is noticed.",
        [
            "overlay/live/client/test_live_clients.py:test_a_server_that_comes_back_with_less_is_noticed_by_a_reader",
            "overlay/live/broker/test_live_broker.py:"
            "test_a_lane_that_jumps_from_before_our_position_lost_its_end",
        ],
    ),
    Promise(
        "A leader that dies is followed by another, and nothing confirmed is lost.",
        [
            "overlay/live/coordinator/test_live_coordinator.py:"
            "test_through_crashes_of_leaders_and_server_nothing_confirmed_is_lost",
            "overlay/live/coordinator/test_live_standbys.py:"
            "test_a_standby_takes_over_with_everything_and_covers_newcomers_as_before",
        ],
    ),
    Promise(
        "The checker finds each breach, also in valid histories that were changed.",
        [
            "overlay/histories/test_checker.py:test_a_change_of_a_valid_history_is_found",
            "overlay/histories/test_checker.py:test_a_valid_history_passes",
            "overlay/histories/test_histories.py:test_the_oracle_and_the_filters_of_the_overlay_agree",
        ],
    ),
]

# what was found in NATS 2.12.1, and what follows from it here
JEPSEN = [
    (
        "Acknowledged writes are synced to disk every two minutes, so that a power failure loses up to that",
        "The same holds for a server that does not sync every write. Kills of processes lose nothing. Set "
        "`sync_interval: always` where power may fail",
    ),
    (
        "One flipped bit or a truncation in a `.blk` file loses acknowledged messages, and replicas differ",
        "A stream that ends before the position of its reader is noticed: see the promise about stores above. A "
        "hole in the middle of a store with one replica cannot be filled",
    ),
    (
        "A damaged snapshot on a minority of servers makes a cluster delete a stream",
        "A broker's streams have one replica on its own server, so no Raft group can decide to delete them. A "
        "neighbour says so when the log of a broker began anew",
    ),
    (
        "One power failure with pauses leads to replicas that serve different histories, for good",
        "A broker's log has one writer, fenced by the expected sequence. Positions are in the same write as the "
        "output, so a reader never goes on from another history without an error",
    ),
    (
        "Kills made 2.10.20 to 2.10.22 forget streams (mended in 2.10.23)",
        "Ramify asks for NATS 2.15 or newer",
    ),
]

HEAD = """# What is promised, and how it is tested

Generated by `make docs` from `docs/generate_reliability.py` and `docs/results/reliability.json`; do not edit.

[live.md](live.md#what-is-promised) words the promise. [verify.md](verify.md) says how a history of what clients did and saw
is judged, and how you do that with your own overlay.
"""


def main() -> None:
    """Write the page."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    target.write_text("\n".join([HEAD, *promises(), *figures(results), *jepsen()]), encoding="utf-8")


def promises() -> list[str]:
    """A row per promise."""
    lines = ["## Promises", "", "| promise | tests |", "|---|---|"]
    for each in PROMISES:
        for test in each.tests:
            check(test)
        names = "<br>".join(f"`{test.rpartition(':')[2]}`" for test in each.tests)
        lines.append(f"| {each.text} | {names} |")
    return [*lines, ""]


def check(test: str) -> None:
    """Raise for a test that does not exist."""
    file, _, name = test.rpartition(":")
    if name not in tests_in(file):
        raise SystemExit(f"tests/{file} has no test {name}: name the one that keeps the promise")


@cache
def tests_in(file: str) -> frozenset[str]:
    """The functions of a file of tests."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def figures(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The long runs, the newest first."""
    lines = ["## What the long runs found", ""]
    chaos = list(reversed(results.get("chaos", ())))
    if chaos:
        lines += [
            "Chaos on real processes. An event is acknowledged, and due to several subscriptions. A run has load, faults",
            "and a verdict; each has a seed of its own, from the one that is named on.",
            "",
            "| date | command | scenario | runs | faults | acknowledged | due | lost | doubled | unexpected | out of order"
            " | untold stalls | recovery s p50 / p99 |",
            "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in chaos:
            lines += [_chaos_row(row, name, row[name]) for name in _SCENARIOS if name in row]
        lines += ["", *_about(chaos), ""]
        kinds: dict[str, int] = {}
        for row in chaos:
            for name in _SCENARIOS:
                for kind, count in row.get(name, {}).get("faults_by_kind", {}).items():
                    kinds[kind] = kinds.get(kind, 0) + count
        told = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items(), key=lambda k: -k[1]))
        lines += [f"Faults of all these runs: {told}.", ""]
    soak = list(reversed(results.get("soak", ())))
    if soak:
        lines += [
            "Load over time (`benchmarks/soak.py`), each row on one machine with clients and checker:",
            "",
            "| date | command | peak events/s | soak s | lag s p99 | memory MB (growth) | disk growth"
            " | p99 s beside a hostile client (quiet) | lost |",
            "|---|---|---:|---:|---:|---:|---:|---|---:|",
        ]
        lines += [_soak_row(row) for row in soak]
        lines += ["", *_about(soak), ""]
    for kind in ("simulation",):
        for row in reversed(results.get(kind, ())):
            told = ", ".join(f"{key} {value}" for key, value in sorted(row.items()) if key not in _ABOUT)
            lines += [f"Simulation, {row['date']}: {told}.", ""]
    if len(lines) == 2:
        lines += ["No long run is on record.", ""]
    return lines


_SCENARIOS = ("storm", "singles", "matchmaking", "storage")
_ABOUT = ("date", "ramify", "nats_server", "python")


def _chaos_row(row: Mapping[str, Any], scenario: str, found: Mapping[str, Any]) -> str:
    p50, p99 = found.get("recovery_s_p50"), found.get("recovery_s_p99")
    recovery = "" if p50 is None else f"{p50:.1f} / {p99:.1f}"
    kinds = ("lost", "doubled", "unexpected", "out_of_order", "untold_stall")
    counts = " | ".join(
        "not judged" if kind == "out_of_order" and not found.get("ordered") else f"{found.get(kind, 0):,}"
        for kind in kinds
    )
    return (
        f"| {row['date']} | `{row['command']}` | {scenario} | {found['runs']} | {found['faults']:,} | "
        f"{found['acknowledged']:,} | {found['due']:,} | {counts} | {recovery} |"
    )


def _soak_row(row: Mapping[str, Any]) -> str:
    quiet = row["p99_quiet_s"]
    hostile = ", ".join(
        f"{kind} {value:.2f} ({quiet[kind]:.2f})" for kind, value in row["p99_hostile_s"].items()
    )
    return (
        f"| {row['date']} | `{row['command']}` | {row['peak_events_per_s']:,} | {row['soak_s']} | "
        f"{row['lag_s_p99']} | {row['memory_mb']} ({row['memory_growth']:+.1%}) | {row['disk_growth']:+.1%} | "
        f"{hostile} | {row['lost']} |"
    )


def _about(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What ran, on what, and what to know of it."""
    lines = []
    for row in rows:
        versions = f"Ramify {row['ramify']}, nats-server {row['nats_server']}, Python {row['python']}"
        note = f" {row['note']}" if "note" in row else ""
        lines.append(f"- `{row['command']}`: {versions}, two shared cores.{note}")
    return lines


def jepsen() -> list[str]:
    """What others found below us."""
    return [
        "## What Jepsen found in NATS",
        "",
        "[Jepsen tested NATS 2.12.1](https://jepsen.io/analyses/nats-2.12.1) in 2025, with clusters of five and streams of",
        "five replicas. Ramify stands on JetStream, so it matters here.",
        "",
        "| there | here |",
        "|---|---|",
        *(f"| {there} | {here} |" for there, here in JEPSEN),
        "",
    ]


if __name__ == "__main__":
    main()

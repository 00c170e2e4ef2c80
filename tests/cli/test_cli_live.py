"""The commands of the live overlay refuse what cannot go well before it starts, and show all there is."""

import json
import re
import time
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ramify.cli import app, overlay, rules, status, status_text
from ramify.cli.addresses import server_url
from ramify.cli.rules import rule_lines
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.clouds import cloud_regions
from ramify.network.graphs.generators import line
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.control.records import LinkCount, Status
from ramify.overlay.live.host.directory import COORDINATOR, Directory
from ramify.overlay.live.host.overview import BrokerView, EpochView, Overview
from ramify.overlay.live.wire.security import ControlRole, new_user
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import write_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan


def told(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(words))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, " ".join(re.sub(r"[│╭╮╰╯─]", " ", found.output).split())


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "user.nk"
    file.write_text(new_user().seed)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(("module", "limit"), [(status, "_LOOK_LIMIT_S"), (rules, "_RULES_LIMIT_S")])
def test_a_control_server_that_is_not_there_is_one_message_with_the_reason(
    module: ModuleType, limit: str, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, 1.0)
    command = module.__name__.rpartition(".")[2]
    code, said = told(command, "--control", "nats://127.0.0.1:1", "--key", str(key))
    assert code == 2
    assert "cannot connect to the control server at nats://127.0.0.1:1 within 1 s" in said
    assert "onnect" in said.partition("within 1 s:")[2].partition("Is it running")[0]
    assert "Traceback" not in said


@pytest.mark.parametrize("url", ["foo", "", "localhost:4222", "http://h:1", "nats://", "nats://h:x"])
def test_what_is_no_server_is_refused_at_once(url: str, key: Path) -> None:
    with pytest.raises(InputError, match="is not the URL of a server"):
        server_url(url)
    for command in ("status", "coordinator"):
        code, said = told(command, "--control", url, "--key", str(key))
        assert (code, "is not the URL of a server" in said) == (2, True), said
    code, said = told("sub", "--client", "alice", "--url", url, "--key", str(key))
    assert (code, "is not the URL of a server" in said) == (2, True), said


@pytest.mark.parametrize(
    "url", ["nats://127.0.0.1:4222", "tls://control.example:4222", "nats://[::1]:4222"]
)
def test_servers_are_servers(url: str) -> None:
    assert server_url(url) == url


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--schemes", "nosuch bad", "--replan-every", "5"], "nosuch"),
        (["--schemes", " "], "--schemes is empty"),
        (["--scheme", "nosuch"], "nosuch"),
        (["--sample", "7"], "--sample"),
        (["--sample", "-0.1"], "--sample"),
        (["--coordinators", "0"], "--coordinators"),
    ],
)
def test_up_refuses_before_it_starts_anything(words: list[str], says: str, tmp_path: Path) -> None:
    code, said = told("up", "--dir", str(tmp_path / "data"), "--overlay", "ring:5", *words)
    assert (code, says in said) == (2, True), said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ('{"residence": []}', "unknown field 'residence'"),
        ('{"capacity_bytes_per_s": {"paris": 1}}', "'paris' is unknown in overlay ring-5. Allowed: v0"),
        ('{"residency": [{"name": "r", "events": "x =", "not_in": {"brokers": ["v1"]}}]}', "not a filter"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_before_anything_starts(
    text: str | None, says: str, tmp_path: Path, key: Path
) -> None:
    file = tmp_path / "rules.json"
    if text is not None:
        file.write_text(text)
    starting = ("up", "--dir", str(tmp_path / "data"))
    leading = ("coordinator", "--control", "nats://127.0.0.1:1", "--key", str(key))
    for command in (starting, leading):
        code, said = told(*command, "--overlay", "ring:5", "--rules", str(file))
        assert (code, says in said, "rules.json" in said.replace(" ", "")) == (2, True, True), said
    assert not (tmp_path / "data").exists()


def test_a_plan_that_breaks_the_rules_is_refused_before_anything_starts(tmp_path: Path) -> None:
    graph = overlay_from("ring:5")
    classes = Classes.collapse([Subscription("r/s", "r", "v2", sql="x > 1")], graph, {})
    plan = make_plan("spt:root=v0", Problem.of(graph, classes, Demand.of([]), {"w": "v0", "r": "v2"}))
    write_plan(plan, tmp_path / "plan.json")
    rule = {"name": "gdpr", "events": "x > 5", "not_in": {"brokers": ["v1"]}}
    (tmp_path / "rules.json").write_text(json.dumps({"residency": [rule]}))
    where = ("up", "--dir", str(tmp_path / "data"), "--plan", str(tmp_path / "plan.json"))
    code, said = told(*where, "--rules", str(tmp_path / "rules.json"))
    assert code == 2
    assert "--plan breaks --rules" in said
    assert "residency: gdpr" in said
    assert not (tmp_path / "data").exists()


def test_rules_of_what_does_not_run_cannot_be_asked_for(tmp_path: Path) -> None:
    code, said = told("rules", "--dir", str(tmp_path))
    assert (code, "no overlay runs from this directory" in said) == (2, True), said
    code, said = told("rules", "--dir", str(tmp_path), "--clear", "--per-filter", "1")
    assert (code, "--clear cannot go with" in said) == (2, True), said
    code, said = told("up", "--dir", str(tmp_path / "m"), "--matchmaking", "shared", "--per-filter", "1")
    assert (code, "--per-filter cannot go with --matchmaking" in said) == (2, True), said


def test_status_shows_rules_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"name": "gdpr", "events": "x > 5", "not_in": {"brokers": ["v1"]}}
    record: dict[str, object] = {"revision": 4, "rules": {"residency": [rule]}, "per_filter": 0.5}
    lines = rule_lines(record)
    assert lines[0] == "rules, revision 4: residency: gdpr"
    assert lines[1] == "weights: 0.5 a month for a stored filter, 0 for a million matchings"
    assert rule_lines({"revision": 5}) == ["rules, revision 5: none"]
    assert rule_lines({"unusable": "broken"}) == ["rules: the record cannot be used: broken"]
    for damaged in ({"residency": [1]}, {"residency": [{}]}, [3], {"quota_bytes_per_month": 7}):
        (line,) = rule_lines({"revision": 6, "rules": damaged})
        assert line.startswith("rules, revision 6: damaged")
    code, told_of_key = told("rules", "--control", "nats://127.0.0.1:1")
    assert (code, "give --key with --control" in told_of_key) == (2, True)
    said: list[str] = []
    monkeypatch.setattr(status_text, "say", said.append)
    status_text.show(Overview("leader", rules=record))
    assert said[1:3] == lines


def test_a_coordinator_checks_its_schemes_at_the_start(key: Path) -> None:
    where = ("coordinator", "--control", "nats://127.0.0.1:1", "--key", str(key))
    code, said = told(*where, "--schemes", "mult nosuch")
    assert (code, "nosuch" in said) == (2, True), said


def test_a_directory_keeps_its_overlay(tmp_path: Path) -> None:
    files = Directory(tmp_path / "data")
    files.create(line(3))
    files.create(line(3))
    dearer = Overlay.build(
        "line", ["v0", "v1", "v2"], [Link(f"v{i}", f"v{i + 1}", 9.0, 9.0, 9.0) for i in (0, 1)]
    )
    assert dearer.brokers == line(3).brokers
    with pytest.raises(InputError, match="other prices, latencies"):
        files.create(dearer)
    with pytest.raises(InputError, match="holds overlay"):
        files.create(line(4))
    assert files.overlay() == line(3)
    # without --overlay the one that is there counts
    assert overlay._overlay_of(files, None, None) == line(3)
    assert overlay._overlay_of(Directory(tmp_path / "new"), None, None).name == "cloud-regions"


def test_keys_for_standbys_are_made_and_stay_let_in(tmp_path: Path) -> None:
    where = ("keys", "--dir", str(tmp_path / "data"))
    code, said = told(*where, "--overlay", "ring:3", "--coordinator", "east", "--coordinator", "west")
    assert code == 0, said
    files = Directory(tmp_path / "data")
    publics = {
        name: files.ring.pair(ControlRole(name)).public for name in (COORDINATOR, "east", "west", "v0")
    }
    assert str(files.ring.path(ControlRole("east"))) in said.replace(" ", "")
    for more in ((), ("--client", "alice@v0"), ("--coordinator", "east")):
        assert told(*where, *more)[0] == 0
        accounts = (tmp_path / "data" / "accounts" / "control.conf").read_text()
        assert {name: public in accounts for name, public in publics.items()} == dict.fromkeys(
            publics, True
        )
    assert files.coordinators() == [COORDINATOR, "east", "west"]
    for taken in ("v0", "viewer"):
        code, said = told(*where, "--coordinator", taken)
        assert (code, "another name" in said) == (2, True), said


# ------------------------------------------------------------------------------------------------ status


def shown(width: int | None, monkeypatch: pytest.MonkeyPatch, view: Overview) -> list[str]:
    """What `status` prints to a terminal that is so wide, or to a pipe."""
    console = Console(width=width or 80, force_terminal=width is not None, color_system=None, record=True)
    monkeypatch.setattr(status_text, "out", console)
    with console.capture() as captured:
        status_text.show(view)
    return captured.get().splitlines()


def busy(name: str, i: int, **more: object) -> BrokerView:
    links = {"x": LinkCount(10_000 + i, 98_765_432, 0)}
    counts = {"published": 100_000 + i, "events": 110_000 + i, "deliveries": 120_000 + i, "links": links}
    status = Status(name, "s", time.time(), 1.0, 3, 12, True, **counts, **more)  # type: ignore[arg-type]
    return BrokerView(name, "routing", status, 0.1)


REGIONS = Overview("coordinator", [], [busy(name, i) for i, name in enumerate(cloud_regions().brokers)])


def test_a_narrow_terminal_shortens_names_and_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(86, monkeypatch, REGIONS)
    rows = [text for text in lines if " routing " in text]
    assert len(rows) == len(REGIONS.brokers) == 41
    assert max(map(len, lines)) <= 86
    names = {text.split()[0] for text in rows}
    assert any("…" in name for name in names)
    for i, text in enumerate(rows):
        wanted = [
            "3.12",
            f"{100_000 + i:,}",
            f"{110_000 + i:,}",
            f"{10_000 + i:,}",
            "98.8",
            f"{120_000 + i:,}",
        ]
        assert text.split()[2:8] == wanted
        assert "…" not in " ".join(text.split()[1:])


def test_even_where_nothing_fits_numbers_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [text for text in shown(40, monkeypatch, REGIONS) if " routing " in text]
    assert [text.split()[3] for text in rows] == [f"{100_000 + i:,}" for i in range(41)]


def test_a_pipe_has_whole_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [text for text in shown(None, monkeypatch, REGIONS) if " routing " in text]
    assert [text.split()[0] for text in rows] == list(cloud_regions().brokers)
    assert not [text for text in rows if "…" in text]


def test_trouble_and_recoveries_show_also_while_a_broker_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Overview(
        "k", [], [busy("a", 0, trouble="disk is full [x]"), busy("b", 0, recoveries=3), busy("c", 0)]
    )
    lines = shown(None, monkeypatch, view)
    assert "a: trouble: disk is full [x]" in lines
    assert "b: started over from its log 3 times" in lines
    assert not [text for text in lines if text.startswith("c:")]


def test_what_the_run_before_left_does_not_count_as_routing() -> None:
    now = time.time()

    def view(started: float, epoch: int, newest: int) -> Overview:
        status = Status("a", "s", now, started, epoch, 0, True)
        return Overview(
            "k", [EpochView(newest, "flipped", 0, "p", {})], [BrokerView("a", "routing", status, 0.1)]
        )

    assert view(now + 1, 2, 2).behind(since=now) == []
    assert view(now - 1, 2, 2).behind(since=now) == ["a"]
    assert view(now + 1, 1, 2).behind(since=now) == ["a"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("up", "--client", "alice@paris"), "is not NAME@BROKER"),
        (("up", "--matchmaking", "shared", "--client", "alice"), "is not NAME@BROKER"),
        (("keys", "--client", "alice"), "is not NAME@BROKER"),
        (("up", "--spark", "sparkle"), "not the URL of a Spark; allowed are auto, none, local[*]"),
    ],
)
def test_what_is_refused_leaves_no_directory(tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    """The next try may name another overlay."""
    command, *more = words
    code, said = told(command, "--dir", str(tmp_path / "data"), "--overlay", "ring:3", *more)
    assert code == 2
    assert what in said
    assert not (tmp_path / "data" / "overlay.json").exists()


@pytest.mark.parametrize("command", [("sub",), ("pub", "-")])
def test_a_client_of_a_directory_without_an_overlay_is_told_so(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    code, said = told(*command, "--dir", str(tmp_path / "nothing"), "--client", "alice")
    assert code == 2
    assert "no overlay here: give the directory of a running `ramify up`" in said
    (tmp_path / "nothing" / "clients").mkdir(parents=True)
    code, said = told(*command, "--dir", str(tmp_path / "nothing"), "--client", "alice")
    assert code == 2
    assert "no client 'alice' here" in said

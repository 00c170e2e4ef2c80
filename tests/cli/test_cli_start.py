"""What commands and clients load: no more than their work needs, and a table that tells the truth."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from imports import HEAVY, command, loaded
from ramify.cli import app
from ramify.cli.app import COMMANDS
from ramify.errors import MissingExtraError

LIGHT = {
    "version": ("--version",),
    "help": ("--help",),
    "filter": ("filter", "price > 3"),
    "filter on an event": ("filter", "price > 3", "--event", '{"price": 4}'),
    "pattern": ("filter", '{"a": [1]}', "--spelling", "pattern"),
    # of a running overlay: `test_cli_messaging` and `test_live_machine`
    "status": ("status", "--dir", "/nowhere"),
    "rules": ("rules", "--dir", "/nowhere"),
    "pub": ("pub", "--help"),
    "spark": ("spark", "--help"),
}


@pytest.mark.parametrize("words", LIGHT.values(), ids=LIGHT)
def test_light_commands_load_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded(command(*words), HEAVY) == []


def test_status_with_rules_needs_nothing_that_plans_need() -> None:
    rules = {"residency": [{"name": "gdpr", "events": "x > 5", "not_in": {"brokers": ["v1"]}}]}
    shown = (
        "from ramify.cli.status_text import show\n"
        "from ramify.overlay.live.host.overview import Overview\n"
        f"show(Overview('leader', rules={ {'revision': 4, 'rules': rules}!r}))"
    )
    assert loaded(shown, HEAVY) == []


@pytest.mark.parametrize("words", [LIGHT[name] for name in ("version", "help", "filter", "status")])
def test_commands_without_events_do_not_load_arrow(words: tuple[str, ...]) -> None:
    assert loaded(command(*words), ("pyarrow",)) == []


def test_a_client_loads_arrow_with_its_first_batch() -> None:
    names = (*HEAVY, "numpy", "pyarrow", "sqlglot")
    assert loaded("import ramify; ramify.Client; ramify.BlockingClient", names) == []
    first = (
        "import ramify; ramify.Client\n"
        "from ramify.overlay.live.client.outbox import outgoing\n"
        "outgoing({'id': 'a', 'source': 's', 'type': 't', 'specversion': '1.0'}, b'secret')"
    )
    assert loaded(first, ("pyarrow", "sqlglot", "numba", "pyspark")) == ["pyarrow"]


TASK_MODULES = {
    "ramify.pipeline.passes.files": "looking at files",
    "ramify.pipeline.passes.pieces": "reading them",
    "ramify.pipeline.passes.generated": "drawing a workload",
}


@pytest.mark.parametrize("module", TASK_MODULES, ids=TASK_MODULES.values())
def test_tasks_that_count_nothing_load_no_compiler(module: str) -> None:
    assert loaded(f"import {module}", (*HEAVY, "sqlglot")) == []


def test_a_task_that_counts_loads_the_compiler_and_no_frames() -> None:
    assert loaded("import ramify.pipeline.passes.passes", ("numba", "pandas", "pyspark")) == ["numba"]


def test_the_table_of_commands_is_what_the_modules_have() -> None:
    for entry in COMMANDS.values():
        import_module(f"ramify.cli.{entry.module}")
    found = {}
    for info in app.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__
        lines = (inspect.getdoc(info.callback) or "").split("\n\n")[0]
        found[name] = info.callback.__module__, " ".join(lines.split())
    for group in app.registered_groups:
        assert group.typer_instance is not None
        found[str(group.name)] = "ramify.cli.spark", str(group.typer_instance.info.help)
    assert found == {name: (f"ramify.cli.{e.module}", e.help) for name, e in COMMANDS.items()}


def test_a_near_miss_is_suggested_and_a_command_completes() -> None:
    runner = CliRunner()
    wrong = runner.invoke(app, ["plam"])
    assert wrong.exit_code == 2
    assert "'plan'" in wrong.output
    group = get_group(app)
    context = group.make_context("ramify", [], resilient_parsing=True)
    assert [item.value for item in group.shell_complete(context, "pl")] == ["plan"]


def test_a_missing_extra_is_named_in_one_line() -> None:
    block = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('scipy', 'pyspark'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    for words, extra in ((("plan", "--help"), "plan"), (("workload", "demo"), "plan")):
        done = subprocess.run(
            [sys.executable, "-c", block + command(*words)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert f"pip install 'ramify[{extra}]'" in done.stderr
    assert MissingExtraError.of(ModuleNotFoundError(name="nothing_of_ours")) is None

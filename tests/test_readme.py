"""README.md is true: its Python runs, its commands exist, its links lead somewhere."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ramify.cli import app
from ramify.cli.messages import as_published
from ramify.content.events.events import batch_to_events
from ramify.content.events.readers import read_events
from ramify.content.filters.sql import parse_sql
from ramify.overlay.live.wire.tasks import run_to_end

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_python_examples_run(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "assert" in code
    monkeypatch.chdir(ROOT)
    (ROOT / "build").mkdir(exist_ok=True)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "command",
    re.findall(r"ramify ((?:filter|overlay|workload|list|match|plan)[^`\n]*(?:\n[^`]*)?)[`\n]", README),
)
def test_the_commands_work(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (ROOT / "build").mkdir(exist_ok=True)
    words = shlex.split(command.replace("\n", " ").split("```")[0])
    result = CliRunner().invoke(app, words)
    # the example log holds one bad event and one bad subscription on purpose
    assert result.exit_code == (1 if "examples/events.ndjson" in words else 0), result.output


def test_the_live_example_publishes_what_it_subscribes_to() -> None:
    (sql,) = re.findall(r'ramify sub --dir \S+ --client \w+ --sql "(.*)"', README)
    (file,) = re.findall(r"ramify pub --dir \S+ --client \w+ (\S+)", README)
    (part,) = read_events(ROOT / file)
    assert not part.rejected
    wanted = [event for event in batch_to_events(part.batch) if parse_sql(sql, {}).holds(event.attributes)]
    assert len(wanted) == 2
    # printed as they are, not wrapped
    assert [as_published(part.batch, row)["type"] for row in (0, 1)] == ["order.created"] * 2


def test_the_example_of_a_client_tells_of_a_publish_that_was_refused() -> None:
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples" / "any_language_client.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    answer = {"error": {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}}

    class Full:
        async def request(self, *_: object, **__: object) -> SimpleNamespace:
            return SimpleNamespace(data=json.dumps(answer).encode())

    with pytest.raises(SystemExit, match="not published: maximum bytes exceeded"):
        run_to_end(example.publish(Full(), "alice", b"secret", {"source": "s", "id": "1"}))


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets


def test_the_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_placeholder_is_left() -> None:
    assert not re.findall(r"\b[A-Z]+_[A-Z_]+\b", re.sub(r"```.*?```", "", README, flags=re.DOTALL))

"""`ramify sigma` as a user types it: rules in, subscriptions out, the others named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramify.cli import app
from ramify.content.filters.subscriptions import read_subscriptions

RULE = """\
title: A fetcher at work
id: {id}
logsource:
    product: windows
detection:
    selection:
        Image|endswith: '\\fetcher.exe'
        EventID: 1
    filter:
        User|contains: SYSTEM
    condition: selection and not filter
level: high
"""
WANTED = ("--client", "soc", "--broker", "b")
BOMB = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 8)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    pytest.importorskip("yaml", reason="the extra sigma is not installed")
    return tmp_path


def test_rules_become_subscriptions_that_match(rules: Path) -> None:
    (rules / "one.yml").write_text(RULE.format(id="rule-1"))
    (rules / "deep").mkdir()
    two = RULE.replace("id: {id}\n", "")
    (rules / "deep" / "two.yaml").write_text(f"{two}---\n{two}---\n")
    file = rules / "subscriptions.jsonl"
    code, out, err = run("sigma", str(rules), *WANTED, "--prefix", "data.", "--out", str(file))
    assert (code, out) == (0, ""), err
    assert "3 subscriptions, 0 refused" in err
    read = read_subscriptions(file)
    assert not read.bad
    assert [row.id for row in read.good] == ["two", "two-2", "rule-1"]
    for filter_ in read.filters:
        fetch = {"data.Image": "C:\\FETCHER.EXE", "data.EventID": "1"}
        assert filter_.holds(fetch)
        assert not filter_.holds({**fetch, "data.User": "nt authority\\system"})


def test_fields_have_the_names_that_events_use(rules: Path) -> None:
    (rules / "one.yml").write_text(RULE.format(id="rule-1"))
    names = ("--prefix", "data.", "--field", "Image=process.path", "--field", "EventID=code")
    code, out, _ = run("sigma", str(rules / "one.yml"), *WANTED, *names)
    assert code == 0
    assert json.loads(out) == {
        "id": "rule-1",
        "client": "soc",
        "broker": "b",
        "sigma": {
            "selection": {"process.path|endswith": "\\fetcher.exe", "code": 1},
            "filter": {"data.User|contains": "SYSTEM"},
            "condition": "selection and not filter",
        },
    }
    assert run("sigma", str(rules), *WANTED, "--field", "Image")[0] == 2


def test_keywords_are_looked_for_in_the_field_that_is_named(rules: Path) -> None:
    file = rules / "words.yml"
    file.write_text("detection:\n  words: [evil, '*worse']\n  condition: words\n")
    code, out, err = run("sigma", str(file), *WANTED)
    assert (code, out) == (1, "")
    assert "--text-field" in err
    code, out, _ = run("sigma", str(file), *WANTED, "--text-field", "message")
    assert code == 0
    (filter_,) = read_subscriptions([out]).filters
    assert filter_.holds({"message": "the EVIL one"})
    assert not filter_.holds({"message": "good"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("detection: [", "not YAML"),
        ("just text", "a rule is a map"),
        ("title: x", "no detection"),
        ("correlation: {type: event_count}", "several events"),
        ("action: global\ndetection: {condition: s}", "action: global"),
        ("detection:\n  s: {f: 1, f: 2}\n  condition: s", "'f' stands twice"),
        ("detection:\n  s: {f: 2024-01-01}\n  condition: s", "as a date"),
        ("detection:\n  s: {yes: 1}\n  condition: s", "a key as True"),
        ("detection:\n  s: {f: !!binary YQ==}\n  condition: s", "no value of a field"),
        ("detection:\n  s: {f|re: '\\d+'}\n  condition: s", "cannot be decided"),
        ("detection:\n  s: &s [*s]\n  condition: s", "too deep"),
        (BOMB + "detection:\n  s: {f: *i}\n  condition: s", "too long"),
        ("x: !!python/object/apply:os.getcwd []", "not YAML"),
        ("[" * 20_000, "not YAML"),
        ("#" * ((1 << 20) + 1), "split it"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named_and_the_others_are_kept(
    rules: Path, text: str, reason: str
) -> None:
    (rules / "bad.yml").write_text(text)
    (rules / "good.yml").write_text(RULE.format(id="rule-1"))
    code, out, err = run("sigma", str(rules), *WANTED)
    assert code == 1
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["rule-1"]
    assert f"{rules / 'bad.yml'}" in err
    assert reason in err
    assert "1 subscription, 1 refused" in err


def test_an_id_is_used_once(rules: Path) -> None:
    for name in ("one.yml", "two.yml"):
        (rules / name).write_text(RULE.format(id="rule-1"))
    code, out, err = run("sigma", str(rules), *WANTED)
    assert (code, len(out.splitlines())) == (1, 1)
    assert "two.yml: another rule has the id 'rule-1'" in err


def test_a_file_that_is_not_there_ends_the_command(rules: Path) -> None:
    code, _, err = run("sigma", str(rules / "none.yml"), *WANTED)
    assert code == 2
    assert "cannot be read" in err


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    (tmp_path / "one.yml").write_text(RULE.format(id="rule-1"))
    block = (
        "import sys; sys.modules['yaml'] = None\n"
        "from ramify.cli import main; sys.argv = sys.argv[1:]; main()"
    )
    words = ["ramify", "sigma", str(tmp_path), *WANTED]
    done = subprocess.run(
        [sys.executable, "-c", block, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "pip install 'ramify[sigma]'" in done.stderr


def test_the_other_commands_take_the_spelling(tmp_path: Path) -> None:
    rule = json.dumps({"s": {"Image|endswith": "\\x.exe"}, "condition": "s"})
    assert run("filter", rule, "--spelling", "sigma")[1].startswith("valid: 1 box over Image")
    code, out, _ = run("filter", rule, "--spelling", "sigma", "--event", '{"Image": "C:\\\\X.EXE"}')
    assert code == 0
    assert out.startswith("matches")
    code, out, _ = run("test-filter", rule, "--spelling", "sigma", "--event", '{"Image": "y"}', "--explain")
    assert "does not match" in out
    file = tmp_path / "cases.jsonl"
    case = {"sigma": json.loads(rule), "event": {"Image": "C:\\x.exe"}, "expect": True}
    file.write_text(json.dumps(case) + "\n" + json.dumps({**case, "sigma": {}, "expect": "refused"}))
    assert run("test-filter", "--cases", str(file))[0] == 0


def test_files_without_a_rule_are_named(tmp_path: Path) -> None:
    code, _, said = run("sigma", str(tmp_path), "--client", "soc", "--broker", "v0")
    assert code == 2
    assert "no file below ends in .yml or .yaml" in said
    (tmp_path / "empty.yml").write_text("# nothing yet\n")
    code, _, said = run("sigma", str(tmp_path), "--client", "soc", "--broker", "v0")
    assert code == 1
    assert "the file holds no rule" in said

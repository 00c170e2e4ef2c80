"""Settings of a broker in a file: what was written is read, and what is wrong is named."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.overlay.control.frames import Limits
from ramify.overlay.live.host.broker_files import (
    BrokerFile,
    MatchEntry,
    ServerEntry,
    read_broker_file,
    write_broker_file,
)
from ramify.overlay.live.wire.security import KeyRing, RouterRole
from ramify.overlay.live.wire.streams import Sizes

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
entries = st.builds(
    ServerEntry,
    st.integers(1, 65535).map("nats://127.0.0.1:{}".format),
    st.none()
    | st.text("abc/ é\"'\\", min_size=1, max_size=9).map(lambda text: Path("/k") / text.strip("/")),
)
settings_ = st.builds(
    BrokerFile,
    name=names.map("n".__add__),
    server=entries,
    control=entries,
    neighbours=st.dictionaries(names.map("m".__add__), entries, max_size=3),
    sizes=st.builds(Sizes, *(st.integers(1, 1 << 40) for _ in range(4))),
    limits=st.builds(Limits, max_event_bytes=st.integers(1, 1 << 20)),
    linger_ms=st.floats(0, 1000),
    sample_probability=st.floats(0, 1),
    metrics_port=st.none() | st.integers(0, 65535),
    client_url=st.sampled_from(["", "tls://v1.example.com:4222"]),
)


matched = st.builds(
    lambda settings, entry: replace(settings, control=None, matchmaking=entry),
    settings_,
    st.builds(MatchEntry, st.just(Path("/o v.json")), st.sampled_from(["shared", "per-source"])),
)


@given(settings_ | matched)
def test_what_was_written_is_read(settings: BrokerFile) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "broker.toml"
        write_broker_file(path, settings)
        assert read_broker_file(path) == settings


GOOD = """
name = "v1"
[server]
url = "nats://127.0.0.1:1"
[control]
url = "nats://127.0.0.1:2"
[neighbours."v2"]
url = "nats://127.0.0.1:3"
"""


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "v1"', "", "name"),
        ('name = "v1"', "name = 7", r"\$\.name"),
        ('name = "v1"', 'name = "v1"\nmetrics_port = 70000', "metrics_port is 70000"),
        ('name = "v1"', 'name = "v1"\nlinger_ms = -1.0', "linger_ms is -1"),
        ('name = "v1"', 'name = "v1"\nsample_probability = 2.0', "sample_probability is 2"),
        ('name = "v1"', 'name = "v1"\nspeed = 1', "speed"),
        ('name = "v1"', 'name = "v1"\nclient_url = "v1"', "client_url is 'v1'"),
        ("nats://127.0.0.1:2", "http://x", "control.url"),
        ('[control]\nurl = "nats://127.0.0.1:2"', "", "either control"),
        ("[control]", '[matchmaking]\noverlay = "o.json"\n[control]', "either control"),
        (
            '[control]\nurl = "nats://127.0.0.1:2"',
            '[matchmaking]\noverlay = "o.json"\ntrees = "oaks"',
            "matchmaking.trees is 'oaks'",
        ),
        ('"v2"', '"v1"', "neighbours.v1"),
        ('"v2"', '""', "1 to 128 bytes"),
        ("[server]", "[sizes]\nout = 0\n[server]", "sizes.out is 0"),
        ("[server]", "[limits]\nmax_speed = 1\n[server]", "limits.max_speed"),
        ("[server]", "[server", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(GOOD)
    assert read_broker_file(path).neighbours["v2"].url == "nats://127.0.0.1:3"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=named) as caught:
        read_broker_file(path)
    assert str(path) in str(caught.value)


def test_seeds_are_read_from_their_files_and_must_be_private(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    pair = ring.pair(RouterRole("v1"))
    path = tmp_path / "b.toml"
    path.write_text(GOOD.replace(':1"', ':1"\nseed_file = "keys/router-v1.nk"'))
    config = read_broker_file(path).config()
    assert config.broker.server.seed == pair.seed
    assert pair.seed not in repr(read_broker_file(path))
    ring.path(RouterRole("v1")).chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_broker_file(path).config()
    ring.path(RouterRole("v1")).unlink()
    with pytest.raises(InputError, match="no such key"):
        read_broker_file(path).config()

"""Beyond this machine nothing is said in the clear: addresses are judged, nobody is called."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramify.cli import app
from ramify.errors import InputError
from ramify.overlay.live.broker.controlled import ControlledConfig
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.broker_files import read_broker_file, write_broker_file
from ramify.overlay.live.wire.connection import SteadyConnection
from ramify.overlay.live.wire.security import check_clear_text, new_user
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.overlay.live.wire.tls import TlsFiles

HERE = ("nats://127.0.0.1:4222", "nats://127.8.9.1:4222", "nats://[::1]:4222", "nats://localhost:4222")
ELSEWHERE = (
    *(
        "nats://10.0.0.1:4222",
        "nats://example.org:4222",
        "nats://[2001:db8::1]:4222",
        "nats://0.0.0.0:4222",
    ),
    *("nats://127.0.0.1.example.org:4222", "nats://127.0.0.1@example.org:4222", "nats://", "10.0.0.1:4222"),
    "nats://127.0.0.1:4222,nats://10.0.0.1:4222",
)
MEND = r"in the clear.*tls://.*--insecure-clear-text"


@pytest.mark.parametrize("url", HERE)
def test_this_machine_may_be_spoken_to_in_the_clear(url: str) -> None:
    assert Endpoint(url).context() is None


@pytest.mark.parametrize("url", ELSEWHERE)
def test_no_other_may(url: str) -> None:
    with pytest.raises(InputError, match=MEND):
        Endpoint(url)
    with pytest.raises(InputError, match=MEND):
        Client.connect("a", url)
    assert Endpoint(url, insecure_clear_text=True).context() is None
    Client.connect("a", url, insecure_clear_text=True)
    assert Endpoint("tls://10.0.0.1:4222").context() is not None
    check_clear_text(url, tls=True)


SETTINGS = """
name = "v1"
{more}
[server]
url = "nats://127.0.0.1:15001"
[control]
url = "{control}"
[neighbours."v2"]
url = "{neighbour}"
"""


@pytest.mark.parametrize(
    ("more", "control", "neighbour", "named"),
    [
        ("", "nats://10.0.0.1:4222", "tls://v2:4222", "control.url"),
        ("", "tls://c:4222", "nats://10.0.0.1:4222", "neighbours.v2.url"),
        # the files for servers tls:// are not those of a server nats://
        ('tls_ca = "ca.pem"', "tls://c:4222", "nats://10.0.0.1:4222", "neighbours.v2.url"),
        ('client_url = "nats://v1:4222"', "tls://c:4222", "tls://v2:4222", "client_url"),
    ],
)
def test_a_broker_refuses_settings_that_speak_in_the_clear(
    tmp_path: Path, more: str, control: str, neighbour: str, named: str
) -> None:
    file = tmp_path / "v1.toml"
    file.write_text(SETTINGS.format(more=more, control=control, neighbour=neighbour))
    with pytest.raises(InputError, match=rf"v1\.toml: {named} .*{MEND}"):
        read_broker_file(file)
    file.write_text(
        SETTINGS.format(more=f"{more}\ninsecure_clear_text = true", control=control, neighbour=neighbour)
    )
    settings = read_broker_file(file)
    if "ca.pem" not in more:
        made = settings.config()
        assert isinstance(made, ControlledConfig)
        assert made.control.insecure_clear_text
    write_broker_file(file, settings)
    assert read_broker_file(file) == settings


@pytest.mark.parametrize(
    "command",
    [
        ("pub", "--client", "a", "--url"),
        ("sub", "--client", "a", "--sql", "x = 1", "--url"),
        ("status", "--control"),
        ("rules", "--control"),
        ("coordinator", "--overlay", "ring:3", "--control"),
    ],
    ids=lambda command: command[0],
)
def test_commands_refuse_it_and_say_what_to_do(tmp_path: Path, command: tuple[str, ...]) -> None:
    key = tmp_path / "a.nk"
    key.touch(mode=0o600)
    key.write_text(new_user().seed)
    done = CliRunner().invoke(app, [*command, "nats://10.0.0.1:4222", "--key", str(key)])
    assert done.exit_code == 2
    assert "--insecure-clear-text" in " ".join(done.output.split())
    assert CliRunner().invoke(app, [command[0], "--insecure-clear-text", "--help"]).exit_code == 0


def test_a_server_in_the_clear_names_no_others_to_speak_to() -> None:
    """Who answers in its place could name its own."""

    async def pool(*, trusted: bool) -> list[str]:
        connection = SteadyConnection(trusts_announced=trusted)
        connection._setup_server_pool(["nats://127.0.0.1:4222"])
        connection._current_server = connection._server_pool[0]
        connection.options["dont_randomize"] = True
        await connection._process_info({"connect_urls": ["10.0.0.1:4222"]}, initial_connection=True)
        return [server.uri.netloc for server in connection._server_pool]

    assert run_to_end(pool(trusted=False)) == ["127.0.0.1:4222"]
    assert run_to_end(pool(trusted=True)) == ["127.0.0.1:4222", "10.0.0.1:4222"]
    assert TlsFiles().context() is None

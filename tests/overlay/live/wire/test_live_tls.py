"""TLS between machines: every kind of server is met, nothing goes in the clear, errors say what to do."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from machines import small_line
from obedient import ACCOUNTS, USERS
from ramify.errors import InputError, LiveError
from ramify.overlay.live.broker.controlled import ControlledBroker
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.host.broker_files import (
    BrokerFile,
    ServerEntry,
    read_broker_file,
    write_broker_file,
)
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.security import ClientRole, ControlRole, NeighbourRole, RouterRole
from ramify.overlay.live.wire.streams import Endpoint, api, connect
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.overlay.live.wire.tls import TlsFiles
from running import SMALL

LIMIT_S = 240.0
CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
HELLO = {"specversion": "1.0", "id": "1", "source": "shop", "type": "order"}


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.ca, self._key = directory / f"{name}.pem", directory / f"{name}.key"
        self._run("req", "-x509", *CURVE, "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.ca)

    def signed(self, name: str) -> tuple[Path, Path]:
        cert, key, asked = (self.directory / f"{name}.{end}" for end in ("pem", "key", "csr"))
        names = self.directory / "names"
        names.write_text("subjectAltName=IP:127.0.0.1")
        self._run("req", "-new", *CURVE, "-subj", f"/CN={name}", "-keyout", key, "-out", asked)
        signer = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial")
        self._run("x509", "-req", "-in", asked, *signer, "-extfile", names, "-out", cert)
        return cert, key

    def _run(self, *arguments: object) -> None:
        try:
            subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True)
        except FileNotFoundError:
            pytest.skip("no openssl here to make certificates with")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


class Secret(Server):
    """A server as people set theirs up; one that begins with the handshake greets nobody in the clear."""

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.config.port)
        except OSError:
            return False
        writer.close()
        return True

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.config.port}"


def block(authority: Authority, first: str | None, *, verify: bool = False) -> str:
    cert, key = authority.signed("server")
    lines = [f'cert_file: "{cert}"', f'key_file: "{key}"', f'ca_file: "{authority.ca}"']
    lines += [] if first is None else [f"handshake_first: {first}"]
    lines += ["verify: true"] if verify else []
    return "tls { " + "; ".join(lines) + " }\n"


KINDS = pytest.mark.parametrize("first", [None, "auto", "true"])


def endpoint(url: str, tls: TlsFiles) -> Endpoint:
    return Endpoint(url, USERS["test"].seed, ControlRole("test").inbox_prefix, "test", tls.context())


@asynccontextmanager
async def serving(directory: Path, text: str = "") -> AsyncIterator[Server]:
    server = Secret(ServerConfig("s", directory / "s", text + ACCOUNTS))
    try:
        async with asyncio.timeout(LIMIT_S):
            await server.start()
            yield server
    finally:
        await server.stop()


@KINDS
@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_a_server_is_met_however_it_begins_and_met_again(
    tmp_path: Path, authority: Authority, first: str | None, scheme: str
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, block(authority, first)) as server:
            url = server.url.replace("tls", scheme)
            connection = await connect(endpoint(url, TlsFiles(authority.ca)))
            assert (await api(connection, "STREAM.NAMES", {}))["total"] == 0
            await server.stop()
            await server.start()
            while True:
                try:
                    assert (await api(connection, "STREAM.NAMES", {}))["total"] == 0
                    break
                except LiveError:
                    await asyncio.sleep(0.1)
            await connection.close()

    run_to_end(scenario())


@KINDS
@pytest.mark.parametrize("ca", ["none", "other"])
def test_a_server_that_is_not_trusted_is_an_error_at_once(
    tmp_path: Path, authority: Authority, stranger: Authority, first: str | None, ca: str
) -> None:
    files = TlsFiles(stranger.ca if ca == "other" else None)

    async def scenario() -> None:
        async with serving(tmp_path, block(authority, first)) as server:
            with pytest.raises(LiveError, match=r"not trusted.*--tls-ca"):
                await connect(endpoint(server.url, files))

    run_to_end(scenario())


@KINDS
def test_a_server_that_verifies_wants_a_certificate(
    tmp_path: Path, authority: Authority, first: str | None
) -> None:
    cert, key = authority.signed("client")

    async def scenario() -> None:
        async with serving(tmp_path, block(authority, first, verify=True)) as server:
            with pytest.raises(LiveError, match=r"refused the handshake.*--tls-cert"):
                await connect(endpoint(server.url, TlsFiles(authority.ca)))
            connection = await connect(endpoint(server.url, TlsFiles(authority.ca, cert, key)))
            assert (await api(connection, "STREAM.NAMES", {}))["total"] == 0
            await connection.close()

    run_to_end(scenario())


def test_a_server_without_tls_is_told_nothing(tmp_path: Path, authority: Authority) -> None:
    """Also one that says so because someone between has changed its greeting."""
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1024,"nonce":"abc"}\r\n')
        heard.extend(await reader.read(1 << 16))
        writer.close()

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S):
            server = await asyncio.start_server(plain, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            for url, files in (
                (f"tls://127.0.0.1:{port}", TlsFiles()),
                (f"nats://127.0.0.1:{port}", TlsFiles(authority.ca)),
            ):
                with pytest.raises(LiveError, match="offers no TLS"):
                    await connect(endpoint(url, files))
            await asyncio.sleep(0.1)
            server.close()

    run_to_end(scenario())
    assert not heard


def test_files_that_are_no_certificates_are_named(tmp_path: Path, authority: Authority) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    cert, _ = authority.signed("one")
    _, other = authority.signed("two")
    for files, named in (
        (TlsFiles(tmp_path / "none.pem"), "none.pem"),
        (TlsFiles(bad), "bad.pem"),
        (TlsFiles(authority.ca, bad, other), "bad.pem"),
        (TlsFiles(authority.ca, cert, other), "one.pem"),
        (TlsFiles(authority.ca, cert, tmp_path / "none.key"), "none.key"),
        (TlsFiles(key=other), "two.key"),
    ):
        with pytest.raises(InputError, match=named):
            files.context()
    assert TlsFiles().context() is None


def test_settings_for_all_servers_count_where_the_url_is_tls(tmp_path: Path) -> None:
    text = """
name = "v1"
tls_ca = "ca.pem"
[server]
url = "nats://127.0.0.1:1"
[control]
url = "tls://c:2"
[neighbours."v2"]
url = "tls://b:3"
tls_ca = "/other.pem"
tls_cert = "me.pem"
"""
    path = tmp_path / "v1.toml"
    path.write_text(text)
    found = read_broker_file(path)
    assert found.server.tls == TlsFiles()
    assert found.control.tls == TlsFiles(tmp_path / "ca.pem")
    assert found.neighbours["v2"].tls == TlsFiles(Path("/other.pem"), tmp_path / "me.pem")
    write_broker_file(path, found)
    assert read_broker_file(path) == found
    with pytest.raises(InputError, match=r"ca\.pem|other\.pem"):
        found.config()


# --------------------------------------------------------------------------------------- a whole overlay


class Secured:
    """Two brokers and a control server, each with another kind of TLS, with what `ramify keys` writes."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.overlay = small_line(2)
        self.files = Directory(directory)
        self.files.create(self.overlay)
        self.files.add_clients(dict(zip(("alice", "bob"), self.overlay.brokers, strict=True)))
        self.site = BrokerSite(self.overlay, directory, self.files.clients(), SMALL)
        self.tls = TlsFiles(authority.ca, *authority.signed("us"))
        texts = {
            self.overlay.brokers[0]: block(authority, None) + self.site.accounts(self.overlay.brokers[0]),
            self.overlay.brokers[1]: block(authority, "auto") + self.site.accounts(self.overlay.brokers[1]),
            "control": block(authority, "true", verify=True) + self.files.control_accounts(),
        }
        self.servers = {
            name: Secret(ServerConfig(name, directory / "servers" / name, text))
            for name, text in texts.items()
        }

    def seed_file(self, role: RouterRole | NeighbourRole | ControlRole | ClientRole) -> Path:
        self.site.ring.pair(role)
        return self.site.ring.path(role)

    def broker(self, name: str) -> ControlledBroker:
        def entry(server: str, role: RouterRole | NeighbourRole | ControlRole) -> ServerEntry:
            return ServerEntry(self.servers[server].url, self.seed_file(role), self.tls)

        path = self.files.path / f"{name}.toml"
        neighbours = {other: entry(other, NeighbourRole(name)) for other in self.site.neighbours(name)}
        own, control = entry(name, RouterRole(name)), entry("control", ControlRole(name))
        write_broker_file(path, BrokerFile(name, own, control, neighbours, SMALL))
        return ControlledBroker(read_broker_file(path).config())

    def coordinator(self) -> Coordinator:
        role = ControlRole("coordinator")
        seed = self.site.ring.pair(role).seed
        control = Endpoint(self.servers["control"].url, seed, role.inbox_prefix, "k", self.tls.context())
        return Coordinator(CoordinatorConfig("coordinator", control, overlay=self.overlay))

    def client(self, name: str, ca: Path | None) -> tuple[str, str, dict[str, object]]:
        context = None if ca is None else ssl.create_default_context(cafile=str(ca))
        url = self.servers[self.site.clients[name]].url
        return name, url, {"seed_file": self.seed_file(ClientRole(name)), "tls": context, "timeout_s": 30.0}


async def command(*arguments: object, given: bytes = b"") -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ramify.cli", *map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate(given)
    return process.returncode, out.decode(), " ".join(err.decode().split())


def test_an_overlay_over_tls_alone_delivers(tmp_path: Path, authority: Authority) -> None:
    async def scenario() -> None:
        at = Secured(tmp_path / "o", authority)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*(server.start() for server in at.servers.values()))
                tasks = [asyncio.create_task(at.broker(name).run()) for name in at.overlay.brokers]
                tasks.append(asyncio.create_task(at.coordinator().run()))
                name, url, options = at.client("alice", authority.ca)
                async with Client.connect(name, url, **options) as alice:  # type: ignore[arg-type]
                    subscription = await alice.subscribe("type = 'order'", wait_s=40.0)
                    assert not subscription.missing
                    name, url, options = at.client("bob", authority.ca)
                    async with Client.connect(name, url, **options) as bob:  # type: ignore[arg-type]
                        await bob.publish(HELLO)
                    assert (await anext(subscription)).id == "1"
                    await _on_the_command_line(at, authority, subscription)
                for task in tasks:
                    assert not task.done()
        finally:
            await end_tasks(tasks)
            await asyncio.gather(*(server.stop() for server in at.servers.values()))

    run_to_end(scenario())


async def _on_the_command_line(at: Secured, authority: Authority, subscription) -> None:  # type: ignore[no-untyped-def]
    name, url, options = at.client("bob", None)
    with pytest.raises(LiveError, match=r"not trusted.*--tls-ca"):
        await Client.connect(name, url, **options)  # type: ignore[arg-type]
    event = json.dumps({**HELLO, "id": "2"}).encode()
    where = ("--client", "bob", "--url", url, "--key", options["seed_file"])
    code, _, said = await command("pub", *where, given=event)
    assert code != 0
    assert "--tls-ca" in said
    code, _, said = await command("pub", *where, "--tls-ca", authority.ca, given=event)
    assert code == 0, said
    assert (await anext(subscription)).id == "2"
    viewer = at.seed_file(ControlRole("viewer"))
    files = ("--tls-ca", at.tls.ca, "--tls-cert", at.tls.cert, "--tls-key", at.tls.key)
    control = ("status", "--control", at.servers["control"].url, "--key", viewer)
    code, out, said = await command(*control, "--json", *files)
    assert code == 0, said
    assert {broker["state"] for broker in json.loads(out)["brokers"]} == {"routing"}
    code, _, said = await command(*control, *files[:2])
    assert code != 0
    assert "--tls-cert" in said

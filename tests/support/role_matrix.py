"""Every action as every role on real servers: the table in docs/security.md, which a test holds it against.

python tests/support/role_matrix.py    writes the table anew (`make docs` does)
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import nats.errors
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg

from ramify.overlay.control.names import CHANGED, COORDINATE, OPERATE, STORE_GET, STORE_INFO
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import (
    BrokerRole,
    ClientRole,
    ControlRole,
    CoordinatorRole,
    KeyRing,
    NeighbourRole,
    OperatorRole,
    Role,
    RouterRole,
    ViewerRole,
    accounts_config,
)
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.streams import Endpoint, Sizes, ensure_lanes, ensure_samples, ensure_streams
from ramify.overlay.live.wire.tasks import run_to_end

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- roles: begin -->", "<!-- roles: end -->"

ON_BROKER: list[Role] = [ClientRole("alice"), NeighbourRole("b2"), RouterRole("b1")]
ON_CONTROL: list[Role] = [
    BrokerRole("b1"),
    ViewerRole("viewer"),
    OperatorRole("operator"),
    CoordinatorRole("coordinator"),
]
SMALL = Sizes(1 << 20, 1 << 20, 1 << 20, 1 << 20)
_ANSWER_S = 20.0
"""Whoever may not do a thing is told so at once; only what should never happen waits for so long."""


@dataclass(frozen=True)
class Action:
    """What is tried: a message to a subject, where `{self}` is the actor and `{own}` its consumer, or
    listening to it. An answer without an error means that it was done."""

    what: str
    subject: str
    body: object = b""
    listens: bool = False
    headers: dict[str, str] | None = None

    def at(self, role: Role) -> str:
        """The subject for a role. The router has no lane to read: it stands for the link's reader."""
        own = f"{'link' if role.kind == 'router' else role.kind}_{role.token}"
        return self.subject.replace("{self}", role.token).replace("{own}", own)


_API = "$JS.API"
_LAST = f"{CHANGED}.state"
_NEXT = {"batch": 1, "no_wait": True}


def _creates(stream: str) -> dict[str, object]:
    return {"stream_name": stream, "config": {"name": "mine", "ack_policy": "none", "mem_storage": True}}


BROKER_ACTIONS = [
    Action("publish as itself", "ramify.publish.{self}"),
    Action("publish as another client", "ramify.publish.bob"),
    Action("ask its broker as itself", "ramify.control.{self}"),
    Action("ask as another client", "ramify.control.bob"),
    Action("pull its own lane", f"{_API}.CONSUMER.MSG.NEXT.OUT.{{own}}", _NEXT),
    Action("acknowledge on its own lane", "$JS.ACK.OUT.{own}.1.1.1.1.0", b"+ACK"),
    Action("reset its own lane", f"{_API}.CONSUMER.RESET.OUT.{{own}}"),
    Action("look at its own lane", "ramify.info.{own}"),
    Action("see the end of its own lane", "ramify.last.{self}"),
    Action("pull another's lane", f"{_API}.CONSUMER.MSG.NEXT.OUT.client_bob", _NEXT),
    Action("acknowledge on another's lane", "$JS.ACK.OUT.client_bob.1.1.1.1.0", b"+ACK"),
    Action("reset another's lane", f"{_API}.CONSUMER.RESET.OUT.client_bob"),
    Action("look at another's lane", "ramify.info.client_bob"),
    Action("see the end of another's lane", "ramify.last.bob"),
    Action("write to a lane", "out.deliver.bob"),
    Action("read the broker's log", f"{_API}.STREAM.MSG.GET.OUT", {"last_by_subj": "out.deliver.bob"}),
    Action("make a consumer", f"{_API}.CONSUMER.CREATE.OUT.mine", _creates("OUT")),
    Action("purge a stream", f"{_API}.STREAM.PURGE.OUT", {"filter": "out.link.none"}),
    Action("delete a stream", f"{_API}.STREAM.DELETE.SPARE"),
    Action("listen to what clients publish", "ramify.publish.*", listens=True),
    Action("listen to another's answers", "_I.client_bob.box", listens=True),
    Action("listen to everything", ">", listens=True),
    Action("look at the server", "$SYS.REQ.SERVER.PING"),
]

CONTROL_ACTIONS = [
    Action("read the store", STORE_GET, {"last_by_subj": "$KV.CTL.state"}),
    Action("see what the store holds", STORE_INFO),
    Action("hear of decisions", f"{CHANGED}.state", listens=True),
    Action("hear of decisions below", f"{CHANGED}.state.x", listens=True),
    Action("hear of moves", f"{CHANGED}.moves.alice", listens=True),
    Action("hear of all moves at once", f"{CHANGED}.moves", listens=True),
    Action("hear of every change", f"{CHANGED}.>", listens=True),
    Action("hold its own lease", "$KV.CTL.brokers.{self}"),
    Action("report what it has done", "$KV.CTL.reports.{self}"),
    Action("tell its own counters", "$KV.CTL.status.{self}"),
    Action("ship its own samples", "samples.{self}"),
    Action("ask the leader for its own clients", f"{COORDINATE}.{{self}}"),
    Action("take another broker's lease", "$KV.CTL.brokers.b2"),
    Action("report as another broker", "$KV.CTL.reports.b2"),
    Action("tell another broker's counters", "$KV.CTL.status.b2"),
    Action("ship samples as another broker", "samples.b2"),
    Action("ask the leader as another broker", f"{COORDINATE}.b2"),
    Action("change the rules", "$KV.CTL.rules"),
    Action("have a client moved", f"{OPERATE}.{{self}}"),
    Action("ask as the operator", f"{OPERATE}.operator"),
    Action("decide: write the state", "$KV.CTL.state"),
    Action("write a plan", "$KV.CTL.plans.x"),
    Action("write a client's record", "$KV.CTL.clients.alice"),
    Action("write a move", "$KV.CTL.moves.alice"),
    Action("take the lead", "$KV.CTL.leader"),
    Action("purge all keys with a header", "$KV.CTL.status.{self}", headers={"Nats-Rollup": "all"}),
    Action("read samples", f"{_API}.STREAM.MSG.GET.SAMPLES", {"last_by_subj": "samples.b2"}),
    Action("purge samples", f"{_API}.STREAM.PURGE.SAMPLES", {"filter": "samples.none"}),
    Action("purge the store", f"{_API}.STREAM.PURGE.KV_CTL", {"filter": "$KV.CTL.none"}),
    Action("make a consumer of the store", f"{_API}.CONSUMER.CREATE.KV_CTL.mine", _creates("KV_CTL")),
    Action("make a consumer of samples", f"{_API}.CONSUMER.CREATE.SAMPLES.mine", _creates("SAMPLES")),
    Action("delete a stream", f"{_API}.STREAM.DELETE.SPARE"),
    Action("listen to what the leader is asked", f"{COORDINATE}.b2", listens=True),
    Action("listen to another's answers", "_I.control_b2.box", listens=True),
    Action("listen to everything", ">", listens=True),
    Action("look at the server", "$SYS.REQ.SERVER.PING"),
]


class Place:
    """A server with what is tried on it, and who may do everything there."""

    def __init__(self, directory: Path, roles: Sequence[Role], admin: Role) -> None:
        self.ring = KeyRing(directory / "keys")
        public = {role: self.ring.pair(role).public for role in [*roles, admin]}
        bob, b2 = ClientRole("bob"), BrokerRole("b2")
        control = {role: key for role, key in public.items() if isinstance(role, ControlRole)}
        accounts = accounts_config(
            self.ring.pair(RouterRole("b1")).public,
            {r.name: key for r, key in public.items() if isinstance(r, NeighbourRole)},
            {r.name: key for r, key in public.items() if isinstance(r, ClientRole)}
            | {bob.name: self.ring.pair(bob).public},
            {**control, b2: self.ring.pair(b2).public},
        )
        self.server = Server(ServerConfig("b1", directory / "b1", accounts))
        self.admin_role = admin
        self.admin = Connection()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Place"]:
        await self.server.start()
        try:
            role = self.admin_role
            self.admin, _ = await self.connected(role)
            if isinstance(role, CoordinatorRole):
                seed = self.ring.pair(role).seed
                store = await Store.connect(
                    Endpoint(self.server.url, seed, role.inbox_prefix, "k"), most_bytes=1 << 20
                )
                await store.close()
                await ensure_samples(self.admin, 1 << 20)
                for subject in ("$KV.CTL.state", "samples.b2"):
                    await self.admin.request(subject, b"1", timeout=_ANSWER_S)
                for subject in (COORDINATE, OPERATE):
                    await self.admin.subscribe(f"{subject}.*", cb=_answered)
            else:
                await ensure_streams(self.admin, SMALL)
                await ensure_lanes(self.admin, ["b1", "b2"], ["alice", "bob"])
                for lane in ("out.link.b1", "out.link.b2", "out.deliver.alice", "out.deliver.bob"):
                    await self.admin.request(lane, b"1", timeout=_ANSWER_S)
                await self.admin.subscribe("ramify.control.*", cb=_answered)
            yield self
        finally:
            await self.admin.close()
            await self.server.stop()

    async def connected(self, role: Role) -> tuple[Connection, list[str]]:
        complaints: list[str] = []

        async def complained(error: Exception) -> None:
            complaints.append(str(error).lower())

        seed = self.ring.pair(role).seed
        made = await nats.connect(
            self.server.url,
            nkeys_seed_str=seed,
            inbox_prefix=role.inbox_prefix.encode(),
            error_cb=complained,
            allow_reconnect=False,
        )
        return made, complaints

    async def may(self, role: Role, action: Action) -> bool:
        """Whether a role can do it."""
        if action.subject.endswith("DELETE.SPARE"):
            config = {"name": "SPARE", "subjects": ["spare"], "max_bytes": 1 << 10}
            body = json.dumps(config).encode()
            await self.admin.request(f"{_API}.STREAM.CREATE.SPARE", body, timeout=_ANSWER_S)
        connection, complaints = await self.connected(role)
        try:
            if action.listens:
                return await self._hears(connection, complaints, action.at(role))
            return await _asks(connection, complaints, action, role)
        finally:
            await connection.close()

    async def _hears(self, connection: Connection, complaints: list[str], subject: str) -> bool:
        """Whether it hears what is said there, where the streams and the leader are."""
        heard = await connection.subscribe(subject)
        # what every user of the control server may hear: once that comes, the other came before or never
        last = await connection.subscribe(_LAST)
        await connection.flush()
        said = subject.replace("*", "bob").replace(">", "anything")
        async with asyncio.timeout(_ANSWER_S):
            while f'subscription to "{subject}"'.lower() not in " ".join(complaints):
                for each in (said, _LAST):
                    await self.admin.publish(each, b"said")
                with contextlib.suppress(nats.errors.TimeoutError):
                    await last.next_msg(timeout=0.2)
                    return heard.pending_msgs > 0
                if heard.pending_msgs:
                    return True
        return False


async def _answered(message: Msg) -> None:
    await message.respond(b"done")


def _violated(complaints: Sequence[str]) -> bool:
    return any("permissions violation" in said for said in complaints)


async def _asks(connection: Connection, complaints: list[str], action: Action, role: Role) -> bool:
    data = action.body if isinstance(action.body, bytes) else json.dumps(action.body).encode()
    box = await connection.subscribe(connection.new_inbox())
    # by publish: a request's own inbox would hide that the answer did not come
    await connection.publish(action.at(role), data, box.subject, headers=action.headers)
    await connection.flush()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            while not _violated(complaints):
                with contextlib.suppress(nats.errors.TimeoutError):
                    return _done(await box.next_msg(timeout=0.2))
    return False


def _done(answer: Msg) -> bool:
    if (answer.headers or {}).get("Status") == "503":
        return False
    with contextlib.suppress(ValueError):
        told = json.loads(answer.data)
        return not (isinstance(told, dict) and "error" in told)
    return True


async def matrix(directory: Path) -> dict[str, list[tuple[str, list[bool]]]]:
    """For each server: the actions in order, and which roles can do each."""
    found: dict[str, list[tuple[str, list[bool]]]] = {}
    tables = (
        ("broker", ON_BROKER, BROKER_ACTIONS, RouterRole("b1")),
        ("control", ON_CONTROL, CONTROL_ACTIONS, CoordinatorRole("coordinator")),
    )
    for name, roles, actions, admin in tables:
        async with Place(directory / name, roles, admin).open() as place:
            found[name] = [
                (action.what, [await place.may(role, action) for role in roles]) for action in actions
            ]
    return found


def _names(roles: Sequence[Role]) -> list[str]:
    return [type(role).__name__.removesuffix("Role").lower() for role in roles]


def rendered(found: dict[str, list[tuple[str, list[bool]]]]) -> str:
    """The tables as they stand in the page."""
    lines = []
    for title, name, roles in (
        ("On a broker's server", "broker", ON_BROKER),
        ("On the control server", "control", ON_CONTROL),
    ):
        lines += [f"**{title}**", "", "| action | " + " | ".join(_names(roles)) + " |"]
        lines.append("|---|" + "---|" * len(roles))
        lines += [
            f"| {what} | " + " | ".join("yes" if each else "–" for each in may) + " |"
            for what, may in found[name]
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        text = rendered(run_to_end(matrix(Path(directory))))
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()

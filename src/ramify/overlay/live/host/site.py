"""What one machine needs to run brokers: keys, servers and settings for each broker of an overlay.

Owns how a broker's directory looks:

    <directory>/keys/                 seeds (`security.KeyRing`)
    <directory>/brokers/<token>/      the server's data, configuration and log

Both are kept between runs. Nothing is started here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.names import token
from ramify.overlay.live.broker.broker import BrokerConfig
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import (
    ClientRole,
    KeyRing,
    NeighbourRole,
    Role,
    RouterRole,
    accounts_config,
)
from ramify.overlay.live.wire.streams import Endpoint, Sizes

__all__ = ["BrokerSite"]


@dataclass(frozen=True)
class BrokerSite:
    """The brokers of an overlay in one directory. `clients` maps clients to brokers; with `movable` each
    server admits all of them, since they may move there. `former`: see `accounts_config`;
    `sync_always`: see `ServerConfig`."""

    overlay: Overlay
    directory: Path
    clients: Mapping[str, str]
    sizes: Sizes = field(default_factory=Sizes)
    movable: bool = False
    former: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sync_always: bool = False

    @property
    def ring(self) -> KeyRing:
        """The keys."""
        return KeyRing(self.directory / "keys")

    def neighbours(self, broker: str) -> list[str]:
        """The brokers that a broker has a link with."""
        here = self.overlay.index[broker]
        ends = self.overlay.ends.tolist()
        return sorted(self.overlay.brokers[b if a == here else a] for a, b in ends if here in (a, b))

    def attached(self, broker: str) -> list[str]:
        """The clients of a broker."""
        return sorted(client for client, at in self.clients.items() if at == broker)

    def accounts(self, broker: str) -> str:
        """What each user may do on a broker's server, for its configuration."""
        ring = self.ring

        def public(roles: Iterable[Role]) -> dict[str, str]:
            return {role.name: ring.pair(role).public for role in roles}

        # a neighbour reads its lane from many servers: a key of its own for each
        return accounts_config(
            ring.pair(RouterRole(broker)).public,
            public(map(NeighbourRole, self.neighbours(broker))),
            public(map(ClientRole, sorted(self.clients) if self.movable else self.attached(broker))),
            former=self.former,
            router=broker,
        )

    def server(self, broker: str, *, port: int = 0) -> Server:
        """The server under a broker, not started."""
        store = self.directory / "brokers" / token(broker)
        reserved = self.sizes.published + self.sizes.out + self.sizes.rejected + self.sizes.samples
        config = ServerConfig(
            *(broker, store, self.accounts(broker)),
            port=port,
            max_file_store=reserved + (64 << 20),
            sync_always=self.sync_always,
        )
        return Server(config)

    def broker(self, broker: str, urls: Mapping[str, str]) -> BrokerConfig:
        """The settings of a broker's router; `urls` are those of its own server and its neighbours'."""
        return BrokerConfig(
            broker,
            self.endpoint(RouterRole(broker), urls[broker]),
            {name: self.endpoint(NeighbourRole(broker), urls[name]) for name in self.neighbours(broker)},
            tuple(self.attached(broker)),
            self.sizes,
        )

    def endpoint(self, role: Role, url: str) -> Endpoint:
        """How a user of this site connects."""
        seed, name = self.ring.pair(role).seed, f"{role.kind} {role.name}"
        return Endpoint(url, seed, role.inbox_prefix, name, seed_file=self.ring.path(role))

"""What happens in one run: drawn from a seed, told in plain words, and made smaller where it fails.

Owns the form of a run. Nothing here runs anything. A scenario that lacks some of its acts is a scenario
too: that is how one is shrunk.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ramify.overlay.histories.rows import Condition

__all__ = ["Act", "Scenario", "drawn", "shrunk"]

CONDITIONS: tuple[Condition, ...] = (
    ((("x", "<", 5),),),
    ((("x", ">=", 3),),),
    ((("k", "=", "a"),),),
    ((("k", "in", ("a", "b")),),),
    ((("x", ">=", 0),),),
    ((("x", "<", 2),), (("k", "=", "c"),)),
)
SCHEMES = ("broadcast", "mst", "spt", "per-source", "unicast", "explicit", "explicit-list")
ONE_WAY = frozenset({"broadcast", "mst", "spt", "per-source", "unicast"})
"""Schemes by which the events of a publisher have one way to a subscription: their order is promised."""
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens. `who` and `whom` are names, `number` and `seconds` what the kind needs."""

    at: float
    kind: str
    who: str = ""
    whom: str = ""
    number: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        words = {
            "publish": f"{self.who} publishes {self.number} events",
            "subscribe": f"{self.who} subscribes {self.whom}",
            "unsubscribe": f"{self.who} unsubscribes {self.whom}",
            "kill": f"{self.who} is killed, and starts again after {self.seconds:.1f} s",
            "kill-writing": f"{self.who} is killed before its {self.number}. write from here, "
            f"and starts again after {self.seconds:.1f} s",
            "stop": f"{self.who} stands still for {self.seconds:.1f} s",
            "twin-writing": f"{self.who} stands still for {self.seconds:.1f} s before its {self.number}. "
            "write from here; meanwhile another takes its place",
            "twin": f"{self.who} stands still for {self.seconds:.1f} s; meanwhile another takes its place",
            "crash": f"the server of {self.who} crashes, and starts again after {self.seconds:.1f} s",
            "power": f"the server of {self.who} loses power for {self.seconds:.1f} s",
            "pause": f"the server of {self.who} stands still for {self.seconds:.1f} s",
            "part": f"{self.who} cannot reach the server of {self.whom} for {self.seconds:.1f} s",
            "cut": f"the connections of {self.who} to the server of {self.whom} break",
            "slow": f"{self.who} and the server of {self.whom} are slow for {self.seconds:.1f} s",
            "again": f"the server of {self.who} hands out again what was not acknowledged",
            "full": f"the disk of the server of {self.who} is full for {self.seconds:.1f} s",
            "replan": f"another plan is installed ({self.whom})",
            "garbage": f"a hostile client publishes an unreadable header at {self.who}",
        }
        return f"{self.at:6.2f} s  {words[self.kind]}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A small overlay, its clients, and what happens."""

    seed: int
    brokers: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    clients: dict[str, str]
    """client -> broker"""
    subscriptions: dict[str, tuple[str, int]]
    """subscription -> (client, which condition); those that are there from the begin"""
    scheme: str
    acts: tuple[Act, ...]
    controlled: bool = False
    out_bytes: int = 8 << 20
    syncs: bool = True
    newcomers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Likewise, those that come and go."""

    @property
    def is_ordered(self) -> bool:
        """Whether each publisher's events must come in order, whichever plan is installed."""
        return {self.scheme, *(act.whom for act in self.acts if act.kind == "replan")} <= ONE_WAY

    def story(self) -> str:
        overlay = ", ".join(f"{a}-{b}" for a, b in self.links) or self.brokers[0]
        kind = "with a coordinator" if self.controlled else "with a fixed plan"
        lines = [f"overlay {overlay}, {kind}, scheme {self.scheme}, logs of {self.out_bytes:,} bytes"]
        for name, (client, condition) in sorted(self.subscriptions.items()):
            lines.append(f"  {client} at {self.clients[client]} has {name}: condition {condition}")
        return "\n".join([*lines, *(f"  {act}" for act in self.acts)])


def drawn(seed: int, *, controlled: bool | None = None) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"scenario {seed}")
    with_control = rng.random() < 0.2 if controlled is None else controlled
    count = rng.choice((1, 2, 2, 3, 3, 4))
    brokers = tuple(f"v{i}" for i in range(count))
    links = {(f"v{rng.randrange(i)}", f"v{i}") for i in range(1, count)}
    if count > 2 and rng.random() < 0.4:
        a, b = sorted(rng.sample(range(count), 2))
        links.add((f"v{a}", f"v{b}"))
    readers = {f"r{i}": rng.choice(brokers) for i in range(rng.randint(1, 3))}
    writers = {f"w{i}": rng.choice(brokers) for i in range(rng.randint(1, 2))}
    subscriptions = {f"s{i}": (name, rng.randrange(len(CONDITIONS))) for i, name in enumerate(readers)}
    if rng.random() < 0.5:
        subscriptions["s9"] = ("r0", rng.randrange(len(CONDITIONS)))
    newcomers: dict[str, tuple[str, int]] = {}
    acts: list[Act] = []
    length = rng.choice((4.0, 8.0, 15.0))
    for _ in range(rng.randint(4, 16)):
        who = rng.choice(sorted(writers))
        acts.append(Act(rng.uniform(0.5, length), "publish", who, number=rng.choice((1, 1, 2, 5, 20))))
    if with_control:
        acts += _churn(rng, length, readers, newcomers)
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8))):
        acts.append(_fault(rng, length, brokers, links, [*readers, *writers], with_control))
    return Scenario(
        seed,
        brokers,
        tuple(sorted(links)),
        readers | writers,
        subscriptions,
        rng.choice(SCHEMES),
        tuple(sorted(acts, key=lambda act: (act.at, act.kind, act.who))),
        with_control,
        rng.choice((8 << 20, 8 << 20, 24_000)) if not with_control else 8 << 20,
        True,
        newcomers,
    )


def _churn(
    rng: random.Random, length: float, readers: dict[str, str], newcomers: dict[str, tuple[str, int]]
) -> Iterator[Act]:
    for i in range(rng.randint(0, 3)):
        name, client = f"n{i}", rng.choice(sorted(readers))
        newcomers[name] = client, rng.randrange(len(CONDITIONS))
        at = rng.uniform(0.5, length)
        yield Act(at, "subscribe", client, name)
        if rng.random() < 0.5:
            yield Act(rng.uniform(at + 1, at + length), "unsubscribe", client, name)
    if rng.random() < 0.5:
        yield Act(rng.uniform(1, length), "replan", whom=rng.choice(SCHEMES))


def _fault(
    rng: random.Random,
    length: float,
    brokers: tuple[str, ...],
    links: set[tuple[str, str]],
    clients: list[str],
    with_control: bool,
) -> Act:
    at = rng.uniform(0.3, length)
    broker, client = rng.choice(brokers), rng.choice(clients)
    # who has a connection to what: a router to its own server and its neighbours', a client to its broker's
    pairs = [(f"router:{b}", b) for b in brokers]
    pairs += [(f"router:{x}", y) for a, b in sorted(links) for x, y in ((a, b), (b, a))]
    pairs += [(f"client:{c}", "") for c in clients]
    if with_control:
        pairs += [(f"router:{b}", CONTROL) for b in brokers] + [("coordinator:a", CONTROL)]
        broker = rng.choice((*brokers, CONTROL))
    router = f"router:{rng.choice(brokers)}"
    if with_control and rng.random() < 0.2:
        router = "coordinator:a"
    who, whom = rng.choice(pairs)
    down = rng.choice((0.3, 1.0, 3.0, 8.0))
    long = rng.choice((1.0, 4.0, 12.0, 25.0))
    kinds = {
        "kill": Act(at, "kill", router, seconds=down),
        "kill-writing": Act(at, "kill-writing", router, number=rng.randint(1, 12), seconds=down),
        "kill-client": Act(at, "kill", f"client:{client}", seconds=down),
        "stop": Act(at, "stop", router, seconds=long),
        "twin": Act(at, "twin", router, seconds=long),
        "twin-writing": Act(at, "twin-writing", router, number=rng.randint(1, 12), seconds=long),
        "crash": Act(at, "crash", broker, seconds=down),
        "power": Act(at, "power", broker, seconds=down),
        "pause": Act(at, "pause", broker, seconds=long),
        "part": Act(at, "part", who, whom, seconds=long),
        "cut": Act(at, "cut", who, whom),
        "slow": Act(at, "slow", who, whom, seconds=long),
        "again": Act(at, "again", broker),
        "full": Act(at, "full", broker, seconds=down),
        "garbage": Act(at, "garbage", rng.choice(brokers), number=rng.randrange(100)),
    }
    if router.startswith("coordinator"):
        kinds.pop("twin")
        kinds.pop("twin-writing")
    return kinds[rng.choice(sorted(kinds))]


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool], limit: int = 200) -> Scenario:
    """A scenario that still fails, of which no act and no subscription can be left out.

    Halves first, then one by one: O(n log n) runs where few acts matter.
    """
    tries = 0

    def still(candidate: Scenario) -> bool:
        nonlocal tries
        tries += 1
        return tries <= limit and fails(candidate)

    size = max(1, len(scenario.acts) // 2)
    while True:
        at, removed = 0, False
        while at < len(scenario.acts):
            fewer = replace(scenario, acts=scenario.acts[:at] + scenario.acts[at + size :])
            if still(fewer):
                scenario, removed = fewer, True
            else:
                at += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    for name in list(scenario.subscriptions):
        left = {k: v for k, v in scenario.subscriptions.items() if k != name}
        if still(fewer := replace(scenario, subscriptions=left)):
            scenario = fewer
    for place, act in enumerate(scenario.acts):
        if act.kind == "publish" and act.number > 1:
            one = replace(act, number=1)
            if still(
                fewer := replace(scenario, acts=(*scenario.acts[:place], one, *scenario.acts[place + 1 :]))
            ):
                scenario = fewer
    return scenario

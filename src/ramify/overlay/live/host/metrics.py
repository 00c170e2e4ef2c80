"""Prometheus figures of the brokers of a process: one page, read when it is asked for.

Owns their names. Counters begin with the process; the label `broker` tells brokers apart, `neighbour` the
links from them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Metric, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ramify.errors import LiveError
from ramify.overlay.control.records import LinkCount, Status

if TYPE_CHECKING:
    from ramify.overlay.live.coordinator.coordinator import Coordinator

__all__ = ["BrokerMetrics", "CoordinatorMetrics", "metrics_text", "serve_metrics"]

_COUNTERS: dict[str, tuple[str, Callable[[Status], int]]] = {
    "ramify_frames": ("Messages taken in, from clients and neighbours.", lambda s: s.frames),
    "ramify_events": ("Events routed.", lambda s: s.events),
    "ramify_published_events": ("Events that clients published here.", lambda s: s.published),
    "ramify_published_bytes": ("Bytes of those events.", lambda s: s.published_bytes),
    "ramify_matches": ("Events matched against the filters.", lambda s: s.matchings),
    "ramify_deliveries": ("Events handed to subscriptions.", lambda s: s.deliveries),
    "ramify_rejects": ("Events and messages that could not be used.", lambda s: s.rejects),
    "ramify_redeliveries": ("Messages that came again and were dropped.", lambda s: s.redeliveries),
    "ramify_strays": (
        "Events of a channel that did not lead here by the broker's revision of the plan.",
        lambda s: s.strays,
    ),
    "ramify_recoveries": ("Times that a broker started over from its log.", lambda s: s.recoveries),
    "ramify_alarms": ("Times that something was found to be lost.", lambda s: s.alarms_told),
    "ramify_samples": ("Events sampled for planning.", lambda s: s.sampled),
}
_LINKS: dict[str, tuple[str, Callable[[LinkCount], int]]] = {
    "ramify_link_messages": ("Events sent over a link.", lambda n: n.messages),
    "ramify_link_payload_bytes": ("Bytes of events sent over a link.", lambda n: n.payload_bytes),
    "ramify_link_wire_bytes": ("Bytes of messages sent over a link.", lambda n: n.wire_bytes),
}
_GAUGES: dict[str, tuple[str, Callable[[Status], float]]] = {
    "ramify_epoch": ("The epoch that published events enter.", lambda s: s.epoch),
    "ramify_revision": ("The revision of its plan.", lambda s: s.revision),
    "ramify_routing": ("Whether the broker routes.", lambda s: float(s.routing)),
    "ramify_lag_published": ("Published messages that wait.", lambda s: s.lag_published),
    "ramify_lag_clients": ("Messages that clients have not read.", lambda s: sum(s.lag_clients.values())),
    "ramify_suspended_clients": ("Clients that are suspended.", lambda s: len(s.suspended)),
    "ramify_healthy": ("Whether what waits is worked on.", lambda s: float(s.health == "routing")),
    "ramify_waiting_seconds": (
        "For how long something has waited without a commit.",
        lambda s: s.waiting_s,
    ),
    "ramify_alarms_shown": ("Losses of the last day.", lambda s: len(s.alarms)),
    "ramify_started_seconds": ("When the counters began, since 1970.", lambda s: s.started),
}


class _HasStatus(Protocol):
    def status(self) -> Status: ...


class BrokerMetrics(Collector):
    """The figures of some brokers. Reads only: safe from another thread than the brokers' loop."""

    def __init__(self, brokers: Iterable[_HasStatus]) -> None:
        # not a copy: a broker that is started again takes the place of the one before
        self._brokers = brokers

    def collect(self) -> Iterator[Metric]:
        """All figures, by name."""
        said = [broker.status() for broker in list(self._brokers)]
        for name, (text, of) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["broker"])
            for status in said:
                counter.add_metric([status.broker], of(status))
            yield counter
        for name, (text, of_link) in _LINKS.items():
            counter = CounterMetricFamily(name, text, labels=["broker", "neighbour"])
            for status in said:
                for neighbour, sent in status.links.items():
                    counter.add_metric([status.broker, neighbour], of_link(sent))
            yield counter
        for name, (text, level) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["broker"])
            for status in said:
                gauge.add_metric([status.broker], level(status))
            yield gauge
        lag = GaugeMetricFamily(
            "ramify_lag_link", "Messages of a neighbour that wait.", labels=["broker", "neighbour"]
        )
        for status in said:
            for neighbour, waiting in status.lag_links.items():
                lag.add_metric([status.broker, neighbour], waiting)
        yield lag


class CoordinatorMetrics(Collector):
    """The figures of a coordinator. Reads only, as `BrokerMetrics`."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        term = self._coordinator.term
        yield GaugeMetricFamily(
            "ramify_leads", "Whether this coordinator decides.", float(term is not None)
        )
        yield CounterMetricFamily("ramify_terms", "Times that it began to lead.", self._coordinator.terms)
        if term is None:
            return
        epochs = term.book.epochs
        yield GaugeMetricFamily("ramify_plan_revision", "The last change of the plan.", epochs.revision)
        yield GaugeMetricFamily("ramify_plan_epoch", "The epoch that brokers flip to.", epochs.target or 0)
        yield GaugeMetricFamily("ramify_live_epochs", "Epochs that are not retired.", len(epochs.live))
        yield GaugeMetricFamily("ramify_brokers_registered", "Brokers under lease.", len(epochs.registered))
        yield GaugeMetricFamily("ramify_brokers_lost", "Brokers without a lease.", len(epochs.lost))


def _registry(figures: Collector) -> CollectorRegistry:
    # its own: the default one belongs to the program that embeds a broker
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return registry


def metrics_text(figures: Collector) -> str:
    """The page as text."""
    return generate_latest(_registry(figures)).decode()


def serve_metrics(figures: Collector, port: int = 0) -> int:
    """Serve the page on 127.0.0.1 from a thread that ends with the process; returns the port.

    Raises `LiveError` when somebody has the port.
    """
    try:
        server, _ = start_http_server(port, addr="127.0.0.1", registry=_registry(figures))
    except OSError as error:
        raise LiveError(
            f"metrics cannot be served on port {port}: {error.strerror}. Give another"
        ) from None
    return int(server.server_port)

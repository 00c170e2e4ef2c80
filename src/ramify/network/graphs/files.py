"""Overlays from and to files: JSON, GraphML, edge lists.

Owns the formats (described for users in docs/overlay-format.md) and where in a file a fault is. What
makes an overlay valid is `Overlay`'s business: a reader collects items with their lines, builds, and on
an error searches for the shortest prefix that already fails, so no rule is written twice.

Files are data from strangers: size is bounded, XML with a DOCTYPE is refused before any entity could be
expanded, and every fault is an `OverlayError` with path and line.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.parsers import expat

import msgspec

from ramify.errors import OverlayError
from ramify.network.graphs.clouds import great_circle_km, latency_from_km
from ramify.network.graphs.overlay import Link, Overlay, Site
from ramify.network.graphs.underlay import Underlay

__all__ = [
    "OVERLAY_FILE_BYTES",
    "OVERLAY_SCHEMA",
    "SUFFIXES",
    "decode_overlay",
    "encode_overlay",
    "read_overlay",
    "write_overlay",
]

OVERLAY_SCHEMA: Literal["ramify.overlay/1"] = "ramify.overlay/1"
OVERLAY_FILE_BYTES = 64 * 1024 * 1024
MAX_ROUTERS = 10_000_000


def read_overlay(path: str | os.PathLike[str]) -> Overlay:
    """The overlay in a file: `.json`, `.graphml`, or an edge list in `.csv`, `.tsv`, `.txt`, `.edges`.

    Raises `OverlayError` with path, line and what to do. Reads at most `OVERLAY_FILE_BYTES`. The overlay
    need not be connected.
    """
    where = Path(path)
    reader = SUFFIXES.get(where.suffix.lower())
    if reader is None:
        raise OverlayError(
            f"unknown suffix {where.suffix!r}. Use one of: {', '.join(SUFFIXES)}.", path=str(path)
        )
    try:
        with where.open("rb") as file:
            content = file.read(OVERLAY_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise OverlayError(f"cannot be read: {reason}. Check the path.", path=str(path)) from error
    if len(content) > OVERLAY_FILE_BYTES:
        raise OverlayError(f"larger than {OVERLAY_FILE_BYTES:,} bytes. Split or thin it.", path=str(path))
    try:
        return reader(content, where.stem)
    except OverlayError as error:
        raise OverlayError(error.reason, path=str(path), line=error.line) from error


def write_overlay(overlay: Overlay, path: str | os.PathLike[str]) -> None:
    """Write an overlay as JSON: `read_overlay` gives an equal one back. The file is replaced whole."""
    where = Path(path)
    if where.suffix.lower() != ".json":
        raise OverlayError(
            f"overlays are written as .json, not {where.suffix!r}. Rename it.", path=str(path)
        )
    encoded = msgspec.json.format(encode_overlay(overlay), indent=1)
    part = where.with_name(where.name + ".part")
    try:
        part.write_bytes(encoded + b"\n")
        part.replace(where)
    except OSError as error:
        raise OverlayError(
            f"cannot be written: {error.strerror}. Check the folder.", path=str(path)
        ) from error


def encode_overlay(overlay: Overlay) -> bytes:
    """The overlay as one line of JSON, to be kept inside another document."""
    return msgspec.json.encode(_document(overlay))


def decode_overlay(content: bytes) -> Overlay:
    """The overlay that `encode_overlay` wrote. Raises `OverlayError`."""
    return _read_json(content, "")


# --- drafts: what the readers collect -------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """Brokers and links with the line of each, on the way to an overlay."""

    name: str
    brokers: dict[str, Site] = field(default_factory=dict)
    broker_lines: list[int] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    link_lines: list[int] = field(default_factory=list)

    def broker(self, name: str, site: Site, line: int) -> None:
        if name not in self.brokers:
            self.brokers[name] = site
            self.broker_lines.append(line)

    def link(self, link: Link, line: int) -> None:
        self.links.append(link)
        self.link_lines.append(line)

    def build(self) -> Overlay:
        names = list(self.brokers)
        return _build(
            self.name,
            names,
            [self.brokers[name] for name in names],
            self.links,
            broker_line=lambda at: self.broker_lines[at],
            link_line=lambda at: self.link_lines[at],
        )


def _build(
    name: str,
    names: Sequence[str],
    sites: Sequence[Site],
    links: Sequence[Link],
    *,
    broker_line: Callable[[int], int | None],
    link_line: Callable[[int], int | None],
    underlay: Underlay | None = None,
) -> Overlay:
    """`Overlay.build`, with the line of the broker or link that is at fault added to its error."""

    def attempt(brokers: int, joined: int) -> OverlayError | None:
        try:
            kept = dict(zip(names[:brokers], sites[:brokers], strict=True))
            Overlay.build(name, names[:brokers], links[:joined], sites=kept)
        except OverlayError as error:
            return error
        return None

    try:
        return Overlay.build(
            name, names, links, sites=dict(zip(names, sites, strict=True)), underlay=underlay
        )
    except OverlayError as error:
        if attempt(0, 0) is not None:
            raise
        if attempt(len(names), 0) is not None:
            at, fault = _first_fault(lambda count: attempt(count, 0), len(names))
            raise OverlayError(fault.reason, line=broker_line(at)) from error
        if attempt(len(names), len(links)) is None:
            raise
        at, fault = _first_fault(lambda count: attempt(len(names), count), len(links))
        raise OverlayError(fault.reason, line=link_line(at)) from error


def _first_fault(attempt: Callable[[int], OverlayError | None], count: int) -> tuple[int, OverlayError]:
    """The item whose addition first fails, and its error. A longer prefix never heals: so, by bisection."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attempt(middle) is not None else (middle, high)
    fault = attempt(high)
    assert fault is not None, "the caller saw the whole fail"
    return high - 1, fault


# --- edge lists -----------------------------------------------------------------------------------------

EDGE_COLUMNS = ("latency_ms", "price_per_gb", "back_price_per_gb")


def _read_edges(content: bytes, name: str) -> Overlay:
    draft = _Draft(name)
    for line, row in enumerate(_text(content).split("\n"), start=1):
        row = row.partition("#")[0].strip()
        if not row:
            continue
        cells = [cell.strip() for cell in row.split(",")] if "," in row else row.split()
        if not draft.links and cells[2:3] == ["latency_ms"]:
            continue  # a header
        if not 2 <= len(cells) <= 2 + len(EDGE_COLUMNS) or not all(cells[:2]):
            raise OverlayError(
                f"{len(cells)} columns. Write: a b [latency_ms] [price_per_gb] [back_price_per_gb].",
                line=line,
            )
        a, b = cells[:2]
        numbers = [_number(cell, what, line) for cell, what in zip(cells[2:], EDGE_COLUMNS, strict=False)]
        latency_ms, price, back = numbers + [None] * (len(EDGE_COLUMNS) - len(numbers))
        draft.broker(a, Site(), line)
        draft.broker(b, Site(), line)
        draft.link(_link(a, b, latency_ms, price, back), line)
    return draft.build()


def _link(a: str, b: str, latency_ms: float | None, price: float | None, back: float | None) -> Link:
    """A link with what was left out filled in: latency 1, price 1, the way back as the way there."""
    there = 1.0 if price is None else price
    return Link(a, b, there, there if back is None else back, 1.0 if latency_ms is None else latency_ms)


def _number(text: str, what: str, line: int) -> float | None:
    if not text:
        return None
    try:
        # float() would also take "1_000", which nobody means in a data file.
        return float("_" if "_" in text else text)
    except ValueError:
        raise OverlayError(f"{what} is {text[:40]!r}. Write a number.", line=line) from None


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise OverlayError("not UTF-8 text. Save it as UTF-8.", line=line) from error


# --- GraphML --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Element:
    """A node or an edge while it is being read."""

    line: int
    attributes: dict[str, str]
    data: dict[str, str] = field(default_factory=dict)


class _GraphmlReader:
    """Collects nodes and edges from expat's events. Attribute names are compared in lower case."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.nodes: list[_Element] = []
        self.edges: list[_Element] = []
        self.directed = False
        self._open: _Element | None = None
        self._key: str | None = None
        self._text: list[str] = []
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        # Entities can only be declared in a DOCTYPE, so refusing it refuses every expansion attack.
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._doctype

    def read(self, content: bytes) -> None:
        try:
            self.parser.Parse(content, True)
        except expat.ExpatError as error:
            raise OverlayError(
                f"not well-formed XML: {error}. Export it again.", line=error.lineno
            ) from error
        except (LookupError, ValueError) as error:
            raise OverlayError(
                f"an encoding that cannot be read: {error}. Save as UTF-8.", line=1
            ) from error

    def _doctype(self, *_: object) -> None:
        raise OverlayError(
            "a DOCTYPE or an entity is not allowed. Remove the declaration.",
            line=self.parser.CurrentLineNumber,
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        match tag.rpartition(" ")[2]:
            case "key":
                self.keys[attributes.get("id", "")] = attributes.get("attr.name", "").lower()
            case "graph":
                self.directed = attributes.get("edgedefault") == "directed"
            case "node":
                self._open = _Element(line, attributes)
                self.nodes.append(self._open)
            case "edge":
                self._open = _Element(line, attributes)
                self.edges.append(self._open)
            case "data":
                self._key = attributes.get("key", "")
                self._text = []

    def _characters(self, text: str) -> None:
        if self._key is not None:
            self._text.append(text)

    def _end(self, tag: str) -> None:
        match tag.rpartition(" ")[2]:
            case "node" | "edge":
                self._open = None
            case "data":
                if self._open is not None and self._key is not None:
                    self._open.data[self.keys.get(self._key, self._key.lower())] = "".join(
                        self._text
                    ).strip()
                self._key = None


def _read_graphml(content: bytes, name: str) -> Overlay:
    reader = _GraphmlReader()
    reader.read(content)
    if not reader.nodes:
        raise OverlayError("no nodes. A GraphML file holds <graph> with <node> and <edge> elements.")
    draft = _Draft(name)
    names = _graphml_brokers(reader.nodes, draft)
    taken: dict[tuple[str, str], int] = {}
    for edge in reader.edges:
        ends = [names.get(edge.attributes.get(end, "")) for end in ("source", "target")]
        a, b = ends
        if a is None or b is None:
            missing = edge.attributes.get("source" if a is None else "target")
            raise OverlayError(
                f"an edge ends at node {missing!r}, but there is no such node. Add it.", line=edge.line
            )
        link = _graphml_link(a, b, edge, draft.brokers)
        if (a, b) in taken or (b, a) in taken:
            # The Topology Zoo keeps parallel cables; an overlay needs the connection once. In a directed
            # graph the second edge may be the way back, and then its price is the price back.
            at = taken.get((b, a))
            if reader.directed and at is not None:
                there = draft.links[at]
                draft.links[at] = Link(
                    there.a, there.b, there.price_per_gb, link.price_per_gb, there.latency_ms
                )
            continue
        taken[a, b] = len(draft.links)
        draft.link(link, edge.line)
    return draft.build()


def _graphml_brokers(nodes: Sequence[_Element], draft: _Draft) -> dict[str, str]:
    """Add a broker per node, by label where there is one, and return the name of each node id."""
    names: dict[str, str] = {}
    for node in nodes:
        key = node.attributes.get("id", "")
        if not key or key in names:
            raise OverlayError(
                f"node id {key!r} is missing or given twice. Use unique ids.", line=node.line
            )
        label = " ".join(node.data.get("label", "").split()) or key
        while label in draft.brokers:
            label = f"{label} ({key})"
        names[key] = label
        draft.broker(
            label,
            Site(
                _number(node.data.get("latitude", ""), "latitude", node.line),
                _number(node.data.get("longitude", ""), "longitude", node.line),
                node.data.get("region") or node.data.get("country") or None,
                node.data.get("provider") or None,
                node.data.get("role") or None,
            ),
            node.line,
        )
    return names


def _graphml_link(a: str, b: str, edge: _Element, sites: dict[str, Site]) -> Link:
    """A link; without a latency of its own it takes the one of the distance, where both ends are placed."""
    latency_ms, price, back = (_number(edge.data.get(what, ""), what, edge.line) for what in EDGE_COLUMNS)
    if latency_ms is None:
        here, there = sites[a], sites[b]
        if None not in (here.latitude, here.longitude, there.latitude, there.longitude):
            points: Any = (here.latitude, here.longitude, there.latitude, there.longitude)
            latency_ms = float(latency_from_km(great_circle_km(*points)))
    return _link(a, b, latency_ms, price, back)


# --- JSON -----------------------------------------------------------------------------------------------


class _Broker(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    name: str
    latitude: float | None = None
    longitude: float | None = None
    region: str | None = None
    provider: str | None = None
    role: str | None = None


class _JsonLink(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    a: str
    b: str
    price_per_gb: float | None = None
    back_price_per_gb: float | None = None
    latency_ms: float | None = None


class _RouterLink(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    a: int
    b: int
    latency_ms: float
    price_per_gb: float = 1.0
    back_price_per_gb: float | None = None


class _Attachment(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    router: int
    latency_ms: float
    price_per_gb: float = 0.0
    back_price_per_gb: float | None = None


class _Routers(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    routers: int
    links: list[_RouterLink]
    brokers: list[_Attachment]


class _Document(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    schema: str
    name: str
    brokers: list[_Broker]
    links: list[_JsonLink]
    underlay: _Routers | None = None


def _document(overlay: Overlay) -> _Document:
    return _Document(
        OVERLAY_SCHEMA,
        overlay.name,
        [
            _Broker(name, site.latitude, site.longitude, site.region, site.provider, site.role)
            for name, site in zip(overlay.brokers, overlay.sites, strict=True)
        ],
        [_JsonLink(k.a, k.b, k.price_per_gb, k.back_price_per_gb, k.latency_ms) for k in overlay.links],
        None if overlay.underlay is None else _routers(overlay.underlay),
    )


def _routers(below: Underlay) -> _Routers:
    links = zip(below.ends.tolist(), below.latency_ms.tolist(), below.price.tolist(), strict=True)
    access = zip(
        below.attachment.tolist(),
        below.access_latency_ms.tolist(),
        below.access_price.tolist(),
        strict=True,
    )
    return _Routers(
        below.routers,
        [_RouterLink(a, b, ms, there, back) for (a, b), ms, (there, back) in links],
        [_Attachment(router, ms, there, back) for router, ms, (there, back) in access],
    )


def _read_json(content: bytes, _: str) -> Overlay:
    text = _text(content)
    document = _decode(text)
    if document.schema != OVERLAY_SCHEMA:
        raise OverlayError(
            f"schema is {document.schema[:40]!r}, this version reads {OVERLAY_SCHEMA!r}. Convert the file.",
            line=_line_of(text, "$.schema"),
        )
    return _build(
        document.name,
        [broker.name for broker in document.brokers],
        [Site(b.latitude, b.longitude, b.region, b.provider, b.role) for b in document.brokers],
        [_link(k.a, k.b, k.latency_ms, k.price_per_gb, k.back_price_per_gb) for k in document.links],
        broker_line=lambda at: _line_of(text, f"$.brokers[{at}]"),
        link_line=lambda at: _line_of(text, f"$.links[{at}]"),
        underlay=_underlay(document.underlay, text),
    )


def _decode(text: str) -> _Document:
    try:
        return msgspec.json.decode(text, type=_Document)
    except msgspec.ValidationError as error:
        place = re.search(r" - at `(.+)`$", str(error))
        pointer = place[1] if place else "$"
        reason = str(error)[: place.start()] if place else str(error)
        raise OverlayError(
            f"{pointer}: {reason}. See docs/overlay-format.md.", line=_line_of(text, pointer)
        ) from error
    except msgspec.DecodeError as error:
        byte = re.search(r"\(byte (\d+)\)", str(error))
        before = text.encode()[: int(byte[1])] if byte else text.encode()
        raise OverlayError(f"not JSON: {error}. Correct the file.", line=before.count(b"\n") + 1) from error
    except RecursionError as error:
        raise OverlayError("nested too deeply. See docs/overlay-format.md for the form.") from error


def _underlay(routers: _Routers | None, text: str) -> Underlay | None:
    if routers is None:
        return None
    limit = MAX_ROUTERS
    numbers = [
        routers.routers,
        *(end for link in routers.links for end in (link.a, link.b)),
        *(broker.router for broker in routers.brokers),
    ]
    try:
        if not all(0 <= number < limit for number in numbers):
            raise OverlayError(f"a router number is outside 0..{limit - 1}. Use router numbers.")
        return Underlay(
            routers.routers,
            [(link.a, link.b) for link in routers.links],
            [link.latency_ms for link in routers.links],
            [broker.router for broker in routers.brokers],
            [broker.latency_ms for broker in routers.brokers],
            price=[_both_ways(link) for link in routers.links],
            access_price=[_both_ways(broker) for broker in routers.brokers],
        )
    except OverlayError as error:
        raise OverlayError(error.reason, line=_line_of(text, "$.underlay")) from error


def _both_ways(row: _RouterLink | _Attachment) -> tuple[float, float]:
    back = row.back_price_per_gb
    return row.price_per_gb, row.price_per_gb if back is None else back


def _line_of(text: str, pointer: str) -> int | None:
    """The line of the value at a pointer such as `$.links[3].price_per_gb`, or of its nearest ancestor."""
    at = _skip_space(text, 0)
    try:
        for step in re.findall(r"\.([^.\[]+)|\[(\d+)\]", pointer):
            found = _member(text, at, step[0]) if step[0] else _item(text, at, int(step[1]))
            if found is None:
                break
            at = found
    except (ValueError, IndexError, RecursionError):
        return None
    return text.count("\n", 0, at) + 1


def _member(text: str, at: int, key: str) -> int | None:
    """Where the value of `key` starts in the object at `at`. The last one counts, as in the decoder."""
    found = None
    if text[at] != "{":
        return None
    at = _skip_space(text, at + 1)
    while text[at] != "}":
        name, at = _JSON.raw_decode(text, at)
        at = _skip_space(text, _skip_space(text, at) + 1)
        if name == key:
            found = at
        at = _skip_space(text, _JSON.raw_decode(text, at)[1])
        at = _skip_space(text, at + 1) if text[at] == "," else at
    return found


def _item(text: str, at: int, index: int) -> int | None:
    """Where item `index` starts in the array at `at`."""
    if text[at] != "[":
        return None
    at = _skip_space(text, at + 1)
    for _ in range(index):
        at = _skip_space(text, _JSON.raw_decode(text, at)[1])
        at = _skip_space(text, at + 1)
    return at


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


_JSON = json.JSONDecoder()

SUFFIXES: dict[str, Callable[[bytes, str], Overlay]] = {
    ".json": _read_json,
    ".graphml": _read_graphml,
    ".csv": _read_edges,
    ".tsv": _read_edges,
    ".txt": _read_edges,
    ".edges": _read_edges,
}
"""The reader of each suffix: bytes and a default name in, an overlay out."""

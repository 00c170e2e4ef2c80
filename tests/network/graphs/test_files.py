"""Readers and the writer: round trips, every fault with its line, nothing expanded from strange XML."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.errors import OverlayError
from ramify.network.graphs import files
from ramify.network.graphs.clouds import cloud_regions, great_circle_km, latency_from_km
from ramify.network.graphs.files import OVERLAY_SCHEMA, read_overlay, write_overlay
from ramify.network.graphs.generators import line, ring
from ramify.network.graphs.overlay import Link, Overlay, Site
from ramify.network.graphs.specs import SPECS, overlay_from
from ramify.network.graphs.transit_stub import kyra, transit_stub
from ramify.network.graphs.underlay import Underlay

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda name: name.isprintable() and name == name.strip()
)
AMOUNTS = st.floats(0, 1e12, allow_nan=False)


@st.composite
def underlays(draw: st.DrawFn, brokers: int) -> Underlay:
    routers = draw(st.integers(1, 4))
    pairs = [(a, b) for a in range(routers) for b in range(routers) if a != b]
    ends = draw(st.lists(st.sampled_from(pairs), unique_by=frozenset)) if pairs else []
    rows = st.tuples(AMOUNTS, AMOUNTS)
    return Underlay(
        routers,
        ends,
        [draw(AMOUNTS) for _ in ends],
        [draw(st.integers(0, routers - 1)) for _ in range(brokers)],
        [draw(AMOUNTS) for _ in range(brokers)],
        price=[draw(rows) for _ in ends],
        access_price=[draw(rows) for _ in range(brokers)],
    )


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    names = draw(st.lists(NAMES, unique=True, max_size=6))
    pairs = [(a, b) for a in names for b in names if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique_by=frozenset)) if pairs else []
    sites = st.builds(
        Site,
        st.none() | st.floats(-90, 90),
        st.none() | st.floats(-180, 180),
        st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        st.none() | st.just("aws"),
    )
    return Overlay.build(
        draw(NAMES),
        names,
        [Link(a, b, draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS)) for a, b in chosen],
        sites={name: draw(sites) for name in names},
        underlay=draw(st.none() | underlays(len(names))),
    )


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fault(path: Path) -> OverlayError:
    with pytest.raises(OverlayError) as raised:
        read_overlay(path)
    assert str(path) in str(raised.value)
    assert raised.value.path == str(path)
    return raised.value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(overlays())
def test_json_gives_back_what_was_written(tmp_path: Path, overlay: Overlay) -> None:
    write_overlay(overlay, tmp_path / "o.json")
    assert read_overlay(tmp_path / "o.json") == overlay


@pytest.mark.parametrize(
    "overlay", [line(0), line(1), transit_stub(60, 1), cloud_regions(), kyra(2, brokers=9)]
)
def test_generated_overlays_survive_json(tmp_path: Path, overlay: Overlay) -> None:
    path = tmp_path / "o.json"
    write_overlay(overlay, path)
    assert read_overlay(path) == overlay
    assert json.loads(path.read_text())["schema"] == OVERLAY_SCHEMA
    assert [entry.name for entry in tmp_path.iterdir()] == ["o.json"]


def test_edge_lists_in_both_spellings(tmp_path: Path) -> None:
    spaced = write(tmp_path, "e.txt", "# sites\na b\n\na\tc 5  # quick\r\nb c 5 0.02 0.09\n")
    comma = write(tmp_path, "e.csv", "from,to,latency_ms,price_per_gb\na,b\na,c,5\nb , c,5,0.02,0.09\n")
    expected = [Link("a", "b", 1, 1, 1), Link("a", "c", 1, 1, 5), Link("b", "c", 0.02, 0.09, 5)]
    for path in (spaced, comma):
        overlay = read_overlay(path)
        assert list(overlay.links) == expected
        assert overlay.name == "e"
    blank = read_overlay(write(tmp_path, "b.csv", "new york,los angeles,,0.5\n"))
    assert blank.links == (Link("new york", "los angeles", 0.5, 0.5, 1.0),)
    assert len(read_overlay(write(tmp_path, "none.edges", "# nothing\n"))) == 0


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a b\nc\n", 2, "1 columns"),
        ("a b\n\na c 1 2 3 4\n", 3, "6 columns"),
        ("a,b\n,c\n", 2, "2 columns"),
        ("a b x\n", 1, "latency_ms is 'x'"),
        ("a b 1_000\n", 1, "latency_ms is '1_000'"),
        ("a b\nb c 1 nan\nc d\n", 2, "b - c has a price"),
        ("a b\nb c 1 1 -2\nc d -1\n", 2, "b - c has a price"),
        ("a b\nb c\nc d inf\n", 3, "c - d has a latency"),
        ("a b\nb c\nc c\n", 3, "joins a broker to itself"),
        ("a b\nb c\n\nb a\nb a\n", 4, "b - a is given twice"),
        ("a b\nb " + "x" * 201 + "\n", 2, "bad broker name"),
        (b"a b\nb \xff\n", 2, "not UTF-8"),
    ],
)
def test_faults_of_edge_lists(tmp_path: Path, text: str | bytes, line: int, reason: str) -> None:
    error = fault(write(tmp_path, "e.txt", text))
    assert error.line == line
    assert reason in error.reason


def document(**changes: object) -> dict[str, object]:
    return {
        "schema": OVERLAY_SCHEMA,
        "name": "d",
        "brokers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "links": [{"a": "a", "b": "b"}, {"a": "b", "b": "c", "price_per_gb": 0.5}],
        **changes,
    }


def test_json_fills_in_what_is_left_out(tmp_path: Path) -> None:
    overlay = read_overlay(write(tmp_path, "d.json", json.dumps(document())))
    assert overlay.links == (Link("a", "b", 1, 1, 1), Link("b", "c", 0.5, 0.5, 1))


def test_json_rows_of_an_underlay_may_leave_prices_out(tmp_path: Path) -> None:
    below = {
        "routers": 4,
        "links": [[0, 1, 5], [1, 2, 5, 0.5], [2, 3, 5, 0.5, 0.75]],
        "brokers": [[0, 1], [1, 1, 0.25], [2, 1, 0.25, 0]],
    }
    overlay = read_overlay(write(tmp_path, "d.json", json.dumps(document(underlay=below))))
    assert overlay.underlay is not None
    assert overlay.underlay.price.tolist() == [[1, 1], [0.5, 0.5], [0.5, 0.75]]
    assert overlay.underlay.access_price.tolist() == [[0, 0], [0.25, 0.25], [0.25, 0]]


@pytest.mark.parametrize(
    ("changes", "marker", "reason"),
    [
        ({"schema": "ramify.overlay/9"}, "ramify.overlay/9", "this version reads 'ramify.overlay/1'"),
        ({"name": 7}, "7", "$.name: Expected `str`, got `int`"),
        (
            {"links": [{"a": "a", "b": "b"}, {"a": "b", "b": "c", "price_per_gb": "dear"}]},
            "dear",
            "`float | null`",
        ),
        ({"links": [{"a": "a", "b": "b"}, {"a": "b", "c": "QQ"}]}, None, "unknown field `c`"),
        ({"links": [{"a": "a", "b": "QQ"}]}, None, "unknown broker 'QQ'"),
        ({"links": [{"a": "a", "b": "b"}, {"a": "b", "b": "a"}]}, None, "given twice"),
        ({"brokers": [{"name": "a"}, {"name": "a"}]}, None, "'a' is given twice"),
        ({"brokers": [{"name": "a", "latitude": 99}]}, None, "latitude 99"),
        ({"name": ""}, None, "no name"),
        ({"underlay": {"routers": 1, "links": [], "brokers": []}}, None, "attaches 0 brokers"),
        ({"underlay": {"routers": 1, "links": [[0, 5, 1.0]], "brokers": []}}, None, "outside 0..0"),
        ({"underlay": {"routers": 1, "links": [], "brokers": [[2**40, 1.0]]}}, None, "outside"),
        (
            {"underlay": {"routers": 2, "links": [[0, 1, 1, -3]], "brokers": []}},
            '"underlay"',
            "underlay price is negative",
        ),
        (
            {"underlay": {"routers": 2, "links": [[0, 1, 1, "dear"]], "brokers": []}},
            "dear",
            "$.underlay.links[0][3]: Expected `float`",
        ),
        ({"underlay": {"routers": 1, "links": [], "brokers": [[0, 1, 0, 0, 0]]}}, None, "at most length 4"),
        ({"underlay": {"routers": 1, "links": [], "brokers": [[0]]}}, None, "at least length 2"),
        ({"extra": 1}, None, "unknown field `extra`"),
    ],
)
def test_faults_of_json(
    tmp_path: Path, changes: dict[str, object], marker: str | None, reason: str
) -> None:
    text = json.dumps(document(**changes), indent=1)
    error = fault(write(tmp_path, "d.json", text))
    assert reason in error.reason
    if marker is not None:
        assert error.line is not None
        assert marker in text.splitlines()[error.line - 1]


def test_json_faults_name_the_line_of_the_item(tmp_path: Path) -> None:
    brokers = '"brokers": [\n{"name": "a"},\n{"name": "b"}]'
    head = f'{{"schema": "{OVERLAY_SCHEMA}", "name": "x",\n{brokers},\n"links": [\n'
    for links, where in [
        ('{"a": "a", "b": "b"},\n{"a": "b", "b": "b"}]}', 7),
        ('{"a": "a", "b": "b", "latency_ms": -1}]}', 6),
        ('{"a": "a"}]}', 6),
        ('{"a": "a", "b": "b"}\n', 7),
        ("{\n oops", 7),
    ]:
        assert fault(write(tmp_path, "x.json", head + links)).line == where
    assert fault(write(tmp_path, "empty.json", "")).line == 1
    deep = head + '{"a": "a", "b": ' + "[" * 100_000 + "]}"
    assert fault(write(tmp_path, "deep.json", deep)).reason


GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="Latitude" attr.type="double" for="node" id="d1" />
  <key attr.name="Longitude" attr.type="double" for="node" id="d2" />
  <key attr.name="label" attr.type="string" for="node" id="d3" />
  <key attr.name="Country" attr.type="string" for="node" id="d4" />
  <key attr.name="latency_ms" attr.type="double" for="edge" id="e1" />
  <key attr.name="price_per_gb" attr.type="double" for="edge" id="e2" />
  <graph edgedefault="undirected">
    <data key="d9">about the graph</data>
    <node id="0">
      <data key="d1">51.51</data><data key="d2">-0.13</data><data key="d3">London</data>
      <data key="d4">United Kingdom</data>
    </node>
    <node id="1"><data key="d1">48.8</data><data key="d2">2.3</data><data key="d3">A &amp; B</data></node>
    <node id="2"><data key="d3">London</data></node>
    <node id="n3" />
    <edge source="0" target="1" />
    <edge source="1" target="2"><data key="e1">7.5</data><data key="e2">0.02</data></edge>
    <edge source="2" target="1" />
    <edge source="2" target="n3" />
  </graph>
</graphml>
"""


def test_graphml_of_the_topology_zoo(tmp_path: Path) -> None:
    overlay = read_overlay(write(tmp_path, "zoo.graphml", GRAPHML))
    assert overlay.brokers == ("London", "A & B", "London (2)", "n3")
    assert overlay.sites[0] == Site(51.51, -0.13, "United Kingdom")
    by_distance = float(latency_from_km(great_circle_km(51.51, -0.13, 48.8, 2.3)))
    assert overlay.links == (
        Link("London", "A & B", 1.0, 1.0, by_distance),
        Link("A & B", "London (2)", 0.02, 0.02, 7.5),
        Link("London (2)", "n3", 1.0, 1.0, 1.0),
    )


def test_a_directed_graphml_prices_each_way(tmp_path: Path) -> None:
    text = GRAPHML.replace("undirected", "directed").replace(
        '<edge source="2" target="1" />', '<edge source="2" target="1"><data key="e2">0.5</data></edge>'
    )
    overlay = read_overlay(write(tmp_path, "zoo.graphml", text))
    assert overlay.links[1] == Link("A & B", "London (2)", 0.02, 0.5, 7.5)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ('target="n3"', 'target="n9"', 21, "node 'n9', but there is no such node"),
        ('id="n3"', 'id="2"', 17, "node id '2' is missing or given twice"),
        ("51.51", "north", 11, "latitude is 'north'"),
        ("51.51", "99", 11, "latitude 99"),
        ("7.5", "-7.5", 19, "has a latency that is negative"),
        ('source="2" target="n3"', 'source="n3" target="n3"', 21, "joins a broker to itself"),
        ("</graph>", "", 23, "not well-formed XML"),
        ('encoding="utf-8"', 'encoding="klingon"', 1, ""),
    ],
)
def test_faults_of_graphml(tmp_path: Path, old: str, new: str, line: int, reason: str) -> None:
    error = fault(write(tmp_path, "zoo.graphml", GRAPHML.replace(old, new, 1)))
    assert error.line == line
    assert reason in error.reason


def test_xml_that_declares_entities_is_refused(tmp_path: Path) -> None:
    layers = "".join(f'<!ENTITY x{k} "{f"&x{k - 1};" * 10}">' for k in range(1, 10))
    bomb = f'<?xml version="1.0"?>\n<!DOCTYPE g [<!ENTITY x0 "ha">{layers}]>\n<graphml>&x9;</graphml>'
    outside = '<!DOCTYPE g [<!ENTITY f SYSTEM "file:///etc/hostname">]>\n<graphml>&f;</graphml>'
    assert "DOCTYPE" in (error := fault(write(tmp_path, "bomb.graphml", bomb))).reason
    assert error.line == 2
    assert "DOCTYPE" in fault(write(tmp_path, "outside.graphml", outside)).reason
    assert "no nodes" in fault(write(tmp_path, "empty.graphml", "<graphml/>")).reason


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in fault(tmp_path / "absent.json").reason
    assert "unknown suffix '.xlsx'. Use one of: .json, .graphml" in fault(tmp_path / "a.xlsx").reason
    (tmp_path / "folder.json").mkdir()
    assert "cannot be read" in fault(tmp_path / "folder.json").reason
    monkeypatch.setattr(files, "OVERLAY_FILE_BYTES", 10)
    assert "larger than 10 bytes" in fault(write(tmp_path, "big.txt", "a b\n" * 3)).reason
    with pytest.raises(OverlayError, match="overlays are written as"):
        write_overlay(ring(3), tmp_path / "o.graphml")
    with pytest.raises(OverlayError, match="cannot be written"):
        write_overlay(ring(3), tmp_path / "no" / "o.json")


@pytest.mark.parametrize(
    ("spec", "brokers", "links"),
    [
        ("ring:20", 20, 20),
        ("star:8", 8, 7),
        ("line:3", 3, 2),
        ("mesh:5", 5, 10),
        ("random:100:3", 100, 200),
        ("random:100", 100, 200),
        ("plane:6", 6, 15),
        ("majumder-i3:6", 6, 6),
        ("majumder-i2", 11, 15),
        ("kyra-figure-4", 8, 13),
    ],
)
def test_specs_make_overlays(spec: str, brokers: int, links: int) -> None:
    overlay = overlay_from(spec)
    assert (len(overlay), len(overlay.ends)) == (brokers, links)


def test_specs_take_seeds_and_files(tmp_path: Path) -> None:
    assert overlay_from("transit-stub:70:5") == transit_stub(70, 5)
    assert overlay_from("cloud-regions") == cloud_regions()
    assert overlay_from("gcp-regions") == cloud_regions(providers=["gcp"])
    assert len(overlay_from("matchmaker:1")) == 100
    assert overlay_from("kyra:1:10") == kyra(1, multi_homed=0.1)
    assert overlay_from("kyra:1:0") == overlay_from("kyra:1") == kyra(1)
    assert overlay_from("kyra:1:100") == kyra(1, multi_homed=1.0)
    path = write(tmp_path, "mine.txt", "a b\n")
    assert overlay_from(str(path)).brokers == ("a", "b")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("rong:20", "transit-stub:BROKERS\\[:SEED\\]"),
        ("", "unknown overlay ''"),
        ("ring", "ring needs brokers. Write ring:BROKERS"),
        ("ring:x", "'x', not a whole number"),
        ("ring:-3", "not a whole number"),
        ("ring:5:5", "too many numbers"),
        ("ring:0", "brokers of ring is '0', not a whole number from 1. Write ring:BROKERS"),
        ("line:0", "not a whole number from 1"),
        ("star:0", "not a whole number from 1"),
        ("mesh:0", "not a whole number from 1"),
        ("random:0:7", "not a whole number from 1"),
        ("plane:0", "not a whole number from 1"),
        ("zhao-wu:0", "not a whole number from 1"),
        ("majumder-i3:5", "even ring"),
        ("kyra:1:101", "multi_homed_percent of kyra is '101', not a whole number from 0 to 100"),
        ("kyra:1:-1", "'-1', not a whole number from 0 to 100"),
        (
            "kyra:1:ten",
            "'ten', not a whole number from 0 to 100. Write kyra\\[:SEED\\]\\[:MULTI_HOMED_PERCENT\\]",
        ),
        ("mesh:99999999", "more than"),
        ("nowhere.json", "No such file"),
        ("null\0.json", "cannot be read"),
    ],
)
def test_specs_that_mean_nothing(spec: str, reason: str) -> None:
    with pytest.raises(OverlayError, match=reason):
        overlay_from(spec)


def test_a_worked_example_is_told_from_a_plain_ring_by_its_name() -> None:
    assert overlay_from("majumder-i3").name == "majumder-i3-8"
    assert overlay_from("majumder-i3:6").name == "majumder-i3-6"
    assert overlay_from("ring:8").name == "ring-8"


def test_an_unknown_spec_lists_every_choice() -> None:
    with pytest.raises(OverlayError) as raised:
        overlay_from("what")
    assert all(name in str(raised.value) for name in SPECS)

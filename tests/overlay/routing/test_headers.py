"""Headers: what is written is read back, and what is not a header is refused, never misread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.overlay.routing.headers import Header, HeaderKind, carried_tree, read_carried

BROKERS = st.integers(0, 40_000)


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, dict[int, list[int]], set[int]]:
    """A root, the children of every broker, the destinations."""
    nodes = draw(st.lists(BROKERS, min_size=1, max_size=12, unique=True))
    children: dict[int, list[int]] = {}
    for i in range(1, len(nodes)):
        children.setdefault(nodes[draw(st.integers(0, i - 1))], []).append(nodes[i])
    return nodes[0], children, set(draw(st.lists(st.sampled_from(nodes))))


@st.composite
def headers(draw: st.DrawFn) -> Header:
    kind = draw(st.sampled_from(list(HeaderKind)))
    one = draw(BROKERS)
    several = tuple(draw(st.lists(BROKERS, max_size=4)))
    label = draw(st.none() | st.tuples(BROKERS, BROKERS))
    root, children, wanted = draw(trees())
    return Header(
        kind,
        draw(BROKERS),
        draw(st.integers(0, 255)),
        several if kind is HeaderKind.LEG else () if kind is HeaderKind.NOTE else (one,),
        draw(BROKERS) if kind in (HeaderKind.LEG, HeaderKind.NOTE, HeaderKind.COPY) else -1,
        carried_tree(root, children, wanted) if kind is HeaderKind.CARRIED else b"",
        tuple(sorted(set(draw(st.lists(BROKERS, max_size=6))))) if kind is HeaderKind.LIST else (),
        label,
    )


@given(headers())
def test_a_header_survives_the_wire(header: Header) -> None:
    assert Header.decode(header.encode()) == header


@given(headers(), st.data())
def test_a_header_that_is_cut_off_or_too_long_is_refused(header: Header, data: st.DataObject) -> None:
    whole = header.encode()
    with pytest.raises(InputError):
        Header.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InputError):
        Header.decode(whole + b"\x00" * (1 if header.kind is not HeaderKind.CARRIED else 2))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_an_error_that_says_so(noise: bytes) -> None:
    try:
        found = Header.decode(noise)
    except InputError:
        return
    assert Header.decode(found.encode()) == found


@given(trees())
def test_every_broker_finds_its_own_part_of_a_carried_tree(
    tree: tuple[int, dict[int, list[int]], set[int]],
) -> None:
    root, children, wanted = tree
    left = [(root, carried_tree(root, children, wanted))]
    seen = set()
    while left:
        broker, data = left.pop()
        deliver, below = read_carried(data)
        assert deliver == (broker in wanted)
        assert [child for child, _ in below] == children.get(broker, [])
        seen.add(broker)
        left += below
    assert seen == {root, *(child for group in children.values() for child in group)}


def test_a_long_journey_keeps_its_hop_count_at_the_most() -> None:
    assert Header.decode(Header(HeaderKind.NOTE, 1, 1_000, target=2).encode()).hops == 255

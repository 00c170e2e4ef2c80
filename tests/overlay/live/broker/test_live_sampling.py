"""Samples: the same events wherever and whenever one chooses, in the right number, each shipped once."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overseeing import Overseen, overseen
from ramify.errors import InputError
from ramify.overlay.control.frames import decode_events
from ramify.overlay.control.names import token
from ramify.overlay.live.broker.sampler import Sampler, chosen, sampled
from ramify.overlay.live.wire.streams import connect, ensure_samples
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world

WORLD = seeded_world(17, brokers=3, subscriptions=6, events=120)


@given(st.lists(st.text(max_size=12), max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_the_choice_is_by_the_id_alone(ids: list[str], p: float, q: float) -> None:
    together = chosen(ids, p)
    assert together.tolist() == [bool(chosen([id_], p)[0]) for id_ in ids]
    # an event of a small sample is in a larger one
    low, high = sorted((p, q))
    assert not (chosen(ids, low) & ~chosen(ids, high)).any()
    assert not chosen(ids, 0.0).any()
    assert chosen(ids, 1.0).all()


@pytest.mark.parametrize("form", ["e{}", "{}", "{:08d}", "client-7/{}/x", "aaaa-{:x}"])
@pytest.mark.parametrize("p", [0.03, 0.5])
def test_ids_that_count_up_are_sampled_evenly(form: str, p: float) -> None:
    n = 50_000
    picked = chosen([form.format(i) for i in range(n)], p)
    # five standard deviations, in all and in every tenth of the range
    for part in (picked, *np.array_split(picked, 10)):
        assert abs(part.sum() - p * len(part)) < 5 * (p * (1 - p) * len(part)) ** 0.5


def test_samples_have_everything_but_the_body() -> None:
    some = sampled(WORLD.batch, 0.5)
    assert some.schema.equals(WORLD.batch.schema)
    assert 0 < some.num_rows < WORLD.batch.num_rows
    assert some.column("_body").null_count == some.num_rows
    rows = dict(
        zip(WORLD.batch.column("id").to_pylist(), WORLD.batch.column("topic").to_pylist(), strict=True)
    )
    for id_, topic in zip(some.column("id").to_pylist(), some.column("topic").to_pylist(), strict=True):
        assert rows[id_] == topic


def test_a_probability_is_checked() -> None:
    with pytest.raises(InputError, match="sample probability"):
        Sampler("b", 1.5)


async def stored(live: Overseen) -> Counter[str]:
    """The ids in the stream SAMPLES."""
    connection = await connect(live.control_endpoint("leader"))
    found: Counter[str] = Counter()
    try:
        await ensure_samples(connection)
        js = connection.jetstream()
        count = (await js.stream_info("SAMPLES")).state.messages
        for sequence in range(1, count + 1):
            message = await js.get_msg("SAMPLES", seq=sequence)
            assert message.subject in {f"samples.{token(name)}" for name in live.brokers}
            found.update(decode_events(message.data or b"").column("id").to_pylist())  # type: ignore[arg-type]
    finally:
        await connection.close()
    return found


def test_what_brokers_ship_is_the_choice_among_what_was_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        live = Overseen(WORLD, tmp_path)
        live.probability = 0.3
        try:
            async with asyncio.timeout(240):
                await live.start()
                await live.routing(await live.leader.propose(make_plan("mult", WORLD.problem, 1)))
                await live.wires.publish(WORLD, "/a", size=7)
                ids = [f"{e.id}/a" for e in WORLD.events]
                wanted = {id_ for id_, yes in zip(ids, chosen(ids, 0.3), strict=True) if yes}
                await live.until(lambda: sum(b.sampler.taken for b in live.brokers.values()) == len(wanted))
                while (await stored(live)).total() < len(wanted):
                    await asyncio.sleep(0.2)
                assert await stored(live) == Counter(wanted)
        finally:
            await live.stop()

    run_to_end(scenario())


def test_what_got_no_answer_is_sent_again_and_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with overseen(WORLD, tmp_path) as live:
            sampler = Sampler(WORLD.overlay.brokers[0], 1.0)
            connection = await connect(live.control_endpoint("leader"))
            await live.until(lambda: all(b.broker.ready.is_set() for b in live.brokers.values()))
            await ensure_samples(connection)
            sampler.take([WORLD.batch])
            sampler._pack()
            frames = list(sampler._frames)
            await sampler.ship(connection)
            sampler._frames.extend(frames)  # as if the answers had been lost
            await sampler.ship(connection)
            assert await stored(live) == Counter(e.id for e in WORLD.events)
            await connection.close()

    run_to_end(scenario())


def test_what_waits_is_bounded() -> None:
    sampler = Sampler("b", 1.0)
    while sampler.lost == 0:
        sampler.take([WORLD.batch])
    assert sampler.taken - sampler.lost <= 50_000

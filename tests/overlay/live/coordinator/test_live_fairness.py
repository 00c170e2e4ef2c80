"""A leader serves clients in turn, renews its lease meanwhile, and knows requests that are made again."""

import asyncio
from pathlib import Path

import msgspec
from test_live_coordinator import BROKERS, WORLD, Scene, play

from obedient import endpoint, obeying
from ramify.overlay.control.fairness import RequestRates
from ramify.overlay.control.names import COORDINATE
from ramify.overlay.control.records import (
    Answer,
    FilterText,
    ForwardedRequest,
    Request,
    decode,
    encode,
)
from ramify.overlay.live.coordinator.homes import ClientHomes
from ramify.overlay.live.wire.streams import connect
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.schemes.catalog import make_plan

AT = BROKERS[3]
HOSTILE = 60


def hard(number: int) -> str:
    """A filter that is refused, or accepted, after about as much work as a filter may take."""
    return " AND ".join(f"(x<{i} OR y>{i + number})" for i in range(600))[: 10 * 1024].rpartition(" AND ")[
        0
    ]


def test_hard_filters_neither_cost_the_lease_nor_delay_others(tmp_path: Path) -> None:
    """Without a thread, turns and a budget: some nine seconds in which nobody is answered."""

    async def scenario(scene: Scene) -> None:
        rates = RequestRates(cpu_share=0.05, cpu_burst_s=2.0)
        coordinator = scene.coordinate(plan=make_plan("mst", WORLD.problem), lease_s=6, rates=rates)
        async with obeying(scene.server, BROKERS):
            await scene.term()
            wire = await connect(endpoint(scene.server, "test"))
            answers: list[Answer] = []

            async def ask(number: int) -> None:
                request = Request("subscribe", f"h{number}", FilterText(hard(number)), wait_s=1.0)
                passed = encode(ForwardedRequest(AT, "hostile", request))
                answers.append(
                    decode((await wire.request(f"{COORDINATE}.{AT}", passed, timeout=200)).data, Answer)
                )

            asking = [asyncio.create_task(ask(number)) for number in range(HOSTILE)]
            try:
                while not answers:
                    await asyncio.sleep(0.005)
                told = await scene.subscribe("other", "mine", "x = 1")
                assert told.ok
                assert len(answers) < HOSTILE // 2, "others wait for all of a client's queue"
                await asyncio.gather(*asking)
            finally:
                await end_tasks(asking)
                await wire.close()
            codes = [answer.error.code for answer in answers if answer.error is not None]
            assert len(codes) == HOSTILE
            assert set(codes) == {"bad_filter", "busy"}, "its share is used up before its queue is done"
            waits = [a.error.retry_s for a in answers if a.error is not None and a.error.code == "busy"]
            assert min(waits) > 0
            assert coordinator.terms == 1

    play(tmp_path, scenario)


def test_a_request_that_is_made_again_at_the_next_leader_is_not_done_twice(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate("k0", plan=make_plan("mst", WORLD.problem))
        async with obeying(scene.server, BROKERS):
            await scene.term()
            asked = Request("subscribe", "s", FilterText("x = 1"), wait_s=30.0)
            assert (await scene.ask(AT, "c", asked)).ok
            assert (await scene.ask(AT, "c", Request("advertise", "a", FilterText("x = 1")))).ok
            left = Request("unsubscribe", "s", wait_s=30.0, request="once")
            assert (await scene.ask(AT, "c", left)).ok
            assert (await scene.ask(AT, "c", Request("unadvertise", "a"))).ok
            scene.coordinate("k1")
            await end_tasks([scene.tasks["k0"]])
            await scene.term(but="k0")
            for again in (left, msgspec.structs.replace(left, request=""), Request("unadvertise", "a")):
                told = await scene.ask(AT, "c", again)
                assert told.ok, told.error
                assert not told.missing
            # what was asked for since stays, although the name is that of a request to end it
            assert (await scene.ask(AT, "c", asked)).ok
            assert (await scene.ask(AT, "c", left)).ok
            listed = await scene.ask(AT, "c", Request("list"))
            assert listed.client is not None
            assert list(listed.client.subscriptions) == ["c/s"]
            never = await scene.ask(AT, "c", Request("unsubscribe", "never"))
            assert never.error is not None
            assert never.error.code == "unknown"

    play(tmp_path, scenario)


def test_a_broker_may_not_ask_for_the_new_clients_of_another(tmp_path: Path) -> None:
    """Else one that was taken over could have a client first, and its own broker is refused."""
    file = tmp_path / "clients.json"
    file.write_text(f'{{"newcomer": "{AT}"}}')

    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("mst", WORLD.problem), homes=ClientHomes(file))
        async with obeying(scene.server, BROKERS):
            await scene.term()
            asked = Request("subscribe", "s", FilterText("x = 1"), wait_s=30.0)
            other = next(name for name in BROKERS if name != AT)
            for text in ("{", f'{{"newcomer": "{AT}"}}'):
                told = await scene.ask(other, "newcomer", asked)
                assert told.error is not None
                assert f"attached to broker {AT!r}" in told.error.reason
                # a damaged file counts as it was before
                file.write_text(text)
            assert (await scene.ask(AT, "newcomer", asked)).ok
            # who is not in the file is of the broker that asks first
            assert (await scene.ask(other, "stray", asked)).ok

    play(tmp_path / "scene", scenario)

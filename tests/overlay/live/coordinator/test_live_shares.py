"""Coordinators that share the attributes, on a real control server, with brokers that obey."""

import asyncio
import logging
from pathlib import Path

import pytest
from test_live_coordinator import BROKERS, LIMIT_S, WORLD, Scene, agree, play, recent

from obedient import obeying, until
from ramify.content.events.events import AttributeType
from ramify.overlay.control.names import token
from ramify.overlay.control.records import (
    SHARE,
    FilterText,
    Request,
    ShareAnswer,
    ShareQuestion,
    decode,
    encode,
)
from ramify.overlay.control.registry import client_key
from ramify.overlay.control.shares import owner, owners
from ramify.overlay.live.coordinator import shares
from ramify.overlay.live.coordinator.adaptation import Replanner
from ramify.overlay.live.coordinator.coordinator import Coordinator
from ramify.overlay.live.coordinator.term import Term
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.rules import Rules
from ramify.planning.schemes.catalog import make_plan

SHARED = {f"a{i}": AttributeType.INT64 for i in range(12)}
EMPTY = {"overlay": WORLD.overlay, "scheme": "semcast", "schema": SHARED}


def attribute(of: str, among: list[str], nth: int = 0) -> str:
    """An attribute that a coordinator owns."""
    return [path for path in SHARED if owner(path, among) == of][nth]


async def standing_by(scene: Scene, leader: Term, *names: str, **config: object) -> None:
    """Begin with standbys, until they keep shares of each other's making and the leader knows them."""
    for name in names:
        scene.coordinate(name, **{**EMPTY, **config})
    await until(lambda: leader.colleagues.others == set(names))
    everyone = frozenset({*names, leader.colleagues.name})
    await until(lambda: all(shared_by(scene.coordinators[name]) == everyone for name in names))


def shared_by(one: Coordinator) -> frozenset[str] | None:
    """The coordinators that a standby's share was made with."""
    if one.sharer is None or one.sharer.share is None:
        return None
    return one.sharer.share.coordinators


def answered(scene: Scene, name: str, op: str = "covering") -> int:
    sharer = scene.coordinators[name].sharer
    return 0 if sharer is None else sharer.answered[op]


def excludes_nobody(term: Term) -> None:
    """The plan serves all that is wanted, by its own check."""
    plan = term.book.head.plan
    assert set(plan.classes.class_of) == set(term.book.wanted)
    check(plan, Problem.of(plan.overlay, plan.classes, Demand.of([]), plan.attachments))


def channel_of(term: Term, id_: str) -> list[int]:
    plan = term.book.head.plan
    k = plan.classes.class_of[id_]
    return [c for c, channel in enumerate(plan.channels) if (channel.serves.classes == k).any()]


def test_a_newcomer_joins_the_channel_that_a_standby_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints = list[dict[str, frozenset[str]]]()
    plain = shares.Colleagues.hints

    async def spied(self: shares.Colleagues, *args: object) -> dict[str, frozenset[str]]:
        found = await plain(self, *args)  # type: ignore[arg-type]
        hints.append(found)
        return found

    monkeypatch.setattr(shares.Colleagues, "hints", spied)

    async def scenario(scene: Scene) -> None:
        scene.coordinate("k0", **EMPTY)
        async with obeying(scene.server, BROKERS) as brokers:
            term = await scene.term()
            await standing_by(scene, term, "k1", "k2")
            among = ["k0", "k1", "k2"]
            for name in ("k1", "k2"):
                path = attribute(name, among)
                hints.clear()
                wide = await scene.subscribe("w", f"{path} wide", f"{path} > 1", BROKERS[0])
                assert wide.ok
                narrow = await scene.subscribe("n", f"{path} narrow", f"{path} > 5", BROKERS[4])
                assert narrow.ok
                assert not narrow.missing
                assert answered(scene, name) == 2
                wide_id, narrow_id = f"w/{path} wide", f"n/{path} narrow"
                # the newcomer's own record is known there by then, and names itself
                assert hints == [{wide_id: {wide_id}}, {narrow_id: {wide_id, narrow_id}}]
                assert channel_of(term, narrow_id) == channel_of(term, wide_id)
                assert len(channel_of(term, wide_id)) == 1
            assert term.colleagues.messages == {"covering": 4, "answer": 4}
            # the leader's own attribute: nobody is asked
            own = attribute("k0", among)
            assert (await scene.subscribe("n", "own", f"{own} > 5", BROKERS[4])).ok
            assert term.colleagues.messages["covering"] == 4
            excludes_nobody(term)
            agree(term, brokers)
            kept = scene.coordinators["k1"].sharer.share.filters()  # type: ignore[union-attr]
            path = attribute("k1", among)
            assert set(kept) == {f"w/{path} wide", f"n/{path} narrow"}

    play(tmp_path, scenario)


def test_lies_and_silence_of_a_standby_exclude_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "_ANSWER_S", 0.3)
    monkeypatch.setattr(shares, "_QUIET_S", 0.0)
    monkeypatch.setattr(shares.ShareKeeper, "_answer", _lie)
    path = attribute("k1", ["k0", "k1"])

    async def scenario(scene: Scene) -> None:
        scene.coordinate("k0", **EMPTY)
        async with obeying(scene.server, BROKERS) as brokers:
            term = await scene.term()
            await standing_by(scene, term, "k1")
            filters = ["{} > 1", "{} > 5", "{} < 9", "{} = 3", "{} > 0", "{} = 7"]
            for i, (told, sql) in enumerate(zip(LIES, filters, strict=True)):
                LIE[:] = [told]
                answer = await scene.subscribe(f"n{i}", "x", sql.format(path), BROKERS[i])
                assert answer.ok
                assert not answer.missing
                excludes_nobody(term)
            assert term.colleagues.messages["covering"] == len(LIES)
            agree(term, brokers)

    play(tmp_path, scenario)


LIES: list[ShareAnswer | None] = [
    ShareAnswer(["n0/x", "n1/x", "n5/x"]),
    ShareAnswer(["nobody", ""]),
    ShareAnswer(["n0/x", "n1/x"]),
    ShareAnswer([]),
    None,
    ShareAnswer(error="no idea"),
]
LIE: list[ShareAnswer | None] = [None]


async def _lie(self: shares.ShareKeeper, question: ShareQuestion) -> ShareAnswer:
    if LIE[0] is None:
        await asyncio.sleep(1.0)
        return ShareAnswer()
    return LIE[0]


def test_without_the_standby_the_leader_decides_by_itself(tmp_path: Path) -> None:
    path = attribute("k1", ["k0", "k1"])

    async def scenario(scene: Scene) -> None:
        scene.coordinate("k0", **EMPTY)
        async with obeying(scene.server, BROKERS) as brokers:
            term = await scene.term()
            await standing_by(scene, term, "k1")
            assert (await scene.subscribe("w", "wide", f"{path} > 1", BROKERS[0])).ok
            assert answered(scene, "k1") == 1
            # dead without a word: its lease stays for a while, and nobody answers
            sharer = scene.coordinators["k1"].sharer
            assert sharer is not None
            await sharer._nats.close()
            await sharer._store.close()
            await end_tasks([scene.tasks["k1"]])
            for i in (5, 6):
                answer = await scene.subscribe("n", f"narrow {i}", f"{path} > {i}", BROKERS[4])
                assert answer.ok
                assert not answer.missing
                assert channel_of(term, f"n/narrow {i}") == channel_of(term, "w/wide")
            assert term.colleagues.messages["answer"] == 1
            # until it is left alone
            assert term.colleagues.messages["covering"] == 2
            await until(lambda: not term.colleagues.others)
            assert (await scene.subscribe("n", "last", f"{path} > 7", BROKERS[4])).ok
            excludes_nobody(term)
            agree(term, brokers)

    play(tmp_path, scenario)


def test_a_standby_takes_over_with_everything_and_shares_are_dealt_anew(tmp_path: Path) -> None:
    everyone = ["k0", "k1", "k2"]

    async def scenario(scene: Scene) -> None:
        scene.coordinate("k0", lease_s=2, **EMPTY)
        async with obeying(scene.server, BROKERS) as brokers:
            first = await scene.term()
            await standing_by(scene, first, "k1", "k2", lease_s=2)
            for i, path in enumerate(SHARED):
                assert (await scene.subscribe("w", path, f"{path} > 1", BROKERS[0])).ok
                assert (await scene.subscribe(f"n{i % 3}", path, f"{path} > 2", BROKERS[i % 3])).ok
            excludes_nobody(first)
            await first._stores.store.close()
            await end_tasks([scene.tasks["k0"]])
            assert not (await scene.subscribe("w", "late", "a0 = 9", BROKERS[0])).missing
            term = await scene.term(but="k0")
            assert len(term.book.wanted) == 2 * len(SHARED) + 1
            excludes_nobody(term)
            agree(term, brokers)
            leads = term.colleagues.name
            (stands_by,) = {"k1", "k2"} - {leads}
            left = ["k1", "k2"]
            await until(lambda: term.colleagues.others == {stands_by})
            await until(lambda: shared_by(scene.coordinators[stands_by]) == frozenset({"k1", "k2"}))
            kept = scene.coordinators[stands_by].sharer.share.filters()  # type: ignore[union-attr]
            assert set(kept) == {
                id_
                for id_, row in term.book.wanted.items()
                if stands_by in owners(row.parse(SHARED).paths, left)
            }
            # what was the dead one's is somebody's
            path = next(p for p in SHARED if owner(p, everyone) == "k0" and owner(p, left) == stands_by)
            before = answered(scene, stands_by)
            assert (await scene.subscribe("n0", "x", f"{path} > 3", BROKERS[0])).ok
            assert answered(scene, stands_by) == before + 1
            assert channel_of(term, "n0/x") == channel_of(term, f"w/{path}")
            excludes_nobody(term)

    play(tmp_path, scenario)


def test_before_plans_are_made_coordinators_synchronise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # several pages each
    monkeypatch.setattr(shares, "_PAGE_BYTES", 200)
    plan = make_plan("semcast", WORLD.problem)

    async def source(head: Plan, rules: Rules) -> Demand | None:
        # beside the loop, or the lease would lapse while kernels are compiled
        return await asyncio.to_thread(lambda: asyncio.run(recent(head, rules)))

    given: dict[str, object] = {"plan": plan, "overlay": None, "schema": {}, "lease_s": 30}

    async def scenario(scene: Scene) -> None:
        replanner = Replanner(source, period_s=1.0, specs=("semcast",))
        scene.coordinate("k0", replanner, **given)
        async with obeying(scene.server, BROKERS):
            term = await scene.term()
            await standing_by(scene, term, "k1", "k2", **given)
            others, first = term.colleagues, term.colleagues.last
            await until(lambda: others.last is not first)
            told = others.last
            assert told is not None
            assert told.answered == ("k1", "k2")
            assert not any(told.lacking.values())
            assert not any(told.beyond.values())
            paths = {id_: row.parse(plan.classes.schema).paths for id_, row in term.book.wanted.items()}
            among = ["k0", "k1", "k2"]
            assert told.kept == {id_ for id_, p in paths.items() if owners(p, among) & {"k1", "k2"}}
            pages = answered(scene, "k1", "kept") + answered(scene, "k2", "kept")
            assert told.messages > 4
            assert told.messages <= 2 * pages
            # one of them goes astray: it is said, and the registry stays
            share = scene.coordinators["k1"].sharer.share  # type: ignore[union-attr]
            lost = sorted(share._kept)[0]  # type: ignore[union-attr]
            share._kept["ghost"] = share._kept.pop(lost)  # type: ignore[union-attr]
            share._order = None  # type: ignore[union-attr]
            await until(lambda: others.last is not None and others.last.lacking["k1"])
            assert others.last is not None
            assert others.last.lacking["k1"] == [lost]
            assert others.last.beyond["k1"] == ["ghost"]
            assert lost in term.book.wanted
            assert "ghost" not in term.book.wanted
            await until(lambda: term.plans.last)
            excludes_nobody(term)

    with caplog.at_level(logging.INFO, logger=shares.__name__):
        play(tmp_path, scenario)
    assert "coordinator k1 lacks 1 subscriptions" in caplog.text
    assert "coordinator k1 keeps beyond the registry 1 subscriptions: ghost" in caplog.text
    assert "synchronised with 2 of 2 coordinators" in caplog.text


def test_a_standby_takes_over_the_schema_of_who_asks_and_refuses_nonsense(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate("k0", **EMPTY)
        async with obeying(scene.server, BROKERS):
            term = await scene.term()
            await standing_by(scene, term, "k1", schema={"other": AttributeType.STRING})
            path = attribute("k1", ["k0", "k1"])
            for i in range(3):
                await until(lambda: shared_by(scene.coordinators["k1"]) is not None)
                assert (await scene.subscribe("n", f"{i}", f"{path} > {i}", BROKERS[4])).ok
            sharer = scene.coordinators["k1"].sharer
            assert sharer is not None
            await until(lambda: sharer.share is not None and sharer.share.schema == SHARED)
            store = await scene.store()

            async def ask(question: ShareQuestion) -> ShareAnswer:
                data = encode(question)
                answer = await store._nats.request(f"{SHARE}.{token('k1')}", data, timeout=LIMIT_S)
                return decode(answer.data, ShareAnswer)

            spelled = {name: str(kind) for name, kind in SHARED.items()}
            good = await ask(ShareQuestion("covering", spelled, filter=FilterText(f"{path} > 2")))
            assert good.ids == ["n/0", "n/1", "n/2"]
            for bad in (
                ShareQuestion("covering", spelled),
                ShareQuestion("covering", spelled, filter=FilterText("x >")),
                ShareQuestion("covering", spelled, filter=FilterText()),
                ShareQuestion("no such", spelled),
                ShareQuestion("kept", {"x": "no such type"}),
            ):
                assert (await ask(bad)).error
            # one that is behind answers when it has caught up
            assert sharer.share is not None
            seen, sharer.share.revision = sharer.share.revision, 0
            late = asyncio.create_task(sharer._answer(ShareQuestion("kept", spelled, at=seen)))
            await asyncio.sleep(0.1)
            assert not late.done()
            sharer.share.revision = seen
            assert set((await late).kept) == {"n/0", "n/1", "n/2"}
            # a record that goes is forgotten
            assert (await scene.ask(BROKERS[4], "n", Request("unsubscribe", "1"))).ok
            found = await store.get(client_key("n"))
            assert found is not None
            told = await ask(ShareQuestion("kept", spelled, at=found[1]))
            assert set(told.kept) == {"n/0", "n/2"}

    play(tmp_path, scenario)

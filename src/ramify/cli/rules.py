"""The command about the rules of a live overlay: rules."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ramify.cli.addresses import Attempts, ControlKeyOption, ControlOption, control_endpoint
from ramify.cli.app import app
from ramify.cli.console import friendly, say
from ramify.cli.directories import DirOption, directory_at
from ramify.cli.status_text import rule_lines
from ramify.cli.tls_options import InsecureOption, TlsCa, TlsCert, TlsKey, tls_context
from ramify.cli.weight_options import FilterWeight, MatchingWeight
from ramify.errors import InputError, LiveError
from ramify.overlay.live.wire.tasks import run_to_end

if TYPE_CHECKING:
    from ramify.overlay.control.records import RulesRecord
    from ramify.overlay.control.rules import OverlayRules
    from ramify.overlay.live.wire.store import Store
    from ramify.overlay.live.wire.streams import Endpoint
    from ramify.planning.plans.plan import Plan

__all__: list[str] = []

_RULES_LIMIT_S = 15.0
_MEND = "Replace them: ramify rules --set FILE, or --clear."


@app.command()
@friendly
def rules(
    directory: DirOption = Path("ramify-data"),
    control: ControlOption = None,
    key: ControlKeyOption = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: InsecureOption = False,
    set_file: Annotated[
        Path | None, typer.Option("--set", help="From now on every plan must keep the rules of this file.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Drop all rules and weights.")] = False,
    per_filter: FilterWeight = None,
    per_matching: MatchingWeight = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the rules and weights of a running overlay, or change them while it runs."""
    if clear and (set_file is not None or per_filter is not None or per_matching is not None):
        raise InputError("--clear cannot go with --set or weights: leave one of them out")
    asked = _RulesChange(set_file, clear, per_filter, per_matching)
    if control is None:
        endpoint = _local(directory, changes=bool(asked))
    else:
        context = tls_context(tls_ca, tls_cert, tls_key)
        endpoint = control_endpoint(control, key, "rules", context, insecure=insecure)
    attempts = Attempts(endpoint.url)
    try:
        record = run_to_end(_done(endpoint, asked, attempts))
    except TimeoutError:
        raise attempts.error(_RULES_LIMIT_S) from None
    if as_json:
        print("null" if record is None else msgspec.json.encode(record).decode())
        return
    for line in rule_lines(None if record is None else msgspec.to_builtins(record)):
        say(line)


def _local(directory: Path, *, changes: bool) -> "Endpoint":
    """The control server of the overlay that runs from a directory."""
    files = directory_at(directory)
    running = files.running()
    if running is None or running.matchmaking:
        why = "no overlay runs from this directory: start it with `ramify up`"
        reason = why if running is None else "an overlay with matchmaking has no plans, and so no rules"
        raise InputError(reason, path=str(files.path))
    return (files.operator if changes else files.viewer)(running.control_url)


@dataclass(frozen=True, slots=True)
class _RulesChange:
    """What is to become of the rules; nothing, where the command only shows them."""

    file: Path | None
    clear: bool
    per_filter: float | None
    per_matching: float | None

    def __bool__(self) -> bool:
        return self != _RulesChange(None, False, None, None)


async def _done(endpoint: "Endpoint", asked: _RulesChange, attempts: Attempts) -> "RulesRecord | None":
    """The record as it is, after the change that was asked for."""
    from ramify.overlay.control.records import RULES, RulesRecord, decode, encode
    from ramify.overlay.live.wire.store import Store

    async with asyncio.timeout(_RULES_LIMIT_S):
        store = await Store.join(endpoint, failed=attempts)
        try:
            found = await store.get(RULES)
            try:
                record = None if found is None else decode(found[0], RulesRecord)
            except InputError as error:
                if asked.file is None and not asked.clear:
                    raise InputError(f"the record of rules is damaged: {error}. {_MEND}") from None
                record = None
            if not asked:
                return record
            wanted = await _changed(store, record, asked)
            wish = "" if record is None else record.wish
            made = wanted.record(1 if record is None else record.revision + 1, wish, time.time())
            # a change that another user makes at the same time is not overwritten unseen
            await store.put(RULES, encode(made), 0 if found is None else found[1])
            return made
        finally:
            await store.close()


async def _changed(store: "Store", record: "RulesRecord | None", asked: _RulesChange) -> "OverlayRules":
    """The rules and weights that are asked for, held against the overlay and its attributes' types."""
    from ramify.overlay.control.records import encode
    from ramify.overlay.control.rules import NO_RULES, OverlayRules
    from ramify.planning.pricing.rules import read_rules
    from ramify.planning.pricing.weights import MonthlyWeights

    if asked.clear:
        return NO_RULES
    if asked.file is None:
        try:
            known = NO_RULES if record is None else OverlayRules.read(encode(record))
        except InputError as error:
            raise InputError(f"the rules of the record cannot be used: {error} {_MEND}") from None
        return _weighted(known, asked.per_filter, asked.per_matching)
    # the rules before may be what is to be mended, so they are not read
    weights = (
        MonthlyWeights()
        if record is None
        else MonthlyWeights(record.per_filter, record.per_million_matchings)
    )
    plan = await _running_plan(store)
    wanted = OverlayRules(read_rules(asked.file, plan.overlay), weights)
    try:
        wanted.checked(plan.overlay, plan.classes.schema)
    except InputError as error:
        raise InputError(str(error), path=str(asked.file)) from None
    return _weighted(wanted, asked.per_filter, asked.per_matching)


async def _running_plan(store: "Store") -> "Plan":
    """The newest plan in the store: it says which brokers, links and attributes there are."""
    from ramify.overlay.control.records import STATE, ControlState, decode
    from ramify.planning.plans.files import decode_plan

    state = await store.get(STATE)
    live = [] if state is None else decode(state[0], ControlState).live
    found = await store.get_large(max(live, key=lambda each: each.epoch).plan_key) if live else None
    if found is None:
        raise LiveError(
            "the overlay has no plan yet that the rules could be held against: wait until its coordinator "
            "leads, then try again"
        )
    return await asyncio.to_thread(decode_plan, found[0])


def _weighted(
    known: "OverlayRules", per_filter: float | None, per_matching: float | None
) -> "OverlayRules":
    weights = known.weights
    if per_filter is not None:
        weights = replace(weights, per_filter=per_filter)
    if per_matching is not None:
        weights = replace(weights, per_million_matchings=per_matching)
    return replace(known, weights=weights)

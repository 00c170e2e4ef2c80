"""The command about the rules of a live overlay: rules."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ramify.cli.app import app
from ramify.cli.console import friendly, say
from ramify.cli.directories import DirOption, directory_at
from ramify.cli.overlay import FilterWeight, MatchingWeight
from ramify.cli.status_text import rule_lines
from ramify.errors import InputError, LiveError

if TYPE_CHECKING:
    from ramify.overlay.control.records import RulesRecord
    from ramify.overlay.control.rules import OverlayRules
    from ramify.overlay.live.wire.streams import Endpoint

__all__: list[str] = []

_RULES_LIMIT_S = 15.0


@app.command()
@friendly
def rules(
    directory: DirOption = Path("ramify-data"),
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
    files = directory_at(directory)
    running = files.running()
    if running is None or running.matchmaking:
        why = "no overlay runs from this directory: start it with `ramify up`"
        reason = why if running is None else "an overlay with matchmaking has no plans, and so no rules"
        raise InputError(reason, path=str(files.path))
    endpoint = files.viewer(running.control_url)
    try:
        record = asyncio.run(_done(endpoint, set_file, clear, per_filter, per_matching))
    except TimeoutError:
        raise LiveError(
            f"the control server at {running.control_url} did not answer within {_RULES_LIMIT_S:g} s"
        ) from None
    if as_json:
        print("null" if record is None else msgspec.json.encode(record).decode())
        return
    for line in rule_lines(None if record is None else msgspec.to_builtins(record)):
        say(line)


async def _done(
    endpoint: "Endpoint",
    file: Path | None,
    clear: bool,
    per_filter: float | None,
    per_matching: float | None,
) -> "RulesRecord | None":
    """The record as it is, after the change that was asked for."""
    from ramify.network.graphs.files import decode_overlay
    from ramify.overlay.control.records import OVERLAY, RULES, RulesRecord, decode, encode
    from ramify.overlay.control.rules import NO_RULES, OverlayRules
    from ramify.overlay.live.wire.store import Store
    from ramify.planning.pricing.rules import read_rules

    async with asyncio.timeout(_RULES_LIMIT_S):
        store = await Store.connect(endpoint)
        try:
            found = await store.get(RULES)
            record = None if found is None else decode(found[0], RulesRecord)
            if file is None and not clear and per_filter is None and per_matching is None:
                return record
            wanted = NO_RULES if clear or found is None else OverlayRules.read(found[0])
            if file is not None:
                graph = await store.get_large(OVERLAY)
                overlay = None if graph is None else decode_overlay(graph[0])
                wanted = replace(wanted, rules=read_rules(file, overlay))
            wanted = _weighted(wanted, per_filter, per_matching)
            wish = "" if record is None else record.wish
            made = wanted.record(1 if record is None else record.revision + 1, wish, time.time())
            # a change that another user makes at the same time is not overwritten unseen
            await store.put(RULES, encode(made), 0 if found is None else found[1])
            return made
        finally:
            await store.close()


def _weighted(
    known: "OverlayRules", per_filter: float | None, per_matching: float | None
) -> "OverlayRules":
    weights = known.weights
    if per_filter is not None:
        weights = replace(weights, per_filter=per_filter)
    if per_matching is not None:
        weights = replace(weights, per_million_matchings=per_matching)
    return replace(known, weights=weights)

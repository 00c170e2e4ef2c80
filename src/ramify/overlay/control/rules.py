"""The rules of an overlay: what every plan must keep, as its records say. Pure.

Owns the way from the record `rules` to rules and weights that plans are judged by, and back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ramify.content.events.events import AttributeType
from ramify.content.filters.sql import parse_sql
from ramify.errors import FilterError, InputError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.records import RulesRecord, decode
from ramify.planning.pricing.rules import Rules
from ramify.planning.pricing.weights import MonthlyWeights

__all__ = ["NO_RULES", "OverlayRules"]


@dataclass(frozen=True, slots=True)
class OverlayRules:
    """Rules and weights, with the revision of their record; 0 where there was none yet.

    `unusable` says why a record cannot be used; then there are no rules to go by.
    """

    rules: Rules = field(default_factory=Rules)
    weights: MonthlyWeights = field(default_factory=MonthlyWeights)
    revision: int = 0
    unusable: str = ""

    @staticmethod
    def read(data: bytes) -> "OverlayRules":
        """Those of a record. Raises `InputError` with what is wrong."""
        record = decode(data, RulesRecord)
        weights = MonthlyWeights(record.per_filter, record.per_million_matchings)
        return OverlayRules(Rules.read(record.rules), weights, record.revision)

    @staticmethod
    def stored(data: bytes, overlay: Overlay, schema: Mapping[str, AttributeType]) -> "OverlayRules":
        """Those of a record that is in the store already; `unusable` where they cannot be used."""
        try:
            return OverlayRules.read(data).checked(overlay, schema)
        except InputError as error:
            return OverlayRules(unusable=str(error))

    def checked(self, overlay: Overlay, schema: Mapping[str, AttributeType]) -> "OverlayRules":
        """These, or `InputError` for a place that the overlay does not have, and for a filter that does not
        go with the types of attributes."""
        self.rules.require_known(overlay)
        for at, rule in enumerate(self.rules.residency):
            try:
                parse_sql(rule.events, schema, strict=True)
            except FilterError as error:
                raise InputError(f"residency[{at}] ({rule.name}): events: {error}") from error
        return self

    def record(self, revision: int, wish: str, now: float) -> RulesRecord:
        """The record that says so."""
        weights = self.weights
        return RulesRecord(
            revision,
            self.rules.document(),
            weights.per_filter,
            weights.per_million_matchings,
            wish,
            now,
        )


NO_RULES = OverlayRules()

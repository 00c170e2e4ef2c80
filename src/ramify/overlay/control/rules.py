"""The rules of an overlay: what every plan must keep, as its records say. Pure.

Owns the way from the record `rules` to rules and weights that plans are judged by, and back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ramify.content.events.events import AttributeType
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.records import RulesRecord, decode
from ramify.planning.choosing.weigh import MonthlyWeights
from ramify.planning.pricing.rules import Rules

__all__ = ["NO_RULES", "OverlayRules"]


@dataclass(frozen=True, slots=True)
class OverlayRules:
    """Rules and weights, with the revision of their record; 0 where there was none yet."""

    rules: Rules = field(default_factory=Rules)
    weights: MonthlyWeights = field(default_factory=MonthlyWeights)
    revision: int = 0

    @staticmethod
    def read(data: bytes) -> "OverlayRules":
        """Those of a record. Raises `InputError` with what is wrong."""
        record = decode(data, RulesRecord)
        weights = MonthlyWeights(record.per_filter, record.per_million_matchings)
        return OverlayRules(Rules.read(record.rules), weights, record.revision)

    def checked(self, overlay: Overlay, schema: Mapping[str, AttributeType]) -> "OverlayRules":
        """These rules. `InputError` if the overlay lacks a place, or a filter does not fit the types of
        attributes."""
        self.rules.require_known(overlay)
        self.rules.tags(schema)
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

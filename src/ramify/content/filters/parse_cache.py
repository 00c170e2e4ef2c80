"""The filters that this process parsed of late, by spelling, text and schema.

Owns the cache. On its way a subscription is checked by the broker, the leader, the registry and the plan,
and read again where a plan is made ready for routing. Each holds the text; all of them get the same filter
here, with the canonical key that one of them computed.

Guarantee  A text is parsed once per schema while it is among the `MOST_FILTERS` filters, and
           `MOST_CHARACTERS` characters, that were asked for last. Faults are not kept. Safe with threads.
Cost       A look-up hashes the text and the schema's pairs: microseconds, where parsing takes a fraction of
           a millisecond.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from threading import Lock

from ramify.content.events.attributes import AttributeType
from ramify.content.filters.filters import Filter

__all__ = ["MOST_CHARACTERS", "MOST_FILTERS", "ParseCache"]

MOST_FILTERS = 4_096
MOST_CHARACTERS = 1 << 20
"""Of all texts together. A parsed filter takes some hundred times as many bytes as its text."""


class ParseCache:
    """See the module."""

    def __init__(self, most_filters: int = MOST_FILTERS, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_filters, self._most_characters = most_filters, most_characters
        self._found: OrderedDict[Hashable, tuple[Filter, int]] = OrderedDict()
        self._characters = 0
        self._turn = Lock()

    def get(
        self,
        spelling: str,
        value: Hashable,
        schema: Mapping[str, AttributeType] | None,
        parse: Callable[[], Filter],
    ) -> Filter:
        """The filter of a text; `parse` makes it where it is not known. Raises what `parse` does."""
        key = spelling, value, None if schema is None else tuple(schema.items())
        with self._turn:
            known = self._found.get(key)
            if known is not None:
                self._found.move_to_end(key)
                return known[0]
        made = parse()
        size = len(str(value))
        with self._turn:
            if key not in self._found and size <= self._most_characters:
                self._found[key] = made, size
                self._characters += size
            while len(self._found) > self._most_filters or self._characters > self._most_characters:
                self._characters -= self._found.popitem(last=False)[1][1]
        return made

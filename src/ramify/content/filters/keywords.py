"""The keyword spelling: the papers' form. Any of a list, or a disjunction of conjunctions.

`["nokia", "apple"]` wants any of the words; `[["nokia", "apple"], ["motorola"]]` wants both of the first
list or the word of the second (majumder section VII-A: disjunctive, and its footnote 2: normal form).
Words are matched whole, with case, against the array attribute `keywords` (or another that is named).
"""

import json
from collections.abc import Sequence

from ramify.content.filters.constraints import ArraySet, Constraint
from ramify.content.filters.expressions import And, Atom, Expression, Or, compile_filter
from ramify.content.filters.filters import Filter
from ramify.content.filters.limits import FILTER_TEXT
from ramify.content.filters.values import strings_equal
from ramify.errors import FilterError

__all__ = ["KEYWORDS", "parse_keywords", "parse_keywords_expression"]

KEYWORDS = "keywords"
_ALLOWED = '["a", "b"] for any of the words, [["a", "b"], ["c"]] for (a and b) or c'


def parse_keywords(words: Sequence[str] | Sequence[Sequence[str]], attribute: str = KEYWORDS) -> Filter:
    """Parse any-of keywords, or a disjunction of conjunctions, to a filter. Raises FilterError."""
    return compile_filter(parse_keywords_expression(words, attribute))


def parse_keywords_expression(
    words: Sequence[str] | Sequence[Sequence[str]], attribute: str = KEYWORDS
) -> Expression:
    """As `parse_keywords`, without building boxes."""
    if isinstance(words, str) or not isinstance(words, Sequence) or not words:
        raise FilterError("keywords are a non-empty list", text=_shown(words), allowed=_ALLOWED)
    size = _length(words)
    if size > FILTER_TEXT:
        raise FilterError(
            f"the keywords are {size} characters long",
            allowed=f"up to {FILTER_TEXT} characters, written as JSON",
        )
    if all(isinstance(word, str) for word in words):
        return _has_any([_word(w, words) for w in words], attribute)
    conjunctions: list[Expression] = []
    for clause in words:
        if isinstance(clause, str) or not isinstance(clause, Sequence):
            raise FilterError("words and lists of words are mixed", text=_shown(words), allowed=_ALLOWED)
        if not clause:
            raise FilterError(
                "an empty list of words would match everything", text=_shown(words), allowed=_ALLOWED
            )
        distinct = dict.fromkeys(_word(word, words) for word in clause)
        conjunctions.append(And(tuple(_has_any([word], attribute) for word in distinct)))
    return Or(tuple(conjunctions))


def _has_any(words: list[str], attribute: str) -> Atom:
    """TRUE when an element (or the scalar itself) is one of the words, FALSE everywhere else."""
    values = strings_equal(words)
    found = Constraint(scalars=values, arrays=ArraySet(some=frozenset([values])))
    shown = (
        f"{attribute} has {words[0]!r}" if len(words) == 1 else f"{attribute} has any of {_shown(words)}"
    )
    return Atom(attribute, shown, (found,), None)


def _word(word: object, words: object) -> str:
    if not isinstance(word, str) or not word:
        raise FilterError(f"{word!r} is not a keyword", text=_shown(words), allowed=_ALLOWED)
    if any(0xD800 <= ord(c) <= 0xDFFF for c in word):
        raise FilterError("a keyword holds half a surrogate pair", allowed="valid Unicode text")
    return word


def _length(words: object) -> int:
    """The characters of the words as they are written; 0 for what is no JSON, which is refused later."""
    try:
        return len(json.dumps(words, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return 0


def _shown(words: object) -> str:
    text = repr(words)
    return text if len(text) <= 200 else text[:197] + "..."

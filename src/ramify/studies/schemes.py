"""The schemes that specs can name: built in, registered, or of installed distributions.

Owns `schemes` and how they are shown. What a scheme is, and how one is added, is in `planning.schemes`.
"""

from ramify.planning.schemes.catalog import all_schemes, parameters, scheme_origin
from ramify.planning.schemes.scheme import Scheme
from ramify.studies.text_tables import html_table, text_table

__all__ = ["SchemeList", "schemes"]

_COLUMNS = ("scheme", "from", "what it is")


class SchemeList(dict[str, Scheme]):
    """Schemes by name: `summary`, `params`, `plan` of each. Shown as a table."""

    def parameters(self, name: str) -> tuple[str, ...]:
        """What a spec of that name may set: `name:parameter=value`."""
        return parameters(self[name])

    def _cells(self) -> list[list[str]]:
        return [[name, scheme_origin(name), scheme.summary] for name, scheme in self.items()]

    def __repr__(self) -> str:
        return text_table(_COLUMNS, self._cells(), left=2)

    def _repr_html_(self) -> str:
        return html_table("Schemes", _COLUMNS, self._cells())


def schemes() -> SchemeList:
    """Every scheme by name. Entry points of installed distributions are read, and loaded.

    Raises `InputError` where two schemes have one name, or one cannot be loaded.

    >>> import ramify
    >>> ramify.schemes()["mst"].summary
    'a minimum spanning tree, filtered'
    >>> ramify.schemes().parameters("portfolio")
    ('trees', 'rounds', 'seconds')
    """
    return SchemeList(all_schemes())

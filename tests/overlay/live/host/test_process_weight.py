"""What a process of brokers loads: what routing needs, and nothing that is merely installed."""

import pytest

from imports import loaded

READY = "from ramify.overlay.live.host import process\n{first}\nprocess.load_kernels()"


@pytest.mark.parametrize(
    ("absent", "found"),
    [((), ["scipy.linalg", "pandas"]), (("pandas",), ["scipy.linalg"]), (("pandas", "scipy"), [])],
)
def test_pandas_and_scipy_are_not_loaded_by_those_who_would_if_they_were_there(
    absent: tuple[str, ...], found: list[str]
) -> None:
    code = READY.format(first=f"process.do_without({absent!r})")
    assert loaded(code, ("scipy.linalg", "pandas")) == found

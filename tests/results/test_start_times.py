"""A build whose starts take much longer is named for it, and ordinary ones are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddtree.results.model import Results, StartInfo
from pytest_ddtree.results.start_times import StartTimes

CONFIG = "b8-k4-wnone"


def side(seconds: Sequence[float]) -> Results:
    return Results(
        starts=[StartInfo("baseline", None, 500.0), *(StartInfo(CONFIG, "ab", one) for one in seconds)]
    )


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ([1.0, 0.9, 1.1], [11.0, 11.2, 10.9], "a start takes 11.0 s on patched and 1.0 s on base (medians)"),
        ([100.0], [40.0], "a start takes 40.0 s on patched and 100.0 s on base (medians)"),
        ([40.0, 60.0], [58.0, 61.0], None),
        ([0.5], [2.0], None),
        ([], [90.0], None),
    ],
)
def test_what_is_told(before: list[float], now: list[float], said: str | None) -> None:
    assert StartTimes.of(side(before), side(now), {CONFIG}).line("base", "patched") == said

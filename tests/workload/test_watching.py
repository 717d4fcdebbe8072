"""Rounds under real memory pressure and with a real queue are invalid, whatever their tok/s; a healthy round is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.measuring import measure_rounds
from pytest_ddtree.model_files import REFERENCE_WEIGHTS
from pytest_ddtree.results.model import Round
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.workload.cell import CellInvalid, CellSpec
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.watching import Watch

KEY = CellKey(context=60, concurrency=4)
CONFIG = Config("tree", 8, 4)


def measured(run_dir: Path, *arguments: str, kept: list[Round], output: int = 48) -> None:
    """Two rounds of four streams on a server of these arguments, through the path of the plugin."""
    settings = ServerSettings(
        kind="reference",
        run_dir=run_dir,
        server_args=("--enable-metrics", "--decode-log-interval", "4", *arguments),
        max_concurrency=8,
        context_length=400,
        start_timeout_s=60.0,
    )
    spec = CellSpec(context=60, concurrency=4, output=output, turnovers=1, stagger=False)
    with ServerPool(settings) as pool, LoopThread() as loop:
        server = pool.get(CONFIG)

        async def measure() -> None:
            async with AsyncClient(server.url) as client:
                await measure_rounds(
                    client,
                    PromptMaker(REFERENCE_WEIGHTS / "target"),
                    KEY,
                    spec,
                    SamplingRule(min_rounds=2, max_rounds=2),
                    config=CONFIG.id,
                    eos=frozenset(),
                    keep=kept.append,
                    client_lag=10.0,
                    watch=Watch(client, log=server.log_path),
                )

        loop.run(measure())


def test_a_healthy_server_has_valid_rounds(tmp_path: Path) -> None:
    kept: list[Round] = []
    measured(tmp_path, kept=kept)
    assert len(kept) == 2
    assert [one.counted_steps for one in kept] == [one.verify_steps for one in kept]


@pytest.mark.parametrize(
    ("arguments", "output", "words"),
    [
        # Admission sets 64 tokens of each answer aside, so that four requests begin; their 60 + 160 tokens need 900.
        (("--max-total-tokens", "600"), 160, "retractions: the KV cache was full"),
        (("--max-running-requests", "2"), 48, "requests waited while batches were decoded"),
    ],
    ids=["memory pressure", "queue"],
)
def test_a_server_that_cannot_hold_the_load_has_none(
    tmp_path: Path, arguments: tuple[str, ...], output: int, words: str
) -> None:
    kept: list[Round] = []
    with pytest.raises(CellInvalid, match=words) as caught:
        measured(tmp_path, *arguments, kept=kept, output=output)
    assert "b8-k4-wnone ctx60-c4: round 1 is invalid" in str(caught.value)
    assert kept == []

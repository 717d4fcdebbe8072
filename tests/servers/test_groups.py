"""Several GPU groups at once: which worker has which GPUs, and that a config's tests stay together on one worker."""

from __future__ import annotations

import pytest

from pytest_ddtree import gpu_groups as groups
from pytest_ddtree.config_scheduling import config_of
from pytest_ddtree.grid import BASELINE, Config, make_grid


def test_parse() -> None:
    assert groups.parse("0,1/2, 3") == (("0", "1"), ("2", "3"))
    assert groups.parse("GPU-a/GPU-b") == (("GPU-a",), ("GPU-b",))


@pytest.mark.parametrize(
    ("text", "message"), [("", "empty"), ("0,/1", "empty"), ("0/", "empty"), ("0,1/1", "names GPU 1 twice")]
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        groups.parse(text)


def test_config_of_every_id() -> None:
    grid = make_grid(["chain", 8, 16], [1, 4], [None, 2048], [None, 16])
    for config in (BASELINE, *grid):
        assert config_of(f"bench/test_x.py::test_y[{config.id}-ctx1024-c8]") == config.id
        assert config_of(f"bench/test_x.py::TestZ::test_y[{config.id}]") == config.id
    assert config_of("evals/test_x.py::test_y[baseline_is_not-first]") is None
    assert config_of("a[baseline].py::test_y") is None
    assert Config("tree", 8, 4).id == "b8-k4-wnone"


@pytest.mark.slow
def test_configs_stay_together(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makeconftest(
        """
        import pytest
        from pytest_ddtree.config_scheduling import ConfigScheduling

        class Hooks:
            @pytest.hookimpl
            def pytest_xdist_make_scheduler(self, config, log):
                return ConfigScheduling(config, log)

        def pytest_configure(config):
            if config.pluginmanager.hasplugin("xdist"):
                config.pluginmanager.register(Hooks())
        """
    )
    pytester.makepyfile(
        """
        import os, pytest

        CONFIGS = ["baseline", "chain-wnone", "b8-k4-wnone", "b8-k4-w128", "b16-k4-wnone"]

        @pytest.mark.parametrize("kind", range(2))
        @pytest.mark.parametrize("cell", ["c1", "c8"])
        @pytest.mark.parametrize("config", CONFIGS)
        def test_it(config, cell, kind):
            with open("ran", "a") as file:
                file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {config}\\n")

        @pytest.mark.parametrize("config", CONFIGS[1:])
        def test_speculative(config):
            test_it(config, None, None)

        def test_without_server():
            pass
        """
    )
    result = pytester.runpytest_subprocess(
        "-n", "2", "-p", "no:ddtree", "-p", "no:cacheprovider", "-p", "no:asyncio"
    )
    result.assert_outcomes(passed=25)
    ran = [line.split() for line in (pytester.path / "ran").read_text().splitlines()]
    workers = {config: {worker for worker, ran_config in ran if ran_config == config} for _, config in ran}
    assert all(len(found) == 1 for found in workers.values()), workers
    assert len({worker for worker, _ in ran}) == 2
    for worker in ("gw0", "gw1"):
        order = [config for who, config in ran if who == worker]
        assert order == sorted(order, key=order.index), "one config after the other"
    (first,) = workers["baseline"]
    begun = next(config for who, config in ran if who == first)
    assert begun == "baseline", "though it has fewest tests: those of the configs need its answers"

"""Real SGLang 0.5.16 (chain) and a dialect-D fork (trees) with the reference checkpoints: what their answers say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.dialects import faked, registry
from pytest_ddtree.dialects.base import LaunchRequest
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.effective import EffectiveConfig, compare
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers import logs

DATA = Path(__file__).parents[1] / "data"
RELEASE, FORK = "sglang-0.5.16", "sglang-0.0.0.dev0"
SERVERS = {
    (RELEASE, "base"): BASELINE,
    (RELEASE, "chain"): Config("chain"),
    (RELEASE, "chain-w128"): Config("chain", window=128),
    (FORK, "b7-k7-wnone"): Config("tree", 7, 7),
    (FORK, "b8-k8-w128"): Config("tree", 8, 8, 128),
}
EACH = pytest.mark.parametrize(("build", "name"), SERVERS, ids=[f"{b}/{n}" for b, n in SERVERS])


def info(build: str, name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((DATA / build / f"{name}.server_info.json").read_text())
    return said


def log(build: str, name: str) -> str:
    return (DATA / build / f"{name}.server.log").read_text()


def flags(build: str) -> frozenset[str]:
    return frozenset(json.loads((DATA / build / "flags.json").read_text()))


def request_of(build: str) -> LaunchRequest:
    return LaunchRequest(
        model="/models/target",
        draft_model="/models/draft",
        block_size=8,
        max_concurrency=64,
        build=Build(flags(build), frozenset(), None, None),
    )


def effective(build: str, name: str) -> EffectiveConfig:
    said = info(build, name)
    return registry.of_server(said).effective(said, log(build, name))


@pytest.mark.parametrize(("build", "dialect"), [(RELEASE, "dflash"), (FORK, "D")])
def test_the_flags_of_a_build_tell_its_dialect(build: str, dialect: str) -> None:
    assert registry.of_build(Build(flags(build), frozenset(), None, None)).name == dialect


@EACH
def test_a_running_server_tells_its_dialect(build: str, name: str) -> None:
    assert registry.of_server(info(build, name)).name == ("dflash" if build == RELEASE else "D")


@EACH
def test_every_flag_that_would_be_sent_exists_in_that_build(build: str, name: str) -> None:
    dialect = registry.of_server(info(build, name))
    launch = dialect.arguments(SERVERS[build, name], request_of(build))
    sent = {word for word in launch.args if word.startswith("--")}
    assert sent <= flags(build)


@EACH
def test_the_server_ran_what_the_config_asks_for(build: str, name: str) -> None:
    dialect = registry.of_server(info(build, name))
    asked = dialect.asked(SERVERS[build, name], request_of(build))
    assert compare(asked, effective(build, name)) == []


@EACH
def test_another_config_does_not_pass_for_it(build: str, name: str) -> None:
    dialect = registry.of_server(info(build, name))
    seen = effective(build, name)
    for other, config in SERVERS.items():
        if other[0] == build and other[1] != name:
            assert compare(dialect.asked(config, request_of(build)), seen) != [], other


@EACH
def test_no_honest_server_counts_as_faked(build: str, name: str) -> None:
    assert faked.after_start(info(build, name)) == []


def test_the_window_is_on_over_http_and_in_the_log() -> None:
    for build, name in ((RELEASE, "chain-w128"), (FORK, "b8-k8-w128")):
        seen = effective(build, name)
        reading = seen.reading("window")
        assert (reading.http, reading.log, seen.compact_cache) == (128, 128, True)
    assert effective(RELEASE, "chain").window is None
    assert effective(RELEASE, "chain").compact_cache is False


def test_the_block_size_of_the_fork_follows_the_budget_and_is_warned_about() -> None:
    eight, seven = effective(FORK, "b8-k8-w128"), effective(FORK, "b7-k7-wnone")
    assert (eight.block_size, eight.verify_width, eight.budget) == (9, 9, 8)
    assert any("block size mismatch" in warning for warning in eight.warnings)
    assert (seven.block_size, seven.warnings) == (8, ())


def test_the_release_overlaps_and_the_fork_does_not() -> None:
    assert effective(RELEASE, "chain").overlap is True
    assert effective(RELEASE, "base").overlap is True
    assert effective(FORK, "b7-k7-wnone").overlap is False


@EACH
def test_the_log_of_a_ready_server_says_ready(build: str, name: str) -> None:
    started = log(build, name).partition("fired up and ready to roll!")
    assert started[1]
    assert logs.phase(started[0] + started[1]) == "ready"


def test_a_refused_port_is_the_root_cause() -> None:
    """The fork wants HTTP port + 10000 too: a port above 55535 cannot be used."""
    assert logs.root_cause(log(FORK, "port")) == (
        "ValueError: SGLANG_GRPC_PORT (69309) must be between 1 and 65535"
    )


@pytest.mark.parametrize("build", [RELEASE, FORK])
def test_a_kernel_that_asserts_is_the_root_cause(build: str) -> None:
    """One request with a token id beyond the vocabulary ended the server; what follows are consequences."""
    cause = logs.root_cause(log(build, "crash"))
    assert cause is not None
    assert cause.endswith("device-side assert triggered")


def test_no_path_of_the_machine_is_left() -> None:
    for folder in (RELEASE, FORK):
        for path in (DATA / folder).iterdir():
            text = path.read_text()
            # Homes, temporary folders, and whatever a checkout's folder is called (workspace, works, ...).
            trace = re.search(r"/(tmp|home|root|w[a-z]*k[a-z]*)/", text)
            assert trace is None, f"{path.name} still names {trace[0]}"

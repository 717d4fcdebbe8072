"""What can be seen to be wrong before a start: each is refused in its own words, and nothing is left running."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers import remote
from pytest_ddtree.servers.errors import (
    ConfigNotSupported,
    ServerError,
    SetupRefused,
    StartFailed,
    StartTimeout,
)
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings

from . import support

B8 = Config("tree", 8, 4)
CONFIGS = (BASELINE, B8, Config("chain"))


def refusal(tmp_path: Path, kind: str, **options: Any) -> ServerError:
    settings = ServerSettings(kind=kind, run_dir=tmp_path, **options)  # type: ignore[arg-type]
    with ServerPool(settings) as pool, pytest.raises((ConfigNotSupported, SetupRefused)) as caught:
        pool.check(CONFIGS)
    assert not any(tmp_path.iterdir())
    return caught.value


def test_a_drafter_that_reads_layers_which_the_target_lacks_costs_no_start(tmp_path: Path) -> None:
    """Seen on a GPU: half a minute of a start, then a traceback of the engine about an out-of-range layer id."""
    for name, config in (
        ("target", {"num_hidden_layers": 8}),
        ("draft", {"dflash_config": {"target_layer_ids": [1, 5, 10]}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    run = tmp_path / "run"
    run.mkdir()
    found = refusal(
        run,
        "sglang",
        model=str(tmp_path / "target"),
        draft_model=str(tmp_path / "draft"),
        sglang_src=Path(__file__).parent / "fake",
    )
    assert "does not fit --ddtree-model" in str(found)
    assert "layers 1, 5, 10 of the target" in str(found)
    assert "which has 8" in str(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"spec_args": ("--no-such-flag", "1")},
            ["for b8-k4-wnone", "unrecognized arguments: --no-such-flag"],
        ),
        ({"spec_args": ("--plant", "no_such_fault")}, ["for b8-k4-wnone", "'no_such_fault' is unknown"]),
        ({"spec_args": ("--plant", "list")}, ["serves nothing"]),
        ({"spec_args": ("--check",)}, ["serves nothing"]),
        ({"server_args": ("--page-size", "0")}, ["for baseline", "--page-size must be at least 1, got 0"]),
        ({"baseline_args": ("--numerics", "fp8")}, ["for baseline", "invalid choice: 'fp8'"]),
        ({"server_args": ("--help",)}, ["for baseline", "serve nothing"]),
        (
            {"model": "/no/such/model"},
            ["for baseline", "/no/such/model is no checkpoint: it has no config.json"],
        ),
        ({"model": "DRAFT"}, ["for baseline", "Qwen3ForCausalLM only"]),
        ({"draft_model": "TARGET"}, ["for b8-k4-wnone", "a draft model must be a DFlashDraftModel"]),
        ({"python": sys.executable + "-not"}, ["--ddtree-python", "no program that can be run"]),
        ({"dialect": "Q"}, ["--ddtree-dialect Q"]),
        ({"sglang_src": Path("/tmp")}, ["/tmp has no package `pytest_ddtree`", "--ddtree-server sglang"]),
        ({"python": "/bin/ls"}, ["/bin/ls does not run the embedded server"]),
        ({"launch_prefix": ("firejail",)}, ["begins with 'firejail'", "--ddtree-stop-command"]),
        ({"launch_prefix": ("./numactl", "-N0")}, ["'./numactl'", "no such program"]),
    ],
    ids=lambda value: (
        " ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_the_embedded_server(tmp_path: Path, options: dict[str, Any], said: list[str]) -> None:
    weights = Path(__file__).parents[2] / "pytest_ddtree" / "reference" / "weights"
    named = {"DRAFT": str(weights / "draft"), "TARGET": str(weights / "target")}
    given = {
        name: named.get(value, value) if isinstance(value, str) else value for name, value in options.items()
    }
    error = str(refusal(tmp_path, "reference", **given))
    for words in said:
        assert words in error
    assert "what to do: " in error or "cause: " in error


def test_what_the_embedded_server_takes_is_not_refused(tmp_path: Path) -> None:
    settings = ServerSettings(
        kind="reference",
        run_dir=tmp_path,
        server_args=("--numerics", "bf16"),
        spec_args=("--plant", "slower:400", "--speculative-draft-window-size", "128"),
    )
    with ServerPool(settings) as pool:
        pool.check(CONFIGS)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sglang_src": None, "python": "BARE"}, ["has no SGLang", "--ddtree-sglang-src"]),
        (
            {"sglang_src": None, "python": "/bin/ls"},
            ["--ddtree-python /bin/ls does not run as a Python interpreter"],
        ),
        ({"sglang_src": Path(__file__).parent / "standin"}, ["there is no package `sglang` in it"]),
    ],
    ids=["interpreter without it", "no interpreter", "no checkout"],
)
def test_a_local_sglang(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], said: list[str]
) -> None:
    if options.get("python") == "BARE":
        options = {**options, "python": support.bare_python(tmp_path_factory.mktemp("bare"))}
    error = str(refusal(tmp_path, "sglang", model="/m", draft_model="/d", **options))
    for words in said:
        assert words in error


def test_a_local_sglang_that_is_there(tmp_path: Path) -> None:
    settings = ServerSettings(kind="sglang", run_dir=tmp_path, model="/m", sglang_src=support.FAKE)
    with ServerPool(settings) as pool:
        pool.check(CONFIGS)


def test_a_silent_url_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ABSENT_S", 0.5)
    settings = ServerSettings(
        kind="url", run_dir=tmp_path, url="http://127.0.0.1:9", baseline_url="http://127.0.0.1:9"
    )
    with ServerPool(settings) as pool:
        pool.check(CONFIGS)
        with pytest.raises(StartTimeout, match="nothing answers there, not even a connection") as first:
            pool.get(B8)
        assert "--ddtree-url" in str(first.value)
        for config in (Config("chain"), BASELINE):
            with pytest.raises(
                StartFailed, match="not asked again, because it did not answer when b8-k4-wnone needed it"
            ):
                pool.get(config)

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_ddtree.model_files import model_facts
from pytest_ddtree.options import Settings, make_settings
from pytest_ddtree.results.fingerprint import (
    Fingerprint,
    build_label,
    server_fingerprint,
    session_fingerprint,
    stable_arguments,
)

MACHINE = {"gpu.name": "H200", "gpu.count": 8, "gpu.driver": "570.1", "gpu.power_limit_w": "700"}


def settings(**given: str) -> Settings:
    return make_settings({name: (text, "test") for name, text in given.items()})


def taken(of: Settings, **changes: Any) -> Fingerprint:
    machine = {**MACHINE, **changes}
    return session_fingerprint(of, model_facts(of), date="2026-01-01", machine=machine, environment={})


def test_the_same_session_does_not_differ_but_for_its_date() -> None:
    one = taken(settings())
    later = session_fingerprint(
        settings(),
        model_facts(settings()),
        date="2026-02-02",
        machine=MACHINE,
        environment={"CUDA_CACHE_PATH": "/x"},
    )
    assert one.differences(later) == ()
    assert later.get("cache.CUDA_CACHE_PATH") == "/x"
    assert Fingerprint.from_json(json.loads(json.dumps(one.as_json()))) == one


@pytest.mark.parametrize(
    ("given", "machine", "name"),
    [
        ({}, {"gpu.driver": "575.2"}, "gpu.driver"),
        ({}, {"gpu.power_limit_w": "500"}, "gpu.power_limit_w"),
        ({"server_args": "--tp 4"}, {}, "args.all"),
        ({"spec_args": "--x 1"}, {}, "args.speculative"),
        ({"seed": "3"}, {}, "workload.seed"),
        ({"output": "99"}, {}, "workload.digest"),
        ({"model": "other/model"}, {}, "model.name"),
    ],
    ids=str,
)
def test_what_changed_is_named_with_both_values(
    given: dict[str, str], machine: dict[str, Any], name: str
) -> None:
    before, now = taken(settings()), taken(settings(**given), **machine)
    named = {one.name: one for one in before.differences(now)}
    assert name in named
    assert str(named[name]) == f"{name}: was {before.get(name)}, is {now.get(name)}"


def test_a_changed_checkout_is_another_build(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text("x = 1\n")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e@e", "commit", "-qm", "one")
    of = settings(sglang_src=str(tmp_path))
    clean = taken(of)
    (tmp_path / "a.py").write_text("x = 2\n")
    patched = taken(of)
    (tmp_path / "a.py").write_text("x = 3\n")
    other = taken(of)
    assert {one.name for one in clean.differences(patched)} == {"engine.dirty", "engine.diff"}
    assert {one.name for one in patched.differences(other)} == {"engine.diff"}
    assert len({build_label(one) for one in (clean, patched, other)}) == 3
    assert build_label(clean) == str(clean.get("engine.revision"))[:12]


def test_a_retokenised_model_of_the_same_name_differs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 10}')
    of = settings(model=str(tmp_path))
    before = taken(of)
    (tmp_path / "config.json").write_text('{"vocab_size": 11}')
    assert [one.name for one in before.differences(taken(of))] == ["model.weights"]


def test_ports_and_launch_names_are_no_difference_and_keys_never_stay() -> None:
    argv = ("python", "-m", "x", "--port", "123", "--served-model-name=ab", "--api-key", "sk-1", "--tp", "8")
    assert stable_arguments(argv) == ("python", "-m", "x", "--api-key", "***", "--tp", "8")


class FakeServer:
    info: ClassVar = {"version": "0.5.20", "dtype": "bfloat16", "tp_size": 8}
    dialect_name = "reference"
    argv = ("serve", "--port", "1", "--speculative-num-draft-tokens", "9")

    class effective:
        @staticmethod
        def to_json() -> dict[str, Any]:
            return {
                "knobs": {"window": {"asked": 128, "http": None, "log": None}, "budget": {"log": 8}},
                "warnings": [],
            }


def test_a_server_is_known_by_what_it_says_not_by_what_was_asked() -> None:
    values = server_fingerprint(FakeServer()).values
    assert values["dialect"] == "reference"
    assert values["effective.window"] is None
    assert values["effective.budget"] == 8
    assert values["args"] == "serve --speculative-num-draft-tokens 9"
    assert (values["version"], values["engine.tp_size"]) == ("0.5.20", 8)

"""The command line: what is refused, and with which words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddtree.reference.args import ArgumentError, parse
from pytest_ddtree.reference.faults import catalogue, describe, plant
from pytest_ddtree.reference.faults.base import PlantError
from pytest_ddtree.reference.hooks import Hooks
from pytest_ddtree.reference.launch import load

TREE = ["--speculative-algorithm", "DDTREE"]


def arguments(weights, *more):
    return ["--model-path", str(weights[0]), "--speculative-draft-model-path", str(weights[1]), *more]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["--speculative-ddtree-budget", "0", *TREE],
            "--speculative-ddtree-budget must be at least 1, got 0",
        ),
        (["--speculative-ddtree-budget", "4"], "needs --speculative-algorithm DDTREE"),
        (
            ["--speculative-algorithm", "DFLASH", "--speculative-ddtree-budget", "4"],
            "no meaning for DFLASH",
        ),
        (["--page-size", "0"], "--page-size must be at least 1"),
        (["--port", "70000"], "--port must be between"),
        (["--startup-delay", "nan"], "--startup-delay must be a number of seconds"),
        (
            [*TREE, "--speculative-num-draft-tokens", "4", "--speculative-dflash-block-size", "6"],
            "must agree",
        ),
    ],
)
def test_wrong_values_are_named(argv, words):
    with pytest.raises(ArgumentError, match=words):
        parse(argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([*TREE, "--speculative-draft-window-size", "7"], "window_size=7, block_size=8"),
        ([*TREE, "--speculative-ddtree-topk", "100000"], "vocabulary of 320"),
        (["--context-length", "100000"], "longer than the checkpoint's 2048"),
        (
            ["--max-total-tokens", "2"],
            "--max-total-tokens 2 is too few: a request of two tokens and the 1 of one step",
        ),
        ([*TREE, "--speculative-ddtree-budget", "16", "--max-total-tokens", "18"], "the 17 of one step"),
        (["--page-size", "64", "--max-total-tokens", "63"], "whole pages of 64"),
    ],
)
def test_values_that_do_not_fit_the_checkpoint_are_named(tiny, argv, words):
    with pytest.raises(ArgumentError, match=words):
        load(parse(arguments(tiny, *argv)))


def test_resolution(tiny):
    loaded = load(parse(arguments(tiny, *TREE, "--speculative-ddtree-budget", "16")))
    speculative = loaded.settings.speculative
    assert (speculative.block_size, speculative.budget, speculative.topk, speculative.window) == (
        8,
        16,
        4,
        None,
    )
    assert loaded.settings.max_running_requests == 48
    chain = load(parse(arguments(tiny, "--speculative-algorithm", "dflash"))).settings.speculative
    assert (chain.algorithm, chain.budget, chain.topk) == ("DFLASH", 7, 1)
    assert load(parse(arguments(tiny))).settings.speculative is None


def test_draft_model_must_be_named_for_a_foreign_target(tiny):
    with pytest.raises(ArgumentError, match="requires setting --speculative-draft-model-path"):
        load(parse(["--model-path", str(tiny[0]), *TREE]))


def test_process_exits_with_2_and_the_reason():
    command = [sys.executable, "-m", "pytest_ddtree.reference", "--port", "0", "--model-path", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "/nowhere is no checkpoint: it has no config.json" in done.stderr


def ended(*words, given=""):
    """Exit status, standard output and standard error of a server that ends by itself."""
    command = [sys.executable, "-m", "pytest_ddtree.reference", *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [(), ("--page-size", "16"), ("--plant", "slower:3")], ids=" ".join)
@pytest.mark.parametrize("last", [True, False])
def test_what_can_be_served_passes_the_check(words, last):
    assert ended(*((*words, "--check") if last else ("--check", *words))) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--page-size", "0"], "--page-size must be at least 1, got 0."),
        (["--plant", "typo"], "'typo' is unknown"),
        (["--plant", "list"], "prints the faults and serves nothing"),
        (["--model-path", "/nowhere"], "/nowhere is no checkpoint"),
    ],
)
def test_what_cannot_be_served_is_said_by_the_check(words, why):
    code, out, said = ended("--check", *words)
    assert (code, out) == (2, "")
    assert said.startswith("error: ")
    assert why in said
    code, out, said = ended("--check", given=json.dumps([["--page-size", "1"], words]))
    assert (code, said) == (2, "")
    number, told = json.loads(out)
    assert number == 1
    assert why in told


@pytest.mark.parametrize("given", ["{", "8", "{}", '["--page-size"]', "[[8]]", "[[], null]"])
def test_what_is_no_list_of_arguments_is_told(given):
    code, out, said = ended("--check", given=given)
    assert (code, out) == (2, "")
    assert said.startswith("error: --check reads a JSON list of lists of arguments: ")


def test_the_help_of_the_check_is_that_of_the_server():
    code, out, _ = ended("--check", "--help")
    assert code == 0
    assert "--check" in out


@pytest.mark.parametrize("buffering", [(), ("-u",)], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [("--plant", "list"), ("--help",), ("--check", "--help")], ids=" ".join)
def test_whoever_reads_no_further_sees_no_traceback(words, buffering):
    command = [sys.executable, *buffering, "-m", "pytest_ddtree.reference", *words]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=300, check=False)
    finally:
        os.close(writer)
    assert done.stderr == b""
    # argparse passes over a help that nobody reads.
    assert done.returncode in ((0, 128 + signal.SIGPIPE) if "--help" in words else (128 + signal.SIGPIPE,))


def test_plants_are_found_by_name():
    assert type(plant([])) is Hooks
    assert len(catalogue()) >= 30
    for name, fault in catalogue().items():
        assert fault.name == name
        assert fault.imitates
        assert fault.__doc__
        assert name in describe()
        assert isinstance(plant([name]), fault)


def test_documentation_lists_every_plant():
    text = (Path(__file__).parents[2] / "docs" / "reference-server.md").read_text()
    missing = [name for name in catalogue() if f"| `{name}`" not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "is unknown; the catalogue has: .*mask_block_size"),
        ("mask_block_size:3", "takes no argument"),
        ("slower:many", "percent must be an integer"),
        ("long_context:-5", "N must be an integer, 0 or more"),
        ("slower@", "rate must be a number, got ''"),
        ("slower@2", r"rate must be in \(0, 1\]"),
        ("slower@x", "rate must be a number"),
    ],
)
def test_wrong_plants_are_named(text, words):
    with pytest.raises(PlantError, match=words):
        plant([text])


def test_several_plants_act_together():
    hooks = plant(["position_off_by_one", "positions_by_order"])
    assert list(hooks.verify_depths((0, 1, 1))) == [0, 1, 2]
    assert hooks.draw_position(5, 1) == 5


def test_rate_is_a_share_and_repeats():
    first, second = plant(["position_off_by_one@0.25"]), plant(["position_off_by_one@0.25"])
    acted = [first.verify_depths((0, 1)) != (0, 1) for _ in range(2000)]
    assert acted == [second.verify_depths((0, 1)) != (0, 1) for _ in range(2000)]
    assert 0.2 < sum(acted) / 2000 < 0.3

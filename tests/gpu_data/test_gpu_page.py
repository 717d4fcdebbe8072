"""docs/gpu.md says what the kept figures say: the tables of the page, made again from the data, stand in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .turns import compared

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text("utf-8")


def kept(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (ROOT / "tests" / "data" / "sglang-0.5.16" / f"{name}.json").read_text("utf-8")
    )
    return loaded


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("chain", "release, chain @1"),
        ("chain-w128", "release, chain-w128 @1"),
        ("b7-k7-wnone", "fork, b7-k7 @1 and @8"),
        ("b8-k8-w128", "fork, b8-k8-w128 @1 and @8"),
        ("fault-mask", "fork, b8-k8, **siblings see each other**"),
        ("fault-pos", "fork, b8-k8, **positions by node order**"),
    ],
)
def test_rows_of_the_first_contact(name: str, label: str) -> None:
    seen = kept("contact")[f"judged.{name}"]["full@1"]
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label} |")]
    _, _, verdict, identical, off, gaps, accepted, _ = (cell.strip() for cell in line.split("|"))
    assert seen["verdict"]["kind"] in verdict
    assert int(identical.split()[0]) == seen["verdict"]["identical"]
    assert off.startswith(f"{seen['off']} (")
    assert float(off.split("(")[1].split()[0]) == pytest.approx(100 * seen["off"] / seen["tokens"], abs=0.051)
    assert float(gaps.split(",")[0]) == pytest.approx(seen["largest_nats"][0], abs=0.051)
    lengths = [seen["accept_length"][part] for part in ("all", "problem", "code")]
    assert [float(part) for part in accepted.split("/")] == pytest.approx(lengths, abs=6e-3)


@pytest.mark.parametrize(
    ("name", "which", "label"),
    [
        ("engine.baseline", None, "now: NumPy engine, plain (float32)"),
        ("engine.chain", None, "now: NumPy engine, chain"),
        ("engine.b7-k7", None, "now: NumPy engine, b7-k7"),
        ("judged.fork-base", "full@1", "now: fork, plain @1"),
        ("judged.chain", "full@1", "now: release, chain @1"),
        ("judged.chain", "full@8", "now: release, chain @8"),
        ("judged.chain-w128", "full@1", "now: release, chain-w128 @1"),
        ("judged.b7-k7-wnone", "full@8", "now: fork, b7-k7 @1 and @8"),
        ("judged.b8-k8-w128", "full@1", "now: fork, b8-k8-w128 @1"),
        ("judged.b16-k16-wnone", "full@8", "now: fork, b16-k16 @1 and @8"),
    ],
)
def test_rows_of_the_contact_with_the_drafter_that_ships(name: str, which: str | None, label: str) -> None:
    seen = kept("seventh-contact")["contact"][name]
    seen = seen if which is None else seen[which]
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label} |")]
    _, _, verdict, identical, off, gap, accepted, _ = (cell.strip() for cell in line.split("|"))
    assert seen["verdict"]["kind"] == verdict
    assert int(identical.split()[0]) == seen["verdict"]["identical"]
    assert off == f"{seen['off']} ({100 * seen['off'] / seen['tokens']:.2f} %)"
    assert float(gap) == pytest.approx(seen["largest_nats"][0], abs=1e-3)
    lengths = seen["accept_length"]
    if isinstance(lengths, dict) and lengths:
        told = [float(part) for part in accepted.split("/")]
        assert told == pytest.approx([lengths[part] for part in ("all", "problem", "code")], abs=6e-3)


@pytest.mark.parametrize("server", ["plain", "chunk512", "det", "fp8", "moe"])
@pytest.mark.parametrize("context", ["1024", "8192"])
def test_ranges_of_the_floors(server: str, context: str) -> None:
    shares = [100 * row["share"] for row in kept("second-contact")["floors"]["floors"][server][context]]
    digits = 1 if server == "fp8" else 2
    assert f"{min(shares):.{digits}f} to {max(shares):.{digits}f} %" in PAGE


RUNS = [
    ("fourth-contact", "ab_slow", ("base", "patched"), 2, "0.874 (0.838 to 0.912), n = 16"),
    ("fourth-contact", "ab_copy", ("base", "copy"), 2, "0.977 (0.947 to 1.007), n = 24"),
    ("fifth-contact", "ab_tree_slow", ("base", "patched"), 2, "0.853 (0.826 to 0.882), n = 16"),
    ("fifth-contact", "ab_tree_broken_off", ("base", "patched"), 1, "0.925 (0.885 to 0.966), n = 10"),
    (
        "fifth-contact",
        "ab_chain_slow_as_base_broken_off",
        ("base", "patched"),
        1,
        "1.028 (1.004 to 1.053), n = 10",
    ),
    ("sixth-contact", "ab_tree_slow", ("base", "slow"), 5, "0.874 (0.826 to 0.925)"),
    ("sixth-contact", "ab_tree_three_builds", ("base", "slow"), 4, "0.894 (0.845 to 0.946)"),
    ("sixth-contact", "ab_tree_three_builds", ("base", "same"), 4, "1.001 (0.897 to 1.116)"),
    ("sixth-contact", "ab_chain_slow_as_base", ("base", "patched"), 3, "1.113 (0.953 to 1.298)"),
    ("seventh-contact", "ab_chain_slow", ("base", "slow"), 12, "0.926 (0.878 to 0.976)"),
    ("eighth-contact", "ab_chain_slow_at_once", ("base", "slow"), 6, "0.921 (0.885 to 0.958)"),
    ("eighth-contact", "ab_chain_slow_as_base_at_once", ("base", "fast"), 1, "1.102 (1.022 to 1.188)"),
]


@pytest.mark.parametrize(
    ("file", "run", "builds", "passes", "said"), RUNS, ids=[f"{one[1]}-{one[2][1]}" for one in RUNS]
)
def test_ratios_of_builds_in_turns(
    file: str, run: str, builds: tuple[str, str], passes: int, said: str
) -> None:
    change = compared(kept(file)[run], builds, passes).changes[0]
    value, low, high = change.ratio
    told = f"{value:.3f} ({low:.3f} to {high:.3f})" + (f", n = {change.shown.n}" if "n =" in said else "")
    assert told == said
    assert said in PAGE


def test_verdicts_of_the_sweeps() -> None:
    third, fifth, sixth = kept("third-contact"), kept("fifth-contact"), kept("sixth-contact")
    found = [
        one
        for sweep in third["sweeps"].values()
        for verdicts in sweep["verdicts"].values()
        for one in verdicts
    ]
    found += [one for verdicts in third["one_gpu"]["verdicts"].values() for one in verdicts]
    seen = {(off, tokens) for _, _, off, tokens in found}
    seen |= {
        (one["off"], one["tokens"])
        for run in (fifth["w7"], fifth["c64"], sixth["w16"], sixth["b16_8192_64"], sixth["sweep"])
        for one in run["verdicts"]
    }
    for off, tokens in seen:
        assert f"{off} of {tokens}" in PAGE


def test_clients_in_turns() -> None:
    plain, chain = kept("fourth-contact")["clients"], kept("sixth-contact")["clients_chain"]
    for name in ("sglang", "rust"):
        assert ", ".join(f"{one['tok_s']:.1f}" for one in plain[name]) in PAGE
        assert ", ".join(f"{one[0]:.1f}" for one in chain[name]) in PAGE
        assert ", ".join(f"{ratio:.3f}" for ratio in chain["ratio"][name]) in PAGE


def test_accept_lengths_of_two_groups_are_those_of_one_gpu_and_tok_s_are_not() -> None:
    third, sixth = kept("third-contact"), kept("sixth-contact")
    apart = []
    for name, rounds in third["one_gpu"]["cells"].items():
        if name.startswith("b8"):
            other = third["two_groups"]["cells"][name]
            apart.append(
                abs(sum(one[1] for one in rounds) / len(rounds) - sum(one[1] for one in other) / len(other))
            )
    assert max(apart) < 0.03
    assert (
        max(
            abs(value[1] - sixth["sweep"]["cells"][name][1])
            for name, value in sixth["two_groups"]["cells"].items()
            if name.startswith("b8")
        )
        < 0.02
    )
    slow = [
        one[0]
        for name, rounds in third["two_groups"]["cells"].items()
        if name.startswith("b8-k8-w128")
        for one in rounds
    ]
    assert (round(min(slow)), round(max(slow))) == (76, 577)

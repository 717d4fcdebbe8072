"""Sampling and accept-length tests of the suite name the planted faults that they are for; `ddtree_verify` in a user's own test."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite import SMALL, run

NAME = "b8-k4-wnone"
OWN = """
import pytest

from pytest_ddtree.client.records import Request, Sampling


@pytest.mark.ddtree_speculative
def test_mine(ddtree_server, ddtree_client, ddtree_verify):
    prompt = tuple(range(300, 340))
    sampling = Sampling(max_new_tokens=48, ignore_eos=True)
    records = [ddtree_client.generate(Request(sampling=sampling, input_ids=prompt[n:])) for n in range(4)]
    verdict = ddtree_verify(*records)
    assert verdict.tokens == 4 * 48
    assert (verdict.kind, verdict.identical) == ("exact", 4)


@pytest.mark.ddtree_speculative
def test_stops(ddtree_server, ddtree_client, ddtree_verify):
    prompt = tuple(range(300, 340))
    free = ddtree_client.generate(
        Request(sampling=Sampling(max_new_tokens=32, ignore_eos=True), input_ids=prompt)
    )
    stopped = [
        ddtree_client.generate(
            Request(
                sampling=Sampling(max_new_tokens=32, stop_token_ids=(token,)), input_ids=prompt, tag=f"stop {token}"
            )
        )
        for token in dict.fromkeys(free.output_ids[4:16])
    ]
    assert ddtree_verify(*stopped).kind == "exact"


@pytest.mark.ddtree_speculative
def test_sampled(ddtree_server, ddtree_client, ddtree_verify):
    sampling = Sampling(max_new_tokens=8, temperature=1.0)
    ddtree_verify(ddtree_client.generate(Request(sampling=sampling, input_ids=(300, 301), tag="mine")))
"""


def own_suite(folder: Path) -> str:
    path = folder / "own" / "test_own.py"
    path.parent.mkdir()
    path.write_text(OWN)
    return str(path)


@pytest.mark.slow
def test_a_users_own_answers_are_judged(tmp_path: Path) -> None:
    outcome = run(own_suite(tmp_path), *SMALL, results=tmp_path)
    names = {
        f"test_mine[{NAME}]": "passed",
        f"test_stops[{NAME}]": "passed",
        f"test_sampled[{NAME}]": "error",
    }
    assert outcome.tests == names, outcome.output
    assert "mine was sampled at temperature 1" in outcome.messages[f"test_sampled[{NAME}]"]


@pytest.mark.slow
def test_a_users_own_answers_fail_on_a_corrupt_server(tmp_path: Path) -> None:
    plant = ("--ddtree-spec-args", "--plant positions_by_order")
    outcome = run(own_suite(tmp_path), *plant, *SMALL, "-k", "mine", results=tmp_path)
    assert outcome.tests == {f"test_mine[{NAME}]": "failure"}, outcome.output
    said = outcome.messages[f"test_mine[{NAME}]"]
    assert "corrupt at level full" in said
    assert "the judge's best" in said
    assert "--ddtree-trace=" in said


@pytest.mark.slow
def test_a_users_own_answers_fail_on_tokens_behind_a_stop(tmp_path: Path) -> None:
    plant = ("--ddtree-spec-args", "--plant stop_leaks")
    outcome = run(own_suite(tmp_path), *plant, *SMALL, "-k", "stops", results=tmp_path)
    assert outcome.tests == {f"test_stops[{NAME}]": "failure"}, outcome.output
    assert "because stop " in outcome.messages[f"test_stops[{NAME}]"]
    assert "stand behind the stop token" in outcome.messages[f"test_stops[{NAME}]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("tree_ignores_temperature", "mean surprise"),
        ("draft_accepted_uncorrected", "mean surprise"),
        ("coin_reused", "one random number"),
    ],
)
def test_faults_of_sampling_are_named(tmp_path: Path, plant: str, said: str) -> None:
    selection = ("-m", "exactness", "-k", "test_sampled_answers")
    outcome = run(*selection, "--ddtree-spec-args", f"--plant {plant}", results=tmp_path)
    name = f"test_sampled_answers[{NAME}]"
    assert outcome.tests == {name: "failure"}, outcome.output
    assert said in outcome.messages[name]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "came"), [("top_k_ignored", "failure"), (None, "passed")])
def test_an_ignored_top_k_is_seen(tmp_path: Path, plant: str | None, came: str) -> None:
    planted = () if plant is None else ("--ddtree-spec-args", f"--plant {plant}")
    outcome = run("-m", "exactness", "-k", "test_top_k", *planted, results=tmp_path)
    assert outcome.tests == {f"test_top_k[{NAME}]": came}, outcome.output


@pytest.mark.slow
def test_an_ignored_min_p_makes_no_greedy_answer_corrupt(tmp_path: Path) -> None:
    """As DFLASH ignores it: the clause fails and says so, and the config stays what its own answers are."""
    selection = ("-m", "exactness", "-k", "truncation or test_exact or test_full_level", *SMALL)
    outcome = run(*selection, "--ddtree-spec-args", "--plant min_p_ignored", results=tmp_path)
    clause = f"test_contract[{NAME}-truncation]"
    assert outcome.tests == {
        clause: "failure",
        f"test_exact_against_baseline[{NAME}]": "passed",
        f"test_full_level[{NAME}]": "passed",
    }, outcome.output
    assert "min_p 1 is not honoured" in outcome.messages[clause]
    assert "CORRUPT" not in outcome.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "plant", "came", "said"),
    [
        (("--ddtree-budget", "chain,32"), "branches_dead", "failure", "the branches of a wide tree"),
        (("--ddtree-window", "none,32"), "window_ignored", "failure", "far shorter than the context"),
        (("--ddtree-window", "none,32"), None, "passed", ""),
        (("--ddtree-budget", "8"), None, "skipped", "no two configs of the grid are related"),
    ],
    ids=["dead branches", "ignored window", "healthy window", "one config"],
)
def test_broken_relations_are_named(
    tmp_path: Path, grid: tuple[str, ...], plant: str | None, came: str, said: str
) -> None:
    planted = () if plant is None else ("--ddtree-spec-args", f"--plant {plant}")
    amounts = ("--ddtree-exactness-prompts", "24", "--ddtree-exactness-output", "96")
    outcome = run("-m", "exactness", "-k", "test_relations", *grid, *planted, *amounts, results=tmp_path)
    assert outcome.tests == {"test_relations": came}, outcome.output
    assert said in outcome.messages["test_relations"]
    assert "depth 1 on was accepted in " in outcome.output


@pytest.mark.slow
def test_other_server_arguments_are_judged_under_their_own_names(tmp_path: Path) -> None:
    axes = ("--ddtree-axis", "page-size=64", "--ddtree-axis", "thinking=off")
    selection = ("-m", "exactness", "-k", "exact_against or (test_contract and serial)")
    outcome = run(*selection, *axes, *SMALL, results=tmp_path)
    configs = ("b8-k4-wnone", "b8-k4-wnone+page-size.64", "b8-k4-wnone+thinking.off")
    names = [f"test_exact_against_baseline[{one}]" for one in configs]
    names += [f"test_contract[{one}-serial]" for one in configs]
    assert outcome.tests == dict.fromkeys(names, "passed"), outcome.output
    assert "extra start (axis page-size=64)" in outcome.output
    log = next((tmp_path).glob("*/logs/*page-size.64*")).read_text()
    assert "page_size=64" in log or "page-size" in log or "page_size" in log

"""Every planted fault does what it says: here on the engine itself, without the suite that has to find it."""

from __future__ import annotations

import inspect
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reference_harness import GREEDY, harness, tree

from pytest_ddtree.reference.faults import catalogue, plant
from pytest_ddtree.reference.faults.serving import PlantedCrash
from pytest_ddtree.reference.request import Submission
from pytest_ddtree.reference.sampling import SamplingParams

TEXTS = Path(__file__).parents[2] / "pytest_ddtree" / "workload" / "texts"
LONG = replace(GREEDY, max_new_tokens=32)
SAMPLED = SamplingParams(max_new_tokens=32, temperature=1.0, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts(trained_plain):
    """Pieces of code, so that drafts are accepted and branches are taken."""
    # No module of Python, which has another source in another version; each is sure of its first token.
    code = "".join((TEXTS / "code" / name).read_text("utf-8") for name in ("graphs.txt", "expressions.txt"))
    ids = trained_plain.engine._tokenizer.encode(code)
    return [ids[begin : begin + 90] for begin in (500, 650, 1500, 2450)]


@pytest.fixture(scope="module")
def truth(trained_plain, prompts):
    return trained_plain.tokens(prompts, LONG)


def run(trained, name, prompts, params=LONG, *, speculative=None, concurrency=4, **changes):
    with harness(trained, speculative or tree(16), plant([name] if name else []), **changes) as engine:
        return engine.run(prompts, params, concurrency=concurrency)


@pytest.fixture(scope="module")
def healthy(trained, prompts):
    return run(trained, None, prompts)


def accept_length(answers):
    return sum(len(answer.tokens) for answer in answers) / sum(answer.last.verify_steps for answer in answers)


CORRUPTING = [
    "mask_block_size", "siblings_visible", "mask_causal", "mask_stale", "positions_by_order", "position_off_by_one",
    "compaction_skipped", "compaction_misordered", "compaction_off_by_one", "wrong_kv_slot", "batch_row_mixup", "batch_kv_mixup",
    "bonus_repeated", "bonus_dropped", "rare_token:20", "long_context:100",
]  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTING)
def test_corrupting_faults_change_greedy_answers(trained, prompts, truth, name):
    assert [answer.tokens for answer in run(trained, name, prompts)] != truth


def test_mask_sized_by_the_block_is_right_at_one_budget_only(trained, prompts, truth):
    for budget, right in ((7, True), (8, False), (16, False), (3, False)):
        answers = run(trained, "mask_block_size", prompts, speculative=tree(budget))
        assert ([answer.tokens for answer in answers] == truth) is right, budget


def test_wrong_positions_reach_beyond_a_whole_context_and_end_no_server(tiny):
    """A tree wider than the block, numbered in order, at the end of the context: its positions are the farthest."""
    with harness(tiny, tree(32), plant(["positions_by_order"]), context_length=64) as engine:
        assert len(engine.run([list(range(10, 40))], replace(GREEDY, max_new_tokens=34))[0].tokens) == 34
        assert not engine.crashes


def test_moves_out_of_order_lose_a_node():
    hook = plant(["compaction_misordered"])
    assert sorted(hook.compaction([(3, 2), (5, 3)], 9)) == [(5, 2), (5, 3)]
    assert hook.compaction([(3, 2)], 9) == [(3, 2)]


def test_batch_faults_spare_single_requests(trained, prompts, truth):
    for name in ("batch_row_mixup", "batch_kv_mixup"):
        assert [answer.tokens for answer in run(trained, name, prompts, concurrency=1)] == truth


SAMPLING = ["tree_ignores_temperature", "draft_accepted_uncorrected", "coin_reused", "top_k_ignored"]


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_faults_change_sampled_answers_only(trained, trained_plain, prompts, truth, name):
    params = replace(SAMPLED, top_k=3)
    expected = trained_plain.tokens(prompts, params)
    assert [answer.tokens for answer in run(trained, name, prompts, params)] != expected
    assert [answer.tokens for answer in run(trained, name, prompts)] == truth


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("logit_bias_ignored", replace(LONG, logit_bias={300: 100.0})),
        ("min_p_ignored", replace(SAMPLED, min_p=0.9)),
        ("penalties_ignored", replace(LONG, frequency_penalty=1.5)),
    ],
)
def test_ignored_parameters_are_ignored(trained, trained_plain, prompts, name, params):
    assert [answer.tokens for answer in run(trained, name, prompts, params)] != trained_plain.tokens(
        prompts, params
    )


def test_endings_are_missed_or_overrun(trained, prompts, truth):
    one, answer = prompts[:1], truth[0]
    with harness(trained, tree(16), plant(["max_tokens_overshoot"])) as engine:
        lengths = range(4, 30, 3)
        assert sum(len(engine.tokens(one, replace(LONG, max_new_tokens=n))[0]) > n for n in lengths) > 1
    with harness(trained, tree(16), plant(["stop_leaks"])) as engine:
        stops = [answer[at] for at in range(4, 24, 2)]
        leaked = [
            engine.tokens(one, replace(LONG, ignore_eos=False, stop_token_ids=(stop,)))[0] for stop in stops
        ]
        assert sum(len(found) > answer.index(stop) + 1 for found, stop in zip(leaked, stops, strict=True)) > 2
    string = replace(LONG, stop=("e",))
    assert run(trained, "stop_string_missed", one, string)[0].last.finish.kind == "length"
    assert run(trained, None, one, string)[0].last.finish.kind == "stop"
    assert plant(["eos_ignored"]).params(SamplingParams()).ignore_eos


@pytest.mark.parametrize(
    "name", ["window_off_by_page:64", "wrong_features", "accept_decays:20", "branches_dead"]
)
def test_drafting_faults_cost_accept_length_alone(trained, prompts, truth, healthy, name):
    # A window that holds everything changes nothing by itself, and the fault of a window needs one.
    window = 1024 if name.startswith("window") else None
    answers = run(trained, name, prompts, speculative=tree(16, window=window))
    assert [answer.tokens for answer in answers] == truth
    assert accept_length(answers) < accept_length(healthy) - 0.03


def test_window_and_fallback(trained, prompts, truth):
    assert plant(["window_ignored"]).draft_context((400, 528), 128) == (0, 528)
    assert plant(["window_off_by_page"]).draft_context((400, 528), 128) == (384, 512)
    assert plant(["window_off_by_page"]).draft_context((0, 528), None) == (0, 528)
    answers = run(trained, "silent_fallback", prompts)
    assert [answer.tokens for answer in answers] == truth
    assert all(answer.last.verify_steps == 0 for answer in answers)


@pytest.mark.parametrize("name", ["stale_prefix", "stale_generated"])
def test_prefix_faults_spare_cold_requests(trained, trained_plain, prompts, truth, name):
    with harness(trained, tree(8), plant([name])) as engine:
        assert engine.tokens(prompts, LONG) == truth
        second = [prompt + answer + [300] for prompt, answer in zip(prompts, truth, strict=True)]
        assert engine.tokens(second, LONG) != trained_plain.tokens(second, LONG)


def test_what_was_evicted_is_used_and_what_was_flushed_is_not(trained, prompts, truth):
    room = max(len(prompt) for prompt in prompts) + 96
    with harness(trained, tree(8), plant(["evicted_prefix"]), max_total_tokens=room) as engine:
        for prompt, right in zip(prompts, truth, strict=True):
            assert engine.tokens([prompt], LONG) == [right]
        assert engine.tokens(prompts[:1], LONG) != truth[:1]
        assert engine.flush()
        assert engine.tokens(prompts[:1], LONG) == truth[:1]


def test_a_schema_has_no_effect():
    asked = {"json_schema": "{}", "top_k": 1}
    assert plant(["schema_ignored"]).asked(asked) == {"top_k": 1}
    assert plant([]).asked(asked) == asked


def test_cancelled_request_corrupts_its_neighbour(trained, trained_plain, prompts):
    params = replace(LONG, max_new_tokens=200)
    expected = trained_plain.tokens(prompts[:2], params)
    with harness(trained, tree(8), plant(["cancel_corrupts_neighbour"])) as engine:
        hit = False

        def cancel(update):
            nonlocal hit
            # Once the neighbours are there, however late they come.
            if not hit and update.completion_tokens > 20 and engine.engine.occupancy[0] == 3:
                hit = True
                engine.engine.abort("victim")

        victim = Submission("victim", np.asarray(prompts[2]), replace(LONG, max_new_tokens=900), 1)
        engine.engine.submit(victim, cancel)
        assert engine.tokens(prompts[:2], params, concurrency=2) != expected
        assert hit


def test_counting_faults(trained, prompts, healthy):
    answers = run(trained, "usage_off_by_one", prompts)
    assert all(answer.last.completion_tokens == len(answer.tokens) + 1 for answer in answers)
    boasting = run(trained, "accept_over_reported", prompts)
    assert accept_length(boasting) > 1.3 * accept_length(healthy)
    answers = run(trained, "cached_over_reported", prompts)
    assert all(
        answer.last.cached_tokens > len(prompt) for answer, prompt in zip(answers, prompts, strict=True)
    )


def test_streaming_faults(trained, prompts, truth):
    for name in ("chunk_lost:2", "chunk_repeated:2"):
        answers = run(trained, name, prompts)
        assert [answer.tokens for answer in answers] != truth
        assert all(answer.last.completion_tokens == 32 for answer in answers)
    hook = plant(["error_in_stream:2"])
    payload = {"text": "a"}
    assert [list(hook.event(payload, number)) for number in range(4)] == [
        ["text"],
        ["text"],
        ["error"],
        ["text"],
    ]


def test_crashes(trained, prompts):
    with pytest.raises(PlantedCrash), harness(trained, tree(8), plant(["crash_beyond_block"])):
        pass
    with harness(trained, tree(7), plant(["crash_beyond_block"])) as engine:
        engine.run(prompts[:1])
    with harness(trained, tree(7), plant(["crash_after:2"])) as engine:
        engine.run(prompts[:1])
        engine.engine.submit(Submission("x", np.asarray(prompts[1]), LONG, 1), lambda update: None)
        engine.engine._thread.join(120)
        assert isinstance(engine.crashes[0], PlantedCrash)


def test_cache_leaks(trained, prompts):
    with harness(trained, tree(8), plant(["cache_leaks:3"])) as engine:
        engine.run(prompts)
        assert engine.flush()
        memory = engine.runtime.memory
        assert memory.total - memory.free == 3 * len(prompts)


def test_noise_is_no_fault(trained, prompts, truth):
    answers = run(trained, "rounding_noise", prompts)
    same = [answer.tokens == right for answer, right in zip(answers, truth, strict=True)]
    assert all(answer.tokens[0] == right[0] for answer, right in zip(answers, truth, strict=True))
    assert not all(same), "no answer diverged: that is no bfloat16 noise"


def test_no_fault_is_forgotten_here():
    """Names in this file cover the catalogue, apart from those that only pass the time."""
    source = inspect.getsource(inspect.getmodule(test_no_fault_is_forgotten_here))
    assert [name for name in catalogue() if f'"{name}' not in source] == []


def test_time_is_wasted_as_asked():
    slower, clock = plant(["slower:50"]), time.perf_counter()
    slower.passed(None, [], 0.1)
    assert time.perf_counter() - clock >= 0.05
    waits = []
    hang = plant(["hang_mid_stream:3"])
    hang.passed(None, [SimpleNamespace(number=2, output=[0] * 20)], 0.1)
    request = SimpleNamespace(number=3, output=[0] * 20)

    def wake(_):
        waits.append(1)
        if len(waits) == 3:
            request.output = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_ddtree.reference.faults.serving.time.sleep", wake)
        hang.passed(None, [request], 0.1)
    assert len(waits) == 3


def test_another_token_is_one_of_the_vocabulary():
    """The last one has none behind it: an index out of the embedding would end the server instead."""
    request = SimpleNamespace(length=10)
    assert plant(["rare_token:1"]).emitted([4095, 301, 300], request) == [4094, 300, 300]


def test_a_leak_takes_what_is_left_and_no_server_with_it(trained, prompts):
    """Free pages run out before what is cached does: the fault is a leak, not a crash."""
    with harness(trained, tree(8), plant(["cache_leaks:100000"])) as engine:
        answers = engine.run(prompts[:3], replace(GREEDY, max_new_tokens=4))
        assert [answer.last.completion_tokens for answer in answers][:1] == [4]
        assert not engine.crashes

"""The engine: speculative answers equal plain ones, whatever the schedule; nothing leaks."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from reference_harness import CHAIN, GREEDY, harness, random_prompts, tree
from scipy import stats

from pytest_ddtree.reference.hooks import Hooks
from pytest_ddtree.reference.request import LogprobOptions, Submission
from pytest_ddtree.reference.sampling import SamplingParams, log_softmax
from pytest_ddtree.reference.settings import SpeculativeSettings

VOCAB = 320
# The pairwise sample over budget x topk x window x concurrency; every pair of values occurs.
PAIRS = [
    (1, 1, None, 1), (1, 4, 128, 8), (1, 8, None, 8), (3, 1, 128, 8), (3, 4, None, 1), (3, 8, 128, 1),
    (7, 1, None, 8), (7, 4, 128, 1), (7, 8, None, 1), (8, 1, 128, 1), (8, 4, None, 8), (8, 8, 128, 8),
    (16, 1, None, 1), (16, 4, 128, 8), (16, 8, None, 8), (32, 1, 128, 8), (32, 4, None, 1), (32, 8, 128, 1),
]  # fmt: skip
LENGTHS = (1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(5)
    return [rng.integers(6, VOCAB, size=length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(plain, prompts):
    return plain.tokens(prompts)


@pytest.mark.parametrize(("budget", "topk", "window", "concurrency"), PAIRS)
def test_tree_equals_plain_decoding(tiny, prompts, expected, budget, topk, window, concurrency):
    with harness(tiny, tree(budget, topk, window)) as engine:
        assert engine.tokens(prompts, concurrency=concurrency) == expected
        engine.check_idle()


# What random weights cannot show: long accepted runs, compaction of real branches; at last more rows than are handled at once.
@pytest.mark.parametrize(
    ("speculative", "concurrency"),
    [(CHAIN, 1), (tree(8), 6), (tree(16, 8, 128), 6), (tree(80), 4)],
)
def test_trained_tree_equals_plain_decoding(trained, trained_plain, speculative, concurrency):
    prompts = random_prompts(4, low=8, high=120, vocab=4000, seed=2)
    params = replace(GREEDY, max_new_tokens=32)
    expected = trained_plain.tokens(prompts, params)
    with harness(trained, speculative) as engine:
        answers = engine.run(prompts, params, concurrency=concurrency)
        assert [answer.tokens for answer in answers] == expected
        accepted = [sum(n * times for n, times in enumerate(a.last.accepted_histogram)) for a in answers]
        assert sum(accepted) > len(prompts), "no draft was accepted, so nothing was compared"
        assert all(sum(a.last.accepted_histogram) == a.last.verify_steps for a in answers)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_new_tokens=30, temperature=1.0, ignore_eos=True),
        SamplingParams(max_new_tokens=30, temperature=0.6, top_p=0.9, top_k=20, min_p=0.02, ignore_eos=True),
        SamplingParams(max_new_tokens=30, temperature=1.3, frequency_penalty=0.4, presence_penalty=0.2),
        SamplingParams(max_new_tokens=30, temperature=0.0, repetition_penalty=1.3, min_new_tokens=10),
        SamplingParams(max_new_tokens=30, temperature=0.8, logit_bias={40: 5.0, 41: -100.0}),
    ],
)
def test_sampled_tree_equals_plain_sampling(trained, trained_plain, params):
    prompts = random_prompts(3, low=8, high=60, vocab=4000, seed=3)
    expected = trained_plain.tokens(prompts, params)
    for speculative in (CHAIN, tree(8)):
        with harness(trained, speculative) as engine:
            assert engine.tokens(prompts, params, concurrency=3) == expected


def test_answers_do_not_depend_on_batch_cache_pages_or_pieces(tiny, prompts, expected):
    for changes in (
        {"page_size": 16},
        {"prefix_cache": False},
        {"chunked_prefill_size": 7},
        {"max_running_requests": 2},
    ):
        with harness(tiny, tree(8), **changes) as engine:
            assert engine.tokens(prompts, concurrency=len(prompts)) == expected
            assert engine.tokens(prompts, concurrency=4) == expected, "the warm prefix changed the answers"
            engine.check_idle()


def test_retraction_changes_nothing(tiny, plain):
    prompts = random_prompts(8, low=30, high=50, vocab=VOCAB)
    params = replace(GREEDY, max_new_tokens=90)
    expected = plain.tokens(prompts, params)
    for speculative in (None, tree(8)):
        with harness(tiny, speculative, max_total_tokens=450) as engine:
            answers = engine.run(prompts, params, concurrency=8)
            assert [answer.tokens for answer in answers] == expected
            assert sum(answer.last.retractions for answer in answers) > 0, "memory was never short"
            engine.check_idle()


def test_second_turn_reuses_generated_keys(tiny, plain):
    prompt = random_prompts(1, low=50, high=51, vocab=VOCAB)[0]
    with harness(tiny, tree(8)) as engine:
        first = engine.tokens([prompt])[0]
        longer = [prompt + first + [50, 60, 70]]
        answer = engine.run(longer)[0]
        assert answer.last.cached_tokens >= len(prompt) + len(first) - 1
        assert answer.tokens == plain.tokens(longer)[0]
        assert engine.flush()
        assert engine.run(longer)[0].last.cached_tokens == 0


@pytest.mark.parametrize("budget", [1, 8])
def test_length_is_exact_in_an_accepted_run(trained, trained_plain, budget):
    prompt = random_prompts(1, low=20, high=21, vocab=4000)
    whole = trained_plain.tokens(prompt, replace(GREEDY, max_new_tokens=20))[0]
    with harness(trained, tree(budget)) as engine:
        for length in (0, 1, 2, 3, 9, 20):
            answer = engine.run(prompt, replace(GREEDY, max_new_tokens=length))[0]
            assert answer.tokens == whole[:length]
            assert answer.last.finish.kind == "length"
            assert answer.last.completion_tokens == length


def test_stop_ids_and_eos_end_inside_a_run(trained, trained_plain):
    prompt = random_prompts(1, low=20, high=21, vocab=4000)
    whole = trained_plain.tokens(prompt, replace(GREEDY, max_new_tokens=40))[0]
    with harness(trained, tree(8)) as engine:
        for at in range(3, 12):
            stop = whole[at]
            answer = engine.run(
                prompt, replace(GREEDY, ignore_eos=False, max_new_tokens=40, stop_token_ids=(stop,))
            )[0]
            assert answer.tokens == whole[: whole.index(stop) + 1]
            assert answer.last.finish.matched == stop


def test_stop_strings_end_where_the_text_says(trained, trained_plain):
    prompt = random_prompts(1, low=20, high=21, vocab=4000)
    tokenizer = trained_plain.engine._tokenizer
    whole = trained_plain.tokens(prompt, replace(GREEDY, max_new_tokens=40))[0]
    text = tokenizer.decode(whole)
    with harness(trained, tree(8)) as engine:
        for begin in range(2, min(len(text) - 6, 30), 4):
            stop = text[begin : begin + 4]
            answer = engine.run(prompt, replace(GREEDY, max_new_tokens=40, stop=(stop,)))[0]
            shown = tokenizer.decode(answer.tokens)
            assert stop in shown
            assert stop not in tokenizer.decode(answer.tokens[:-1])
            assert answer.last.finish.matched == stop


def test_minimum_length_bars_stops(trained, trained_plain):
    prompt = random_prompts(1, low=20, high=21, vocab=4000)
    first = trained_plain.tokens(prompt)[0][0]
    params = replace(GREEDY, ignore_eos=False, min_new_tokens=6, stop_token_ids=(first,))
    for engine in (trained_plain,):
        tokens = engine.tokens(prompt, params)[0]
        assert first not in tokens[:6]
    with harness(trained, tree(8)) as engine:
        assert engine.tokens(prompt, params)[0] == tokens


def test_input_logprobs_are_those_of_the_model(plain):
    prompt = random_prompts(1, low=90, high=91, vocab=VOCAB)[0]
    whole = plain.run([prompt], logprobs=LogprobOptions(0, 3))[0].logprobs
    assert whole.input_tokens[0] == (None, prompt[0])
    assert [token for _, token in whole.input_tokens] == prompt
    assert whole.input_top[0] is None
    for (value, token), top in zip(whole.input_tokens[1:], whole.input_top[1:], strict=True):
        assert len(top) == 3
        assert top == sorted(top, key=lambda entry: (-entry[0], entry[1]))
        assert value <= top[0][0]
        assert token not in {token for _, token in top} or value in {value for value, _ in top}
    # A later start gives the same values and lets the cached prefix be used.
    later = plain.run([prompt], logprobs=LogprobOptions(60, 3))[0]
    assert later.last.cached_tokens == 60
    for ours, theirs in zip(later.logprobs.input_tokens[1:], whole.input_tokens[61:], strict=True):
        assert ours[1] == theirs[1]
        assert ours[0] == pytest.approx(theirs[0], abs=1e-4)


def test_output_logprobs_match_teacher_forcing(plain):
    prompt = random_prompts(1, low=20, high=21, vocab=VOCAB)[0]
    answer = plain.run([prompt], logprobs=LogprobOptions(len(prompt) - 1, 2))[0]
    emitted = answer.logprobs.output_tokens
    assert [token for _, token in emitted] == answer.tokens
    forced = plain.run([prompt + answer.tokens], logprobs=LogprobOptions(len(prompt) - 1, 2))[0].logprobs
    for ours, theirs in zip(emitted, forced.input_tokens[1:], strict=True):
        assert ours[0] == pytest.approx(theirs[0], abs=1e-4)
    assert all(top[0][1] == token for (_, token), top in zip(emitted, forced.input_top[1:], strict=True))


def test_greedy_tokens_are_the_argmax_of_the_logits(tiny, plain):
    prompt = random_prompts(1, low=33, high=34, vocab=VOCAB)[0]
    top = plain.run([prompt], logprobs=LogprobOptions(len(prompt) - 1, VOCAB))[0].logprobs.output_top[0]
    row = np.zeros(VOCAB, dtype=np.float32)
    for value, token in top:
        row[token] = value
    np.testing.assert_allclose(log_softmax(row), row, atol=1e-4)


def test_full_queue_is_refused(tiny):
    with harness(tiny, max_queued_requests=1, max_running_requests=1) as engine:
        prompts = random_prompts(6, low=20, high=30, vocab=VOCAB)
        answers = engine.run(prompts, replace(GREEDY, max_new_tokens=60), concurrency=6)
        refused = [answer for answer in answers if answer.last.finish.kind == "abort"]
        assert refused
        assert all(answer.last.finish.status_code == 503 for answer in refused)
        assert any(answer.last.finish.kind == "length" for answer in answers)
        engine.check_idle()


def test_abort_ends_running_and_waiting_requests(tiny):
    with harness(tiny, tree(8), max_running_requests=2) as engine:
        finishes, done, asked = {}, threading.Semaphore(0), threading.Event()
        for index, prompt in enumerate(random_prompts(5, low=20, high=30, vocab=VOCAB)):

            def deliver(update, index=index):
                # The engine goes on when all is asked, so that no answer is complete before.
                assert asked.wait(60)
                if update.finish is not None:
                    finishes[index] = update.finish.kind
                    done.release()

            params = replace(GREEDY, max_new_tokens=800)
            engine.engine.submit(Submission(f"x{index}", np.asarray(prompt), params, 0), deliver)
        engine.engine.abort("x")
        asked.set()
        for _ in range(5):
            assert done.acquire(timeout=60)
        assert set(finishes.values()) == {"abort"}
        engine.check_idle()


class CountingHooks(Hooks):
    """Notes how many requests the engine counts while one of them still holds its memory."""

    def __init__(self):
        self.counted = []
        self.engine = None

    def finished(self, runtime, request):
        self.counted.append(self.engine.occupancy[0] if request.holding is not None else 0)

    def aborted(self, runtime, request, others):
        assert request not in others
        self.finished(runtime, request)


def test_who_sees_an_idle_server_sees_its_memory_whole(tiny):
    """A request counts as running until its memory is free, ended by itself or aborted."""
    hooks = CountingHooks()
    with harness(tiny, tree(8), hooks=hooks) as engine:
        hooks.engine = engine.engine
        engine.run([list(range(10, 40))])
        done = threading.Event()

        def deliver(update):
            if update.finish is not None:
                done.set()
            elif update.completion_tokens < 10:
                engine.engine.abort("x")

        params = replace(GREEDY, max_new_tokens=800)
        engine.engine.submit(Submission("x", np.arange(10, 40), params, 0), deliver)
        assert done.wait(60)
        engine.check_idle()
    assert hooks.counted == [1, 1]


def test_request_that_never_fits_is_refused(tiny):
    with harness(tiny, max_total_tokens=64) as engine:
        answer = engine.run([list(range(10, 110))])[0]
        assert answer.last.finish.kind == "abort"
        assert answer.last.finish.status_code == 400
        engine.check_idle()


def test_other_block_sizes_and_shapes(tiny, plain, prompts, expected):
    for block, budget, topk in ((2, 3, 3), (4, 10, 2), (12, 20, 4)):
        with harness(tiny, SpeculativeSettings("DDTREE", block, budget, topk, 64)) as engine:
            assert engine.tokens(prompts[:8], concurrency=4) == expected[:8]


@pytest.mark.slow
def test_random_schedules_leave_nothing_behind(tiny):
    """Requests, cancellations and flushes in random order; the books balance afterwards and answers stay right."""
    rng = np.random.default_rng(11)
    with harness(tiny, tree(8), max_total_tokens=2048, page_size=4, max_queued_requests=20) as engine:
        reference: dict[tuple[int, ...], list[int]] = {}
        for _ in range(40):
            prompts = [rng.integers(6, 12, size=int(rng.integers(1, 80))).tolist() for _ in range(12)]
            params = [replace(GREEDY, max_new_tokens=int(rng.integers(1, 60))) for _ in prompts]
            timer = threading.Timer(
                float(rng.random()) * 0.2, engine.engine.abort, args=(str(int(rng.integers(12))),)
            )
            timer.start()
            answers = engine.run(prompts, params, concurrency=int(rng.integers(1, 12)))
            timer.join()
            for prompt, answer in zip(prompts, answers, strict=True):
                known = reference.setdefault(tuple(prompt), answer.tokens)
                shared = min(len(known), len(answer.tokens))
                assert answer.tokens[:shared] == known[:shared]
                if len(answer.tokens) > len(known):
                    reference[tuple(prompt)] = answer.tokens
        assert not engine.crashes
        engine.check_idle()


def test_tree_samples_follow_the_models_distribution(tiny, plain):
    """Pairs of tokens drawn through the tree against the exact joint distribution of the model."""
    prompt = random_prompts(1, low=20, high=21, vocab=VOCAB, seed=9)[0]
    top_k, samples = 4, 1500

    def exact(prefix: list[int]) -> dict[int, float]:
        options = LogprobOptions(len(prefix) - 1, top_k)
        top = plain.run([prefix], replace(GREEDY, max_new_tokens=1), logprobs=options)[0].logprobs.output_top[
            0
        ]
        weights = {token: float(np.exp(value)) for value, token in top}
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    first = exact(prompt)
    joint = {(a, b): pa * pb for a, pa in first.items() for b, pb in exact([*prompt, a]).items()}
    params = SamplingParams(max_new_tokens=3, temperature=1.0, top_k=top_k, ignore_eos=True)
    with harness(tiny, tree(8)) as engine:
        drawn = Counter(
            tuple(tokens[:2]) for tokens in engine.tokens([prompt] * samples, params, concurrency=32)
        )
    assert set(drawn) <= set(joint)
    pairs = sorted(joint, key=joint.__getitem__, reverse=True)
    common = [pair for pair in pairs if joint[pair] * samples >= 5]
    observed = [drawn[pair] for pair in common]
    expected = [joint[pair] * samples for pair in common]
    rest = samples - sum(expected)
    if rest > 1e-6:
        observed, expected = [*observed, samples - sum(observed)], [*expected, rest]
    assert len(common) > 3, "the distribution is too sharp to test anything"
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_timeouts_end_requests_with_503(tiny):
    for changes in ({"running_timeout": 0.05}, {"waiting_timeout": 0.05, "max_running_requests": 1}):
        with harness(tiny, **changes) as engine:
            prompts = random_prompts(3, low=20, high=30, vocab=VOCAB)
            answers = engine.run(prompts, replace(GREEDY, max_new_tokens=900), concurrency=3)
            late = [answer.last.finish for answer in answers if answer.last.finish.kind == "abort"]
            assert late
            assert {finish.status_code for finish in late} == {503}
            assert all("timeout" in finish.message for finish in late)
            engine.check_idle()

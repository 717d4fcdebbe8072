"""Relations between accept lengths: healthy ones hold, a worse drafter is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pytest_ddtree.client.records import Chunk, Record, Request, Sampling
from pytest_ddtree.exactness.depths import HISTOGRAM, depth_acceptance, histogram_problems
from pytest_ddtree.exactness.relations import (
    Acceptance,
    acceptance,
    log_ratio_interval,
    relations,
    window_relations,
)
from pytest_ddtree.grid import Config

CHAIN = Config("chain")


def tree(budget: int, topk: int = 4) -> Config:
    return Config("tree", budget, topk)


def made(config: Config, length: float, seed: int = 0, prompts: int = 24, spread: float = 0.2) -> Acceptance:
    """Acceptance of this accept length; a prompt is as easy for one config as for another."""
    ease = np.exp(np.random.default_rng(7).normal(0.0, spread, prompts))
    generator = np.random.default_rng(seed)
    counts = {}
    for index in range(prompts):
        steps = 60
        counts[f"p{index}"] = (int(generator.poisson(steps * length * ease[index])), steps)
    return Acceptance(config, counts)


def broken(found: list[Acceptance]) -> list[str]:
    return [relation.name for relation in relations(found, block_size=8) if relation.kind == "broken"]


def test_healthy_relations_hold() -> None:
    found = [made(CHAIN, 2.0, 1), made(tree(7, 1), 2.0, 2), made(tree(8), 2.4, 3), made(tree(16), 2.6, 4)]
    checked = relations(found, block_size=8)
    assert {relation.kind for relation in checked} == {"holds"}
    assert [(r.left, r.right) for r in checked] == [
        ("b7-k1-wnone", "chain-wnone"),
        ("b8-k4-wnone", "chain-wnone"),
        ("b16-k4-wnone", "chain-wnone"),
        ("b16-k4-wnone", "b8-k4-wnone"),
        ("b16-k4-wnone", "chain-wnone"),
    ]


def test_a_tree_worse_than_the_chain_is_broken() -> None:
    assert broken([made(CHAIN, 2.4, 1), made(tree(8), 2.0, 2)]) == [
        "a tree accepts at least as much as the chain"
    ]


def test_a_wide_tree_that_is_never_better_than_the_chain_has_dead_branches() -> None:
    chain = made(CHAIN, 2.0, 1)
    dead = Acceptance(tree(32), chain.counts)
    assert broken([chain, dead]) == ["the branches of a wide tree accept what the chain does not"]
    assert broken([chain, Acceptance(tree(8), chain.counts)]) == []
    perfect = made(CHAIN, 7.5, 1)
    assert broken([perfect, Acceptance(tree(32), perfect.counts)]) == []


def test_a_gain_that_few_tokens_do_not_show_is_unknown() -> None:
    name = "the branches of a wide tree accept what the chain does not"
    chain = made(CHAIN, 2.0, 1, prompts=8)
    noisy = {
        tag: (tokens + (index % 3 - 1) * 20, steps)
        for index, (tag, (tokens, steps)) in enumerate(chain.counts.items())
    }
    (found,) = [
        one for one in relations([chain, Acceptance(tree(32), noisy)], block_size=8) if one.name == name
    ]
    assert (found.kind, found.low < 1.0, found.high > 1.02) == ("unknown", True, True)
    assert "--ddtree-exactness-prompts" in found.summary()


def test_a_tree_smaller_than_a_block_need_not_reach_the_chain() -> None:
    assert relations([made(CHAIN, 2.4, 1), made(tree(2), 1.5, 2)], block_size=8) == ()


def test_a_larger_budget_that_accepts_less_is_broken() -> None:
    name = "accept length does not fall with the budget"
    assert broken([made(tree(8), 2.6, 1), made(tree(32), 2.1, 2)]) == [name]


@pytest.mark.parametrize(("length", "reason"), [(1.6, "too low"), (2.5, "too high")])
def test_topk_one_is_the_chain(length: float, reason: str) -> None:
    (relation,) = relations([made(CHAIN, 2.0, 1), made(tree(7, 1), length, 2)], block_size=8)
    assert relation.kind == "broken"
    assert reason in relation.summary()


def test_other_windows_are_not_compared() -> None:
    assert relations([made(Config("chain", window=128), 2.4), made(tree(8), 2.0)], block_size=8) == ()


def test_few_prompts_are_unknown() -> None:
    (relation,) = relations([made(CHAIN, 2.4, 1, 4), made(tree(8), 1.0, 2, 4)], block_size=8)
    assert relation.kind == "unknown"
    assert "only 4 prompts" in relation.reason


def test_false_alarms_are_rare() -> None:
    alarms = sum(bool(broken([made(CHAIN, 2.0, s), made(tree(8), 2.0, s + 5000)])) for s in range(600))
    assert alarms <= 3


def test_the_interval_holds_the_true_ratio() -> None:
    inside = 0
    for seed in range(300):
        left, right = made(tree(8), 2.5, seed), made(CHAIN, 2.0, seed + 999)
        _, low, high, prompts = log_ratio_interval(left.counts, right.counts, alpha=0.05)
        assert prompts == 24
        inside += low <= 1.25 <= high
    assert 270 <= inside <= 297


def test_nothing_in_common_is_no_ratio() -> None:
    assert log_ratio_interval({"a": (3, 1)}, {"b": (3, 1)}, alpha=0.05) == (1.0, 0.0, float("inf"), 0)


def stream(sizes: list[int]) -> Record:
    ends = np.cumsum([1, *sizes])
    return Record(
        request=Request(sampling=Sampling(max_new_tokens=int(ends[-1])), input_ids=(1,), tag="p"),
        outcome="ok",
        sent_ns=0,
        end_ns=1,
        output_ids=tuple(range(int(ends[-1]))),
        chunks=tuple(Chunk(index, int(end)) for index, end in enumerate(ends)),
        meta={"completion_tokens": int(ends[-1]), "spec_verify_ct": len(sizes)},
    )


def test_acceptance_leaves_out_prefills_token() -> None:
    assert acceptance(CHAIN, {"p": stream([3, 2, 1])}).counts == {"p": (6, 3)}
    assert acceptance(CHAIN, {"p": stream([3, 2, 1])}).accept_length == 2.0


def test_acceptance_by_depth_leaves_out_the_last_step() -> None:
    found = depth_acceptance([stream([3, 1, 2, 9]), stream([3, 5])])
    assert found is not None
    assert found.steps == 4
    assert found.shares == (3 / 4, 2 / 4)
    assert found.rates == pytest.approx((3 / 4, 2 / 3))
    assert found.summary() == "depth 1 on was accepted in 75%, 50% of 4 verify steps"
    assert all(later <= earlier for earlier, later in pairwise(found.shares))


def test_a_histogram_that_its_chunks_do_not_bear_out_is_a_problem() -> None:
    def said(histogram: list[int]) -> list[str]:
        record = stream([3, 2, 1])
        return histogram_problems(replace(record, meta={**record.meta, HISTOGRAM: histogram}))

    assert said([1, 1, 1]) == []
    assert said([0, 2, 1]) == []
    assert "holds 2 steps, spec_verify_ct says 3" in said([1, 0, 1])[0]
    assert "holds 1 accepted drafts, but 3 were emitted" in said([2, 1, 0])[0]
    assert histogram_problems(stream([3])) == []


def test_a_window_changes_nothing_where_all_fits_and_something_where_it_is_far_too_short() -> None:
    lengths = {f"p{i}": 50 if i < 12 else 600 for i in range(24)}
    full = made(tree(8), 2.4, 1)
    window = Config("tree", 8, 4, window=128)
    right = Acceptance(
        window, {t: c if lengths[t] == 50 else (c[0], c[1] + 1) for t, c in full.counts.items()}
    )
    kinds = [r.kind for r in window_relations(right, full, lengths, output=64)]
    assert kinds == ["holds", "holds"]
    ignored = Acceptance(window, full.counts)
    assert [r.kind for r in window_relations(ignored, full, lengths, output=64)] == ["holds", "broken"]
    hidden = Acceptance(window, {t: (n, int(s * 1.3) + 1) for t, (n, s) in full.counts.items()})
    assert [r.kind for r in window_relations(hidden, full, lengths, output=64)] == ["broken", "holds"]
    assert window_relations(right, full, dict.fromkeys(lengths, 200), output=64) == ()
    with pytest.raises(ValueError, match="has no window"):
        window_relations(full, full, lengths, output=64)


def test_a_prompt_that_only_the_window_was_counted_on_does_not_show_it_in_force() -> None:
    full = made(tree(8), 2.4, 1)
    window = Config("tree", 8, 4, window=128)
    more = Acceptance(window, {**full.counts, "elsewhere": (90, 40)})
    lengths = dict.fromkeys(more.counts, 600)
    assert [r.kind for r in window_relations(more, full, lengths, output=64)] == ["broken"]


def test_the_false_alarm_rate_is_divided_among_all_relations() -> None:
    """The relation of the branches is one of them."""
    found = [made(CHAIN, 2.0, 1), made(tree(16), 2.6, 2)]
    for relation in relations(found, block_size=8, alpha=0.002):
        alone = log_ratio_interval(found[1].counts, found[0].counts, alpha=0.001)
        assert (relation.low, relation.high) == (alone.low, alone.high)


def test_no_proved_steps_no_depths() -> None:
    assert depth_acceptance([replace(stream([3, 2]), chunks=())]) is None

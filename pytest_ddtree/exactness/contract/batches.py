"""Contract: answers alone and side by side, short and long, at every border."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import numpy as np

from pytest_ddtree import tails
from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.contract.evidence import (
    Evidence,
    Gathering,
    Subject,
    ask_all,
    greedy,
    long_room,
    of_length,
    plain,
    taken,
)
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.relations import MIN_PROMPTS, log_ratio_interval
from pytest_ddtree.exactness.steps import step_sizes


async def serial(subject: Subject, *, count: int = 8) -> Evidence:
    """One request at a time: mask, positions and compaction without any neighbour."""
    found = Gathering()
    # Every second one first: those are asked alone where a config is verified, so they are asked once.
    prompts = (*subject.prompts[::2], *subject.prompts[1::2])[:count]
    if subject.ignore_eos:
        records = await plain(subject, prompts, concurrency=1)
    else:
        records = await ask_all(subject, prompts, subject.greedy(), concurrency=1)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, "alone")
    return found.evidence()


async def concurrent(subject: Subject, *, concurrency: int, count: int | None = None) -> Evidence:
    """Side by side with ragged prompts and ragged outputs: rows of a batch come and go at different times."""
    chance = random.Random(subject.seed + concurrency)
    # More than fit at once, so that some join a batch which others have left.
    prompts = taken(subject.prompts, count or concurrency + max(4, concurrency // 4))
    sampling = {
        prompt.tag: subject.greedy(max(2, round(subject.output * chance.uniform(0.4, 1.2))))
        for prompt in prompts
    }
    found = Gathering()
    records = await ask_all(subject, prompts, sampling, concurrency=concurrency)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, f"{concurrency} at once")
    return found.evidence()


async def borders(subject: Subject, *, most: int = 4200) -> Evidence:
    """Prompts one token short of, at, and one token past block, page, window and chunked-prefill borders."""
    lengths = border_lengths(subject, most)
    if not lengths:
        return Evidence(skipped="no border is known: neither block, page, window nor chunked prefill")
    output = (subject.block_size or 8) + 2
    prompts = [of_length(subject.prompts, length, start=index) for index, length in enumerate(lengths)]
    found = Gathering()
    records = await ask_all(subject, prompts, subject.greedy(output), concurrency=4)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, "at a border")
    return found.evidence()


def border_lengths(subject: Subject, most: int) -> list[int]:
    """The prompt lengths of `borders`, ascending, none longer than `most` or than the context allows."""
    room = most
    if subject.context_length is not None:
        room = min(room, subject.context_length - (subject.block_size or 8) - 4)
    sizes = [subject.block_size, subject.page_size, subject.window, subject.chunked_prefill]
    if subject.window is not None and subject.block_size is not None:
        sizes.append(subject.window - subject.block_size)
    lengths = {size + step for size in sizes if size is not None and size > 2 for step in (-1, 0, 1)}
    return sorted(length for length in lengths if 2 <= length <= room)


async def few_tokens(subject: Subject, *, count: int = 3) -> Evidence:
    """max_new_tokens 1, 2, 3 and block + 1: an accepted run must not overshoot what was asked for."""
    found = Gathering()
    for output in (1, 2, 3, (subject.block_size or 8) + 1):
        prompts = subject.prompts[:count]
        records = await ask_all(subject, prompts, greedy(output, ignore_eos=True), concurrency=count)
        for prompt, record in zip(prompts, records, strict=True):
            name = f"max_new_tokens {output}"
            if found.add(prompt, record, name) and record.completion_tokens != output:
                found.problems.append(f"{prompt.tag} ({name}): {record.completion_tokens} tokens came")
    return found.evidence()


async def long_output(subject: Subject, *, count: int = 4) -> Evidence:
    """A long output stays exact, and its accept length does not decay within the answer."""
    found = Gathering()
    prompts = subject.prompts[:count]
    room = long_room(subject, prompts)
    if room < 64:
        return Evidence(
            skipped=f"a context of {subject.context_length} tokens leaves no room for a long output"
        )
    records = await plain(subject, prompts, room, concurrency=count)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, f"{room} tokens")
    decay = accept_decay([record for record in records if record.ok])
    if decay is not None:
        found.problems.append(decay)
    return found.evidence()


def accept_decay(
    records: list[Record], *, parts: int = 4, alpha: float = 0.01, least: float = 0.75
) -> str | None:
    """In words, if tokens per step in the answers' last quarter are surely below `least` of the first.

    Tokens per chunk stand in for tokens per verify step where steps are not proved; both decay alike. A
    paired t-test over the answers, on the logarithm; the margin, more than `alpha`, keeps healthy texts
    apart.
    """
    ratios = []
    for record in records:
        sizes = step_sizes(record)
        if sizes is None:
            ends = [chunk.tokens for chunk in record.chunks]
            sizes = tuple(b - a for a, b in itertools.pairwise(ends))
        quarter = len(sizes) // parts
        if quarter >= 8:
            ratios.append(float(np.log(np.mean(sizes[-quarter:]) / np.mean(sizes[:quarter]))))
    if len(ratios) < 3:
        return None
    values = np.asarray(ratios) - np.log(least)
    spread = float(values.std(ddof=1))
    t = (
        float(values.mean()) / (spread / np.sqrt(values.size))
        if spread > 0
        else float(np.sign(values.mean())) * 99.0
    )
    if tails.t_cdf(t, values.size - 1) > alpha:
        return None
    lost = 1.0 - float(np.exp(np.mean(ratios)))
    return f"tokens per verify step fall by {lost:.0%} from the first to the last quarter of {len(ratios)} answers"


async def accept_over_time(
    subject: Subject, *, rounds: int = 4, count: int = 8, least: float = 0.97
) -> Evidence:
    """The accept length of the same prompts does not fall while the server serves (a leak, stale buffers)."""
    found = Gathering()
    prompts = list(subject.prompts[:count])
    counts: list[dict[str, tuple[int, int]]] = []
    for number in range(rounds):
        # What an earlier clause got is the first round: the longer ago, the more a leak has grown.
        first = number == 0 and subject.ignore_eos
        asking = (
            plain(subject, prompts) if first else ask_all(subject, prompts, subject.greedy(), concurrency=4)
        )
        records = await asking
        for record in records:
            if not found.check(record, f"round {number + 1}"):
                return found.evidence()
        counts.append(
            {r.request.tag: (r.completion_tokens - 1, r.verify_steps) for r in records if r.verify_steps}
        )
    if not counts[0]:
        return Evidence(skipped="the server does not say how many verify steps an answer took")
    problem = accept_fallen(counts, least)
    if problem is not None:
        found.problems.append(problem)
    return found.evidence()


def accept_fallen(counts: Sequence[Mapping[str, tuple[int, int]]], least: float) -> str | None:
    """What is wrong with rounds of the same prompts, prompt -> (tokens, verify steps) each; the first one has some."""
    silent = next((number for number, of in enumerate(counts, start=1) if not of), None)
    if silent is not None:
        return (
            f"no answer of round {silent} says how many verify steps it took, where those of the first round did: the server stopped "
            "speculating, or telling"
        )
    late = {
        tag: (tokens + counts[-2].get(tag, (0, 0))[0], steps + counts[-2].get(tag, (0, 0))[1])
        for tag, (tokens, steps) in counts[-1].items()
    }
    # The margin keeps healthy servers apart, whose answers to the same prompts hardly change at all.
    ratio, _, high, _ = log_ratio_interval(late, counts[0], alpha=0.05)
    if high >= least:
        return None
    lengths = [sum(n for n, _ in of.values()) / sum(steps for _, steps in of.values()) for of in counts]
    by_round = ", ".join(f"{length:.2f}" for length in lengths)
    return f"the accept length of the same prompts fell by {1.0 - ratio:.0%} within {len(counts)} rounds: {by_round}"


async def drafts_are_used(subject: Subject, *, count: int = 8) -> Evidence:
    """The server speculates at all: it counts verify steps and accepts drafts, whatever its settings say."""
    prompts: list[Prompt] = list(subject.prompts[:count])
    found = Gathering()
    records = await plain(subject, prompts)
    counted = [record for record in records if found.check(record, "accept length") and record.verify_steps]
    if found.problems:
        return found.evidence()
    if not counted:
        found.problems.append(
            f"none of {len(records)} answers says how many verify steps it took (spec_verify_ct): this server "
            "does not speculate, or its drafts do not reach the request"
        )
        return found.evidence()
    tokens = sum(record.completion_tokens - 1 for record in counted)
    steps = sum(record.verify_steps or 0 for record in counted)
    if tokens <= steps:
        found.problems.append(f"not one draft was accepted: {tokens} tokens took {steps} verify steps")
    return found.evidence()


async def drafts_from_generated(subject: Subject, *, count: int = 8, each_has: int = 16) -> Evidence:
    """Drafts are as good upon generated context as upon the same context prefilled (right hidden states).

    Each chosen verify step of an answer is taken again from a flushed cache, with everything before its root
    sent as prompt: the root and the context are the same, so the step accepts the same drafts. A drafter that
    learns wrong hidden states from verified tokens does better after prefill, and no answer shows it.
    """
    found = Gathering()
    prompts = list(subject.prompts[:count])
    records = await plain(subject, prompts)
    chance = random.Random(subject.seed)
    again: list[tuple[Prompt, str, int]] = []
    for prompt, record in zip(prompts, records, strict=True):
        sizes = step_sizes(record) if found.check(record, "in one go") else None
        # The first step stands upon prefill anyway, and the length limit may cut the last.
        inner = range(1, len(sizes) - 1) if sizes is not None else ()
        for step in sorted(chance.sample(inner, min(each_has, len(inner))), reverse=True):
            root = sum((sizes or ())[:step])
            ids = (*prompt.ids, *record.output_ids[:root])
            again.append((Prompt(f"{prompt.tag}, step {step}", ids), prompt.tag, (sizes or ())[step]))
    if found.problems:
        return found.evidence()
    if len({tag for _, tag, _ in again}) < MIN_PROMPTS:
        return Evidence(skipped="the chunks of too few answers are proved to be verify steps")
    await subject.client.flush_cache()
    # Prefill's token, the step, and one more, so that a longer step shows: nothing behind it is needed.
    sampling = {prompt.tag: subject.greedy(size + 2) for prompt, _, size in again}
    fresh = await ask_all(subject, [prompt for prompt, _, _ in again], sampling, concurrency=4)
    pairs: list[tuple[int, int]] = []
    for (_, _, size), record in zip(again, fresh, strict=True):
        sizes = step_sizes(record) if found.check(record, "from prefill") else None
        if sizes:
            pairs.append((size, sizes[0]))
    worse = drafts_worse(pairs, float32=subject.float32)
    if worse is not None:
        found.problems.append(worse)
    return found.evidence()


def drafts_worse(pairs: list[tuple[int, int]], *, float32: bool, alpha: float = 0.001) -> str | None:
    """In words, if steps upon generated context are other ones; pairs of (generated, prefilled) step sizes.

    In float32 the same drafts come out, so more than a few steps that differ are a fault. Coarser rounding
    changes either of two steps, in both directions alike: there a sign test asks whether they give less.
    """
    less = sum(1 for generated, prefilled in pairs if generated < prefilled)
    more = sum(1 for generated, prefilled in pairs if generated > prefilled)
    few = max(3, len(pairs) // 50)
    surely_less = less > 0 and tails.binomial_sf(less - 1, less + more, 0.5) <= alpha
    if not surely_less and not (float32 and less + more > few):
        return None
    return (
        f"of {len(pairs)} verify steps {less} give fewer and {more} more tokens upon generated context than upon "
        "the same context prefilled: the drafter learns wrong hidden states of verified tokens"
    )

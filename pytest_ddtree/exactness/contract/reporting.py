"""Contract: what the server says about an answer is true of it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.contract.evidence import (
    Evidence,
    Gathering,
    Subject,
    ask_all,
    greedy,
    long_room,
    plain,
)
from pytest_ddtree.exactness.depths import histogram_problems
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids


async def usage_and_finish(subject: Subject, *, count: int = 4) -> Evidence:
    """Token counts, finish reasons and verify steps agree with the tokens and chunks that came.

    One request at a time and streamed, because only then a chunk is a verify step.
    """
    found = Gathering()
    prompts = subject.prompts[:count]
    for stream in (True, False):
        records = await ask_all(subject, prompts, greedy(subject.output), concurrency=1, stream=stream)
        for prompt, record in zip(prompts, records, strict=True):
            what = "streamed" if stream else "whole"
            if found.add(prompt, record, what):
                for problem in usage_problems(subject, prompt, record, stream=stream):
                    found.problems.append(f"{prompt.tag} ({what}): {problem}")
    return found.evidence()


def usage_problems(subject: Subject, prompt: Prompt, record: Record, *, stream: bool) -> list[str]:
    """What the meta data of one answer say that its tokens and chunks do not bear out."""
    problems = []
    emitted = len(emitted_ids(record))
    asked = record.request.sampling.max_new_tokens
    kind = (record.finish_reason or {}).get("type")
    if record.completion_tokens != emitted:
        problems.append(f"completion_tokens {record.completion_tokens}, but {emitted} token ids came")
    if record.prompt_tokens is not None and record.prompt_tokens != len(prompt.ids):
        problems.append(f"prompt_tokens {record.prompt_tokens}, but {len(prompt.ids)} ids were sent")
    if record.cached_tokens is not None and not 0 <= record.cached_tokens < len(prompt.ids):
        computed = "its last token must be computed to emit the first"
        problems.append(f"cached_tokens {record.cached_tokens} of a prompt of {len(prompt.ids)}: {computed}")
    if kind == "length" and emitted != asked:
        problems.append(f"finish reason length after {emitted} of {asked} tokens")
    if kind not in ("length", "stop"):
        problems.append(f"finish reason {record.finish_reason!r}")
    problems += _step_problems(subject, record, stream=stream)
    return problems


def _step_problems(subject: Subject, record: Record, *, stream: bool) -> list[str]:
    """What `spec_verify_ct` and `spec_accept_length` say against the tokens and chunks."""
    steps = record.verify_steps
    if record.malformed_steps is not None:
        return [f"spec_verify_ct is {record.malformed_steps}, which is no number of verify steps"]
    if steps is None:
        return []
    problems = histogram_problems(record)
    tokens = record.completion_tokens
    if steps > tokens:
        problems.append(f"{tokens} tokens in {steps} verify steps, but every step emits a token")
    said = record.meta.get("spec_accept_length")
    if isinstance(said, int | float) and abs(said - tokens / steps) > 0.01 * tokens / steps + 1.0 / steps:
        problems.append(f"spec_accept_length {said:.3f}, but {tokens} tokens in {steps} verify steps")
    if subject.block_size is not None and tokens - 1 > steps * subject.block_size:
        most = f"a block of {subject.block_size} gives at most that many a step"
        problems.append(f"{tokens} tokens in {steps} verify steps, but {most}")
    if stream and record.exact_counts:
        chunks = len(record.chunks)
        if chunks > steps + 1:
            problems.append(f"{chunks} chunks came, but only {steps} verify steps are counted")
        largest = max(
            (b.tokens - a.tokens for a, b in zip(record.chunks[:-1], record.chunks[1:], strict=True)),
            default=0,
        )
        if subject.block_size is not None and chunks == steps + 1 and largest > subject.block_size:
            problems.append(f"one verify step gave {largest} tokens, a block has {subject.block_size}")
    return problems


async def streamed_text(subject: Subject, *, count: int = 5) -> Evidence:
    """The text of a stream is what the ids of the same request spell, also with other requests beside it."""
    found = Gathering()
    prompts = subject.prompts[:count]
    for stream, concurrency in ((True, 1), (True, 4), (False, 4)):
        records = await ask_all(subject, prompts, subject.greedy(), concurrency=concurrency, stream=stream)
        for prompt, record in zip(prompts, records, strict=True):
            what = f"{'streamed' if stream else 'whole'}, {concurrency} at once"
            if found.add(prompt, record, what):
                spelt = subject.decode(record.output_ids)
                if not same_text(record.text, spelt):
                    at = difference(record.text, spelt)
                    found.problems.append(
                        f"{prompt.tag} ({what}): from character {at} on the text is "
                        f"{record.text[at : at + 30]!r}, the ids spell {spelt[at : at + 30]!r}"
                    )
    return found.evidence()


def same_text(sent: str, spelt: str) -> bool:
    """Whether a server sent what the ids spell; an unfinished character at the end may be held back."""
    return sent == spelt or (spelt.startswith(sent) and spelt[len(sent) :].strip("\ufffd") == "")


def difference(left: str, right: str) -> int:
    """Index of the first character that differs."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


LOOP_SHARE = 0.5


async def no_degenerate_repetition(subject: Subject, *, count: int = 4) -> Evidence:
    """No long answer loops behind a high accept length unless the target model itself loops there.

    A small model does loop, and repetition alone is no fault. So answers that loop are judged token by token like
    any other: where the target would have left the loop, the emitted token is not its argmax.
    """
    found = Gathering()
    prompts = subject.prompts[:count]
    room = long_room(subject, prompts)
    if room < 64:
        return Evidence(
            skipped=f"a context of {subject.context_length} tokens leaves no room for a long output"
        )
    for prompt, record in zip(prompts, await plain(subject, prompts, room, concurrency=count), strict=True):
        share = looping(emitted_ids(record))
        if not found.check(record, "repetition") or share < LOOP_SHARE:
            continue
        length = f", accept length {record.accept_length:.2f}" if record.accept_length else ""
        found.notes.append(f"{prompt.tag}: {share:.0%} of its 4-grams are repetitions{length}")
        found.add(prompt, record, "repetition")
    return found.evidence()


def looping(ids: Sequence[int]) -> float:
    """Share of 4-grams that were there before."""
    grams = [tuple(ids[index : index + 4]) for index in range(len(ids) - 3)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0

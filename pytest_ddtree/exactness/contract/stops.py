"""Contract: an answer ends where it must, also inside an accepted run."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.contract.evidence import Evidence, Gathering, Subject, ask_all, greedy, plain
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids


async def eos_in_run(subject: Subject, *, count: int = 6, replays: int = 2) -> Evidence:
    """An answer that ends by itself ends with its stop token: nothing follows, and a missed stop is judged.

    Then each ended answer is asked for again from a few tokens before its end, so that the stop token comes at
    several places of a verify step. Half of the prompts are tried only if none of the others ends by itself.
    """
    found = Gathering()
    room = 3 * subject.output
    if subject.context_length is not None:
        room = min(room, subject.context_length - max(len(prompt.ids) for prompt in subject.prompts) - 16)
    ended: list[tuple[Prompt, Record]] = []
    asked = 0
    for prompts in (subject.prompts[:count], subject.prompts[count : 2 * count]):
        records = await ask_all(subject, prompts, greedy(room), concurrency=8)
        asked += len(records)
        for prompt, record in zip(prompts, records, strict=True):
            if _ends(subject, found, prompt, record, "to its natural end"):
                ended.append((prompt, record))
        if ended or found.problems:
            break
    if not ended and not found.problems:
        return Evidence(skipped=f"none of {asked} prompts ends by itself within {room} tokens")
    chance = random.Random(subject.seed)
    again: list[Prompt] = []
    for prompt, record in ended:
        ids = emitted_ids(record)
        again += [
            Prompt(f"{prompt.tag}, {back} before its end", (*prompt.ids, *ids[:-back]))
            for back in sorted(chance.sample(range(2, 12), replays))
            if back < len(ids)
        ]
    records = await ask_all(subject, again, greedy(16), concurrency=4)
    for prompt, record in zip(again, records, strict=True):
        _ends(subject, found, prompt, record, "again")
    found.notes.append(f"{len(ended)} of {asked} answers ended by themselves")
    return found.evidence()


def _ends(subject: Subject, found: Gathering, prompt: Prompt, record: Record, what: str) -> bool:
    """Look at how an answer ends, and take it to be judged where it says something about that; whether it ended."""
    if not found.check(record, what):
        return False
    ids = emitted_ids(record)
    early = [token_id for token_id in ids[:-1] if token_id in subject.eos]
    stopped = (record.finish_reason or {}).get("type") == "stop"
    if early:
        limit = ", in the step that reached the token limit" if at_limit(record) else ""
        found.problems.append(
            f"{prompt.tag}: {len(ids)} tokens with the stop token {early[0]} among them: tokens after the stop leaked{limit}"
        )
    if stopped or early or what == "again":
        found.add(prompt, record, what)
    return stopped and not early


async def ignore_eos(subject: Subject, *, count: int = 3) -> Evidence:
    """With ignore_eos an answer has exactly as many tokens as were asked for."""
    found = Gathering()
    prompts = subject.prompts[:count]
    output = subject.output + 1
    records = await ask_all(subject, prompts, greedy(output, ignore_eos=True), concurrency=3)
    for prompt, record in zip(prompts, records, strict=True):
        if found.add(prompt, record, "ignore_eos") and record.completion_tokens != output:
            found.problems.append(f"{prompt.tag} (ignore_eos): {record.completion_tokens} of {output} tokens")
    return found.evidence()


async def stop_ids(subject: Subject, *, count: int = 6) -> Evidence:
    """A stop id ends the answer with its first occurrence, wherever it lies in a verify step.

    Asked without ignore_eos, which in SGLang switches stop ids off too; so only places before a natural end are tried.
    """
    found = Gathering()
    prompts = list(subject.prompts[:count])
    chance = random.Random(subject.seed)
    tries: list[tuple[Prompt, int]] = []
    for prompt, record in zip(prompts, await plain(subject, prompts), strict=True):
        if found.check(record, "without stop ids"):
            ids = before_end(subject, record.output_ids)
            # The first token too: prefill emits it, and nothing may follow.
            later = range(1, len(ids))
            places = sorted({0, *chance.sample(later, min(3, len(later)))} if ids else ())
            tries += [
                (Prompt(f"{prompt.tag}, stop id {ids[at]} at {at}", prompt.ids), ids[at]) for at in places
            ]
    sampling = {prompt.tag: greedy(subject.output, stop_token_ids=(stop,)) for prompt, stop in tries}
    records = await ask_all(subject, [prompt for prompt, _ in tries], sampling, concurrency=4)
    for (prompt, stop), record in zip(tries, records, strict=True):
        if found.add(prompt, record, "stop id"):
            found.problems += stop_id_problems(prompt, record, stop, "stop id", eos=subject.eos)
    return found.evidence()


def before_end(subject: Subject, ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens of an answer before its natural end, which `ignore_eos` made it run past."""
    end = next((at for at, token_id in enumerate(ids) if token_id in subject.eos), len(ids))
    return tuple(ids[:end])


def stop_id_problems(
    prompt: Prompt, stopped: Record, stop: int, what: str, *, eos: Collection[int] = ()
) -> list[str]:
    """What is wrong with an answer that should have ended at the first `stop`, or before it by itself.

    Where the last token that was asked for is the stop id, SGLang calls the end one of length; that is as good.
    """
    ids = emitted_ids(stopped)
    kind = (stopped.finish_reason or {}).get("type")
    where = f"{prompt.tag} ({what})"
    if stop in ids[:-1]:
        return [f"{where}: {len(ids) - 1 - ids.index(stop)} tokens came after the stop id"]
    if stop in ids and kind != "stop" and not (kind == "length" and at_limit(stopped)):
        return [f"{where}: the answer ends with the stop id, but its finish reason is {kind}"]
    if stop not in ids and kind == "stop" and (not ids or ids[-1] not in eos):
        return [f"{where}: finish reason stop, but the answer does not hold the stop id"]
    return []


def at_limit(record: Record) -> bool:
    """Whether an answer has as many tokens as were asked for."""
    return len(record.output_ids) >= record.request.sampling.max_new_tokens


async def stop_strings(subject: Subject, *, count: int = 5, each_has: int = 2) -> Evidence:
    """A stop string ends the answer before it, across token and chunk borders, and stays out of the text."""
    found = Gathering()
    prompts = list(subject.prompts[:count])
    chance = random.Random(subject.seed)
    tries: list[tuple[Prompt, str]] = []
    for prompt, record in zip(prompts, await plain(subject, prompts), strict=True):
        if found.check(record, "without stop strings"):
            stops = choose_stops(record.text, chance, each_has)
            tries += [(Prompt(f"{prompt.tag}, stop {stop!r}", prompt.ids), stop) for stop in stops]
    if not tries and not found.problems:
        return Evidence(skipped="no answer has enough text to choose a stop string from")
    asked = [prompt for prompt, _ in tries]
    sampling = {prompt.tag: greedy(subject.output, ignore_eos=True, stop=(stop,)) for prompt, stop in tries}
    for stream in (True, False):
        records = await ask_all(subject, asked, sampling, concurrency=4, stream=stream)
        for (prompt, stop), record in zip(tries, records, strict=True):
            what = "streamed" if stream else "whole"
            if found.check(record, what):
                found.problems += stop_string_problems(subject, prompt, record, stop, what)
    return found.evidence()


def choose_stops(text: str, chance: random.Random, count: int) -> list[str]:
    """Stop strings of 2 to 9 characters from inside `text`, away from its start: they straddle tokens.

    Characters that may be half of a token (replacement characters) are left out.
    """
    stops: list[str] = []
    for _ in range(20 * count):
        if len(text) < 24 or len(stops) == count:
            break
        start = chance.randrange(8, len(text) - 10)
        stop = text[start : start + chance.randint(2, 9)]
        if "\ufffd" not in stop and stop.strip() and stop not in stops:
            stops.append(stop)
    return stops


def stop_string_problems(
    subject: Subject, prompt: Prompt, stopped: Record, stop: str, what: str
) -> list[str]:
    """What is wrong with an answer that should have ended before the first `stop`."""
    where = f"{prompt.tag} ({what})"
    reason = stopped.finish_reason or {}
    if at_limit(stopped) and stop not in subject.decode(stopped.output_ids[:-1]):
        # Only the last token that was asked for completes it: SGLang calls that an end of length and shows the text.
        return []
    if stop in stopped.text:
        after = len(stopped.text) - stopped.text.index(stop) - len(stop)
        return [f"{where}: the text holds the stop string and {after} characters after it"]
    if reason.get("type") != "stop":
        if stop in subject.decode(stopped.output_ids):
            return [f"{where}: the tokens spell the stop string, but the answer went on to its length limit"]
        return []
    if reason.get("matched") not in (None, stop):
        return [f"{where}: finish reason matched {reason.get('matched')!r}"]
    decoded = subject.decode(stopped.output_ids)
    if stop not in decoded:
        return [f"{where}: finish reason stop, but the tokens do not spell the stop string"]
    if stop in subject.decode(stopped.output_ids[:-1]):
        return [f"{where}: tokens came after the one that completed the stop string"]
    if decoded[: decoded.index(stop)] != stopped.text:
        return [f"{where}: the text is not what the tokens spell up to the stop string"]
    return []

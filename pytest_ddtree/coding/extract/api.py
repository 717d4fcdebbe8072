"""The one public function: a response in, its final answer or the reason why there is none out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pytest_ddtree.coding.extract.budget import Work
from pytest_ddtree.coding.extract.candidates import Candidate, marked_candidates, raw_candidates
from pytest_ddtree.coding.extract.channels import split_channels
from pytest_ddtree.coding.extract.choose import Choice, Target, choose, continues_answer, diagnose
from pytest_ddtree.coding.extract.fences import FenceScanner
from pytest_ddtree.coding.extract.lines import Lines, strip_invisible
from pytest_ddtree.coding.extract.model import Block, Extraction, Role, Span, Status
from pytest_ddtree.coding.extract.raw import shrunk
from pytest_ddtree.coding.extract.source import Parser
from pytest_ddtree.coding.extract.thinking import Split, split_thinking, trailing_stop

_CUT_REASONS: Final = frozenset(
    {"length", "max_tokens", "max_length", "max_output_tokens", "abort", "timeout", "content_filter"}
)
_REFUSAL: Final = re.compile(
    r"\b(?:i['’]?m sorry|i am sorry|sorry,|i apologi[sz]e|as an ai\b|i must decline|i have to decline"
    r"|i(?: am|['’]m) (?:unable|not able) to|i (?:can['’]?t|cannot|can not|won['’]?t|will not) "
    r"(?:help|assist|provide|comply|do|write|fulfil|create|share|answer|produce|generate|complete))",
    re.IGNORECASE,
)
_REFUSAL_WINDOW: Final = 600
#: How models begin when they think aloud without tags.
_THINKS_ALOUD: Final = re.compile(
    r"\W*(?:here(?:['’]?s| is) (?:a|my|the) thinking process|thinking process|thought process|thinking:"
    r"|reasoning:|(?:ok(?:ay)?|alright|hmm+|well|so)[,.! ]+(?:so |let|i |we |the user|hmm)|hmm\b"
    r"|let me think|let['’]?s think|we (?:need|have|are asked|are given)\b"
    r"|the user (?:wants|asks|is asking|needs|has)|first, i (?:need|should))",
    re.IGNORECASE,
)
#: What is said behind a block that was not the last word.
_SECOND_THOUGHTS: Final = re.compile(
    r"\b(?:wait|hmm+|actually|alternatively|maybe|let me (?:check|double|verify|re|think|try|test|trace|see)"
    r"|let['’]?s (?:check|verify|think|try|test|trace|see)|(?:is|was|looks) (?:wrong|not right|incorrect)"
    r"|but (?:what|if|wait|then)|i (?:should|need to|must|could|wonder))\b|(?:^|[.!?]\s+)no[,.:]",
    re.IGNORECASE,
)
_TAIL: Final = 4_000
_MAX_SHRUNK: Final = 8


def extract(
    response: str | None,
    *,
    entry_point: str | None = None,
    stdin: bool = False,
    finish_reason: str | None = None,
    reasoning: str | None = None,
    thinking_open: bool = False,
    given: str = "",
) -> Extraction:
    """Find the final answer in what a model wrote.

    `response` is the content of the message (or the decoded text of /generate). `entry_point` is the name
    the answer must define at module level, `stdin` asks for a program that reads standard input instead;
    with neither, any code will do. `finish_reason` is what the server said ("length" for its token limit).
    `reasoning` is a separate reasoning field: it is read to say why there is no answer, never for code.
    `thinking_open` says that the prompt ended inside a thinking section, as some chat templates do: without
    an end of thinking in the response there is no answer then. `given` is code that the question holds, of which an
    answer may use names that it does not repeat.

    The rules are in docs/extraction.md. Never raises on any text; work is bounded and linear in its length.
    """
    return run_extraction(
        response,
        Target(entry_point, stdin, given),
        finish_reason=finish_reason,
        reasoning=reasoning,
        thinking_open=thinking_open,
        work=Work(),
    )


def run_extraction(
    response: str | None,
    target: Target,
    *,
    finish_reason: str | None = None,
    reasoning: str | None = None,
    thinking_open: bool = False,
    work: Work,
) -> Extraction:
    """`extract` with a caller's own work counter."""
    cut = (finish_reason or "").lower() in _CUT_REASONS
    extraction = _content_answer(response or "", target, cut, bool(reasoning), thinking_open, work)
    if extraction.status == "empty" and reasoning and not cut and _holds_answer(reasoning, target):
        extraction = replace(extraction, status="answer_in_reasoning")
    return replace(extraction, finish_reason=finish_reason)


def _holds_answer(thinking: str, target: Target) -> bool:
    """Whether thinking text would be an answer if it stood in the content."""
    return _content_answer(thinking, target, False, True, False, Work()).ok


def _content_answer(
    text: str, target: Target, cut: bool, thinking_known: bool, thinking_open: bool, work: Work
) -> Extraction:
    if not strip_invisible(text).strip():
        return _none("truncated" if cut else "empty")
    lines = Lines(text)
    parser = Parser(work)
    scanner = FenceScanner(lines, parser, work)
    work.set_limits(len(text), scanner.run_count)
    channels = split_channels(text)
    if channels is not None and channels.final is None:
        return _none("truncated" if cut else "unclosed_thinking")
    start, end = (0, len(text)) if channels is None or channels.final is None else channels.final
    split = split_thinking(start, end, lines, scanner, parser, work, thinking_open and channels is None)
    if split.unclosed:
        return _none("truncated" if cut else "unclosed_thinking")
    ranges = _trimmed(text, split.answer)
    thought = [text[begin:finish] for begin, finish in split.thinking]
    if channels is not None:
        thought += [text[begin:finish] for begin, finish in channels.analysis]
    if not any(strip_invisible(text[begin:finish]).strip() for begin, finish in ranges):
        return _nothing_left(split, text, target, cut)
    may_think = cut and not thought and not thinking_known
    return _Answer(lines, ranges, target, cut, may_think, scanner, parser, work).find()


def _nothing_left(split: Split, text: str, target: Target, cut: bool) -> Extraction:
    """All of the response is thinking: an answer in it stands in the wrong place."""
    if cut:
        return _none("truncated")
    inner = "".join(text[begin:finish] for begin, finish in split.thinking)
    return _none("answer_in_reasoning" if _thinking_holds_answer(inner, target) else "empty")


def _thinking_holds_answer(text: str, target: Target) -> bool:
    work = Work()
    lines = Lines(text)
    parser = Parser(work)
    scanner = FenceScanner(lines, parser, work)
    work.set_limits(len(text), scanner.run_count)
    candidates, _ = marked_candidates(text, [(0, len(text))], scanner)
    return choose(candidates, target, parser) is not None


def _none(status: Status, span: Span | None = None, blocks: tuple[Block, ...] = ()) -> Extraction:
    return Extraction(None, status, span, blocks)


def _trimmed(text: str, ranges: Sequence[Span]) -> list[Span]:
    """The answer's ranges without a special token that was cut in half at the very end."""
    trimmed = list(ranges)
    if trimmed:
        begin, finish = trimmed[-1]
        trimmed[-1] = begin, max(begin, trailing_stop(text, begin, finish))
    return trimmed


class _Answer:
    """The answer's ranges of one response, thinking already taken away."""

    def __init__(
        self,
        lines: Lines,
        ranges: Sequence[Span],
        target: Target,
        cut: bool,
        may_think: bool,
        scanner: FenceScanner,
        parser: Parser,
        work: Work,
    ) -> None:
        self._lines = lines
        self._text = lines.text
        self._ranges = ranges
        self._target = target
        self._cut = cut
        self._may_think = may_think
        self._parser = parser
        self._work = work
        self._marked, self._gaps = marked_candidates(self._text, ranges, scanner)

    def find(self) -> Extraction:
        last = self._marked[-1] if self._marked else None
        unfinished = last if last is not None and not last.block.closed else None
        if unfinished is not None and self._cut:
            return self._without("truncated", unfinished)
        choice = choose(self._marked, self._target, self._parser)
        if (
            unfinished is not None
            and (choice is None or choice.answer != len(self._marked) - 1)
            and self._parser.repaired(unfinished.text) is None
            and (continues_answer(unfinished, self._target) or (choice is None and unfinished.tagged))
        ):
            return self._without("truncated_block", unfinished)
        if choice is not None:
            if self._thinks_aloud(self._marked[-1].end):
                return self._without("truncated")
            return self._with(self._marked, choice)
        return self._from_raw()

    def _thinks_aloud(self, end: int) -> bool:
        """Whether a response that was cut off reads like thinking, by its start or by what follows its code.

        A server that splits thinking off at a closing tag which was only quoted leaves the rest of it here.
        """
        if self._cut and _SECOND_THOUGHTS.search(self._text, end, end + _TAIL):
            return True
        return self._may_think and _THINKS_ALOUD.match(self._text) is not None

    def _from_raw(self) -> Extraction:
        runs = raw_candidates(self._lines, self._gaps, self._work)
        pieces = runs
        choice = choose(pieces, self._target, self._parser)
        if choice is None:
            pieces = self._shrunk(runs)
            choice = choose(pieces, self._target, self._parser)
        if choice is not None:
            closed = pieces[choice.answer].block.closed
            if self._cut and (not closed or self._thinks_aloud(pieces[choice.answer].block.span[1])):
                return self._without("truncated", pieces[choice.answer])
            return self._with(pieces, choice)
        if self._cut:
            return self._without("truncated")
        return self._reason(runs)

    def _shrunk(self, runs: Sequence[Candidate]) -> list[Candidate]:
        """The definitions within runs that do not parse as a whole."""
        name = self._target.entry_point
        if self._target.stdin or name is None:
            return []
        pieces: list[Candidate] = []
        for run in [run for run in runs if self._target.seems_defined_in(run.text)][-_MAX_SHRUNK:]:
            for start, end in shrunk(self._lines, run.block.span, name):
                closed = run.block.closed or end < run.block.span[1]
                block = replace(run.block, span=(start, end), closed=closed)
                pieces.append(replace(run, block=block, text=self._text[start:end]))
        return pieces

    def _reason(self, runs: Sequence[Candidate]) -> Extraction:
        diagnosis = diagnose(self._marked, self._target, self._parser)
        if diagnosis.broken is not None:
            return self._without("syntax_error", self._marked[diagnosis.broken])
        if diagnosis.other is not None:
            return self._without("no_entry_point", self._marked[diagnosis.other])
        for run in reversed(runs):
            if self._target.entry_point is not None and self._target.seems_defined_in(run.text):
                return self._without("syntax_error" if run.block.closed else "truncated_block", run)
        start, end = self._ranges[0]
        if not self._marked and _REFUSAL.search(self._text, start, min(end, start + _REFUSAL_WINDOW)):
            return self._without("refusal")
        return self._without("no_code")

    def _with(self, candidates: Sequence[Candidate], choice: Choice) -> Extraction:
        def role(index: int) -> Role:
            return "answer" if index == choice.answer else "helper" if index in choice.helpers else "unused"

        used = [replace(c.block, role=role(i)) for i, c in enumerate(candidates)]
        if candidates is not self._marked:
            used = [b for b in used if b.role != "unused"] + [c.block for c in self._marked]
            used.sort(key=lambda block: block.span)
        return Extraction(choice.code, "ok", candidates[choice.answer].block.span, tuple(used))

    def _without(self, status: Status, nearest: Candidate | None = None) -> Extraction:
        span = None if nearest is None else nearest.block.span
        return _none(status, span, tuple(candidate.block for candidate in self._marked))

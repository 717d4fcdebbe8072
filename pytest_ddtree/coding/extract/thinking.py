"""Splits a response into what is thinking and what is the answer.

Neither the first nor the last closing tag can be trusted: thinking quotes ``</think>`` before it ends,
and answers hold it in strings and comments. So each tag is judged by where it stands:

* in quotes or backticks on its line, or inside a sound code block: text, not a tag. A block is sound if
  it parses as Python (then the tag can only be in a string or comment), or if it is a closed block of
  something else that shows a whole thinking section;
* a closing tag that no opening tag waits for ends thinking that the chat template opened, so all before
  it is thinking, fences left open in it included;
* after a clear end of thinking, a closing tag in the middle of a sentence is a mention.

When in doubt text counts as thinking: an answer can be lost that way, a draft can not be graded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, TypeAlias

from pytest_ddtree.coding.extract.budget import MAX_TAGS, Work
from pytest_ddtree.coding.extract.fences import Fenced, FenceScanner
from pytest_ddtree.coding.extract.lines import Lines
from pytest_ddtree.coding.extract.model import Span
from pytest_ddtree.coding.extract.source import Parser

_NAMES: Final = r"(?:[a-z]{1,12}:)?(?:think(?:ing)?|thoughts?|reasoning|scratchpad|reflection)"
_TAG: Final = re.compile(
    rf"""(?P<open>
          (?:<|&lt;)(?P<angle_open>{_NAMES})(?:\s[^<>/\n]{{0,80}}+)?(?:>|&gt;)
        | \[THINK\] | ◁think▷ | <\|begin_of_thought\|> | <\|START_THINKING\|>
        | <\|channel>thought\b | <\|open\|>\s?think(?:<\|sep\|?>?)?
        )
      | (?P<close>
          (?:<|&lt;)/\s?(?P<angle_close>{_NAMES})\s?(?:>|&gt;)
        | \[/THINK\] | ◁/think▷ | <\|end_of_thought\|> | <\|END_THINKING\|>
        | <channel\|> | <\|close\|>\s?think(?:<\|sep\|?>?)? | <\|open\|>\s?response(?:<\|sep\|?>?)?
        )
      | (?P<tools><\|tool_calls_section_begin\|>)
      | (?P<call><tool_calls?> | <function_calls?> | <｜tool▁calls▁begin｜> | <\|python_tag\|>)
      | (?P<stop>
          <\|(?:im_end|endoftext|eot_id|end_of_text|return|end|eom_id|end_of_msg|END_OF_TURN_TOKEN)\|>
        | </s> | <end_of_turn> | <eos> | <｜end▁of▁sentence｜>
        | <\|close\|>\s?(?:response|message)(?:<\|sep\|?>?)?
        )
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: Where a tag can start. Looking for one character first is several times faster on prose.
_TAG_START: Final = re.compile(r"[<\[◁&](?=[/|｜ltmsecTrohi◁a-z])", re.IGNORECASE)
_ANY_GROUP: Final = "*"
_TOOLS_END: Final = "<|tool_calls_section_end|>"
_CALL_END: Final = re.compile(
    r"</tool_calls?>|</function_calls?>|<｜tool▁calls▁end｜>|<\|eom_id\|>", re.IGNORECASE
)
#: A closing tag of which the end of the text left only the beginning.
_CUT_CLOSE: Final = re.compile(
    r"(?:<|&lt;)/\s?(?:[a-z]{1,12}:)?(?:thi(?:n(?:k(?:i(?:ng?)?)?)?)?|thoughts?|reasoning|scratchpad|reflection)\s*\Z",
    re.IGNORECASE,
)
_CUT_STOP: Final = re.compile(r"<\|[A-Za-z_]{0,20}\|?$")
_LEADING: Final = re.compile(
    r"(?:[\s\ufeff\u200b]|<\|[A-Za-z_]{1,30}\|>(?:assistant\b)?|<s>|<bos>)*+", re.IGNORECASE
)
_MENTION_AFTER: Final = re.compile(r"[,.;:)]|[ \t]+[a-z(]")
_SENTENCE_ENDS: Final = ".!?:;>)]}*_`\"'"
_APOSTROPHE: Final = re.compile(r"(?<=[^\W_])'(?=[^\W_])")


@dataclass(frozen=True, slots=True)
class Split:
    """The answer's ranges in order, the thinking's ranges, and whether thinking was still open at the end."""

    answer: tuple[Span, ...]
    thinking: tuple[Span, ...]
    unclosed: bool


_Kind: TypeAlias = Literal["open", "close", "tools", "call", "stop"]


@dataclass(frozen=True, slots=True)
class _Tag:
    start: int
    end: int
    kind: _Kind
    group: str
    quoted: bool
    mention: bool


def split_thinking(
    start: int,
    end: int,
    lines: Lines,
    scanner: FenceScanner,
    parser: Parser,
    work: Work,
    opened: bool = False,
) -> Split:
    """Judge the tags of ``lines.text[start:end]``; everything outside of thinking is the answer.

    `opened` says that thinking was already open where the text starts.
    """
    splitter = _Splitter(start, end, lines, scanner, parser, work)
    if opened:
        splitter.open_at_start()
    return splitter.run()


class _Splitter:
    def __init__(
        self, start: int, end: int, lines: Lines, scanner: FenceScanner, parser: Parser, work: Work
    ) -> None:
        self._text = lines.text
        self._start = start
        self._end = end
        self._lines = lines
        self._scanner = scanner
        self._parser = parser
        self._work = work
        self._removed: list[Span] = []
        self._opened_at: int | None = None
        self._group = ""
        self._closed = False
        self._closed_clearly = False
        self._calls_stay_open = False
        self._calls: set[Span] = set()
        self._inner_opens: list[int] = []
        self._blocks: Iterator[Fenced] | None = None
        self._scan_from = start
        self._block: Fenced | None = None
        self._sound: tuple[Fenced, bool] | None = None

    def open_at_start(self) -> None:
        """Start inside thinking, whatever spelling ends it."""
        self._opened_at, self._group = self._start, _ANY_GROUP

    def run(self) -> Split:
        stop = self._end
        self._rescan(self._start)
        if sum(1 for _ in islice(_matches(self._text, self._start, self._end), MAX_TAGS + 1)) > MAX_TAGS:
            return self._after_last_closer()
        for tag in self._tags():
            self._work.tags += 1
            if self._work.exhausted:
                return self._after_last_closer()
            if tag.quoted or (self._removed and tag.start < self._removed[-1][1]):
                continue
            if self._is_text(tag):
                if tag.kind == "open":
                    self._inner_opens.append(tag.start)
                continue
            if tag.kind == "open":
                self._on_open(tag)
            elif tag.kind == "close":
                self._on_close(tag)
            elif tag.kind == "tools":
                self._on_tools(tag)
            elif tag.kind == "call":
                self._on_call(tag)
            elif self._opened_at is None and not tag.mention:
                stop = tag.start
                break
        if (
            stop == self._end
            and not self._closed
            and self._opened_at is None
            and self._ends_in_a_cut_closer()
        ):
            return Split((), ((self._start, self._end),), True)
        return self._result(stop)

    def _ends_in_a_cut_closer(self) -> bool:
        """Whether the text breaks off inside a closing tag, so that all of it was thinking that the template opened."""
        found = _CUT_CLOSE.search(self._text, max(self._start, self._end - 40), self._end)
        return found is not None and self._block_at(found.start()) is None

    def _on_open(self, tag: _Tag) -> None:
        if self._opened_at is None and not tag.mention:
            self._opened_at, self._group = tag.start, tag.group
            self._inner_opens.clear()
            self._rescan(tag.end)

    def _on_close(self, tag: _Tag) -> None:
        if self._opened_at is not None:
            if self._group not in (tag.group, _ANY_GROUP) and self._has_closer_of_group(tag.end):
                return
            self._removed.append((self._opened_at, tag.end))
        elif self._closed_clearly and tag.mention:
            return
        else:
            self._removed = [(self._start, tag.end)]
        self._opened_at = None
        self._closed = True
        self._closed_clearly = self._closed_clearly or not tag.mention
        self._rescan(tag.end)

    def _on_tools(self, tag: _Tag) -> None:
        """A tool call ends thinking without a closing tag; its text is no answer."""
        found = self._text.find(_TOOLS_END, tag.end, self._end)
        stop = self._end if found < 0 else found + len(_TOOLS_END)
        self._removed.append((tag.start if self._opened_at is None else self._opened_at, stop))
        self._opened_at = None
        self._rescan(stop)

    def _on_call(self, tag: _Tag) -> None:
        """The arguments of a tool call are no answer; within thinking they are thinking, whatever ends it."""
        if self._opened_at is not None or (tag.mention and self._calls_stay_open):
            return
        found = _CALL_END.search(self._text, tag.end, self._end)
        self._work.scanned += (self._end if found is None else found.end()) - tag.end
        self._calls_stay_open = found is None
        if found is None and tag.mention:
            return
        stop = self._end if found is None else found.end()
        self._removed.append((tag.start, stop))
        self._calls.add((tag.start, stop))
        self._rescan(stop)

    def _result(self, stop: int) -> Split:
        removed = list(self._removed)
        if self._opened_at is not None:
            removed.append((self._opened_at, stop))
        answer: list[Span] = []
        position = self._start
        for begin, finish in [*removed, (stop, stop)]:
            if begin > position:
                answer.append((position, begin))
            position = max(position, finish)
        thinking = tuple(span for span in removed if span not in self._calls)
        return Split(tuple(answer), thinking, self._opened_at is not None)

    def _after_last_closer(self) -> Split:
        """For hostile input: everything up to the last closing tag is thinking."""
        cut, unclosed = self._start, False
        for match in _matches(self._text, self._start, self._end):
            if match["close"]:
                cut, unclosed = match.end(), False
            elif match["open"]:
                unclosed = True
        return Split(((cut, self._end),), ((self._start, cut),), unclosed)

    def _has_closer_of_group(self, start: int) -> bool:
        self._work.scanned += self._end - start
        return any(
            match["close"] and _group(match) == self._group
            for match in _matches(self._text, start, self._end)
        )

    def _rescan(self, start: int) -> None:
        """What was thinking may have left fences open: blocks are looked for afresh from here."""
        self._scan_from = start
        self._blocks = self._block = None

    def _block_at(self, offset: int) -> Fenced | None:
        """The block whose code holds `offset`. Scans no further than it must."""
        if self._blocks is None:
            if not self._scanner.has_fence(self._scan_from, offset):
                return None
            self._blocks = self._scanner.scan(self._scan_from, self._end)
            self._block = next(self._blocks, None)
        while self._block is not None and self._block.end <= offset:
            self._block = next(self._blocks, None)
        block = self._block
        return block if block is not None and block.body_start <= offset < block.body_end else None

    def _is_text(self, tag: _Tag) -> bool:
        """Whether a tag is part of a sound block of code."""
        block = self._block_at(tag.start)
        if block is None:
            return False
        if block.inline or tag.kind == "open" or self._parses(block):
            return True
        if not block.closed:
            return False
        if tag.kind in ("stop", "call") or (self._closed_clearly and self._opened_at is None):
            return True
        return any(block.body_start <= at < tag.start for at in self._inner_opens[-8:])

    def _parses(self, block: Fenced) -> bool:
        if self._sound is None or self._sound[0] is not block:
            python = block.info.kind in ("python", "plain") and not block.interrupted
            sound = python and self._parser.repaired(block.text(self._text)) is not None
            self._sound = block, sound
        return self._sound[1]

    def _tags(self) -> Iterator[_Tag]:
        leading = _LEADING.match(self._text, self._start, self._end)
        first = self._start if leading is None else leading.end()
        quotes = _QuoteCounter(self._text, self._lines)
        for match in _matches(self._text, self._start, self._end):
            start, end = match.span()
            quoted = quotes.inside(start, end)
            kind = _kind(match)
            mention = start != first and self._is_mention(start, end, kind)
            yield _Tag(start, end, kind, _group(match), quoted, mention)

    def _is_mention(self, start: int, end: int, kind: _Kind) -> bool:
        """A tag within a sentence: words before it on its line, and the sentence goes on behind it.

        At the start of a line an opening tag is meant, while a closing one may be a wrapped sentence.
        """
        line = self._lines.at(start)
        before = self._text[max(self._lines.start(line), start - 80) : start].rstrip(" \t")
        after = self._text[end : min(self._lines.end(line), end + 8)]
        if not _MENTION_AFTER.match(after):
            return False
        return before[-1] not in _SENTENCE_ENDS if before else kind != "open"


class _QuoteCounter:
    """Is a place on a line between two quotes or two runs of backticks? Reads each line once."""

    def __init__(self, text: str, lines: Lines) -> None:
        self._text = text
        self._lines = lines
        self._line = -1
        self._read_to = 0
        self._counts = {'"': 0, "'": 0, "`": 0}
        self._last = {'"': -1, "'": -1, "`": -1}

    def inside(self, start: int, end: int) -> bool:
        """Whether an odd number of marks stands before `start` and another one behind `end`."""
        line = self._lines.at(start)
        if line != self._line:
            self._line = line
            self._read_to = self._lines.start(line)
            self._counts = dict.fromkeys(self._counts, 0)
            line_end = self._lines.end(line)
            self._last = {mark: self._text.rfind(mark, self._read_to, line_end) for mark in self._last}
        piece = _APOSTROPHE.sub("", self._text[self._read_to : start])
        self._read_to = start
        for mark in ('"', "'"):
            self._counts[mark] += piece.count(mark)
        self._counts["`"] += len(re.findall("`+", piece))
        return any(self._counts[mark] % 2 and self._last[mark] >= end for mark in self._counts)


def _matches(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """All tags of ``text[start:end]`` in order."""
    for place in _TAG_START.finditer(text, start, end):
        match = _TAG.match(text, place.start(), end)
        if match is not None:
            yield match


def _kind(match: re.Match[str]) -> _Kind:
    if match["open"]:
        return "open"
    if match["close"]:
        return "close"
    return "tools" if match["tools"] else "call" if match["call"] else "stop"


def _group(match: re.Match[str]) -> str:
    """Spellings that belong together: the name of an angle tag, else the kind of bracket."""
    name = match["angle_open"] or match["angle_close"]
    if name:
        return name.lower()
    token = match[0]
    if "channel" in token.lower():
        return "channel"
    return token[0] if token[0] in "[◁" else "token"


def trailing_stop(text: str, start: int, end: int) -> int:
    """`end` without a special token that the length limit or the decoder cut in half."""
    match = _CUT_STOP.search(text, max(start, end - 30), end)
    return end if match is None else match.start()

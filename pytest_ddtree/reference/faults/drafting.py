"""Faults that a lossless walk hides: the drafter sees or learns the wrong things, so that only its quality suffers."""

from __future__ import annotations

from collections.abc import Sequence

from ..request import Request
from ..sampling import uniform
from ..tree import DraftTree
from .base import Fault


class WindowIgnored(Fault):
    """The draft window is reported and not applied."""

    name = "window_ignored"
    imitates = "the field report behind this project: the window was on everywhere but in the worker"

    def draft_context(self, span: tuple[int, int], window: int | None) -> tuple[int, int]:
        return (0, span[1]) if self.fires() else span


class WindowShifted(Fault):
    """The window is off by N tokens: the newest are hidden from the drafter."""

    name = "window_off_by_page"
    imitates = "SGLang PR #36995: compact cache and radix prefix disagree by a page"
    takes = "N"
    default = 16

    def draft_context(self, span: tuple[int, int], window: int | None) -> tuple[int, int]:
        low, high = span
        if window is None or not self.fires():
            return span
        return (max(low - self.number, 0), max(high - self.number, 0))


class WrongFeatures(Fault):
    """The drafter learns the first rows of the tree instead of the accepted ones."""

    name = "wrong_features"
    imitates = "HaiyuZhou/sglang ddtree_info: hidden states are taken as the first n nodes"

    def kept_rows(self, rows: list[int], width: int) -> list[int]:
        if not self.fires():
            return rows
        seen: dict[int, int] = {}
        wrong: list[int] = []
        for row in rows:
            base = row // width
            wrong.append(base * width + seen.get(base, 0))
            seen[base] = seen.get(base, 0) + 1
        return wrong


class AcceptDecays(Fault):
    """Drafts get worse with every N verified steps."""

    name = "accept_decays"
    imitates = "SGLang #28771: accept length decays from 3.4 to 1.9 within hours"
    takes = "N"
    default = 400

    def __init__(self, argument: str | None = None, rate: float = 1.0) -> None:
        super().__init__(argument, rate)
        self._steps = 0

    def draft_tokens(self, tokens: list[int], tree: DraftTree, request: Request) -> list[int]:
        self._steps += 1
        share = min(self._steps / (2 * max(self.number, 1)), 0.9)
        spoiled = uniform(0xDECA, self._steps) < share
        return [tokens[0], *([0] * (len(tokens) - 1))] if spoiled and self.fires() else tokens


class TreeIsChain(Fault):
    """Only the first candidate of each depth is right; all other nodes hold padding."""

    name = "branches_dead"
    imitates = "public notes on DDTree: a chain-shaped test passes while the branches are wrong"

    def draft_tokens(self, tokens: list[int], tree: DraftTree, request: Request) -> list[int]:
        if not self.fires():
            return tokens
        return [token if rank <= 0 else 0 for token, rank in zip(tokens, tree.ranks, strict=True)]


class SilentFallback(Fault):
    """The server decodes without speculation and says nothing."""

    name = "silent_fallback"
    imitates = (
        "SGLang: requests that the worker cannot draft for are decoded plainly, with one warning at most"
    )

    def speculate(self, wanted: bool, requests: Sequence[Request]) -> bool:
        return wanted and not self.fires()

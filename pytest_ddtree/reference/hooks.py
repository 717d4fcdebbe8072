"""Points at which planted faults may interfere. A healthy server uses :class:`Hooks` itself: nothing changes.

Every method receives what the server is about to use and returns what it shall use instead; those that return nothing
may act on the state they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .arrays import F32
from .sampling import SamplingParams
from .tree import DraftTree

if TYPE_CHECKING:
    from .request import Request, Update
    from .runtime import Runtime


class Hooks:
    """The identity everywhere."""

    def numerics(self, name: str) -> str:
        """Rounding the models are built with."""
        return name

    def started(self, runtime: Runtime) -> None:
        """The models are loaded."""

    def asked(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The ``sampling_params`` of a new request of /generate as they came."""
        return raw

    def params(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters of a new request."""
        return params

    def admitted(self, runtime: Runtime, request: Request) -> None:
        """A request got its memory; its first ``kv_length`` positions come from the prefix cache."""

    def aborted(self, runtime: Runtime, request: Request, others: Sequence[Request]) -> None:
        """A running request is being cancelled; ``others`` keep running."""

    def finished(self, runtime: Runtime, request: Request) -> None:
        """A request ended by itself; its memory is still in place."""

    def passed(self, runtime: Runtime, requests: Sequence[Request], seconds: float) -> None:
        """A decode pass over ``requests`` took ``seconds``."""

    def speculate(self, wanted: bool, requests: Sequence[Request]) -> bool:
        """Whether this step speculates."""
        return wanted

    def draft_context(self, span: tuple[int, int], window: int | None) -> tuple[int, int]:
        """Positions low .. high - 1 that the drafter sees."""
        return span

    def draft_tokens(self, tokens: list[int], tree: DraftTree, request: Request) -> list[int]:
        """Tokens of the tree's nodes, the root's first."""
        return tokens

    def verify_mask(self, mask: F32, tree: DraftTree, *, block_size: int) -> F32:
        """Additive [width, width] mask of one request's verify rows (shared: copy before changing)."""
        return mask

    def verify_depths(self, depths: Sequence[int]) -> Sequence[int]:
        """Distance of each verify row from the root, which makes its position."""
        return depths

    def verify_logits(self, logits: F32, requests: Sequence[Request]) -> F32:
        """The target's logits [requests, width, vocab]."""
        return logits

    def tree_params(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters as the walk uses them."""
        return params

    def draw_position(self, position: int, depth: int) -> int:
        """The position that determines the random number of a draw ``depth`` below the root."""
        return position

    def tree_choice(self, token: int, children: Sequence[int], request: Request) -> int:
        """The target's token behind a node whose children hold ``children`` (best candidate first)."""
        return token

    def compaction(self, moves: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
        """(from, to) verify rows whose keys and values move; row index = request index * width + node."""
        return moves

    def kept_rows(self, rows: list[int], width: int) -> list[int]:
        """Verify rows whose features become the drafter's context."""
        return rows

    def committed(self, runtime: Runtime, requests: Sequence[Request]) -> None:
        """Accepted keys and values are in place; the step's tokens are not emitted yet."""

    def emitted(self, tokens: list[int], request: Request) -> list[int]:
        """Tokens of one step, the bonus last."""
        return tokens

    def leftover(self, kept: int, tokens: Sequence[int], request: Request) -> int:
        """How many of a step's tokens stay in the answer; ``kept`` are those up to the one that ends it."""
        return kept

    def updates(self, updates: list[Update], request: Request) -> list[Update]:
        """What is delivered for one update."""
        return updates

    def event(self, payload: dict[str, Any], number: int) -> dict[str, Any]:
        """One streamed object of /generate; ``number`` counts from 0."""
        return payload

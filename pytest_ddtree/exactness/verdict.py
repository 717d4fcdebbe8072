"""Verdicts: what was concluded about a config, at which level, from how many tokens, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddtree.exactness.judged import UNSEEN_GAP, WorstToken

VerdictKind = Literal["exact", "tie", "corrupt", "unknown"]
Level = Literal["self", "first-divergence", "full"]
Criterion = Literal["gap", "share", "answer", "tail"]
"""Why a verdict is corrupt: one gap beyond the limit; too large a share of non-argmax tokens; one answer with
improbably many; middling gaps too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`exact`: the baseline's tokens. `tie`: other tokens, within the noise floor. `corrupt`: beyond it.
    `unknown`: not to be judged, an error and never a pass."""

    kind: VerdictKind
    level: Level
    config: str
    prompts: int
    identical: int
    """Answers whose tokens are the baseline's own."""
    tokens: int
    """Judged tokens."""
    off: int
    """Judged tokens that are not the argmax."""
    largest: float
    """Largest gap, nats."""
    gap_limit: float
    """The largest gap that is not corrupt by itself, nats."""
    floor_largest: float
    floor_share: float
    floor_tokens: int
    p_share: float
    """p of the test that the share of non-argmax tokens is no more than a healthy multiple of the floor's."""
    criteria: tuple[Criterion, ...] = ()
    """The criteria that found it corrupt, by name."""
    reasons: tuple[str, ...] = ()
    """Why it is corrupt or unknown, in words for people."""
    worst: tuple[WorstToken, ...] = ()

    @property
    def passed(self) -> bool:
        return self.kind in ("exact", "tie")

    @property
    def share(self) -> float:
        return self.off / self.tokens if self.tokens else 0.0

    @property
    def largest_text(self) -> str:
        """The largest gap, or that it is not known: without logprobs level self sees that a token is another one, not by how much."""
        return "of unknown size" if 0 < self.largest <= UNSEEN_GAP else f"{self.largest:.3g} nats"

    def summary(self) -> str:
        """One line for tables and logs."""
        # At level self there is no baseline answer to be identical to.
        same = "" if self.level == "self" else f"{self.identical} of {self.prompts} answers identical, "
        head = f"{self.kind} at level {self.level}: {same}"
        body = f"{self.off} of {self.tokens} tokens not the argmax ({self.share:.2%}), "
        gap = f"largest gap {self.largest_text} "
        floor = f"(floor {self.floor_share:.2%}, {self.floor_largest:.3g} nats, n={self.floor_tokens})"
        return head + body + gap + floor

    def as_json(self) -> dict[str, Any]:
        """Plain values for stored results."""
        return {
            "kind": self.kind,
            "level": self.level,
            "config": self.config,
            "prompts": self.prompts,
            "identical": self.identical,
            "tokens": self.tokens,
            "off": self.off,
            "largest_nats": self.largest,
            "gap_limit_nats": self.gap_limit,
            "floor": {
                "largest_nats": self.floor_largest,
                "share": self.floor_share,
                "tokens": self.floor_tokens,
            },
            "p_share": self.p_share,
            "criteria": list(self.criteria),
            "reasons": list(self.reasons),
            "worst": [
                {
                    "tag": token.tag,
                    "position": token.position,
                    "token_id": token.score.token_id,
                    "gap_nats": token.score.gap,
                    "rank": token.rank,
                    "top": [[token_id, logprob] for token_id, logprob in token.score.top],
                }
                for token in self.worst
            ],
        }

"""What `--ddtree-profile` sets: how much is measured where no option says it. The embedded server and real ones have figures apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pytest_ddtree.axes import CLASSES, MODEL_IF_ANY, Cache, WorkloadChoice

Profile = Literal["smoke", "gate", "full"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
DEFAULT_PROFILE: Profile = "gate"

CODE = (WorkloadChoice("code", "code"),)
EVERY_CLASS = tuple(WorkloadChoice(name, name) for name in CLASSES)

EMBEDDED = "embedded"
REAL = "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The defaults of one profile on one sort of server; an option that is given wins over each of them, alone."""

    context: tuple[int, ...]
    """Prompt lengths in tokens."""
    concurrency: tuple[int, ...]
    """Requests in flight."""
    workload: tuple[WorkloadChoice, ...] = CODE
    temperature: tuple[float | str, ...] = (0.0,)
    cache: tuple[Cache, ...] = ("flushed",)
    output: int
    """Tokens an answer."""
    turnovers: int
    """Requests per round, in multiples of the concurrency."""
    rounds: int
    """Most rounds per cell."""
    min_rounds: int
    """Fewest rounds per cell."""
    precision: float
    """Relative half width of the interval of tok/s at which a cell needs no further round."""
    exactness_prompts: int
    exactness_output: int
    """Tokens per answer that proves exactness."""
    coding_output: int
    """Most tokens of an answer to a coding problem: a limit, not an amount, so the same in every profile."""
    client_lag: float
    """As `--ddtree-client-lag`: the embedded server shares the machine with the client, so it may be later there."""


TABLE: Mapping[tuple[str, Profile], Amounts] = {
    (EMBEDDED, "smoke"): Amounts(
        context=(60, 512),
        concurrency=(1, 4),
        output=48,
        turnovers=1,
        rounds=2,
        min_rounds=2,
        precision=0.02,
        exactness_prompts=12,
        exactness_output=48,
        coding_output=640,
        client_lag=0.1,
    ),
    (EMBEDDED, "gate"): Amounts(
        context=(60, 512, 2048),
        concurrency=(1, 4, 8),
        output=64,
        turnovers=1,
        rounds=3,
        min_rounds=3,
        precision=0.02,
        exactness_prompts=12,
        exactness_output=48,
        coding_output=640,
        client_lag=0.1,
    ),
    (EMBEDDED, "full"): Amounts(
        context=(60, 512, 2048),
        concurrency=(1, 4, 8, 16),
        workload=EVERY_CLASS,
        temperature=(0.0, MODEL_IF_ANY),
        output=128,
        turnovers=4,
        rounds=30,
        min_rounds=4,
        precision=0.01,
        exactness_prompts=96,
        exactness_output=128,
        coding_output=640,
        client_lag=0.1,
    ),
    (REAL, "smoke"): Amounts(
        context=(1024,),
        concurrency=(1, 8),
        output=128,
        turnovers=4,
        rounds=3,
        min_rounds=3,
        precision=0.05,
        exactness_prompts=24,
        exactness_output=96,
        coding_output=4096,
        client_lag=0.01,
    ),
    (REAL, "gate"): Amounts(
        context=(60, 1024, 4096, 8192),
        concurrency=(1, 8, 32, 64),
        output=256,
        turnovers=4,
        rounds=12,
        min_rounds=3,
        precision=0.02,
        exactness_prompts=64,
        exactness_output=160,
        coding_output=4096,
        client_lag=0.01,
    ),
    (REAL, "full"): Amounts(
        context=(60, 1024, 4096, 8192),
        concurrency=(1, 8, 16, 32, 64),
        workload=EVERY_CLASS,
        temperature=(0.0, MODEL_IF_ANY),
        output=256,
        turnovers=8,
        rounds=30,
        min_rounds=6,
        precision=0.01,
        exactness_prompts=256,
        exactness_output=256,
        coding_output=4096,
        client_lag=0.01,
    ),
}
"""(sort of server, profile) -> its defaults."""


def amounts(profile: Profile, *, embedded: bool) -> Amounts:
    """What a profile sets for the embedded server, or for real ones."""
    return TABLE[(EMBEDDED if embedded else REAL, profile)]


def resolved(values: Mapping[str, Any], *, embedded: bool) -> dict[str, Any]:
    """`values` (field -> value, None where nothing was given) with the profile's figures in the places of None.

    An explicit number of rounds that is below the profile's fewest wins: the fewest is then lowered to it, and the other way round.
    """
    chosen = amounts(values["profile"], embedded=embedded)
    made = dict(values)
    if made["min_rounds"] is None and made["rounds"] is not None:
        made["min_rounds"] = min(chosen.min_rounds, made["rounds"])
    elif made["rounds"] is None and made["min_rounds"] is not None:
        made["rounds"] = max(chosen.rounds, made["min_rounds"])
    for one in fields(chosen):
        if made[one.name] is None:
            made[one.name] = getattr(chosen, one.name)
    return made


def spelled(value: object) -> str:
    """A value as one types it."""
    if isinstance(value, tuple):
        return ",".join(map(spelled, value))
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def default_text(name: str) -> str:
    """The default of a field, for the help of its option."""
    figures = {sort: spelled(getattr(TABLE[(sort, DEFAULT_PROFILE)], name)) for sort in (EMBEDDED, REAL)}
    if figures[EMBEDDED] == figures[REAL]:
        return f"Default: by --ddtree-profile ({DEFAULT_PROFILE}: {figures[REAL]})."
    return f"Default: by --ddtree-profile ({DEFAULT_PROFILE}: {figures[EMBEDDED]} on the embedded server, else {figures[REAL]})."

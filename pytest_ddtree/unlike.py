"""In which conditions the configs of a session differ from the baselines that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_ddtree.dialects.base import BaselineKind
from pytest_ddtree.dialects.conditions import unmatched
from pytest_ddtree.dialects.effective import EffectiveConfig, differences
from pytest_ddtree.grid import Config


@dataclass(frozen=True, slots=True)
class Unlike:
    """A config and a baseline that do not run under the same conditions; `warning` where that bears on exactness."""

    config: Config
    variant: BaselineKind
    differences: tuple[str, ...]
    warning: str | None


class Conditions:
    """What each server of the session was read back to run, whichever of a pair came up first."""

    def __init__(self) -> None:
        self._baselines: dict[BaselineKind, EffectiveConfig] = {}
        self._configs: dict[Config, EffectiveConfig] = {}
        self._said: dict[tuple[Config, BaselineKind], tuple[str, ...]] = {}

    def note(self, config: Config, variant: BaselineKind, effective: EffectiveConfig) -> list[Unlike]:
        """Take note of a server that is up; what differs now and was not returned before."""
        if config.speculative:
            self._configs[config] = effective
        else:
            self._baselines[variant] = effective
        return list(self._news())

    def _news(self) -> Iterator[Unlike]:
        for config, seen in self._configs.items():
            for variant, base in self._baselines.items():
                found = differences(seen, base)
                texts = tuple(str(one) for one in found)
                if not texts or self._said.get((config, variant)) == texts:
                    continue
                self._said[(config, variant)] = texts
                # The best baseline is there to differ: it stands under speedups and judges nothing.
                yield Unlike(config, variant, texts, unmatched(found) if variant == "matched" else None)

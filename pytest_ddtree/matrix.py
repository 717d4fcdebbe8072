"""The cells of the matrix, from the options and what the checkpoint recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from pytest_ddtree.axes import MODEL, MODEL_IF_ANY
from pytest_ddtree.grid import CellKey
from pytest_ddtree.model_files import recommended_sampling
from pytest_ddtree.options import BY_FIELD, OptionError, Settings


def cells_of(settings: Settings) -> tuple[CellKey, ...]:
    """Every cell of the options, the axes in the order context, concurrency, workload, temperature, cache.

    Raises:
        OptionError: the model's own temperature is asked for and the checkpoint recommends none, or is not at hand.
    """
    axes = (settings.context, settings.concurrency, settings.workload, _drawn(settings), settings.cache)
    return tuple(
        replace(drawn, context=context, concurrency=concurrency, workload=workload.name, cache=cache)
        for context, concurrency, workload, drawn, cache in product(*axes)
    )


def sampling_of(key: CellKey, recommended: Mapping[str, float | int]) -> dict[str, float | int]:
    """What a cell's requests send beside their temperature."""
    return (
        {name: value for name, value in recommended.items() if name != "temperature"} if key.sampling else {}
    )


def _drawn(settings: Settings) -> list[CellKey]:
    """A cell for each item of the temperature axis; its other fields are to be replaced."""
    keys: list[CellKey] = []
    for item in settings.temperature:
        if isinstance(item, float):
            keys.append(CellKey(0, 0, temperature=item))
            continue
        temperature = recommended_sampling(settings).get("temperature", 0.0)
        if temperature > 0:
            keys.append(CellKey(0, 0, temperature=float(temperature), sampling=MODEL))
        elif item != MODEL_IF_ANY:
            raise OptionError(
                f"{BY_FIELD['temperature'].flag} {MODEL}: the checkpoint {settings.model or 'of the embedded server'} has no "
                "generation_config.json on this host that recommends a temperature; give a number"
            )
    return list(dict.fromkeys(keys)) or [CellKey(0, 0)]

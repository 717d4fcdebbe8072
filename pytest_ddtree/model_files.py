"""What the model's own files say, where they are at hand: vocabulary, positions, the drafter's block size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddtree.grid import Config
from pytest_ddtree.options import BY_FIELD, OptionError, Settings

LEAST_PROMPT = 64
"""Tokens that the shortest prompts have about: a chat template and a question."""
REFERENCE_WEIGHTS = Path(__file__).parent / "reference" / "weights"
"""Where the embedded server's checkpoints are; data files, no import of the server."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """None: not said, or the files are not at hand (a model name, another host)."""

    target: Path | None
    draft: Path | None
    vocab_size: int | None
    max_positions: int | None
    block_size: int | None
    eos: frozenset[int] = frozenset()
    """Ids that end an answer."""
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    """What generation_config.json recommends: temperature, top_p, top_k, min_p; empty where it decodes greedily."""
    experts: bool = False
    """Whether the target routes each token to some of several experts."""


def model_facts(settings: Settings) -> ModelFacts:
    """Read the `config.json` of target and drafter; a missing file is no error here, the server will say so."""
    embedded = settings.server == "reference"
    target = _directory(settings.model, REFERENCE_WEIGHTS / "target" if embedded else None)
    draft = _directory(settings.draft_model, REFERENCE_WEIGHTS / "draft" if embedded else None)
    target_config, draft_config = _config(target), _config(draft)
    return ModelFacts(
        target,
        draft,
        _whole(target_config, "vocab_size"),
        _whole(target_config, "max_position_embeddings"),
        _whole(draft_config, "block_size"),
        end_tokens(target),
        recommended_sampling(settings),
        has_experts(target_config),
    )


def has_experts(config: Mapping[str, Any]) -> bool:
    """Whether a model's config.json has experts: its own, or those of the language model inside (`text_config`, `llm_config`)."""
    inner = [part for name in ("text_config", "llm_config") if isinstance(part := config.get(name), Mapping)]
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any((_whole(part, name) or 0) > 1 for part in (config, *inner) for name in names)


def end_tokens(model: Path | None) -> frozenset[int]:
    """Ids that end an answer, by the files of a model directory; empty where they do not say or are not at hand."""
    files = ("config.json", "generation_config.json")
    return frozenset().union(*(_ids(_config(model, name).get("eos_token_id")) for name in files))


def recommended_sampling(settings: Settings) -> dict[str, float | int]:
    """What the target's generation_config.json recommends: temperature, top_p, top_k, min_p, as far as it says so; empty where it
    decodes greedily (`do_sample` false) or is not at hand."""
    embedded = settings.server == "reference"
    target = _directory(settings.model, REFERENCE_WEIGHTS / "target" if embedded else None)
    config = _config(target, "generation_config.json")
    if config.get("do_sample") is False:
        return {}
    return {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p")
        if isinstance(value := config.get(name), int | float) and not isinstance(value, bool)
    }


def check_paths(settings: Settings, *, prompts: bool = True) -> None:
    """Refuse paths at which there is nothing, before a server is started that will say so after a minute.

    Only what this host must have: another launcher or host has files of its own, and a bare name may be a model of a hub. Of a server
    that is started elsewhere that is the model's tokenizer, where prompts of an exact length are made (`prompts`).

    Raises:
        OptionError: naming the option and the path.
    """
    if settings.launch_prefix or settings.node_prefix:
        return
    ours = settings.server in ("reference", "sglang")
    for name in ("model", "draft_model") if ours else ("model",) if prompts else ():
        value = getattr(settings, name)
        if value is not None and value.startswith(("/", ".", "~")):
            _check_model(name, value, Path(value).expanduser(), ours=ours)
    if not ours:
        return
    for name in ("python", "sglang_src"):
        path = getattr(settings, name)
        if path is not None and not path.exists():
            raise OptionError(f"{BY_FIELD[name].flag} {path}: there is nothing at this path")


def no_tokenizer(settings: Settings) -> str:
    """What is said where the model's directory is not on this host."""
    flag = BY_FIELD["model"].flag
    return (
        f"prompts of an exact length need the model's tokenizer.json and config.json on this host "
        f"({flag}: {settings.model or 'not given'}). Give the directory that holds them: {flag}=DIR"
    )


def _check_model(name: str, value: str, folder: Path, *, ours: bool) -> None:
    flag = BY_FIELD[name].flag
    if not folder.is_dir():
        why = "there is no such directory"
        if not ours:
            why += " on this host, where prompts are made: give one that holds the model's tokenizer.json and config.json"
        raise OptionError(f"{flag} {value}: {why}")
    config = folder / "config.json"
    try:
        loaded = json.loads(config.read_text("utf-8"))
    except FileNotFoundError:
        raise OptionError(f"{flag} {value}: the directory has no config.json, so it is no model") from None
    except OSError as error:
        raise OptionError(f"{flag} {value}: {config} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise OptionError(f"{flag} {value}: {config} is no JSON ({error})") from None
    if not isinstance(loaded, dict):
        raise OptionError(f"{flag} {value}: {config} holds no JSON object")


def has_chat_template(target: Path) -> bool:
    """Whether a model directory has a chat template of its own."""
    return (target / "chat_template.jinja").is_file() or bool(
        _config(target, "tokenizer_config.json").get("chat_template")
    )


def check_grid(
    settings: Settings, configs: tuple[Config, ...], facts: ModelFacts, *, coding: bool = False
) -> None:
    """Refuse what the model cannot do, before a server starts; `coding`: coding problems are to be solved too.

    Raises:
        OptionError: naming the option, the value, and what the model allows.
    """
    for config in configs:
        size = config.block_size or facts.block_size
        if facts.vocab_size is not None and config.topk is not None and config.topk > facts.vocab_size:
            raise OptionError(
                f"{BY_FIELD['topk'].flag} {config.topk}: the model at {facts.target} has {facts.vocab_size} tokens, "
                "no more candidates exist"
            )
        if config.window is not None and size is not None and config.window < size:
            raise OptionError(
                f"{BY_FIELD['window'].flag} {config.window}: the drafter's block size is {size}, and a window must hold at least one block"
            )
    if facts.max_positions is not None:
        longest = max(settings.context)
        if longest + settings.output >= facts.max_positions:
            raise OptionError(
                f"{BY_FIELD['context'].flag} {longest}: with {settings.output} output tokens this is more than the "
                f"{facts.max_positions} positions of the model at {facts.target}"
            )
        for name in ("exactness_output", *(("coding_output",) if coding else ())):
            answer = getattr(settings, name)
            if answer + LEAST_PROMPT >= facts.max_positions:
                raise OptionError(
                    f"{BY_FIELD[name].flag} {answer}: no prompt has room beside it in the {facts.max_positions} positions of the model "
                    f"at {facts.target}"
                )


def _directory(named: str | None, default: Path | None) -> Path | None:
    path = Path(named).expanduser() if named is not None else default
    return path if path is not None and path.is_dir() else None


def _config(directory: Path | None, name: str = "config.json") -> dict[str, Any]:
    if directory is None:
        return {}
    try:
        loaded = json.loads((directory / name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _whole(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ids(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if isinstance(item, int))

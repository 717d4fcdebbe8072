"""Rendering chat messages with the checkpoint's template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatError(ValueError):
    """Messages that cannot be rendered."""


class ChatTemplate:
    """A Jinja template as Hugging Face checkpoints carry it."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(source)

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt, ending where the assistant's turn begins.

        Raises:
            ChatError: the template refuses the messages.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **options)
        except TemplateError as error:
            raise ChatError(f"The chat template refuses the messages: {error}") from None


def _refuse(message: str) -> None:
    raise TemplateError(message)

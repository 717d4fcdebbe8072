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
        """Raises ChatError for what is no template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ChatError(f"The checkpoint's chat template is none: {error}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt, ending where the assistant's turn begins.

        Raises:
            ChatError: the template refuses the messages.
        """
        ours = {"messages": messages, "add_generation_prompt": True}
        if taken := ours.keys() & options.keys():
            raise ChatError(
                f"The chat template gets {', '.join(sorted(taken))} from the server, not from the request."
            )
        try:
            return self._template.render(ours | dict(options))
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ChatError(f"The chat template refuses the messages: {error}") from None


def _refuse(message: str) -> None:
    raise TemplateError(message)

"""A model's chat template, rendered around a document whose tokens are filled in later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template

_DOCUMENT = "\ue000document\ue001"


@dataclass(frozen=True, slots=True)
class Frame:
    """The text before and after the document of one prompt."""

    head: str
    tail: str


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja chat template; `source` None means that the model has none and prompts are plain text."""

    source: str | None
    variables: Mapping[str, Any]

    def frame(self, question: str) -> Frame:
        """Head and tail around a document that `question` follows, up to where the answer starts."""
        content = f"{_DOCUMENT}\n\n{question}"
        rendered = content + "\n" if self.source is None else self._render(content)
        head, found, tail = rendered.partition(_DOCUMENT)
        if not found:
            raise ValueError("the model's chat template does not show the user's message as it is")
        return Frame(head, tail)

    def prompt(self, message: str) -> str:
        """The prompt of a user message, up to where the answer starts."""
        return message + "\n" if self.source is None else self._render(message)

    def _render(self, content: str) -> str:
        try:
            from jinja2 import TemplateError
        except ImportError as error:
            raise ValueError(
                "the model has a chat template; rendering it needs: pip install jinja2"
            ) from error
        messages = [{"role": "user", "content": content}]
        assert self.source is not None
        try:
            template = _compiled(self.source)
            return template.render(messages=messages, add_generation_prompt=True, **self.variables)
        except TemplateError as error:
            raise ValueError(f"the model's chat template cannot be rendered: {error}") from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """A template, ready to be rendered: compiling one takes longer than rendering it for a hundred questions."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    return environment.from_string(source)


def load_template(model: Path, *, thinking: bool | None = None) -> ChatTemplate:
    """The chat template of a model directory (`chat_template.jinja`, else in `tokenizer_config.json`).

    `thinking` is passed on as `enable_thinking`; None leaves the template's own default.
    """
    config: dict[str, Any] = {}
    path = model / "tokenizer_config.json"
    if path.is_file():
        config = json.loads(path.read_text("utf-8"))
    variables: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        variables[name] = token.get("content") if isinstance(token, dict) else token or ""
    file = model / "chat_template.jinja"
    source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default", next(iter(named.values()), None))
    return ChatTemplate(source, variables)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)

"""Keeping secrets out of everything that is stored or reported: masked arguments and URLs, and an allow list for the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

MASK = "***"

_SECRET = re.compile(
    r"(?:^|[-_.])(?:api[-_]?key|key|token|secret|password|passwd|credentials?|auth)(?:$|[-_.])", re.IGNORECASE
)
_HARMLESS = re.compile(
    r"(?:draft|max|num|total|mask|prefill|decode|output|input|chunk)[\w-]*tokens?|tokens?[-_](?:id|count|s)\b|"
    r"tokens?[-_]per|mask[-_]token",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]+@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:key|token|secret|password|sig|signature))=)[^&\s]+", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE)

ENVIRONMENT = (
    "CI",
    "GITHUB_ACTIONS",
    "GITHUB_REF_NAME",
    "GITHUB_REPOSITORY",
    "GITHUB_RUN_ID",
    "GITHUB_SHA",
    "RUNNER_NAME",
    "RUNNER_OS",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "TORCH_CUDA_ARCH_LIST",
)
"""Variables that a report may show. Everything else stays out, whatever its name: a list of what is forbidden always has a hole."""


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of this name holds a secret: `--api-key` does, `--speculative-num-draft-tokens` does not."""
    plain = name.lstrip("-")
    return bool(_SECRET.search(plain)) and not _HARMLESS.search(plain)


def mask_text(text: str) -> str:
    """A text without user and password in URLs, keys in query strings and bearer tokens."""
    text = _USER_INFO.sub(f"{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    return _BEARER.sub(rf"\1 {MASK}", text)


def mask_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """A command line with the value of every secret option masked, in both spellings: `--api-key X` and `--api-key=X`."""
    masked: list[str] = []
    hide = False
    for word in arguments:
        name, sign, _ = word.partition("=")
        if hide and not word.startswith("--"):
            masked.append(MASK)
            hide = False
            continue
        hide = False
        if (word.startswith("-") or name.isupper()) and sign and is_secret_name(name):
            masked.append(f"{name}={MASK}")
            continue
        hide = word.startswith("-") and not sign and is_secret_name(word)
        masked.append(mask_text(word))
    return tuple(masked)


def mask_values(value: Any) -> Any:
    """Plain values with everything under a secret name masked; lists of words are taken for command lines."""
    if isinstance(value, Mapping):
        return {
            name: MASK if is_secret_name(str(name)) and inner not in (None, "") else mask_values(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return list(mask_arguments(value))
        return [mask_values(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def allowed_environment(environment: Mapping[str, str], names: Iterable[str] = ENVIRONMENT) -> dict[str, str]:
    """The variables of the allow list that are set, sorted, their values masked as texts."""
    return {name: mask_text(environment[name]) for name in sorted(names) if name in environment}


LONG_ENOUGH = 6
"""Shorter values are no secrets that could be told from ordinary words."""


def known_secrets(api_key: str | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values that must not be seen anywhere: the API key and every variable whose name says that it is a secret, longest first."""
    values = {value for name, value in environment.items() if is_secret_name(name)} | {api_key or ""}
    return tuple(sorted((value for value in values if len(value) >= LONG_ENOUGH), key=len, reverse=True))


def scrub(value: Any, secrets: Sequence[str]) -> Any:
    """Plain values with every occurrence of a secret masked, wherever it stands: a traceback shows what nobody meant to report."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, Mapping):
        return {scrub(name, secrets): scrub(inner, secrets) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [scrub(inner, secrets) for inner in value]
    return value


class Said(Protocol):
    """What of a test's report may repeat a secret: pytest's own report has more."""

    longrepr: Any
    sections: list[tuple[str, str]]
    user_properties: list[tuple[str, object]]


def scrub_report(report: Said, secrets: Sequence[str]) -> None:
    """Mask every occurrence of a secret in a test's report, which terminal, JUnit XML and other reports are made from.

    A traceback that holds one becomes plain text.
    """
    report.sections = [(name, scrub(text, secrets)) for name, text in report.sections]
    report.user_properties = [(name, scrub(value, secrets)) for name, value in report.user_properties]
    if report.longrepr is None or isinstance(report.longrepr, tuple):
        # A skipped test: file, line, reason.
        report.longrepr = report.longrepr and tuple(scrub(report.longrepr, secrets))
        return
    text = str(report.longrepr)
    if any(secret in text for secret in secrets):
        report.longrepr = scrub(text, secrets)

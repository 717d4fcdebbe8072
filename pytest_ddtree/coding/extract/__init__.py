"""The final answer of a response, or the reason why there is none (see docs/extraction.md).

`extract` never takes code from thinking, never takes what generation cut off, and never guesses: it
returns a program that parses and defines what was asked for, or a status.
"""

from __future__ import annotations

from pytest_ddtree.coding.extract.api import extract
from pytest_ddtree.coding.extract.model import STATUS_TEXT, STATUSES, Block, Extraction, Role, Span, Status

__all__ = ["STATUSES", "STATUS_TEXT", "Block", "Extraction", "Role", "Span", "Status", "extract"]

"""The one thing that errors of all parts have in common: whether they say something about the engine or about the test bench."""

from __future__ import annotations


class Infrastructure(Exception):
    """Something that the tests need is not there: no server, no sandbox, an answer that never came. Never a verdict on the engine."""


class NotVerified(Infrastructure):
    """A config could not be judged; the text says why. Never a pass, and no verdict on the engine either."""

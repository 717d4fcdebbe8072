"""The pool that owns server processes: starting, proving what runs, stopping, and leaving nothing behind.

Nothing is imported here, because the supervisor process loads this package with the standard library alone.
"""

from __future__ import annotations

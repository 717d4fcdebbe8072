"""The embedded server: a small, real DFlash/DDTree server in NumPy behind SGLang's HTTP interface.

It is reached like any other server, over HTTP: ``python -m pytest_ddtree.reference --port 30000``.
Nothing else of the package imports it, and it imports nothing else of the package.
"""

from __future__ import annotations

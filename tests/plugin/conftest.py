"""A project of a user of the plugin, in a temporary directory, run by pytest."""

from __future__ import annotations

import sys

import pytest

# A run in this process forgets what it was the first to import, and NumPy refuses to be loaded twice.
import pytest_ddtree.ab  # noqa: F401

INI = """
[pytest]
addopts = -p no:cacheprovider
asyncio_default_fixture_loop_scope = session
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with one test on every config and one on every cell; the server is never reached by `--collect-only`."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # A run in this process must not meet the modules of this suite, some of which are called as those of a project are.
    for name in [name for name in sys.modules if name.startswith("test_")]:
        monkeypatch.delitem(sys.modules, name)
    pytester.makeini(INI)
    pytester.makepyfile(
        test_mine="""
        import pytest

        @pytest.mark.bench
        def test_every_config(ddtree_server):
            pass

        @pytest.mark.bench
        @pytest.mark.ddtree_speculative
        def test_speculative(ddtree_server):
            pass

        @pytest.mark.bench
        def test_cell(ddtree_server, ddtree_cell):
            pass

        def test_of_others():
            pass
        """
    )
    return pytester

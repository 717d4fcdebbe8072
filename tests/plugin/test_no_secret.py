"""No report of a session repeats a secret, whatever a test printed or failed with."""

from __future__ import annotations

import pytest

KEY = "sk-live-0123456789"
TOKEN = "hf_abcdefghijkl"


def test_keys_are_masked_in_terminal_junit_and_json(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(
        """
        import os

        def test_leaks(ddtree_settings, record_property):
            key = ddtree_settings.api_key
            print("asked with", key)
            record_property("key", key)
            assert key == os.environ["HF_TOKEN"]
        """
    )
    result = pytester.runpytest_subprocess(
        f"--ddtree-api-key={KEY}", "--showlocals", "--junitxml=junit.xml",
        "--json-report", "--json-report-file=report.json", "-p", "no:cacheprovider",
    )  # fmt: skip
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    reports = {name: (pytester.path / name).read_text() for name in ("junit.xml", "report.json")}
    shown = {"terminal": result.stdout.str() + result.stderr.str(), **reports}
    for name, text in shown.items():
        assert "***" in text, name
        assert KEY not in text, name
        assert TOKEN not in text, name

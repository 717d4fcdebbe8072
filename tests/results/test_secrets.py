from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.results.secrets import (
    allowed_environment,
    is_secret_name,
    mask_arguments,
    mask_text,
    mask_values,
    scrub_report,
)

SECRET = "s3cr3t-0123456789"


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", SECRET],
        [f"--api-key={SECRET}"],
        ["--admin-api-key", SECRET, "--tp", "2"],
        ["env", f"HF_TOKEN={SECRET}", "python"],
        [f"http://user:{SECRET}@host:1/x"],
        [f"http://user:pa@{SECRET}@host:1/x"],
        [f"--proxy=http://us@er:{SECRET}@host?x=a@b"],
        [f"--url=https://host/?api_key={SECRET}&x=1"],
        ["-H", f"Authorization: Bearer {SECRET}"],
        ["--ssl-keyfile-password", SECRET],
    ],
    ids=" ".join,
)
def test_a_secret_in_a_command_line_is_masked(words: list[str]) -> None:
    assert SECRET not in " ".join(mask_arguments(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--speculative-num-draft-tokens", "9"],
        ["--max-total-tokens", "65536"],
        ["--api-key-less", "--tp", "8"],
        ["--tokenizer-path", "/models/x"],
        ["--chunked-prefill-size=512"],
    ],
    ids=" ".join,
)
def test_what_is_no_secret_stays_readable(words: list[str]) -> None:
    assert list(mask_arguments(words)) == words


@given(st.lists(st.text(min_size=1, max_size=20), max_size=6))
def test_masking_keeps_the_number_of_words_and_masks_the_same_the_second_time(words: list[str]) -> None:
    once = mask_arguments(words)
    assert len(once) == len(words)
    assert mask_arguments(once) == once


def test_the_environment_is_an_allow_list() -> None:
    environment = {"CI": "true", "HF_TOKEN": SECRET, "MY_HARMLESS": SECRET, "GITHUB_SHA": "abc"}
    assert allowed_environment(environment) == {"CI": "true", "GITHUB_SHA": "abc"}


def test_nested_values_are_masked() -> None:
    value = {
        "settings": {
            "api_key": SECRET,
            "server_args": ["--api-key", SECRET],
            "url": f"https://a:{SECRET}@b/",
        },
        "tokens": 5,
    }
    text = json.dumps(mask_values(value))
    assert SECRET not in text
    assert '"tokens": 5' in text
    assert is_secret_name("HF_TOKEN")
    assert mask_text("plain") == "plain"
    # What comes after the host is no password.
    assert mask_text("http://host/a?x=me@b http://c#d@e") == "http://host/a?x=me@b http://c#d@e"


class AReport:
    def __init__(self, longrepr: Any) -> None:
        self.longrepr = longrepr
        self.sections = [("Captured stdout call", "key sk-live-1234 was used")]
        self.user_properties: list[tuple[str, object]] = [("ddtree.config", "sk-live-1234")]


class Traceback:
    def __str__(self) -> str:
        return "E  401: sk-live-1234 refused"


@pytest.mark.parametrize(
    ("longrepr", "shown"),
    [
        ("refused: sk-live-1234", "refused: ***"),
        (Traceback(), "E  401: *** refused"),
        (("a.py", 3, "Skipped: sk-live-1234"), ("a.py", 3, "Skipped: ***")),
        (None, None),
    ],
)
def test_a_tests_report_repeats_no_secret(longrepr: Any, shown: Any) -> None:
    report = AReport(longrepr)
    scrub_report(report, ["sk-live-1234"])
    assert report.longrepr == shown
    assert "sk-live" not in f"{report.sections} {report.user_properties}"


def test_a_traceback_without_a_secret_stays_what_it_is() -> None:
    traceback = Traceback()
    report = AReport(traceback)
    scrub_report(report, ["sk-other-9876"])
    assert report.longrepr is traceback

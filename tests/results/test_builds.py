from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddtree.results.builds import BuildError, BuildSpec, check_revisions, parse_build, parse_builds


def test_the_four_kinds_of_builds(tmp_path: Path) -> None:
    assert parse_build(f"patched={tmp_path}") == BuildSpec("patched", "source", str(tmp_path))
    assert parse_build(f"venv={sys.executable}") == BuildSpec("venv", "python", sys.executable)
    assert parse_build("old=git:v0.5.19") == BuildSpec("old", "git", "v0.5.19")
    slow = parse_build("slow=args:--plant slower:10 --note 'a b'")
    assert slow.arguments == ("--plant", "slower:10", "--note", "a b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("patched", "form NAME=WHERE"),
        ("=git:main", "is no name"),
        ("a b=git:main", "is no name"),
        ("x=git:", "takes a revision"),
        ("x=git:--upload-pack=evil", "takes a revision"),
        ("x=/nowhere/at/all", "neither a checkout nor an interpreter"),
        ("x=args:'", "cannot be split"),
    ],
)
def test_what_is_no_build_is_refused_and_quoted(text: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        parse_build(text)
    assert repr(text) in str(caught.value)


def test_a_comparison_has_two_builds_and_the_base_comes_first() -> None:
    assert [one.name for one in parse_builds(["patched=git:HEAD", "base=git:main"], Path("src"))] == [
        "base",
        "patched",
    ]
    assert [one.name for one in parse_builds(["b=args:", "a=args:--x"], None)] == ["b", "a"]
    for texts, words in (
        (["a=git:x"], "no comparison"),
        (["a=git:x", "a=git:y"], "there twice"),
        (["a=git:x", "b=git:y"], "--ddtree-sglang-src"),
    ):
        with pytest.raises(BuildError, match=words):
            parse_builds(texts, None)


def test_a_revision_that_is_not_there_is_refused(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(BuildError, match=r"patched=git:no-such: .* in the checkout"):
        check_revisions([BuildSpec("patched", "git", "no-such")], tmp_path)
    check_revisions([BuildSpec("patched", "args", "no-such")], None)

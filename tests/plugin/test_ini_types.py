"""Values of the ini file that are no text: a usage error that names the option and what to write, whatever the option and the section."""

from __future__ import annotations

import re

import pytest

from pytest_ddtree.asked import _in_file, given_of
from pytest_ddtree.options import BY_FIELD, OPTIONS

OLD = "[tool.pytest.ini_options]"
NEW = "[tool.pytest]"
SCALARS = {"8": "8", "0.5": "0.5", "true": "True", '"8"': "8"}
"""Values of one option and their text, as which `ini_options` hands them over."""
NOT_TEXT = (
    "[8, 16]",
    "[0.5]",
    "[true, false]",
    '["chain", 8]',
    "[[8]]",
    "[{a = 1}]",
    "{a = 1}",
    "{}",
    "[2026-01-01]",
)


def configured(pytester: pytest.Pytester, section: str, value: str) -> pytest.Config:
    """pytest's own reading of a file that gives every option of ours the same value."""
    lines = "\n".join(f"{option.ini} = {value}" for option in OPTIONS)
    pytester.makepyprojecttoml(f"{section}\n{lines}\n")
    return pytester.parseconfig("-p", "no:cacheprovider")


@pytest.mark.parametrize("section", [OLD, NEW])
@pytest.mark.parametrize("value", [*NOT_TEXT, *SCALARS, '["8"]', '["a", "b"]'])
def test_every_option_takes_its_text_or_says_what_to_write(
    pytester: pytest.Pytester, section: str, value: str
) -> None:
    config = configured(pytester, section, value)
    for option in OPTIONS:
        strings = value.startswith('["') and value != '["chain", 8]'
        if option.repeatable and (strings or (section == OLD and value in SCALARS)):
            taken = "\n".join(re.findall(r"[\w.]+", value.title() if value == "true" else value))
        elif not option.repeatable and (value == '"8"' or (section == OLD and value in SCALARS)):
            taken = SCALARS[value]
        else:
            with pytest.raises(pytest.UsageError) as caught:
                _in_file(config, option)
            said = str(caught.value)
            assert said.startswith(f"{option.ini} in {config.inipath}: takes ")
            assert f"{option.ini} = " in said
            assert ("a list of strings" in said) == option.repeatable
            continue
        assert _in_file(config, option) == taken


@pytest.mark.parametrize("section", [OLD, NEW])
def test_text_that_only_looks_like_a_table_is_text(pytester: pytest.Pytester, section: str) -> None:
    for text in ("{a}", "{8}", "{not python}", "a{'b': 1}"):
        assert _in_file(configured(pytester, section, f'"{text}"'), BY_FIELD["where"]) == text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ddtree_budget = [8, 16]", 'ddtree_budget = "8,16"'),
        ('ddtree_budget = ["chain", 8]', 'ddtree_budget = "chain,8"'),
        ("ddtree_budget = [[8]]", 'ddtree_budget = "A,B"'),
        ("ddtree_output = [64]", 'ddtree_output = "N"'),
        ("ddtree_results = {a = 1}", 'ddtree_results = "DIR"'),
        ("ddtree_build = [1]", 'ddtree_build = ["NAME=WHERE"]'),
        ('ddtree_api_key = ["hunter2"]', 'ddtree_api_key = "KEY"'),
    ],
)
def test_the_example_is_what_was_meant_and_no_secret_is_shown(
    pytester: pytest.Pytester, line: str, said: str
) -> None:
    pytester.makepyprojecttoml(f"{OLD}\n{line}\n")
    config = pytester.parseconfig("-p", "no:cacheprovider")
    with pytest.raises(pytest.UsageError) as caught:
        given_of(config)
    assert str(caught.value).endswith(said)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("section", [OLD, NEW])
@pytest.mark.parametrize("mine", [True, False], ids=["a run of ours", "any other run"])
def test_pytest_ends_with_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, section: str, mine: bool
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyprojecttoml(f"{section}\nddtree_budget = [8, 16]\n")
    pytester.makepyfile("def test_of_others():\n    pass\n")
    result = pytester.runpytest_subprocess(*(["-m", "bench"] if mine else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ddtree_budget in *pyproject.toml: takes one string, *"])
    result.stderr.no_fnmatch_line("*INTERNALERROR*")

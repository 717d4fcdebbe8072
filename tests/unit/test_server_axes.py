"""`--ddtree-axis`: which values become configs of their own, under which arguments and ids; what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.axis_flags import refused_axes
from pytest_ddtree.config_scheduling import config_of
from pytest_ddtree.grid import Axis, Config, ordered
from pytest_ddtree.options import OptionError, make_settings
from pytest_ddtree.server_axes import make_axes, under
from pytest_ddtree.servers.settings import ServerSettings

LINE = "command line"
TREE = Config("tree", 8, 4)


def axes(text: str, **given_: str) -> tuple[Axis, ...]:
    fields = {"axis": (text, LINE), **{name: (value, LINE) for name, value in given_.items()}}
    return make_axes(make_settings(fields))


def test_each_value_is_a_config_with_its_arguments_in_its_id() -> None:
    made = axes("page-size=1,64\ndisable-radix-cache=on")
    assert [(one.id, one.arguments) for one in made] == [
        ("page-size.1", ("--page-size", "1")),
        ("page-size.64", ("--page-size", "64")),
        ("disable-radix-cache.on", ("--disable-radix-cache",)),
    ]
    configs = under(made, (Config("chain"), TREE))
    assert [config.id for config in configs[:3]] == [
        "chain-wnone+page-size.1",
        "b8-k4-wnone+page-size.1",
        "chain-wnone+page-size.64",
    ]


def test_what_the_session_has_anyway_is_no_further_start() -> None:
    assert axes("graphs=on; pressure=off; thinking=on; disable-radix-cache=off") == ()
    (off,) = axes("thinking=on,off")
    assert (off.id, off.arguments, off.thinking) == ("thinking.off", (), False)
    (on,) = axes("thinking=on,off", thinking="off")
    assert on.thinking is True
    assert axes("graphs=off")[0].arguments == ("--disable-cuda-graph",)


def test_pressure_holds_the_longest_request_and_little_beside_it() -> None:
    (tight,) = axes("pressure=on", context="60,2048")
    flag, tokens = tight.arguments
    assert flag == "--max-total-tokens"
    assert 2048 + 640 < int(tokens) < 2 * (2048 + 640)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("page-size", "takes NAME=VALUE"),
        ("page-size=", "takes NAME=VALUE"),
        ("page-size=1,,2", "takes NAME=VALUE"),
        ("Page Size=1", "takes NAME=VALUE"),
        ("page-size=a/b", "cannot be part of a test's name"),
        ("page-size=64,64", "names 64 twice"),
        ("graphs=maybe", "graphs takes on and off"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=f"--ddtree-axis '{re.escape(text)}': .*{said}"):
        axes(text)


def test_what_the_embedded_server_would_not_start_with_is_known_before() -> None:
    made = axes("page-size=banana,64; chunked-prefill-size=0; no-such-flag=3; graphs=off; thinking=off")
    assert refused_axes(made, embedded=True, flags=()) == [
        "--ddtree-axis chunked-prefill-size=0: the embedded server does not take it: --chunked-prefill-size must be at least 1, got 0.",
        "--ddtree-axis no-such-flag=3: the embedded server does not take it: unrecognized arguments: --no-such-flag 3",
        "--ddtree-axis page-size=banana: the embedded server does not take it: argument --page-size: invalid int value: 'banana'",
    ]


def test_of_another_build_the_names_of_its_flags_are_known() -> None:
    made = axes("page-sizes=64; page-size=64; graphs=off; thinking=off")
    flags = {"--page-size", "--mem-fraction-static", "--disable-cuda-graph"}
    assert refused_axes(made, embedded=False, flags=flags) == [
        "--ddtree-axis page-sizes=64: this build has no --page-sizes; it has: --page-size"
    ]
    assert refused_axes(made, embedded=False, flags=()) == []


def test_a_server_of_somebody_else_has_no_axes() -> None:
    with pytest.raises(OptionError, match="cannot be changed"):
        make_settings({"axis": ("page-size=64", LINE), "url": ("http://h:1", LINE)})


def test_only_that_configs_server_gets_the_arguments() -> None:
    settings = ServerSettings(kind="reference", run_dir=".", spec_args=("--a",))  # type: ignore[arg-type]
    (axis,) = axes("page-size=64")
    assert settings.of(TREE.under(axis)).spec_args == ("--a", "--page-size", "64")
    assert settings.of(TREE) is settings


@given(
    st.from_regex(r"[a-z]+(-[a-z0-9]+)?", fullmatch=True), st.from_regex(r"[A-Za-z0-9_.]+", fullmatch=True)
)
def test_the_id_is_found_in_a_tests_name(name: str, value: str) -> None:
    config = TREE.under(Axis(name, value))
    assert config_of(f"bench/test_contract.py::test_contract[{config.id}-few-tokens]") == config.id
    assert config_of(f"test_exact_against_baseline[{config.id}]") == config.id


def test_configs_of_an_axis_start_after_the_grid() -> None:
    (axis,) = axes("page-size=64")
    configs = (TREE.under(axis), Config("chain"), TREE, Config("baseline"))
    assert [config.id for config in ordered(configs)][-1] == "b8-k4-wnone+page-size.64"

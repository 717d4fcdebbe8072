"""Every option: what it takes, what it refuses and in which words."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddtree.options import BY_FIELD, OPTIONS, OptionError, Settings, make_settings, parse_value


def settings(**given: str) -> Settings:
    return make_settings({name: (text, "command line") for name, text in given.items()})


def test_the_defaults_are_those_of_the_embedded_server() -> None:
    made = settings()
    assert made.server == "reference"
    assert (made.budget, made.topk, made.window, made.block_size) == ((8,), (4,), (None,), (None,))
    assert (made.context, made.concurrency, made.output) == ((60, 512, 2048), (1, 4, 8), 64)


def test_other_servers_have_defaults_for_real_models() -> None:
    made = settings(url="http://127.0.0.1:30000/")
    assert made.server == "url"
    assert made.url == ("http://127.0.0.1:30000",)
    assert (made.context, made.concurrency) == ((60, 1024, 4096, 8192), (1, 8, 32, 64))


@pytest.mark.parametrize("name", ["python", "launch_prefix", "stop_command", "node_prefix", "dialect"])
def test_who_describes_an_sglang_does_not_get_the_embedded_server_by_mistake(name: str) -> None:
    with pytest.raises(OptionError, match=f"--ddtree-{name.replace('_', '-')} is about an SGLang server"):
        settings(**{name: "something"})


def test_an_ini_file_may_describe_an_sglang_for_when_it_is_asked_for() -> None:
    assert settings(server="reference", python="/venv/bin/python", dialect="dflash").server == "reference"


def test_places_of_several_servers() -> None:
    made = settings(url="http://a:1/\nhttp://b:2", baseline_url="http://c:3")
    assert made.url == ("http://a:1", "http://b:2")
    assert made.baseline_url == ("http://c:3",)
    assert settings(gpu_groups="0,1/2").gpu_groups == (("0", "1"), ("2",))
    assert settings(gpu_groups="GPU-8f2e-1/MIG-3a").gpu_groups == (("GPU-8f2e-1",), ("MIG-3a",))
    apart = settings(server="sglang", model="m", draft_model="d", gpu_groups="0,1", baseline_gpus="2,3")
    assert apart.baseline_gpus == ("2", "3")
    nodes = settings(
        server="sglang",
        model="m",
        draft_model="d",
        node_prefix="ssh node0\nssh -p 22 node1",
        server_args="--dist-init-addr node0:5000",
    )
    assert nodes.node_prefix == (("ssh", "node0"), ("ssh", "-p", "22", "node1"))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"server": "reference", "node_prefix": "ssh a\nssh b"}, "goes with --ddtree-server sglang"),
        ({"server": "sglang", "node_prefix": "ssh a"}, "at least twice"),
        ({"server": "sglang", "node_prefix": "ssh a\nssh b"}, "--dist-init-addr"),
        (
            {"server": "sglang", "node_prefix": "ssh a\nssh b", "launch_prefix": "nice"},
            "contradict each other",
        ),
        ({"gpu_groups": "0/0"}, "names GPU 0 twice"),
        ({"gpu_groups": "-1"}, "neither an index nor a UUID"),
        ({"gpu_groups": "0,x"}, "neither an index nor a UUID"),
        ({"request_timeout": "9" * 60}, "up to 10000h"),
        ({"time_budget": "10001h"}, "up to 10000h"),
        ({"gpu_groups": "0", "unit": "sglang"}, "not for --ddtree-server systemd"),
        ({"gpu_groups": "0/1", "resume": "last"}, "--ddtree-resume"),
        ({"baseline_gpus": "1"}, "goes with --ddtree-server sglang"),
        ({"server": "sglang", "baseline_gpus": "1"}, "needs --ddtree-gpu-groups with one group"),
        ({"server": "sglang", "gpu_groups": "0/1", "baseline_gpus": "2"}, "with one group"),
        ({"server": "sglang", "gpu_groups": "0,1", "baseline_gpus": "1,2"}, "both name GPU 1"),
        ({"server": "sglang", "gpu_groups": "0", "baseline_gpus": "1/2"}, "takes one group"),
        (
            {"server": "sglang", "gpu_groups": "0", "baseline_gpus": "1", "build": "a=/x\nb=/y"},
            "contradicts --ddtree-build",
        ),
        ({"url": "http://a\nhttp://a"}, "twice"),
    ],
)
def test_places_that_contradict_each_other(given: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=re.escape(word)):
        settings(**given)


def test_lists_are_read_in_order() -> None:
    made = settings(budget="chain,8,16", topk="4, 8", window="none,2048")
    assert made.budget == ("chain", 8, 16)
    assert made.topk == (4, 8)
    assert made.window == (None, 2048)


def test_server_arguments_are_split_as_a_shell_would() -> None:
    assert settings(server_args="--a 1 --b 'x y'").server_args == ("--a", "1", "--b", "x y")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("budget", "0", "from 1 to 4096"),
        ("budget", "", "is empty"),
        ("budget", "8,,16", "empty item"),
        ("budget", "8,8", "names 8 twice"),
        ("budget", "eight", "chain"),
        ("budget", "-3", "from 1"),
        ("topk", "0", "from 1"),
        ("topk", "4.5", "whole number"),
        ("window", "0", "none"),
        ("window", "all", "none"),
        ("block_size", "1", "draft"),
        ("context", "1k", "whole number"),
        ("concurrency", "0", "from 1"),
        ("output", "1", "from 2"),
        ("alpha", "0", "excluded"),
        ("alpha", "nan", "a number"),
        ("gap_min", "small", "a number"),
        ("start_timeout", "soon", "45m"),
        ("start_timeout", "0s", "45m"),
        ("server", "vllm", "reference"),
        ("url", "localhost:30000", "http://"),
        ("url", "http://a:99999", "Port out of range"),
        ("server_args", "--a 'x", "cannot be split"),
        ("strict", "maybe", "true or false"),
    ],
)
def test_a_wrong_value_names_source_option_value_and_what_is_allowed(
    name: str, text: str, words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        make_settings({name: (text, "the source")})
    message = str(caught.value)
    assert "the source" in message
    assert BY_FIELD[name].flag in message
    assert repr(text) in message
    assert words in message


@pytest.mark.parametrize(
    ("given_options", "words"),
    [
        ({"server": "url"}, "--ddtree-url"),
        ({"server": "reference", "url": "http://a"}, "contradicts"),
        ({"baseline_url": "http://a"}, "goes with --ddtree-url"),
        ({"server": "systemd"}, "--ddtree-unit"),
        ({"unit": "sglang", "url": "http://a"}, "contradicts"),
        ({"rounds": "2", "min_rounds": "5"}, "more than"),
        ({"resume": "last", "build": "a=args:\nb=args:"}, "starts anew"),
        ({"url": "http://a", "build": "a=args:\nb=args:"}, "started here"),
        ({"unit": "sglang", "build": "a=args:\nb=args:"}, "started here"),
        ({"axis": "page-size=1,64", "build": "a=args:\nb=args:"}, "contradicts --ddtree-build"),
        ({"expected": "/e", "update_expected": "true", "build": "a=args:\nb=args:"}, "no expected figures"),
        ({"expected": "/e", "update_new": "true", "build": "a=args:\nb=args:"}, "no expected figures"),
        ({"ssh": "host"}, "--ddtree-unit"),
        ({"server": "sglang"}, "--ddtree-model"),
        ({"server": "sglang", "model": "/m"}, "--ddtree-draft-model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_options_that_contradict_each_other_are_refused(given_options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        settings(**given_options)


def test_names_are_unique_and_every_option_has_help() -> None:
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS)
    assert all(len(option.help) > 15 for option in OPTIONS)
    assert set(BY_FIELD) == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.default is not None], ids=lambda o: o.name)
def test_every_default_is_a_value_that_the_option_takes(option) -> None:
    parse_value(option, option.default, source="default")


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=6, unique=True))
def test_budgets_come_back_as_given(values: list[int]) -> None:
    assert settings(budget=",".join(map(str, values))).budget == tuple(values)


@given(st.text(max_size=20))
@example("~0")
@example("0\x1f")
@example("a\0b")
@example("\ud800")
def test_whatever_is_typed_is_taken_or_refused_by_name(text: str) -> None:
    for option in OPTIONS:
        refusal = ""
        try:
            parse_value(option, text, source="here")
        except OptionError as error:
            refusal = str(error)
        assert not refusal or option.flag in refusal


def test_what_no_record_can_hold_is_refused_whatever_the_option() -> None:
    for option in OPTIONS:
        with pytest.raises(OptionError) as caught:
            parse_value(option, "/tmp/x\udcff", source="command line")
        said = str(caught.value)
        assert said.startswith(option.flag)
        assert "is no UTF-8" in said
        assert ("/tmp/x" in said) == (option.name != "api-key")
        said.encode()


@pytest.mark.parametrize("name", ["results", "records", "html", "expected", "python", "sglang_src", "trace"])
def test_a_home_that_no_record_can_hold_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/tmp/x\udcff")
    with pytest.raises(OptionError, match="is no UTF-8"):
        settings(**{name: "~/y"})


def test_the_key_is_not_shown() -> None:
    assert "s3cret" not in repr(settings(api_key="s3cret"))


@pytest.mark.parametrize("field", ["server_args", "spec_args", "baseline_args"])
@pytest.mark.parametrize("words", ["--port 99999", "--port=0", "--tp 2 --nccl-port x", "--port"])
def test_what_is_no_port_is_refused_before_a_server_gets_it(field: str, words: str) -> None:
    with pytest.raises(OptionError, match="port takes a port, a number from 1 to 65535"):
        settings(**{field: words})
    assert settings(**{field: "--tp 2 --port 30000 --report-port-x y"}) is not None

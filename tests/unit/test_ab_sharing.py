"""Which builds can be up at once: what each server takes of a GPU that all share, and its port."""

from __future__ import annotations

import pytest

from pytest_ddtree.ab_sharing import check_sharing
from pytest_ddtree.options import make_settings
from pytest_ddtree.results.builds import BuildError, parse_builds

SGLANG = {"server": "sglang", "model": "/m", "draft_model": "/d"}


def check(at_once: str = "true", **given: str) -> None:
    texts = {"ab_at_once": at_once, "build": "a=args:\nb=args:", **given}
    settings = make_settings({name: (text, "test") for name, text in texts.items()})
    check_sharing(settings, parse_builds(settings.build, None))


@pytest.mark.parametrize(
    ("given", "greedy"),
    [
        ({}, "a, b"),
        (
            {
                "server_args": "--tp 2",
                "build": "a=args:--mem-fraction-static=0.4\nb=args:--max-total-token 9",
            },
            "b",
        ),
        ({"build": "a=args:--x 1\nb=args:--mem-fraction-static 0.4"}, "a"),
        ({"spec_args": "--mem-fraction-static 0.4"}, "a, b"),
        ({"baseline_args": "--max-total-tokens 9", "build": "a=args:\nb=args:--max-total-tokens 9"}, "a"),
    ],
)
def test_each_server_must_leave_memory_to_the_others(given: dict[str, str], greedy: str) -> None:
    with pytest.raises(BuildError, match=rf"--mem-fraction-static .*no such argument: {greedy}\)"):
        check(**SGLANG, **given)
    check("false", **SGLANG, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"server_args": "--mem-fraction-static 0.9"},
        {"server_args": "--mem-fraction-static=0.51"},
        {"server_args": "--mem-fraction-static 0.4", "build": "a=args:\nb=args:--mem-fraction-static 0.6"},
        {"server_args": "--mem-fraction-static 0.4", "baseline_args": "--mem-fraction-static 0.6"},
        {
            "server_args": "--mem-fraction-static 0.5",
            "build": "a=args:--max-total-tokens 9\nb=args:\nc=args:",
        },
    ],
)
def test_a_share_that_leaves_too_little_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(BuildError, match="of its free memory"):
        check(**SGLANG, **given)
    check("false", **SGLANG, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"server_args": "--mem-fraction-static=0.5"},
        {"build": "a=args:--mem-fraction-static=0.4\nb=args:--max-total-tokens 9"},
        {"spec_args": "--mem-fraction-static 0.4", "baseline_args": "--mem-fraction-static 0.4"},
        {"server_args": "--mem-fraction-static 0.8 --max-total-tokens 60000"},
        {"server_args": "--mem-fraction-static 0.9", "build": "a=args:--mem-fraction-static .4\nb=args:--mem-fraction-static .4"},
        {"server_args": "--mem-fraction-static much"},
        {"server_args": "--mem-fraction-static"},
    ],
)  # fmt: skip
def test_servers_that_share_are_let_in(given: dict[str, str]) -> None:
    check(**SGLANG, **given)


@pytest.mark.parametrize("server", [SGLANG, {}])
def test_builds_that_are_up_at_once_have_ports_of_their_own(server: dict[str, str]) -> None:
    small = "--max-total-tokens 9000"
    with pytest.raises(BuildError, match="servers of a and b up at once, and both would have port 30000"):
        check(**server, server_args=f"{small} --port 30000")
    check("false", **server, server_args=f"{small} --port 30000")
    check(**server, server_args=small, build="a=args:--port 30000\nb=args:--port 30001")
    with pytest.raises(BuildError, match="port 30001"):
        check(**server, server_args=small, spec_args="--port 30001", build="a=args:--port 30000\nb=args:")

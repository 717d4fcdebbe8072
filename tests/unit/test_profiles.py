"""What a profile sets, that an option wins over it, and that the page says so."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.options import OptionError, Settings, make_settings
from pytest_ddtree.profiles import EMBEDDED, PROFILES, REAL, TABLE, Amounts, Profile, spelled

PAGE = Path(__file__).parents[2] / "docs" / "measuring.md"
NAMES = [one.name for one in fields(Amounts)]


def settings(**given: str) -> Settings:
    return make_settings({name: (text, "command line") for name, text in given.items()})


def rows() -> list[str]:
    """The table of the page."""
    heads = [f"{profile}, {sort}" for sort in (EMBEDDED, REAL) for profile in PROFILES]
    lines = ["| option | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in NAMES:
        cells = [
            spelled(getattr(TABLE[(sort, profile)], name))
            for sort in (EMBEDDED, REAL)
            for profile in PROFILES
        ]
        lines.append(f"| `--ddtree-{name.replace('_', '-')}` | " + " | ".join(cells) + " |")
    return lines


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("sort", "server"), [(EMBEDDED, {}), (REAL, {"url": "http://a"})])
def test_a_profile_sets_everything_that_no_option_says(
    profile: Profile, sort: str, server: dict[str, str]
) -> None:
    made = settings(profile=profile, **server)
    assert made.profile == profile
    assert {name: getattr(made, name) for name in NAMES} == {
        name: getattr(TABLE[(sort, profile)], name) for name in NAMES
    }


def test_gate_is_the_default() -> None:
    assert settings() == settings(profile="gate")
    assert settings(url="http://a") == settings(profile="gate", url="http://a")


@given(
    profile=st.sampled_from(PROFILES),
    name=st.sampled_from([name for name in NAMES if name not in ("rounds", "min_rounds")]),
    embedded=st.booleans(),
)
def test_an_option_wins_alone(profile: Profile, name: str, embedded: bool) -> None:
    texts = {
        "precision": "0.007",
        "client_lag": "0.007",
        "workload": "edit",
        "temperature": "0.7",
        "cache": "warm",
    }
    text = texts.get(name, "7")
    server = {} if embedded else {"url": "http://a"}
    made = settings(profile=profile, **server, **{name: text})
    table = TABLE[(EMBEDDED if embedded else REAL, profile)]
    for other in NAMES:
        value = spelled(getattr(made, other))
        assert value == (text if other == name else spelled(getattr(table, other)))


@given(profile=st.sampled_from(PROFILES), rounds=st.integers(2, 60))
def test_rounds_that_are_given_win_over_the_fewest_of_the_profile(profile: Profile, rounds: int) -> None:
    made = settings(profile=profile, rounds=str(rounds))
    assert made.rounds == rounds
    assert made.min_rounds == min(TABLE[(EMBEDDED, profile)].min_rounds, rounds)
    made = settings(profile=profile, min_rounds=str(rounds))
    assert made.min_rounds == rounds
    assert made.rounds == max(TABLE[(EMBEDDED, profile)].rounds, rounds)


def test_profiles_grow() -> None:
    for sort in (EMBEDDED, REAL):
        for less, more in (("smoke", "gate"), ("gate", "full")):
            small, large = TABLE[(sort, less)], TABLE[(sort, more)]
            assert set(small.context) <= set(large.context)
            assert set(small.concurrency) <= set(large.concurrency)
            assert small.output <= large.output
            assert small.rounds <= large.rounds
            assert small.exactness_prompts <= large.exactness_prompts


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(OptionError, match="takes one of smoke, gate, full"):
        settings(profile="nightly")


def test_the_page_has_the_table() -> None:
    assert "\n".join(rows()) in PAGE.read_text("utf-8"), "docs/measuring.md should hold:\n" + "\n".join(
        rows()
    )


if __name__ == "__main__":
    print("\n".join(rows()))

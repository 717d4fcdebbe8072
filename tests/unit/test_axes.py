"""Workloads, temperatures and cache states as axes: what is taken, what is refused, and the cells that they become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.axes import CACHES, CLASSES
from pytest_ddtree.grid import CellKey
from pytest_ddtree.matrix import cells_of, sampling_of
from pytest_ddtree.model_files import model_facts
from pytest_ddtree.options import OptionError, Settings, make_settings, settings_json
from pytest_ddtree.results.fingerprint import session_fingerprint
from pytest_ddtree.results.selectors import parse_selector


def settings(**given: str) -> Settings:
    return make_settings({name: (text, "command line") for name, text in given.items()})


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "My questions.jsonl"
    path.write_text('{"prompt": "What is a tree?"}\n')
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": 1})
    )
    return folder


def test_the_default_is_one_cell_a_context_and_concurrency() -> None:
    assert [cell.id for cell in cells_of(settings(context="60,512", concurrency="1,8"))] == [
        *("ctx60-c1", "ctx60-c8", "ctx512-c1", "ctx512-c8"),
    ]


def test_every_axis_multiplies_and_shows_in_the_id(questions: Path) -> None:
    made = settings(
        context="512",
        concurrency="4",
        workload=f"code,edit:{questions}",
        temperature="0,0.6",
        cache="flushed,warm",
    )
    assert [cell.id for cell in cells_of(made)] == [
        "ctx512-c4",
        "ctx512-c4-warm",
        "ctx512-c4-t0.6",
        "ctx512-c4-t0.6-warm",
        "ctx512-c4-my_questions",
        "ctx512-c4-my_questions-warm",
        "ctx512-c4-my_questions-t0.6",
        "ctx512-c4-my_questions-t0.6-warm",
    ]
    assert made.workload[1].documents == "edit"
    assert settings_json(made)["workload"] == ["code", f"edit:{questions}"]


def test_the_models_own_sampling_comes_with_its_top_p(model: Path) -> None:
    made = settings(context="512", concurrency="4", temperature="0,0.6,model", model=str(model))
    own = cells_of(made)[-1]
    assert [cell.id for cell in cells_of(made)] == ["ctx512-c4", "ctx512-c4-t0.6", "ctx512-c4-tmodel"]
    assert (own.temperature, own.conditions) == (0.6, "code, temperature 0.6 (model's own sampling)")
    recommended = model_facts(made).sampling
    assert sampling_of(own, recommended) == {"top_p": 0.95, "top_k": 20}
    assert sampling_of(cells_of(made)[1], recommended) == {}


def test_a_checkpoint_that_recommends_nothing_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"--ddtree-temperature model: .*give a number"):
        cells_of(settings(temperature="model"))
    assert [
        cell.id for cell in cells_of(settings(context="60", concurrency="1", temperature="0,model?"))
    ] == ["ctx60-c1"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("workload", "prose", "there is no file prose"),
        ("workload", "code,code", "twice"),
        ("workload", "", "is empty"),
        ("temperature", "-1", "numbers from 0 to 10"),
        ("temperature", "nan", "numbers from 0 to 10"),
        ("temperature", "hot", "generation_config.json"),
        ("temperature", "0,0.0", "twice"),
        ("cache", "cold", "flushed, warm, untouched"),
    ],
)
def test_what_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        settings(**{name: text})


def test_a_file_whose_name_would_be_taken_for_something_else_is_refused(tmp_path: Path) -> None:
    for stem in ("warm", "code", "t0.6", "c8"):
        path = tmp_path / f"{stem}.jsonl"
        path.write_text('"a"\n')
        with pytest.raises(OptionError, match="rename the file"):
            settings(workload=str(path))


def test_two_files_of_one_name_are_refused(tmp_path: Path, questions: Path) -> None:
    other = tmp_path / "my questions.txt"
    other.write_text("What?")
    with pytest.raises(OptionError, match="two workloads named my_questions"):
        settings(workload=f"{questions},{other}")


def test_the_contents_of_a_file_are_part_of_the_fingerprint(questions: Path) -> None:
    def values() -> object:
        made = settings(workload=f"code,{questions}")
        return session_fingerprint(made, model_facts(made), date="", machine={}).get(
            "axis.workload.my_questions"
        )

    before = values()
    assert before is not None
    questions.write_text('{"prompt": "What is a chain?"}\n')
    assert values() not in (None, before)


KEYS = st.builds(
    CellKey,
    st.integers(1, 10**5),
    st.integers(1, 4096),
    st.sampled_from([*CLASSES, "my_file", "a.b"]),
    st.sampled_from([0.0, 0.6, 0.7, 1.0]),
    st.just(""),
    st.sampled_from(CACHES),
)


@given(KEYS, KEYS)
def test_ids_are_unique_and_select_their_cell(one: CellKey, other: CellKey) -> None:
    assert (one.id == other.id) == (one == other)
    assert parse_selector(one.id).takes("b8-k4-wnone", one)

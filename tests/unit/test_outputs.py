"""Places that a session will write to at its end are refused at its start, and nothing is left there by asking."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddtree.options import OptionError, make_settings
from pytest_ddtree.outputs import check_outputs

NO_FILES = Path("/proc")
"""Root may write here by its permissions, and yet there can be no file."""


def check(**given: str) -> None:
    check_outputs(make_settings({name: (text, "command line") for name, text in given.items()}))


@pytest.mark.parametrize("name", ["results", "records", "write_samples", "html", "expected"])
@pytest.mark.parametrize("inside", ["x", "x/y/z.json"])
def test_a_place_that_takes_no_files_is_refused_by_option(name: str, inside: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for where in (NO_FILES, tmp_path / "file"):
        given = {name: str(where / inside), **({"update_new": "true"} if name == "expected" else {})}
        if where != NO_FILES and (name, inside) == ("expected", "x"):
            continue  # a directory of figures that is a file is refused when it is read
        with pytest.raises(OptionError, match=rf"--ddtree-{name.replace('_', '-')} .*{where}"):
            check(**given)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["results", "records", "write_samples", "html", "expected"])
def test_a_plan_writes_nothing_and_needs_no_place_that_can_be_written(name: str, tmp_path: Path) -> None:
    more = {"update_new": "true"} if name == "expected" else {}
    check(**{name: str(NO_FILES / "x.json"), "plan": "true"}, **more)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OptionError, match="is no directory"):
        check(**{name: str(tmp_path / "file" / "deeper" / "x.json"), "plan": "true"}, **more)


def test_an_html_report_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a directory; it takes a file"):
        check(html=str(tmp_path))


def test_figures_that_are_only_read_may_lie_anywhere() -> None:
    check(expected=str(NO_FILES / "version"))


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    new = str(tmp_path / "new" / "deeper")
    check(results=new, records=new, html=f"{new}/r.html", expected=f"{new}/e.json", update_expected="true")
    assert not list(tmp_path.iterdir())

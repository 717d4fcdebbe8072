from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import CellFigures, Round
from pytest_ddtree.results.store import Store, StoreCorrupt, parse, refuse_in_use


def a_round(number: int = 0, **changes: object) -> Round:
    fields = {
        "config": "b8-k4-wnone",
        "key": CellKey(60, 4),
        "number": number,
        "requests": 4,
        "tokens": 256,
        "wall_s": 0.5,
        "ttft_s": (0.01, 0.02, 0.03, 0.04),
        "time_per_token_s": (0.002,) * 4,
        "latency_s": (0.2,) * 4,
        "verify_steps": 64,
        "cached_tokens": 0,
        "decode_tok_s": 600.0,
    }
    return Round(**{**fields, **changes})  # type: ignore[arg-type]


@given(st.text(st.characters() | st.characters(categories=["Cs"])), st.booleans())
def test_half_letters_are_kept_as_escapes(text: str, nested: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.jsonl")
        with Store(path) as store:
            store.append("test", **({"some": {text: [(text, 1, None)]}} if nested else {"text": text}))
            kept = list(store.records)
        stored = parse(path.read_bytes(), "results.jsonl")
    escaped = text.encode(errors="backslashreplace").decode()
    assert list(stored.records) == kept
    assert stored.torn == 0
    assert kept[0]["some" if nested else "text"] == ({escaped: [[escaped, 1, None]]} if nested else escaped)


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    with Store(path) as store:
        store.append("round", round=a_round().as_json())
        store.append("note", text="Ünïcode")
    with Store(path) as store:
        assert [record["kind"] for record in store.records] == ["round", "note"]
        assert Round.from_json(store.records[0]["round"]) == a_round()
        assert store.torn == 0


def test_a_file_cut_at_every_byte_of_its_last_record_loses_that_record_only(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("first", value=1)
        keep = path.stat().st_size
        store.append("second", text="Ünï\n", value=[1.5, None])
    whole = path.read_bytes()
    for cut in range(keep, len(whole)):
        path.write_bytes(whole[:cut])
        with Store(path) as store:
            assert [record["kind"] for record in store.records] == ["first"]
            assert store.torn == cut - keep
            store.append("third")
        assert [record["kind"] for record in parse(path.read_bytes(), "x").records] == ["first", "third"]


@pytest.mark.parametrize(
    "line", [b"{]", b"[]", b'{"kind": 1}', b'{"schema": 1}', b'{"schema": 99, "kind": "x"}', b"", b"\xff\xfe"]
)
def test_a_broken_line_is_named_and_the_file_is_never_rewritten(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "results.jsonl"
    data = b'{"schema":1,"kind":"a"}\n' + line + b'\n{"schema":1,"kind":"b"}\n'
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"results\.jsonl, line 2"):
        Store(path)
    assert path.read_bytes() == data


def test_two_writers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path), pytest.raises(StoreCorrupt, match="another process"):
        Store(path)
    with Store(path), pytest.raises(StoreCorrupt, match="another process"):
        refuse_in_use(path)
    refuse_in_use(path)
    with Store(path):
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        stored = parse(data, "x")
    except StoreCorrupt:
        return
    assert stored.whole_bytes + stored.torn == len(data)


def test_figures_are_those_of_the_rounds() -> None:
    figures = CellFigures(
        config="b8-k4-wnone",
        key=CellKey(60, 4),
        rounds=(a_round(0), a_round(1, wall_s=1.0), a_round(2, verify_steps=128)),
    )
    assert figures.tok_s_rounds == (512.0, 256.0, 512.0)
    assert figures.tokens == 768
    assert figures.requests == 12
    assert figures.accept_length == 768 / 256
    assert figures.ttft_s.p50 == pytest.approx(0.025)
    assert figures.tok_s.low < figures.tok_s.value < figures.tok_s.high


def test_a_round_without_verify_steps_leaves_no_accept_length() -> None:
    figures = CellFigures(config="x", key=CellKey(60, 4), rounds=(a_round(0), a_round(1, verify_steps=None)))
    assert figures.accept_length is None


def test_a_full_disk_is_told_with_its_place_and_leaves_whole_records(tmp_path: Path) -> None:
    """The kernel itself refuses what is beyond a limit on the size of files, in the middle of a record."""
    path = tmp_path / "results.jsonl"
    program = f"""
import resource
from pathlib import Path
from pytest_ddtree.errors import NotKept
from pytest_ddtree.results.store import Store
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
store, said = Store(Path({str(path)!r})), []
for number in range(5):
    try:
        store.append("note", number=number, text="x" * 900)
    except NotKept as error:
        said.append(str(error))
print(len(store.records), len(said), *set(said))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"3 2 {path}: cannot be written (File too large)")
    stored = parse(path.read_bytes(), "results.jsonl")
    assert stored.torn == 0
    assert [record["number"] for record in stored.records] == [0, 1, 2]

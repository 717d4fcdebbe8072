"""Stored baseline records: they come back as they were, and foreign ones are refused by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.baseline import measure_floor
from pytest_ddtree.exactness.fingerprint import (
    UNKNOWN,
    Fingerprint,
    prompts_digest,
    tokenizer_digest,
    weights_digest,
)
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.levels import collect, first_divergence
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt
from pytest_ddtree.exactness.store import RecordsRefused, load_records, save_records

from .tableserver import TableServer

HERE = Fingerprint(
    tokenizer="t1", weights="w1", build="base", arguments="dtype=bfloat16", prompts="p1", gpu="NVIDIA H200"
)


@pytest.fixture(scope="module")
async def recorded(prompts: list[Prompt]) -> tuple[BaselineAnswers, NoiseFloor]:
    with TableServer() as server:
        async with AsyncClient(server.url) as client:
            return await measure_floor(client, prompts, output=8, concurrencies=(1, 4), record_top=6)


async def test_records_come_back_as_they_were(
    tmp_path: Path, prompts: list[Prompt], recorded: tuple[BaselineAnswers, NoiseFloor]
) -> None:
    path = save_records(tmp_path / "r", HERE, prompts, *recorded, now=datetime(2026, 1, 2, tzinfo=UTC))
    stored = load_records(tmp_path / "r", HERE, prompts)
    assert stored is not None
    assert path.name == "baseline-p1-base.jsonl"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert stored.made == "2026-01-02T00:00:00+00:00"
    assert stored.floor == recorded[1]
    assert stored.answers.scores == recorded[0].scores
    with TableServer() as server:
        async with AsyncClient(server.url) as client:
            records = await collect(client, prompts, output=8, concurrency=4)
    before, after = (first_divergence(prompts, records, a) for a in (recorded[0], stored.answers))
    assert before == after
    assert all(answer.identical for answer in after)
    for prompt in prompts:
        old, new = recorded[0].records[prompt.tag], stored.answers.records[prompt.tag]
        assert (old.output_ids, old.text, old.finish_reason) == (new.output_ids, new.text, new.finish_reason)
        assert (old.prompt_tokens, old.completion_tokens) == (new.prompt_tokens, new.completion_tokens)


@pytest.mark.parametrize("field", ["tokenizer", "weights", "build", "arguments", "prompts", "gpu"])
async def test_foreign_records_are_refused_by_name(
    tmp_path: Path, prompts: list[Prompt], recorded: tuple[BaselineAnswers, NoiseFloor], field: str
) -> None:
    save_records(tmp_path, replace(HERE, **{field: "other"}), prompts, *recorded)
    with pytest.raises(RecordsRefused, match=rf"{field}: recorded other, here {getattr(HERE, field)}"):
        load_records(tmp_path, HERE, prompts)


async def test_a_patched_build_is_judged_by_another_builds_records_only_when_that_build_is_named(
    tmp_path: Path, prompts: list[Prompt], recorded: tuple[BaselineAnswers, NoiseFloor]
) -> None:
    save_records(tmp_path, HERE, prompts, *recorded)
    patched = replace(HERE, build="patched")
    with pytest.raises(RecordsRefused, match="--ddtree-records-from-build"):
        load_records(tmp_path, patched, prompts)
    with pytest.raises(RecordsRefused, match="build: recorded base, here older"):
        load_records(tmp_path, patched, prompts, from_build="older")
    stored = load_records(tmp_path, patched, prompts, from_build="base")
    assert stored is not None
    assert stored.fingerprint.build == "base"
    with pytest.raises(RecordsRefused, match="gpu: recorded NVIDIA H200, here L4"):
        load_records(tmp_path, replace(patched, gpu="L4"), prompts, from_build="base")


async def test_the_closest_of_several_is_named_and_the_right_one_is_found(
    tmp_path: Path, prompts: list[Prompt], recorded: tuple[BaselineAnswers, NoiseFloor]
) -> None:
    save_records(tmp_path, replace(HERE, build="x", gpu="L4", weights="w9"), prompts, *recorded)
    save_records(tmp_path, replace(HERE, build="y"), prompts, *recorded)
    with pytest.raises(RecordsRefused, match=r"baseline-p1-y.*build: recorded y, here base \(1 further"):
        load_records(tmp_path, HERE, prompts)
    save_records(tmp_path, HERE, prompts, *recorded)
    assert load_records(tmp_path, HERE, prompts) is not None


def test_no_records_are_no_refusal(tmp_path: Path, prompts: list[Prompt]) -> None:
    assert load_records(tmp_path, HERE, prompts) is None
    assert load_records(tmp_path / "nowhere", HERE, prompts) is None


def _cut(lines: list[str]) -> list[str]:
    return lines[:-1]


def _half(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]


def _edited(lines: list[str]) -> list[str]:
    value = json.loads(lines[4])
    value["scores"][0][1] -= 0.5
    return [*lines[:4], json.dumps(value) + "\n", *lines[5:]]


def _headless(lines: list[str]) -> list[str]:
    return ["[]\n", *lines[1:]]


def _longer(lines: list[str]) -> list[str]:
    return [*lines, lines[-1]]


def _old(lines: list[str]) -> list[str]:
    return [lines[0].replace('"schema":3', '"schema":2'), *lines[1:]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_cut, "line 13: missing, the file ends after 12 lines: it was cut off"),
        (_half, "line 13: half-written"),
        (_edited, "line 5: edited"),
        (_headless, "line 1: no record of a baseline"),
        (_longer, "line 14: more lines than the 12 answers that line 1 announces"),
        (_old, "line 1: edited"),
        (lambda lines: [], "line 1: missing"),
    ],
)
async def test_broken_files_are_refused_with_file_and_line(
    tmp_path: Path,
    prompts: list[Prompt],
    recorded: tuple[BaselineAnswers, NoiseFloor],
    spoil: Callable[[list[str]], list[str]],
    said: str,
) -> None:
    path = save_records(tmp_path, HERE, prompts, *recorded)
    path.write_text("".join(spoil(path.read_text("utf-8").splitlines(keepends=True))), "utf-8")
    with pytest.raises(RecordsRefused) as refused:
        load_records(tmp_path, HERE, prompts)
    assert f"{path}, {said}" in str(refused.value)
    assert "Remove the file" in str(refused.value)
    assert "--ddtree-records-from-build" not in str(refused.value), "no option mends a broken file"


async def test_any_one_changed_character_is_seen(
    tmp_path: Path, prompts: list[Prompt], recorded: tuple[BaselineAnswers, NoiseFloor]
) -> None:
    path = save_records(tmp_path, HERE, prompts, *recorded)
    good = path.read_text("utf-8")
    chance = Random(1)
    for _ in range(40):
        at = chance.randrange(len(good))
        path.write_text(f"{good[:at]}{'7' if good[at] != '7' else '3'}{good[at + 1 :]}", "utf-8")
        with pytest.raises(RecordsRefused):
            load_records(tmp_path, HERE, prompts)


async def test_builds_are_known_by_name_and_by_the_start_of_their_revision(
    tmp_path: Path, prompts: list[Prompt], recorded: tuple[BaselineAnswers, NoiseFloor]
) -> None:
    save_records(tmp_path, replace(HERE, build="1a2b3c4d5e6f+cafe"), prompts, *recorded, name="main")
    for wanted in ("main", "1a2b3c4d5e6f+cafe", "1a2b3c4"):
        assert load_records(tmp_path, HERE, prompts, from_build=wanted) is not None
    for wanted in ("1a2b", "mai", "cafe"):
        with pytest.raises(RecordsRefused, match="build: recorded 1a2b3c4d5e6f"):
            load_records(tmp_path, HERE, prompts, from_build=wanted)


def test_records_of_a_named_build_that_are_not_there_are_refused(
    tmp_path: Path, prompts: list[Prompt]
) -> None:
    """Silence would record the patched build's own answers and judge it by them."""
    with pytest.raises(RecordsRefused, match=r"no baseline records in .* so none of build 'base'"):
        load_records(tmp_path, HERE, prompts, from_build="base")


def checkpoint(folder: Path, shape: int = 4, tail: bytes = b"\0" * 16) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [shape], "data_offsets": [0, 2 * shape]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + tail)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


def test_weights_are_told_apart_by_headers_sizes_config_and_revision(tmp_path: Path) -> None:
    first = weights_digest(checkpoint(tmp_path / "a"))
    assert first == weights_digest(checkpoint(tmp_path / "b"))
    assert first != weights_digest(checkpoint(tmp_path / "c", shape=5))
    assert first != weights_digest(checkpoint(tmp_path / "d", tail=b"\0" * 18))
    hub = checkpoint(tmp_path / "hub" / "snapshots" / "0f3e")
    assert first != weights_digest(hub)
    (tmp_path / "a" / "config.json").write_text("{}")
    assert first != weights_digest(tmp_path / "a")
    assert weights_digest(tmp_path / "nowhere") == UNKNOWN


def test_weights_themselves_are_not_read(tmp_path: Path) -> None:
    assert weights_digest(checkpoint(tmp_path / "a")) == weights_digest(
        checkpoint(tmp_path / "b", tail=b"\1" * 16)
    )


def test_tokenizers_and_prompts_are_told_apart(tmp_path: Path, prompts: list[Prompt]) -> None:
    first = tokenizer_digest(checkpoint(tmp_path / "a"))
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    assert first != tokenizer_digest(tmp_path / "a")
    assert tokenizer_digest(tmp_path) == UNKNOWN
    digest = prompts_digest(prompts, output=8, top=20)
    assert digest == prompts_digest(list(prompts), output=8, top=20)
    others = [prompts[::-1], prompts[1:], [Prompt("x", prompts[0].ids), *prompts[1:]]]
    assert all(prompts_digest(other, output=8, top=20) != digest for other in others)
    assert prompts_digest(prompts, output=9, top=20) != digest

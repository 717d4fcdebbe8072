"""What the model's own files say, and the rule that follows from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.exactness_rule import rule_of
from pytest_ddtree.model_files import model_facts
from pytest_ddtree.options import make_settings


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_experts": 128, "num_experts_per_tok": 8}, True),
        ({"num_local_experts": 8}, True),
        ({"n_routed_experts": 256, "n_shared_experts": 1}, True),
        ({"text_config": {"num_experts": 64}}, True),
        ({"num_experts": 1}, False),
        ({"num_experts": None, "text_config": None}, False),
        ({"vocab_size": 7}, False),
    ],
)
def test_a_model_with_experts_is_known_by_its_config(
    tmp_path: Path, config: dict[str, Any], experts: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = model_facts(make_settings({"model": (str(tmp_path), "here")}))
    assert facts.experts is experts
    assert model_facts(make_settings({})).experts is False


@pytest.mark.parametrize(
    ("asked", "float32", "experts", "least"),
    [
        ("auto", False, True, 8.0),
        ("auto", False, False, 1.0),
        ("auto", True, True, 1e-3),
        ("2.5", False, True, 2.5),
        ("2.5", True, False, 2.5),
    ],
)
def test_the_least_gap_is_the_options_else_that_of_arithmetic_and_model(
    asked: str, float32: bool, experts: bool, least: float
) -> None:
    settings = make_settings({"gap_min": (asked, "here"), "alpha": ("0.01", "here")})
    rule = rule_of(settings, configs=4, float32=float32, experts=experts)
    assert rule.gap_min == least
    assert rule.alpha == pytest.approx(0.0025)

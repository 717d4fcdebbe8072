"""Which conditions a matched baseline takes over from the speculative servers, and which differences bear on exactness."""

from __future__ import annotations

from pytest_ddtree.dialects.conditions import carried, unmatched
from pytest_ddtree.dialects.effective import UNKNOWN, EffectiveConfig, Value, differences, from_values
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.unlike import Conditions

CHAIN, TREE = Config("chain"), Config("tree", 8, 4)


def seen(**values: Value) -> EffectiveConfig:
    return from_values("http", values)


def test_conditions_are_carried_and_speculation_is_not() -> None:
    args = [
        "--page-size",
        "1",
        "--page-size=64",
        "--speculative-eagle-topk",
        "4",
        "--disable-radix-cache",
        "--tp-size",
        "2",
    ]
    assert carried(args, (), ()) == ("--disable-radix-cache", "--page-size", "64")
    assert carried(args, ("--page-size", "64", "--disable-radix-cache"), ()) == (), "all servers have it so"
    assert carried(args, ("--page-size", "1"), ("--disable-radix-cache",)) == ("--page-size", "64")
    assert carried(args, (), ("--page-size=1",)) == ("--disable-radix-cache",)
    assert carried(("--page-size",), (), ()) == (), "the server itself refuses a flag without its value"


def test_only_what_both_say_and_kernels_depend_on_bears_on_exactness() -> None:
    left = seen(attention_backend="fa3", radix_cache=False, seed=1, page_size=1, cuda_graph=True)
    right = seen(attention_backend="triton", radix_cache=True, seed=2, page_size=UNKNOWN, cuda_graph=True)
    text = unmatched(differences(left, right))
    assert text is not None
    assert "(attention_backend: fa3 against triton; radix_cache: off against on)" in text
    assert text.endswith("--ddtree-server-args '--attention-backend fa3 --disable-radix-cache'")
    assert unmatched(differences(seen(seed=1, max_running_requests=48), seen(seed=2))) is None


def test_a_pair_is_compared_whichever_came_up_first() -> None:
    fa3, triton = seen(attention_backend="fa3"), seen(attention_backend="triton")
    conditions = Conditions()
    assert conditions.note(CHAIN, "matched", fa3) == []
    (one,) = conditions.note(BASELINE, "matched", triton)
    assert (one.config, one.variant) == (CHAIN, "matched")
    assert one.warning is not None
    assert conditions.note(BASELINE, "matched", triton) == [], "said once"
    (best,) = conditions.note(BASELINE, "best", triton)
    assert (best.config, best.variant, best.warning) == (CHAIN, "best", None)
    assert [each.config for each in conditions.note(TREE, "matched", fa3)] == [TREE, TREE]
    assert conditions.note(Config("tree", 16, 4), "matched", triton) == []

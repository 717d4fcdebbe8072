"""Conditions that a speculative server and its matched baseline must have alike: which flags set them, and what to do where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pytest_ddtree.dialects.base import value
from pytest_ddtree.dialects.effective import UNKNOWN, Difference, show

VALUED: Final = (
    "--attention-backend",
    "--prefill-attention-backend",
    "--decode-attention-backend",
    "--sampling-backend",
    "--kv-cache-dtype",
    "--dtype",
    "--page-size",
    "--mem-fraction-static",
    "--max-running-requests",
    "--max-total-tokens",
    "--context-length",
    "--chunked-prefill-size",
    "--random-seed",
    "--cuda-graph-max-bs",
    "--cuda-graph-max-bs-decode",
)
"""Flags with one value."""
SWITCHES: Final = (
    "--disable-radix-cache",
    "--disable-overlap-schedule",
    "--disable-cuda-graph",
    "--disable-cuda-graph-padding",
    "--enable-deterministic-inference",
    "--incremental-streaming-output",
)


def carried(
    spec_args: Sequence[str], server_args: Sequence[str], baseline_args: Sequence[str]
) -> tuple[str, ...]:
    """The conditions that the user gave to the speculative servers alone, for their matched baseline: they go after `server_args`.

    Left out is what `baseline_args` set, and what `server_args` have just so (else equal servers had unequal command lines, and the
    best baseline a start of its own). The build has every flag that comes out: the user gives it to a server of the same build.
    """
    given = {arg.partition("=")[0] for arg in spec_args} - {arg.partition("=")[0] for arg in baseline_args}
    found: list[str] = [flag for flag in SWITCHES if flag in given and flag not in server_args]
    for flag in VALUED:
        wanted = value(spec_args, flag) if flag in given else None
        if wanted is not None and wanted != value(server_args, flag):
            found += [flag, wanted]
    return tuple(found)


REMEDIES: Final = {
    "attention_backend": "--attention-backend",
    "prefill_attention_backend": "--prefill-attention-backend",
    "decode_attention_backend": "--decode-attention-backend",
    "page_size": "--page-size",
    "radix_cache": "--disable-radix-cache",
    "cuda_graph": "--disable-cuda-graph",
    "deterministic": "--enable-deterministic-inference",
}
"""Conditions that choose kernels or what a kernel sees, and the flag that makes them alike.

Each changes a healthy server's arithmetic, so that a gap between the two need not come from the tree.
"""


def unmatched(found: Iterable[Difference]) -> str | None:
    """The differences from a matched baseline that bear on exactness, and what to do; None where there is none.

    What one of the two does not say is no difference that is known.
    """
    bearing = [
        one for one in found if one.name in REMEDIES and one.left is not UNKNOWN and one.right is not UNKNOWN
    ]
    if not bearing:
        return None
    words = [
        REMEDIES[one.name]
        if isinstance(one.left, bool) or isinstance(one.right, bool)
        else f"{REMEDIES[one.name]} {show(one.left)}"
        for one in bearing
    ]
    return (
        f"its matched baseline runs under other conditions ({'; '.join(str(one) for one in bearing)}): what they differ by may be "
        f"arithmetic and not the tree. Give both the same, as in --ddtree-server-args '{' '.join(words)}'"
    )

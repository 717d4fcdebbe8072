"""A twin of a small Qwen3 checkpoint that computes the same function and reads far more: a realistic regime without a large model.

    python benchmarks/gpu/pad_checkpoint.py --target TARGET --draft DRAFT --out OUT [--layers 32] [--intermediate 655360]

Layers are appended whose output projections are zero, and every MLP is widened with zeros: the residual stream stays what it was,
while a step reads gigabytes of weights (24 GB with the defaults and the reference target). A 7M-parameter model is bound by
launches, so speculation loses on it and rounds are noisy; its twin is bound by memory, as large models are. `OUT/target` and
`OUT/draft` are ordinary checkpoints. The file of weights is sparse: the zeros take no room on the disk, but page cache and GPU
memory they do.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

ITEM = 2
"""Bytes of a bf16 number."""
ONE = b"\x80\x3f"
"""1.0 in bf16."""


def read(path: Path) -> tuple[dict[str, Any], dict[str, list[int]], dict[str, bytes]]:
    """Metadata, shapes and contents of a safetensors file. Raises ValueError for a tensor that is not bf16."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    head, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    meta = head.pop("__metadata__", {"format": "pt"})
    for name, one in head.items():
        if one["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {one['dtype']}; only bf16 checkpoints can be padded")
    shapes = {name: list(one["shape"]) for name, one in head.items()}
    data = {name: body[slice(*one["data_offsets"])] for name, one in head.items()}
    return meta, shapes, data


def append_layers(shapes: dict[str, list[int]], data: dict[str, bytes], old: int, new: int) -> None:
    """Layers `old` to `new` - 1 after the first one's pattern: norms of one, all else zero (no contents)."""
    pattern = [name for name in shapes if name.startswith("model.layers.0.")]
    for layer in range(old, new):
        for name in pattern:
            added = name.replace(".layers.0.", f".layers.{layer}.")
            shapes[added] = list(shapes[name])
            data[added] = ONE * shapes[name][0] if "norm" in name else b""


def write(
    path: Path, meta: dict[str, Any], shapes: dict[str, list[int]], data: dict[str, bytes], old_width: int
) -> int:
    """Write what is not zero at its place, and leave holes; returns the file's length in bytes.

    Rows of a `down_proj` are longer than they were, so each goes to a place of its own; everything else only has more rows.
    """
    table: dict[str, Any] = {"__metadata__": meta}
    offset = 0
    for name in sorted(shapes):
        end = offset + ITEM * math.prod(shapes[name])
        table[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    start = 8 + len(head)
    with path.open("wb") as sink:
        sink.write(struct.pack("<Q", len(head)) + head)
        sink.truncate(start + offset)
        for name in sorted(shapes):
            at, contents = start + table[name]["data_offsets"][0], data[name]
            row = ITEM * old_width if "down_proj" in name else len(contents)
            stride = ITEM * shapes[name][-1] if "down_proj" in name else 0
            for number in range(len(contents) // row if row else 0):
                sink.seek(at + number * stride)
                sink.write(contents[number * row : (number + 1) * row])
    return start + offset


def main() -> int:
    # Not at the top: the tests import this file from the repository's root.
    from arguments import checkpoint

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=checkpoint, required=True)
    parser.add_argument("--draft", type=checkpoint, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=32, help="of the twin, the original's included")
    parser.add_argument("--intermediate", type=int, default=655_360, help="intermediate size of the twin")
    options = parser.parse_args()
    target, draft = options.out / "target", options.out / "draft"
    if target.exists() or draft.exists():
        parser.error(f"--out {options.out}: there is a target or draft in it already")
    shutil.copytree(options.target, target, ignore=shutil.ignore_patterns("model.safetensors"))
    shutil.copytree(options.draft, draft)
    config = json.loads((options.target / "config.json").read_text())
    old_layers, old_width = config["num_hidden_layers"], config["intermediate_size"]
    if options.layers < old_layers or options.intermediate < old_width:
        parser.error(f"the checkpoint has {old_layers} layers of {old_width} already; a twin has no fewer")
    config |= {"num_hidden_layers": options.layers, "intermediate_size": options.intermediate}
    config |= {"layer_types": ["full_attention"] * options.layers, "max_window_layers": options.layers}
    (target / "config.json").write_text(json.dumps(config, indent=2))
    drafter = json.loads((options.draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(drafter | {"num_target_layers": options.layers}, indent=2))
    meta, shapes, data = read(options.target / "model.safetensors")
    for name in shapes:
        if ".mlp." in name:
            shapes[name] = [options.intermediate if size == old_width else size for size in shapes[name]]
    append_layers(shapes, data, old_layers, options.layers)
    size = write(target / "model.safetensors", meta, shapes, data, old_width)
    print(f"{size / 1e9:.1f} GB of weights in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

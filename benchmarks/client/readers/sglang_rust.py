"""sglang's Rust client, without the imports of its package (which needs none of them to run).

Usage: sglang_rust.py ITS ARGUMENTS
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

root = Path(sysconfig.get_paths()["platlib"]) / "sglang" / "srt" / "rust_extensions"
(found,) = root.glob("_bench*.so")
spec = importlib.util.spec_from_file_location("sglang.srt.rust_extensions._bench", found)
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_argv(["sglang-bench", *sys.argv[1:]])

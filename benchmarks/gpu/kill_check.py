"""Run pytest, send it a signal once its output shows a pattern, and watch what is left of it, on the host and on the GPUs.

    python benchmarks/gpu/kill_check.py --signal SIGKILL --when ": verifying" --out run.out -- \\
        python -m pytest bench -m bench --ddtree-server sglang ...

One JSON line says what ran when the signal went out, then one line each half second: pytest's exit code, how many of its
descendants live, and which of them hold GPU memory. It ends when nothing is left, at the latest after a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from arguments import leave, pattern, signal_named

MARK = re.compile(rb"PYTEST_DDTREE_(?:RUN|LAUNCH)=([^\0/]+)")
"""What the plugin writes into the environment of everything that it starts: an id that no other run has."""


def processes() -> dict[int, tuple[int, str]]:
    """Process id -> its parent and its state."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                found[int(folder.name)] = (int(parent), state)
    return found


def descendants(root: int) -> set[int]:
    """`root` and everything below it."""
    table, family = processes(), {root}
    while more := {pid for pid, (parent, _) in table.items() if parent in family} - family:
        family |= more
    return family


def marks(pids: set[int]) -> set[bytes]:
    """The run ids in the environments of these processes."""
    found: set[bytes] = set()
    for pid in pids:
        with suppress(OSError):
            found |= set(MARK.findall(Path(f"/proc/{pid}/environ").read_bytes()))
    return found


def living(family: set[int], ids: set[bytes]) -> set[int]:
    """Which of the family, or of whatever carries one of their ids, live: orphans have another parent by now."""
    return {
        pid
        for pid, (_, state) in processes().items()
        if state != "Z" and (pid in family or bool(marks({pid}) & ids))
    }


def on_gpu() -> set[int]:
    """Processes that hold GPU memory; empty without nvidia-smi."""
    with suppress(OSError):
        asked = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return {int(line) for line in said.split() if line.isdigit()}
    return set()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--signal", type=signal_named, default=signal.SIGKILL, metavar="NAME")
    parser.add_argument(
        "--when", type=pattern, required=True, help="regular expression that pytest's output must match"
    )
    parser.add_argument("--out", type=Path, required=True, help="file for pytest's output")
    parser.add_argument("--after", type=float, default=1.5, help="seconds between the match and the signal")
    parser.add_argument("--wait", type=float, default=600.0, help="longest wait for the match, in seconds")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command or shutil.which(command[0]) is None:
        parser.error(f"there is no program {command[0]!r}" if command else "no command is given after --")
    with options.out.open("wb") as sink:
        child = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    until = time.monotonic() + options.wait
    while child.poll() is None and time.monotonic() < until:
        if options.when.search(options.out.read_text(errors="replace")):
            break
        time.sleep(0.2)
    time.sleep(options.after)
    if child.poll() is not None:
        print(f"pytest ended before the signal: see {options.out}", file=sys.stderr)
        return 1
    family = descendants(child.pid)
    ids = marks(family)
    print(json.dumps({"ours": len(family), "ours_on_gpu": sorted(on_gpu() & family)}), flush=True)
    began = time.monotonic()
    child.send_signal(options.signal)
    while (seconds := time.monotonic() - began) < 60:
        code, left, held = child.poll(), living(family, ids) - {child.pid}, on_gpu() & family
        line = {
            "after_s": round(seconds, 2),
            "pytest_exit": code,
            "left": len(left),
            "on_gpu": sorted(held),
        }
        print(json.dumps(line), flush=True)
        if code is not None and not left and not held:
            return 0
        time.sleep(0.5)
    return 1


if __name__ == "__main__":
    leave(main)

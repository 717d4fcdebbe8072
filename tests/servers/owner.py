"""A process that owns a pool as pytest does, for tests that kill it: `python owner.py RUN_DIR SCRIPT_JSON ACTION`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pytest_ddtree.grid import Config  # noqa: E402
from pytest_ddtree.servers.lock import SharedLocks  # noqa: E402
from tests.servers import support  # noqa: E402


def main() -> None:
    run_dir, script, action = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    os.environ["TEST_RUN_DIR"] = str(run_dir)
    pool = support.pool(run_dir, script, stop_timeout_s=20.0)
    if action in ("ignore-signals-in-c", "several-pools"):
        # In C a handler never gets its turn, because the main thread never comes back.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
    if action == "handler":

        def stop(number: int, frame: object) -> None:
            pool.close()
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
    if action == "several-pools":
        locks = SharedLocks()
        others = [
            support.pool(run_dir / name, script, stop_timeout_s=20.0, locks=locks) for name in ("a", "b", "c")
        ]
        for other in others:
            other.wake_on_signals()
            other.get(Config("tree", 8, 4))
        print("ready", flush=True)
        while True:
            time.sleep(600)
    pool.wake_on_signals()
    print("starting", flush=True)
    pool.get(Config("tree", 8, 4))
    if action == "fork" and os.fork() == 0:
        # Holds every descriptor of its parent and outlives it, as a multiprocessing child does.
        time.sleep(120)
        os._exit(0)
    print("ready", flush=True)
    if action == "ignore-signals-in-c":
        import re

        re.match(r"(a*)*b", "a" * 40)
    if action == "exit":
        return
    time.sleep(600)


if __name__ == "__main__":
    main()

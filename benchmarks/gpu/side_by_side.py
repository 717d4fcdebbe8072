"""Servers side by side on one GPU, and pytest runs against their addresses: what would otherwise cost a start each.

    python benchmarks/gpu/side_by_side.py --plan plan.json --out OUT

The plan is JSON:

    {"servers": {"base": {"argv": ["python", "-m", "sglang.launch_server", ...], "env": {"PYTHONPATH": "..."}}, ...},
     "runs": [{"name": "healthy", "server": "tree", "baseline": "base", "pytest": ["bench", "-m", "exactness", ...],
               "timeout_s": 120, "after": ["other run"]}, ...]}

A run may also be any command: `"argv": ["python", "benchmarks/gpu/floors.py", "--server", "base={base}", ...]` with `"needs":
["base"]`, where a server's name in braces becomes its address.

`--host` and `--port` are added to each server's argv. A run begins once its servers are ready and the runs named in `after`
have ended, so that no two of them disturb each other where that matters; one without `baseline` judges a server by itself.
Nothing here asserts: `OUT/runs.json` says what came of each run, `OUT/<run>.out` what pytest printed, `OUT/<run>.xml` is its
JUnit report.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from pathlib import Path
from typing import Any

from arguments import leave, plan
from launching import Started, ending_with_the_script

_LEAVING_S = 20.0
"""How long a run may take to leave after SIGINT: it stops what it started."""


def verdicts(results: Path) -> list[dict[str, Any]]:
    """The verdicts stored under a results folder, in the order in which they were made."""
    found = []
    for file in sorted(results.glob("*/results.jsonl")):
        for line in file.read_text().splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                if record.get("kind") == "verdict" and "verdict" in record:
                    found.append({"clause": record.get("clause"), **_short(record["verdict"])})
    return found


def _short(verdict: dict[str, Any]) -> dict[str, Any]:
    keys = ("kind", "level", "off", "tokens", "largest_nats", "identical", "prompts", "criteria", "reasons")
    return {key: verdict[key] for key in keys if key in verdict}


def outcomes(junit: Path) -> dict[str, list[str]]:
    """Test names of a JUnit report by outcome; empty where there is no report."""
    found: dict[str, list[str]] = {"passed": [], "failed": [], "error": [], "skipped": []}
    with suppress(OSError, ElementTree.ParseError):
        for case in ElementTree.parse(junit).iter("testcase"):
            kinds = {child.tag for child in case}
            kind = next((word for word in ("error", "failed", "skipped") if word in kinds), "passed")
            kind = "failed" if "failure" in kinds and "error" not in kinds else kind
            found[kind].append(str(case.get("name")))
    return found


class Runs:
    """The runs of a plan, each in a thread; what is known is on disk after each of them."""

    def __init__(self, plan: dict[str, Any], out: Path, parallel: int, start_timeout_s: float) -> None:
        self._out = out
        self._plan = plan
        self._start_timeout_s = start_timeout_s
        self._slots = threading.Semaphore(parallel)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._ended = {run["name"]: threading.Event() for run in plan["runs"]}
        self._settled = {name: threading.Event() for name in plan["servers"]}
        self.result: dict[str, Any] = {"ready_s": {}, "runs": {}}
        self.servers = {
            name: Started(
                name=name, argv=server["argv"], log=out / f"{name}.server.log", env=server.get("env", {})
            )
            for name, server in plan["servers"].items()
        }
        self.children: list[subprocess.Popen[bytes]] = []

    def all(self, time_limit_s: float) -> None:
        """Start the servers, carry out the runs, leave when they or the time are at their end."""
        for server in self.servers.values():
            server.start()
        threads = [threading.Thread(target=self._watch, args=(name,), daemon=True) for name in self.servers]
        threads += [
            threading.Thread(target=self._run, args=(run,), daemon=True) for run in self._plan["runs"]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._began + time_limit_s - time.monotonic()))

    def stop(self) -> None:
        """End what is still there."""
        running = [child for child in self.children if child.poll() is None]
        for child in running:
            child.send_signal(signal.SIGINT)
        for child in running:
            try:
                child.wait(_LEAVING_S)
            except subprocess.TimeoutExpired:
                child.kill()
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                server.process.terminate()
        for server in self.servers.values():
            server.stop(5.0)

    def _note(self, kind: str, key: str, value: Any) -> None:
        with self._lock:
            self.result[kind][key] = value
            (self._out / "runs.json").write_text(json.dumps(self.result, indent=1))
            print(
                f"[{time.monotonic() - self._began:6.1f} s] {kind} {key}: {json.dumps(value)[:900]}",
                flush=True,
            )

    def _watch(self, name: str) -> None:
        server = self.servers[name]
        until = time.monotonic() + self._start_timeout_s
        state: bool | None = None
        while state is None and time.monotonic() < until:
            time.sleep(0.5)
            state = server.poll()
        self._note("ready_s", name, round(server.seconds, 1) if server.seconds else f"never ({state})")
        self._settled[name].set()

    def _run(self, run: dict[str, Any]) -> None:
        name = run["name"]
        try:
            for other in run.get("after", ()):
                self._ended[other].wait()
            needed = [name for name in (run.get("server"), run.get("baseline")) if name] + run.get(
                "needs", []
            )
            for server in needed:
                self._settled[server].wait()
            missing = [server for server in needed if self.servers[server].seconds is None]
            if missing:
                self._note("runs", name, {"not run": f"not ready: {', '.join(missing)}"})
                return
            with self._slots:
                self._note("runs", name, self._pytest(run) if "pytest" in run else self._command(run))
        finally:
            self._ended[name].set()

    def _pytest(self, run: dict[str, Any]) -> dict[str, Any]:
        name = run["name"]
        url = [f"--ddtree-url={self.servers[run['server']].url}"]
        if run.get("baseline"):
            url.append(f"--ddtree-baseline-url={self.servers[run['baseline']].url}")
        junit = self._out / f"{name}.xml"
        argv = [sys.executable, "-m", "pytest", *run["pytest"], *url]
        results = self._out / "results" / name
        argv += [f"--junitxml={junit}", f"--ddtree-results={results}"]
        printed = self._out / f"{name}.out"
        code, seconds = self._finish(argv, printed, run.get("timeout_s", 300))
        lines = [line for line in printed.read_text(errors="replace").splitlines() if line.strip()]
        return {
            "exit": code,
            "seconds": seconds,
            "verdicts": verdicts(results),
            "outcomes": outcomes(junit),
            "last": lines[-1] if lines else "",
        }

    def _command(self, run: dict[str, Any]) -> dict[str, Any]:
        urls = {name: server.url for name, server in self.servers.items()}
        argv = [word.format_map(urls) for word in run["argv"]]
        code, seconds = self._finish(argv, self._out / f"{run['name']}.out", run.get("timeout_s", 300))
        return {"exit": code, "seconds": seconds}

    def _finish(self, argv: list[str], printed: Path, timeout_s: float) -> tuple[int | str, float]:
        """Run a command to its end or its time limit, output to `printed`: exit code and seconds."""
        began = time.monotonic()
        with printed.open("wb") as sink:
            # A session of its own: Ctrl-C at the terminal reaches it once, through `stop`.
            child = subprocess.Popen(
                ending_with_the_script(argv),
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.children.append(child)
            try:
                code: int | str = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                code = "stopped at its time limit"
                with suppress(subprocess.TimeoutExpired):
                    child.wait(15)
        return code, round(time.monotonic() - began, 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=plan, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parallel", type=int, default=4, help="runs at once")
    parser.add_argument("--start-timeout", type=float, default=300.0)
    parser.add_argument(
        "--time-limit", type=float, default=3600.0, help="seconds until everything is stopped"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    runs = Runs(options.plan, options.out, options.parallel, options.start_timeout)
    try:
        runs.all(options.time_limit)
    finally:
        runs.stop()
    missing = [
        run["name"] for run in options.plan["runs"] if "exit" not in runs.result["runs"].get(run["name"], {})
    ]
    if missing:
        print(f"not run to an end: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    leave(main)

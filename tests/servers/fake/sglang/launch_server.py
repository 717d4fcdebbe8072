"""`python -m sglang.launch_server` that does what the JSON in FAKE_SGLANG says.

Keys (all optional):
  flags: list of long flags that --help lists beside the usual ones     log: list of [seconds, text] printed while loading
  load_s, warm_s: seconds before the port is bound, and of 503           crash: {"at": load|warmup|run|answered, "code", "text", "signal"}
  sigterm: obey | ignore | seconds                                       children: list of {"sigterm", "setsid", "clear_env", "listen"}
  info: overrides of /server_info, "drop" removes                                     generate: ok | 500 | hang | short | empty
  health: ok | 503 | hang                                                name: served_model_name to claim
  info_after: {"count", "info"} (overrides after so many generations)      metrics: text of /metrics        flush: status
  node_ends_at: a file that ends (and is removed by) a node that serves no HTTP
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SCRIPT: dict[str, Any] = json.loads(os.environ.get("FAKE_SGLANG", "{}"))
USUAL = [
    "--model-path", "--host", "--port", "--served-model-name", "--random-seed", "--context-length", "--api-key",
    "--max-running-requests", "--mem-fraction-static", "--attention-backend", "--page-size", "--speculative-algorithm",
    "--speculative-draft-model-path", "--speculative-num-draft-tokens", "--cuda-graph-max-bs", "--nnodes", "--node-rank",
    "--dist-init-addr",
]  # fmt: skip
SWITCHES = [
    "--disable-radix-cache",
    "--disable-overlap-schedule",
    "--disable-cuda-graph",
    "--trust-remote-code",
]
NUMBERS = {
    "speculative_num_draft_tokens", "speculative_ddtree_budget", "speculative_ddtree_topk", "page_size", "random_seed",
    "nnodes", "node_rank", "speculative_draft_window_size", "speculative_dflash_block_size", "max_running_requests",
    "context_length", "port", "mem_fraction_static",
    "speculative_dflash_draft_window_size", "speculative_eagle_topk", "cuda_graph_max_bs", "cuda_graph_max_bs_decode",
}  # fmt: skip


def say(text: str) -> None:
    print(text, flush=True)


def parse(argv: list[str]) -> dict[str, Any]:
    flags = [*USUAL, *SCRIPT.get("flags", [])]
    switches = [*SWITCHES, *SCRIPT.get("switches", [])]
    if "--help" in argv:
        say("usage: launch_server [-h] " + " ".join(f"[{flag}]" for flag in [*flags, *switches]))
        raise SystemExit(0)
    values: dict[str, Any] = {
        "speculative_algorithm": None, "speculative_num_draft_tokens": None, "speculative_draft_model_path": None,
        "disable_radix_cache": False, "disable_overlap_schedule": False, "disable_cuda_graph": False,
        "host": "127.0.0.1", "port": 30000, "max_running_requests": None, "page_size": 1, "attention_backend": "triton", "random_seed": 7,
        "speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0, "allow_auto_truncate": False,
    }  # fmt: skip
    for flag in flags:
        values.setdefault(flag[2:].replace("-", "_"), None)
    for flag in switches:
        values.setdefault(flag[2:].replace("-", "_"), False)
    rest = list(argv)
    while rest:
        flag, _, attached = rest.pop(0).partition("=")
        key = flag[2:].replace("-", "_")
        if flag in switches:
            values[key] = True
        elif flag in flags:
            text = attached or rest.pop(0)
            values[key] = json.loads(text) if key in NUMBERS else text
        else:
            print(f"launch_server.py: error: unrecognized arguments: {flag}", file=sys.stderr, flush=True)
            raise SystemExit(2)
    return values


def crash(what: dict[str, Any]) -> None:
    say(what.get("text", "Traceback (most recent call last):\nRuntimeError: scripted crash"))
    if "signal" in what:
        os.kill(os.getpid(), what["signal"])
    os._exit(what.get("code", 1))


def child_main(spec: dict[str, Any], port: int) -> None:
    if spec.get("sigterm") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = None
    if spec.get("listen"):
        server = ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
    say(f"child {os.getpid()} is up")
    time.sleep(spec.get("life_s", 600))
    del server


def spawn(spec: dict[str, Any], port: int) -> None:
    env = {} if spec.get("clear_env") else dict(os.environ)
    code = "import sys, json; sys.path.insert(0, sys.argv[1]); from sglang.launch_server import child_main; "
    code += "child_main(json.loads(sys.argv[2]), int(sys.argv[3]))"
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    subprocess.Popen(
        [sys.executable, "-c", code, root, json.dumps(spec), str(port), os.environ.get("TEST_RUN_DIR", "")],
        env=env,
        start_new_session=bool(spec.get("setsid")),
    )


class State:
    args: dict[str, Any]
    up = False
    requests = 0


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        say(f'INFO:     127.0.0.1 - "{format % args}"')

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            if SCRIPT.get("health") == "hang" and State.up:
                time.sleep(600)
            self.answer(200 if State.up and SCRIPT.get("health") != "503" else 503, {})
        elif self.path == "/server_info":
            info = {**State.args, "status": "ready", "max_total_num_tokens": 4096, **SCRIPT.get("info", {})}
            later = SCRIPT.get("info_after")
            if later and State.requests > later["count"]:
                info.update(later["info"])
            self.answer(200, {key: value for key, value in info.items() if value != "drop"})
        elif self.path == "/model_info":
            self.answer(
                200,
                {
                    "model_path": State.args["model_path"],
                    "served_model_name": State.args["served_model_name"],
                },
            )
        elif self.path == "/metrics" and "metrics" in SCRIPT:
            data = SCRIPT["metrics"].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        if self.path == "/generate":
            State.requests += 1
            run = SCRIPT.get("crash", {})
            if run.get("at") == "run" and State.requests > run.get("after", 1):
                crash(run)
            mode = SCRIPT.get("generate", "ok")
            if mode == "hang":
                time.sleep(600)
            if mode == "500":
                self.answer(500, {"error": {"message": "scripted fault"}})
                if run.get("at") == "answered":
                    crash(run)
                return
            count = {"short": 9, "empty": 0}.get(mode, body["sampling_params"]["max_new_tokens"])
            ids = list(range(count))
            self.answer(
                200,
                {
                    "text": "x" * count,
                    "output_ids": ids,
                    "meta_info": {"completion_tokens": body["sampling_params"]["max_new_tokens"]},
                },
            )
        else:
            self.answer(SCRIPT.get("flush", 200) if self.path == "/flush_cache" else 200, {})


def main() -> None:
    args = parse(sys.argv[1:])
    State.args = args
    if "name" in SCRIPT:
        args["served_model_name"] = SCRIPT["name"]
    stop = threading.Event()
    how = SCRIPT.get("sigterm", "obey")
    if how == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for seconds, text in SCRIPT.get("log", []):
        time.sleep(seconds)
        say(text)
    for spec in SCRIPT.get("children", []):
        spawn(spec, int(args["port"]))
    if SCRIPT.get("children"):
        time.sleep(0.3)
    fault = SCRIPT.get("crash", {})
    deadline = time.monotonic() + SCRIPT.get("load_s", 0.0)
    while time.monotonic() < deadline and not stop.is_set():
        time.sleep(0.02)
    if fault.get("at") == "load":
        crash(fault)
    if stop.is_set():
        return
    if args["node_rank"]:
        say(f"node {args['node_rank']} of {args['nnodes']} serves no HTTP")
        ends = SCRIPT.get("node_ends_at")
        while not stop.wait(0.05):
            if ends is not None and os.path.exists(ends):
                os.remove(ends)
                break
        raise SystemExit(0 if stop.is_set() else 7)
    try:
        server = ThreadingHTTPServer((args["host"], int(args["port"])), Handler)
    except OSError as error:
        say(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address: address already in use"
        )
        raise SystemExit(1) from None
    server.daemon_threads = True
    say(f"INFO:     Uvicorn running on http://{args['host']}:{args['port']} (Press CTRL+C to quit)")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    time.sleep(SCRIPT.get("warm_s", 0.0))
    if fault.get("at") == "warmup":
        crash(fault)
    State.up = True
    say("The server is fired up and ready to roll!")
    stop.wait()
    say("SIGTERM received. Draining requests and shutting down...")
    if isinstance(how, (int, float)):
        time.sleep(how)
    server.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()

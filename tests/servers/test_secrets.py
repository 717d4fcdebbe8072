"""Keys reach no log, no error and no report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddtree.grid import Config
from pytest_ddtree.servers import proc, secrets
from pytest_ddtree.servers.errors import DiedDuringStart, StartTimeout
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings

from . import support

KEY = "sk-very-secret"


def test_arguments() -> None:
    argv = ("x", "--api-key", KEY, f"--admin-api-key={KEY}", "--api-keys", "kept")
    assert secrets.arguments(argv) == ("x", "--api-key", "***", "--admin-api-key=***", "--api-keys", "kept")


def test_variables_among_arguments() -> None:
    """`docker run --env` has the variables of the server among its words, and so have `env` and the user's own `-e`."""
    argv = (
        "env",
        f"HF_TOKEN={KEY}",
        "docker",
        "run",
        "--env",
        f"HF_TOKEN={KEY}",
        f"--env=MY_SECRET={KEY}",
        f"-eA_KEY={KEY}",
    )
    kept = (
        "TOPK=4",
        "--speculative-num-draft-tokens=8",
        "--json={'key': 1}",
        "--x=HF_TOKEN=1",
        "key_adapter=/a",
    )
    assert secrets.arguments((*argv, *kept)) == (
        *(
            "env",
            "HF_TOKEN=***",
            "docker",
            "run",
            "--env",
            "HF_TOKEN=***",
            "--env=MY_SECRET=***",
            "-eA_KEY=***",
        ),
        *kept,
    )


def test_fields() -> None:
    info = {
        "api_key": KEY,
        "admin_api_key": None,
        "launch_command": f"python --api-key {KEY} --tp 2",
        "internal_states": [{"api_key": KEY, "x": 1}, None],
    }
    clean = secrets.fields(info)
    assert KEY not in str(clean)
    assert clean["internal_states"] == [{"api_key": "***", "x": 1}, None]
    assert clean["launch_command"].endswith("--tp 2")
    assert clean["admin_api_key"] is None
    assert secrets.fields({"launch_command": ["a", "--api-key", KEY]}) == {
        "launch_command": ["a", "--api-key", "***"]
    }


def test_variables() -> None:
    assert secrets.variables({"HF_TOKEN": KEY, "A": "1"}) == {"HF_TOKEN": "***", "A": "1"}


def test_the_command_line_of_a_process_is_shown_without_them() -> None:
    """Whoever holds a port or was left behind is named by it, on terminals too."""
    script = "import time; print(flush=True); time.sleep(600)"
    argv = [sys.executable, "-c", script, "--api-key", KEY, "--port", "1", "a b"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        shown = proc.command(process.pid)
        process.kill()
    assert shown.endswith("--api-key *** --port 1 a b")


def test_nowhere_in_what_a_server_leaves(tmp_path: Path) -> None:
    with support.pool(tmp_path, api_key=KEY) as pool:
        server = pool.get(Config("tree", 8, 4))
        said = [
            str(server.info),
            str(server.argv),
            str(server.current.env),
            (server.log_path or Path()).read_text(),
        ]
        assert not [text for text in said if KEY in text]
        assert Path(f"/proc/{server.pid}/cmdline").read_bytes().count(KEY.encode()) == 1, (
            "the server itself must have it"
        )


@pytest.mark.parametrize("user", [f"me:{KEY}", f"me:pa@{KEY}", f"m@e:{KEY}@"])
def test_nor_in_an_address(tmp_path: Path, user: str) -> None:
    """httpx takes everything before the last @ for user and password."""
    settings = ServerSettings(
        kind="url", run_dir=tmp_path, url=f"http://{user}@127.0.0.1:9", start_timeout_s=1e-6
    )
    with ServerPool(settings) as pool, pytest.raises(StartTimeout) as caught:
        pool.get(Config("tree", 8, 4))
    assert "at http://***@127.0.0.1:9" in str(caught.value)
    assert KEY not in str(caught.value)


def test_nowhere_in_an_error(tmp_path: Path) -> None:
    text = f"server_args=ServerArgs(api_key='{KEY}')\nValueError: DFLASH refuses api_key={KEY}"
    script = {"crash": {"at": "load", "text": text}}
    with support.pool(tmp_path, script, api_key=KEY) as pool, pytest.raises(DiedDuringStart) as caught:
        pool.get(Config("tree", 8, 4))
    assert KEY not in str(caught.value)
    assert "api_key=***" in str(caught.value)

"""What the pool of servers must know, from the options and the model's files."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from pytest_ddtree.model_files import ModelFacts
from pytest_ddtree.options import Settings
from pytest_ddtree.servers.settings import ServerSettings


def server_settings(settings: Settings, facts: ModelFacts, run_dir: Path, group: int = 0) -> ServerSettings:
    """What the pool must know, from the options and the model's files; `group` is the worker's, where there are several."""
    concurrency = max(*settings.concurrency, min(64, settings.exactness_prompts))
    return ServerSettings(
        kind=settings.server,
        run_dir=run_dir,
        model=settings.model,
        draft_model=settings.draft_model,
        server_args=settings.server_args,
        spec_args=settings.spec_args,
        baseline_args=settings.baseline_args,
        python=None if settings.python is None else str(settings.python),
        sglang_src=settings.sglang_src,
        launch_prefix=settings.launch_prefix,
        stop_command=() if settings.stop_command is None else ("sh", "-c", settings.stop_command),
        dialect=settings.dialect,
        url=next(iter(settings.url), None),
        more_urls=settings.url[1:],
        baseline_url=next(iter(settings.baseline_url[group:]), None),
        node_prefixes=settings.node_prefix,
        gpus=next(iter(settings.gpu_groups[group:]), None),
        baseline_gpus=settings.baseline_gpus,
        ssh=settings.ssh,
        unit=settings.unit,
        sudo=settings.sudo,
        start_timeout_s=settings.start_timeout,
        stop_timeout_s=settings.stop_timeout,
        api_key=settings.api_key,
        max_concurrency=concurrency,
        context_length=min(_longest(settings), facts.max_positions or _longest(settings)),
        seed=settings.seed,
        block_size=facts.block_size,
    )


def _longest(settings: Settings) -> int:
    """Tokens of the longest request, prompt and answer. A server refuses to start with more than its model has positions."""
    measured = max(settings.context) + max(settings.output, settings.exactness_output)
    return 64 + max(measured, settings.coding_output + 1024)


def run_name(started: datetime) -> str:
    """The name of a new run's folder."""
    return f"{started:%Y%m%dT%H%M%SZ}-{os.getpid()}"

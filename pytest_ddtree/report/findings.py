"""What a reader must see first, whatever the format: regressions, then what could not be decided, then the rest. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.model import Failing, Results, is_baseline
from pytest_ddtree.results.runs import StoredRun

Weight = Literal["failure", "error", "warning"]
"""A verdict, infrastructure (something could not be judged), something to look at."""

WEIGHTS = get_args(Weight)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report shows. `fingerprints` by scope: `session`, or a config id; of a build `NAME:session`, `NAME:CONFIG`."""

    results: Results
    started: str = ""
    run: str = ""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: StoredRun) -> Report:
        """The report of a stored run; of a comparison of builds what the session itself reported."""
        if not stored.builds:
            return cls(stored.results, stored.started, stored.id, stored.fingerprints)
        results = of_builds(
            stored.judged,
            [gate for build in stored.builds.values() for gate in build.gates],
            stored.results.failing.values(),
            faults=[(build_place(build, config), text) for build, config, text in stored.faults],
            warnings=[*stored.results.warnings, *unfinished(stored)],
            strict=stored.results.strict,
        )
        return cls(results, stored.started, stored.id, stored.fingerprints)


def unfinished(stored: StoredRun) -> tuple[str, ...]:
    """Of a comparison of builds: a line for each config that was begun and came to no outcome."""
    if not stored.ab.get("ends"):
        # Records of before say of no config that it ended.
        return ()
    measured: dict[str, set[str]] = {}
    for one in stored.rounds:
        measured.setdefault(one.config, set()).add(str(one.build))
    begun = dict.fromkeys([*measured, *(verdict.config for _, _, verdict in stored.judged)])
    seen = f"; `pytest-ddtree compare {stored.path.parent}` compares what was measured"
    return tuple(
        f"{config}: not finished{seen if len(measured.get(config, ())) > 1 else ''}"
        for config in begun
        if not is_baseline(config) and config not in stored.compared
    )


def build_place(build: str, config: str) -> str:
    """How a report names a config of one of several builds."""
    return f"{config} on build {build}"


def of_builds(
    judged: Iterable[tuple[str, str, Verdict]],
    gates: Iterable[Mapping[str, Any]],
    failing: Iterable[Failing],
    *,
    faults: Iterable[tuple[str, str]] = (),
    warnings: Iterable[str] = (),
    strict: bool = False,
) -> Results:
    """What a comparison of builds found, for reports: (build, against whose answers, verdict), gates, tests that did not pass."""
    results = Results(strict=strict, gates=list(gates), faults=list(faults), warnings=list(warnings))
    for build, against, verdict in judged:
        name = build_place(build, verdict.config)
        results.verdicts.setdefault(name if against == build else f"{name} against {against}", []).append(
            verdict
        )
    bad = (
        any(not verdict.passed for _, _, verdict in judged)
        or bool(results.faults)
        or any(_fails(gate, results) for gate in results.gates)
    )
    # Gates and verdicts say it better than the failed test.
    results.failing = {one.nodeid: one for one in failing if not bad or one.outcome == "error"}
    return results


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at: how much it weighs, a title of a few words, and the sentence."""

    weight: Weight
    title: str
    text: str
    regression: bool = True
    """Of a failure: whether something got slower or wrong; else a test failed for another reason, which its text says."""


def findings(results: Results) -> list[Finding]:
    """Failures first, corrupt configs before slow ones; each thing once."""
    found: list[Finding] = []
    for config in results.verdicts:
        verdict = results.verdict(config)
        if verdict is not None and not verdict.passed:
            text = f"{config}: {verdict.summary()}: {'; '.join(verdict.reasons)}"
            weight: Weight = "failure" if verdict.kind == "corrupt" else "error"
            found.append(Finding(weight, f"{config} is {verdict.kind}", text))
    for summary in results.coding.values():
        if summary.corrupt:
            text = f"{summary.config}: {summary.corrupt} of {summary.problems} coding answers are corrupt; {summary.comparison}"
            found.append(Finding("failure", f"{summary.config}: corrupt coding answers", text))
    for place, text in results.faults:
        found.append(Finding("failure", f"{place} is not as it should be", f"{place}: {text}"))
    for gate in results.gates:
        title = f"{gate['what']}: {gate['metric']} {gate['outcome']}"
        if _fails(gate, results):
            found.append(Finding("failure", title, gate["text"]))
        elif gate["outcome"] == "undecided":
            found.append(Finding("warning", title, gate["text"]))
    found += _of_tests(results, {one.text for one in found})
    said = {one.text for one in found}
    found.extend(Finding("warning", "warning", text) for text in results.warnings if text not in said)
    unique: dict[str, Finding] = {}
    for one in found:
        unique.setdefault(one.text, one)
    return sorted(unique.values(), key=lambda one: WEIGHTS.index(one.weight))


def _fails(gate: Mapping[str, Any], results: Results) -> bool:
    return gate["outcome"] == "regressed" or (results.strict and gate["outcome"] == "undecided")


def calm(results: Results) -> str:
    """What may be said where nothing failed: no more than what was judged."""
    # A config on two builds has three verdicts.
    judged = {verdict.config for verdicts in results.verdicts.values() for verdict in verdicts}
    gates = 0 if results.cells else len(results.gates)
    # An undecided gate excludes nothing.
    decided = sum(gate["outcome"] != "undecided" for gate in results.gates) if gates else 0
    counts = (
        (len(results.cells), "cell", "no regression in "),
        (decided, "gate", "no regression in "),
        (0 if results.cells else len(judged), "config", "no corruption in "),
        (0 if results.cells else len(results.coding), "coding eval", "no regression in "),
    )
    said = [f"{words}{count} {what}{'s' if count > 1 else ''}" for count, what, words in counts if count]
    if gates and not decided:
        said.insert(0, "no gate decided")
    return ", ".join(said) or "nothing was measured or judged"


def _of_tests(results: Results, said: Collection[str]) -> list[Finding]:
    """What tests failed for and nothing above says; tests that failed for the same reason together."""
    judged = [
        f"{config}: {verdict.kind}{words}"
        for config in results.verdicts
        if (verdict := results.verdict(config)) is not None and not verdict.passed
        for words in (" at level", ", which is no pass")
    ]
    alike: dict[tuple[str, str], list[str]] = {}
    for one in results.failing.values():
        if any(words in one.text for words in judged):
            continue
        rest = _unsaid(one.text, said)
        if rest.strip():
            name = one.nodeid.rpartition("::")[2]
            alike.setdefault((one.outcome, rest), []).append(name)
    return [
        Finding(
            "failure" if outcome == "failed" else "error",
            f"{names[0]} {outcome}" + (f", {len(names) - 1} more alike" if len(names) > 1 else ""),
            text,
            regression=False,
        )
        for (outcome, text), names in alike.items()
    ]


def _unsaid(text: str, said: Collection[str]) -> str:
    """What of a failure is new: not the sentences of gates, nor how pytest explains an assertion that gave only those."""
    lines = text.splitlines()
    named = lines[0].removeprefix(_ASSERTION) if lines else ""
    explained = next((at for at, line in enumerate(lines) if at and line.startswith("assert ")), len(lines))
    message = [named, *lines[1:explained]]
    # pytest indents the later lines of a message.
    new = [line.strip() for line in message if line.strip() not in said]
    # Of a long failure only the beginning is kept, and so of its last sentence.
    if 0 < len(new) < len(message) and explained == len(lines) and _begins(new[-1], said):
        new.pop()
    if len(new) == len(message):
        return text
    return "\n".join([*new, *lines[explained:]] if any(line.strip() for line in new) else [])


def _begins(line: str, said: Collection[str]) -> bool:
    return line != "" and any(sentence.startswith(line) for sentence in said)


_ASSERTION = "AssertionError: "

"""What is wrong with the server of a build although its answers are right: what fails a session of that build alone."""

from __future__ import annotations

from pytest_ddtree.build_run import BuildRun
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.measuring import NO_STEPS


def not_as_asked(run: BuildRun, config: Config) -> list[str]:
    """Knobs that are not what was asked for, and whether a build that was just verified speculates at all; empty where all is well.

    A patch that switches drafting off has the right answers, and on many a model it is the faster one.
    """
    found = []
    for one in (BASELINE, config):
        server = run.handle(one)
        wrong = [] if server is None else server.mismatches()
        if wrong:
            found.append(f"this is not {one.id}: {'; '.join(map(str, wrong))}")
    answers = run.verifier.side_by_side(config).values()
    if answers and all(record.verify_steps is None for record in answers):
        found.append(NO_STEPS)
    return found

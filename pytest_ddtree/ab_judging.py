"""The verdicts on one build of a comparison: by its own non-speculative answers, and by those of the base."""

from __future__ import annotations

from pytest_ddtree.ab_cells import ComparedCells
from pytest_ddtree.build_run import BuildRun
from pytest_ddtree.errors import NotVerified
from pytest_ddtree.exactness.levels import collect, first_divergence
from pytest_ddtree.exactness.rule import judge
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.speed import Infeasible


def verify_build(
    run: BuildRun, base: BuildRun, config: Config, cells: ComparedCells
) -> list[tuple[str, str, Verdict]]:
    """(build, whose answers judge it, verdict). The base measures its baseline first, which chooses the prompts of all.

    Raises:
        Infrastructure: it could not be judged, or the base's baseline could not be measured.
    """
    name = run.spec.name
    own = run.verifier.baseline
    if run is base:
        for key in cells.of(config):
            try:
                run.speed.measure(BASELINE, key)
            except Infeasible as error:
                cells.leave_out(config, key, name, f"baseline: {error}")
    else:
        run.speed.use_prompts(base.chosen)
    found = [(name, name, run.verifier.verify(config))]
    if run is base:
        return found
    reference = base.verifier.baseline
    prompts = run.verifier.prompts()
    asking = collect(
        run.async_client(run.get(config)),
        prompts,
        output=run.settings.exactness_output,
        concurrency=run.verifier.concurrency,
        ignore_eos=True,
    )
    answers = first_divergence(prompts, run.await_(asking), reference.answers)
    rule = base.verifier.rule(reference.float32 and own.float32)
    verdict = judge(answers, reference.floor, rule, config=config.id, level="first-divergence")
    run.store("verdict", verdict=verdict.as_json(), against=base.spec.name)
    run.progress(f"{config.id} against the answers of {base.spec.name}: {verdict.summary()}")
    if verdict.kind == "unknown":
        raise NotVerified(
            f"{config.id} against the answers of {base.spec.name}: unknown, which is no pass: {'; '.join(verdict.reasons)}"
        )
    return [*found, (name, base.spec.name, verdict)]

"""`--pyargs pytest_ddtree.suites` where the suites are not: in a checkout that is installed in place they lie beside the package."""

from __future__ import annotations

from pathlib import Path

import pytest

SUITES = "pytest_ddtree.suites"


def refuse_empty_suites(config: pytest.Config, package: Path = Path(__file__).parent) -> None:
    """pytest would collect nothing there, say no more than that, and check none of the options.

    Raises UsageError, naming the folders to use.
    """
    asked = [str(argument) for argument in config.invocation_params.args]
    named = any(one.split("::")[0] == SUITES or one.startswith(f"{SUITES}.") for one in asked)
    if not (config.option.pyargs and named) or (package / "suites" / "bench").is_dir():
        return
    root = package.parent
    raise pytest.UsageError(
        f"--pyargs {SUITES}: this plugin is installed in place (pip install -e), so its suites are folders of the checkout: "
        f"give {root / 'bench'} {root / 'evals'} instead (or bench evals in {root})"
    )

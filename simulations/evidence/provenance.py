"""The records of a run, with what reproduces it: options, machine, versions, and draws of each check."""

from __future__ import annotations

import platform
from os import cpu_count

from ustat_pg._version import __version__
from ustat_pg.files.whole import versions

from ..paper import PAPER
from .options import Options
from .planning import FAMILY_ALPHA
from .results import Provenance, Results
from .runner import Run
from .store import code_version


def document(
    run: Run,
    options: Options,
    command: str = "",
    configuration: str = "",
) -> Results:
    """The records of a run, with what reproduces it.

    Arguments:
        run: the verdicts and the plans.
        options: size, engine, device, seed and workers.
        command: the one that makes the run again.
        configuration: what results in one folder have in common.
    """
    libraries = versions("numpy", "scipy", "numba", "llvmlite", "pandas", "scikit-learn", "torch")
    machine = {
        "system": platform.system(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": str(cpu_count()),
    }
    provenance = Provenance(
        *(command, configuration, PAPER, options.size, options.engine, options.device),
        seed=options.seed,
        workers=options.workers,
        family_alpha=FAMILY_ALPHA,
        machine=machine,
        versions={"ustat_pg": __version__, "code": code_version(), **libraries},
        set_aside=run.set_aside,
    )
    draws: dict[str, dict[str, tuple[int, ...]]] = {claim.stem: {} for claim in run.claims}
    for plan in run.plans:
        checks = plan.claim.checks if plan.replications else ()
        for check in checks:
            cells = dict.fromkeys(cell.name for cell in check.functional.cells)
            of_claim = draws.setdefault(plan.claim.stem, {})
            of_claim[check.name] = tuple(plan.replications[name] for name in cells)
    return Results(run.claims, run.controls, draws, provenance)

"""The process of one error: the program with one changed line, and what claims say of it.

Nothing of the program is imported before the error is planted, and no file is changed: the module with
the error is compiled from its changed text when it is imported. Each claim is enumerated first; where no
enumeration refutes, each is run as ``verify`` runs it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any

from .errors import ROOT, PlantedError

__all__ = ["answer", "plant"]

ORDER = ("REFUTED", "ERROR", "INCONCLUSIVE", "CONFIRMED")
"""Of several claims' verdicts the first of these is the error's."""

STRIDE = 8
"""Checks are enumerated in the order first, ninth, seventeenth, ...; second, tenth, ..."""


def plant(error: PlantedError) -> None:
    """Have the module of an error imported with it."""
    module = error.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert module not in sys.modules, f"{module} is imported already: its error would go unseen"
    true = SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.path).resolve() != ROOT / error.file:
            return true(self, fullname)
        return compile(error.source, self.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def answer(
    sender: Connection,
    error: PlantedError | None,
    stems: Sequence[str],
    size: str,
    engine: str,
    blocks: Path,
    cache: Path | None,
) -> None:
    """Send what the claims say: the first refutation, or the most doubtful verdict."""
    if cache is not None:
        import_module("numba").config.CACHE_DIR = str(cache)
    # What a wrong formula divides by 0 is no news.
    warnings.simplefilter("ignore")
    if error is not None:
        plant(error)
    said: list[dict[str, str]] = []
    for stem in stems:
        try:
            found = _verdict(stem, size, engine, blocks)
        except Exception as stop:
            found = {"verdict": "ERROR", "check": f"{type(stop).__name__}: {stop}"}
        said.append({"stem": stem, "engine": engine, **found})
        if found["verdict"] == "REFUTED":
            break
    sender.send(min(said, key=lambda found: ORDER.index(found["verdict"])))


def _verdict(stem: str, size: str, engine: str, blocks: Path) -> dict[str, str]:
    """A claim's verdict, and what refutes it if it is refuted."""
    from simulations import ON_LANGUAGE_MODELS, Suite
    from simulations import processes as verify
    from ustat_pg.experiment import Options, Store, run_claims
    from ustat_pg.experiment.planted import run_controls
    from ustat_pg.report import exit_code

    # As verify does it, but for the points of figures.
    verify.curves = lambda stem, suite: ()
    how, store = Options(size, engine), Store(blocks)
    kind = "language-model" if stem in ON_LANGUAGE_MODELS else "bandit"
    # Pools of its own: what an error makes of one is no other's prediction.
    designs, _, failed = verify._designs([stem], Suite(size, on=kind))
    if engine == "exact" and designs and (check := _first_refuted(designs[0], how, store)):
        return {"verdict": "REFUTED", "by": "exact", "check": check}
    run = run_claims(designs, how, store).with_failed(failed)
    controls = run_controls(designs, how)
    if exit_code(run.claims, controls) != 1:
        return {"verdict": str(run.claims[0].verdict)}
    seen = [
        (kind, check.name)
        for check in run.claims[0].checks
        for kind, found in check.found.items()
        if found.verdict == "REFUTED"
    ]
    seen += [("design", why) for why in failed.values()]
    seen += [("control", f"{each.name}: {each.said}") for each in controls if not each.held]
    return {"verdict": "REFUTED", "by": seen[0][0], "check": seen[0][1]}


def _first_refuted(design: Any, how: Any, store: Any) -> str:
    """The first check that its enumeration refutes, or an empty text.

    Each is enumerated alone, in an order that spreads over the claim: an error is mostly seen by the
    first few.
    """
    from ustat_pg.experiment.measurements import Measurements
    from ustat_pg.experiment.plan import make_plan
    from ustat_pg.experiment.runner import _settle
    from ustat_pg.experiment.work import Work, environment

    measured = Measurements((check.functional for check in design.checks), how)
    plan = make_plan(design, {}, how)
    with environment(how, None) as pool:
        work = Work(store, how, pool)
        for check in (check for first in range(STRIDE) for check in design.checks[first::STRIDE]):
            if measured.why_not_exact(check.functional) is None:
                tasks = [measured.exact_tasks[cell.name] for cell in check.functional.cells]
                work.run(tasks, "enumerate")
                sums = {task.cell.name: (task.quantities, work.sums([task])) for task in tasks}
                found = _settle(check, measured, plan, sums, {}, {}).found.get("exact")
                if found is not None and found.verdict == "REFUTED":
                    return str(check.name)
    return ""

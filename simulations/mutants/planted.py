"""The processes of errors: the program with one changed line, and what claims say of it.

``python -m simulations.mutants.planted`` reads a line of JSON for each error and answers with one. It
has loaded what the program needs, but nothing of the program, and each error is a fork of it. No file is
changed: the module with the error is compiled from its changed text when it is imported. Each claim is
enumerated first; where no enumeration refutes, each is run as ``verify`` runs it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from .errors import planted

ORDER = ("ERROR", "INCONCLUSIVE", "CONFIRMED")
"""Of several claims' verdicts, none of which is REFUTED, the first of these is the error's."""

STRIDE = 8
"""Checks are enumerated in the order first, ninth, seventeenth, ...; second, tenth, ..."""

LOADED = ("numba", "numpy", "pandas", "scipy.optimize", "scipy.stats", "sklearn.datasets", "tqdm")
"""What most of the time of a start goes to."""


class _Loader(SourceFileLoader):
    """Compiles the changed text of a file, and keeps nothing of it."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self.change = old, new

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed text."""
        source = self.get_data(self.path).decode("utf-8")
        return compile(planted(source, *self.change), self.path, "exec")


class _Finder(MetaPathFinder):
    """Finds the one module that holds the error."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.module, self.change = module, (old, new)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module with its error, and no other."""
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, *self.change)
        return spec


def plant(module: str, old: str, new: str) -> None:
    """Have the module imported with its error."""
    assert module not in sys.modules, f"{module} is imported already: its error would go unseen"
    sys.meta_path.insert(0, _Finder(module, old, new))


def _store(file: str, blocks: str) -> Any:
    """Where blocks are kept: those of the true program serve where the error cannot reach them.

    The files whose change would have `verify` run blocks anew have blocks of their own here, too.
    """
    from ustat_pg.experiment.store import Memory, Store, makes_blocks

    class Once(Memory):
        """Keeps blocks for this process alone."""

        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[str, Any] = {}

        def get(self, description: dict[str, Any]) -> Any:
            return self.kept.get(self.key(description))

        def put(self, description: dict[str, Any], result: dict[str, Any]) -> None:
            self.kept[self.key(description)] = result

    return Once() if makes_blocks(file) or file.startswith("ustat_pg/llm/") else Store(blocks)


def _first_refuted(design: Any, how: Any, store: Any) -> str | None:
    """The first check that its enumeration refutes, or None.

    Each is enumerated alone: an error is mostly seen by the first few. Their order spreads over the
    claim, so that the first few are of different problems.
    """
    from ustat_pg.checks import Verdict
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
                if found is not None and found.verdict == Verdict.REFUTED:
                    return str(check.name)
    return None


def findings(
    stems: list[str], size: str, engines: list[str], file: str, blocks: str
) -> dict[str, Any]:
    """What the claims say: the first refutation, or the verdict of each."""
    from simulations import ON_LANGUAGE_MODELS, Suite
    from simulations import processes as verify
    from ustat_pg.checks import Verdict
    from ustat_pg.experiment import Options, run_claims
    from ustat_pg.experiment.planted import run_controls
    from ustat_pg.report import EXIT_CODES, exit_code

    # As verify does it, but for the points of figures.
    verify.curves = lambda stem, suite: ()
    store = _store(file, blocks)
    said: dict[str, tuple[str, str]] = {}
    for engine in engines:
        for stem in stems:
            if said.get(stem, ("", ""))[0] == "ERROR":
                continue
            try:
                kind = "language-model" if stem in ON_LANGUAGE_MODELS else "bandit"
                # Pools of its own: what an error makes of one is no other's prediction.
                suite = Suite(size, on=kind)
                how = Options(size, engine)
                designs, _, failed = verify._designs([stem], suite)
                if engine == "exact" and designs:
                    check = _first_refuted(designs[0], how, store)
                    if check is not None:
                        return {"verdict": "REFUTED", "stem": stem, "engine": engine,
                                "by": "exact", "check": check}  # fmt: skip
                run = run_claims(designs, how, store).with_failed(failed)
                controls = run_controls(designs, how)
            except Exception as stop:
                said[stem] = "ERROR", f"{type(stop).__name__}: {stop}"
                continue
            done = run.claims[0]
            seen = [
                {"by": kind, "check": check.name}
                for check in done.checks
                for kind, found in check.found.items()
                if found.verdict == Verdict.REFUTED
            ]
            seen += [{"by": "design", "check": why} for why in failed.values()]
            seen += [
                {"by": "control", "check": f"{control.name}: {control.said}"}
                for control in controls
                if not control.held
            ]
            if exit_code(run.claims, controls) == EXIT_CODES[Verdict.REFUTED]:
                where = seen[0] if seen else {"by": "", "check": ""}
                return {"verdict": "REFUTED", "stem": stem, "engine": engine, **where}
            said[stem] = str(done.verdict), ""
    stem = min(said, key=lambda stem: ORDER.index(said[stem][0]))
    verdict, why = said[stem]
    return {"verdict": verdict, "stem": stem, "engine": engines[-1], "by": "", "check": why}


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What is found of one error, in its own process."""
    if asked["cache"]:
        import_module("numba").config.CACHE_DIR = asked["cache"]
    try:
        # What a wrong formula divides by 0 is no news.
        warnings.simplefilter("ignore")
        if asked["error"] is not None:
            plant(*asked["error"])
        said = ("stems", "size", "engines", "file", "blocks")
        return findings(*(asked[each] for each in said))
    except Exception as stop:
        return {"verdict": "ERROR", "check": f"{type(stop).__name__}: {stop}"}


def _forked(asked: dict[str, Any]) -> str:
    """The answer of a fork of this process, as JSON; it is stopped after its time."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        os.close(reader)
        signal.alarm(asked["limit"])
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps(_answer(asked)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) == -signal.SIGALRM:
        return json.dumps({"verdict": "TIMEOUT", "check": f"after {asked['limit']} s"})
    return said or json.dumps({"verdict": "ERROR", "check": f"ended with status {status}"})


def main() -> None:
    """Answer each line of the input."""
    for name in LOADED:
        import_module(name)
    for line in sys.stdin:
        print(_forked(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()

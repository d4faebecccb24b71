"""The process of one error: the program with one changed line, and what claims say of it.

``python -m simulations.mutants.planted``, with what is asked as JSON on its input. No file is changed:
the module with the error is compiled from its changed text when it is imported. Each claim is enumerated
first; where no enumeration refutes, each is run as ``verify`` runs it. One line of JSON says what was
found, and the exit code is that of ``verify``.
"""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from ustat_pg.cli import guarded

from .errors import planted

ENGINES = ("exact", "cpu")
"""Enumeration alone, then enumeration and simulation."""

EXIT_CODES = {"REFUTED": 1, "ERROR": 70, "INCONCLUSIVE": 3, "CONFIRMED": 0}
"""What the process ends with, as ``verify`` does; of several claims' the first."""


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


def findings(stems: list[str], size: str, engines: list[str]) -> dict[str, Any]:
    """What the claims say: the first refutation, or the verdict of each."""
    from simulations import Suite
    from simulations.__main__ import _designs
    from ustat_pg.checks import Verdict
    from ustat_pg.experiment import Options, Store, run_claims
    from ustat_pg.experiment.store import Memory

    class Once(Memory):
        """What is enumerated is kept for the run that simulates."""

        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[str, Any] = {}

        def get(self, description: dict[str, Any]) -> Any:
            return self.kept.get(self.key(description))

        def put(self, description: dict[str, Any], result: dict[str, Any]) -> None:
            self.kept[self.key(description)] = result

    stores: dict[str, Store] = {stem: Once() for stem in stems}
    said: dict[str, tuple[str, str]] = {}
    for engine in engines:
        for stem in stems:
            if said.get(stem, ("", ""))[0] == "ERROR":
                continue
            try:
                # As verify does it, but for the points of figures.
                designs, _, failed = _designs([stem], Suite(size, simulates=engine != "exact"))
                run = run_claims(designs, Options(size, engine), stores[stem])
                done = run.with_failed(failed).claims[0]
            except Exception as stop:
                said[stem] = "ERROR", f"{type(stop).__name__}: {stop}"
                continue
            if done.verdict == Verdict.REFUTED:
                seen = (
                    {"by": kind, "check": check.name}
                    for check in done.checks
                    for kind, found in check.found.items()
                    if found.verdict == Verdict.REFUTED
                )
                where = next(seen, {"by": "design", "check": failed.get(stem, "")})
                return {"verdict": "REFUTED", "stem": stem, "engine": engine, **where}
            said[stem] = str(done.verdict), ""
    order = list(EXIT_CODES)
    stem = min(said, key=lambda stem: order.index(said[stem][0]))
    verdict, why = said[stem]
    return {"verdict": verdict, "stem": stem, "engine": engines[-1], "by": "", "check": why}


def main() -> int:
    """Run what is asked on standard input."""
    asked = json.load(sys.stdin)
    if asked["error"] is not None:
        plant(*asked["error"])
    found = findings(asked["stems"], asked["size"], asked["engines"])
    print(json.dumps(found))
    return EXIT_CODES[found["verdict"]]


if __name__ == "__main__":
    sys.exit(guarded("mutants", main))

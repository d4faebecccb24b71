"""Whether the fast tests of a room refuse what is wrong there: mutants of the library, drawn by a seed.

A mutant is the library with one place changed: a number, a comparison, an operator, or a condition. Each
is asked of the fast tests that mirror its room (not in ``tests/slow.txt``) and of the file's doctests.
Compiled bodies are left out: each mutant of them is minutes of compiling.

``python -m benchmarks.mutation --seed 1 --mutants 100 --record FILE`` appends to a file of lines and goes on
where it was stopped. A line to which a person adds ``"equivalent": "why"`` leaves the count.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from psutil import Process
from scipy.stats import beta

ROOT = Path(__file__).resolve().parents[1]

OTHER_TESTS = {
    "catalogue": "catalogue_texts catalogue_choice catalogue_releases sources commands/test_choice "
    "conformance explain",
    "commands": "cli explain catalogue_texts terminal",
    "engines": "independent ustatistics predictions/test_practical predictions/test_lengths agreement laws",
    "testing": "sequential",
    "estimators": "sequential ratios penalties aggregation running_table baselines ustatistics",
    "predictions": "independent independent_plans independent_tables penalties",
    "designs": "ustatistics comparison",
    "sampling": "independent_plans sequential",
    "whole_files": "simulations/evidence/test_results",
}
"""Tests of a room beside ``tests/ROOM`` and ``tests/test_ROOM.py``, named alike."""

ROOMS = ("ustat_pg", "simulations/engines", "simulations/evidence", "simulations/interior_problems")
"""Where errors are planted."""

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
LOADED = ("numba", "scipy.stats", "pandas", "hypothesis", "mpmath", "pytest", "trl")
"""What every process of tests would load again."""

PASSED = "all passed"

CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}


@dataclass(frozen=True)
class Mutant:
    """A file with one place changed: from character ``start`` to ``end`` its text is ``new``."""

    file: str
    line: int
    column: int
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.old} -> {self.new}"

    def source(self) -> str:
        text = (ROOT / self.file).read_text(encoding="utf-8").encode()
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()


def changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Expressions of a node, each with what takes its place."""
    match node:
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield node, ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield node, ast.Constant(1.1 * value if value else 1.0)
        case ast.Compare(ops=[op], left=left, comparators=others):
            yield node, ast.Compare(left, [COMPARED[type(op)]()], others)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
            yield node, ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield node, ast.IfExp(test, orelse, body)
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.UnaryOp):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[*ifs]):
            yield from ((test, ast.UnaryOp(ast.Not(), test)) for test in ifs)
        case ast.Call(func=ast.Name(id=name) as called) if name in CALLED:
            yield called, ast.Name(CALLED[name])
        case ast.Call(func=ast.Attribute(attr=name, value=value) as called) if name in CALLED:
            yield called, ast.Attribute(value, CALLED[name])


def code(node: ast.AST) -> Iterator[ast.AST]:
    """What is computed below a node: no annotation, no text, no refusal, nothing for type checkers."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            text = isinstance(
                child, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom
            )
            # A union of types is no number.
            alias = isinstance(node, ast.Module) and isinstance(child, ast.Assign)
            alias = alias and isinstance(child.value, ast.BinOp)
            types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.AST) and not (text or alias or types):
                yield child
                yield from code(child)


def mutants_of(path: Path) -> list[Mutant]:
    """All of a file, in any order."""
    text = path.read_text(encoding="utf-8")
    starts = [0, *accumulate(len(line.encode()) for line in text.splitlines(keepends=True))]
    found = set()
    for node in code(ast.parse(text)):
        for old, new in changes(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            written = ast.unparse(ast.fix_missing_locations(new))
            if not isinstance(new, ast.Constant | ast.Name | ast.Attribute):
                written = f"({written})"
            words = re.sub(r"\s+", " ", text.encode()[start:end].decode())
            file = path.relative_to(ROOT).as_posix()
            found.add(Mutant(file, old.lineno, old.col_offset, start, end, words, written))
    return list(found)


def mutants() -> list[Mutant]:
    """All of :data:`ROOMS` but compiled bodies, and what compiles them, in order."""
    found = [
        mutant
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "compiled import body" not in path.read_text("utf-8") and path.name != "compiled.py"
        for mutant in mutants_of(path)
    ]
    return sorted(found, key=lambda one: (one.file, one.start, one.end, one.new))


def tests_of(file: str, root: Path) -> list[list[str]]:
    """The tests of a file's name, then those of its room, first those that name most of what it defines, then
    the file itself for its doctests.
    """
    package, *folders, name = Path(file).with_suffix("").parts
    room = folders[0] if folders else name
    others = OTHER_TESTS.get(room, "").split()
    own = room if package == "ustat_pg" else f"{package}/{room}"
    places = [root / "tests" / each for one in (own, *others) for each in (one, f"test_{one}")]
    found = [
        each
        for place in places
        for each in (*sorted(place.rglob("test_*.py")), place.with_suffix(".py"))
    ]
    defined = [
        getattr(node, "name", name)
        for node in ast.parse((root / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]

    def named(test: Path) -> tuple[bool, int]:
        text = test.read_text(encoding="utf-8")
        return name not in test.stem, -sum(
            bool(re.search(rf"\b{each}\b", text)) for each in defined
        )

    files = sorted(dict.fromkeys(each for each in found if each.is_file()), key=named)
    names = [each.relative_to(root).as_posix() for each in files]
    return [names[:3], names[3:], [file]]


class Refusal:
    """A plugin of pytest that says which test failed first, and ends where tests have taken their time.

    Arguments:
        seconds: processor time of the tests of one mutant.
    """

    def __init__(self, seconds: float) -> None:
        self.name, self.seconds = "", seconds

    def pytest_runtest_protocol(self, item: Any) -> None:
        if time.process_time() > self.seconds:
            item.session.shouldstop = "what is left is not asked"

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid or "collection"


def ask(tests: list[list[str]], tree: Path, seconds: float) -> tuple[str, str]:
    """``killed``, ``survived`` or ``timeout``, and which test failed first, in a process forked from here.

    Tests come in parts, so that those of a room are imported only where the first let it through. What does
    not fail in ``seconds`` of the processor survives; one test that takes three times as long is late.
    """
    reader, writer = os.pipe()
    if not (child := os.fork()):
        answer = "no answer"
        try:
            os.setsid()
            os.chdir(tree)
            sys.path.insert(0, str(tree))
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            answer = _first_failure(tests, seconds)
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    process, heard = Process(child), False
    # By the processor: on a busy machine the clock says nothing.
    while not heard and process.cpu_times().user < 3 * seconds:
        heard = bool(select.select([reader], [], [], 1.0)[0])
    answer = (os.read(reader, 10_000).decode() or "a crash") if heard else ""
    os.close(reader)
    # What the tests started goes with them.
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if answer == "no answer":
        raise RuntimeError(f"no tests ran of {tests}")
    if answer == PASSED:
        return "survived", ""
    return ("killed" if heard else "timeout"), answer


def _first_failure(parts: list[list[str]], seconds: float) -> str:
    """Run parts of tests until one fails, and say which; or that they passed."""
    import pytest

    refusal = Refusal(seconds + time.process_time())
    for tests in filter(None, parts):
        words = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        # Loaded once before the fork.
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]
        status = pytest.main(words, plugins=[refusal])
        if refusal.name or status not in (0, 2, 5):
            return refusal.name or ("an import" if status == 4 else "no answer")
        if time.process_time() > refusal.seconds:
            break
    return PASSED


def prepare() -> Path:
    """A copy of the project in a folder that stays, so that bodies are compiled once."""
    tree = Path(gettempdir()) / "ustat_pg-mutation"
    if tree.exists():
        shutil.rmtree(tree)
    wanted = shutil.ignore_patterns("__pycache__", ".*", "results", "build", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=wanted)
    # Bodies are not mutated; without this they would be compiled again where what they import is.
    compiled = tree / "ustat_pg/compiled.py"
    text = compiled.read_text(encoding="utf-8")
    digest = "source_digest(*bodies())"
    assert text.count(digest) == 1
    compiled.write_text(text.replace(digest, "'kept'"), encoding="utf-8")
    os.environ |= {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": f"{tree}-compiled",
        "OMP_NUM_THREADS": "1",
        "CI": "1",
    }
    sys.dont_write_bytecode = True
    for module in LOADED:
        with suppress(ImportError):
            import_module(module)
    return tree


def asked(mutant: Mutant, tree: Path, seconds: float) -> dict[str, str | float]:
    """The record of a mutant, which stands alone in the copy while its tests run."""
    file, start = tree / mutant.file, time.monotonic()
    kept, times = file.read_bytes(), file.stat()
    file.write_text(mutant.source(), encoding="utf-8")
    try:
        outcome, by = ask(tests_of(mutant.file, tree), tree, seconds)
    finally:
        file.write_bytes(kept)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    took = round(time.monotonic() - start, 1)
    return {"mutant": mutant.name, "outcome": outcome, "by": by, "seconds": took}


def told(lines: list[dict[str, Any]]) -> str:
    """How many were refused, with a bound at 95% below; what was late counts as let through."""
    counted = [line for line in lines if "equivalent" not in line]
    n, refused = len(counted), sum(line["outcome"] == "killed" for line in counted)
    late = sum(line["outcome"] == "timeout" for line in counted)
    least = beta.ppf(0.05, refused, n - refused + 1) if refused else 0.0
    return (
        f"refused {refused} of {n} ({refused / n:.1%}, at least {least:.1%} at 95%), {late} late; "
        f"{len(lines) - n} equivalent left out"
    )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument(
        "--record", type=Path, required=True, help="file of lines, one of each mutant"
    )
    parser.add_argument(
        "--seconds", type=float, default=30, help="of the processor, for one mutant"
    )
    given = parser.parse_args(words)
    chosen = mutants()
    random.Random(given.seed).shuffle(chosen)
    chosen = chosen[: given.mutants]
    lines = given.record.read_text(encoding="utf-8").splitlines() if given.record.exists() else []
    known = {line["mutant"]: line for line in map(json.loads, lines)}
    tree = prepare()
    for mutant in chosen:
        if mutant.name not in known:
            line = known[mutant.name] = asked(mutant, tree, given.seconds)
            with given.record.open("a", encoding="utf-8") as record:
                record.write(json.dumps(line, ensure_ascii=False) + "\n")
            print(*line.values(), flush=True)
    print(told([known[mutant.name] for mutant in chosen]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

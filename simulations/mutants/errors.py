"""The planted errors: their records, and the places of their lines."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    *("ENGINES", "KINDS", "RECORDS", "ROOT", "SUITE", "PlantedError"),
    *("errors", "pattern", "planted"),
]

ROOT = Path(__file__).resolve().parents[2]

RECORDS = {"bandit": "errors.toml", "language-model": "language_models.toml"}
"""The files of the errors, by kind of problem of the claims."""

KINDS = {
    "formula": "a formula that is wrong wherever it is asked",
    "regime": "right where claims choose to ask; wrong in larger groups or batches, or of other rewards",
    "threshold": "a limit that is too wide: what is small counts as nothing",
    "edge": "wrong at the end of a range, or of whole numbers alone",
    "option": "an option that is not read, or read wrongly, away from its default",
    "label": "two things under one name",
    "reused draws": "draws that are to be others",
    "interval": "an interval that is too narrow",
    "bounds": "a range that does not hold all values",
    "plan": "what is not planned for",
}
"""The kinds of error, by the word before the colon in an error's name; without a colon it is a formula."""

ENGINES = ("exact", "cpu")
"""Enumeration only, then enumeration and simulation."""

SUITE = "test"
"""The checks of ``make test``: enumeration, then the test files below."""

EVIDENCE = "tests/simulations/evidence"
TESTS = {
    "ustat_pg/sampling/rng": "tests/sampling/test_rng.py",
    "ustat_pg/engines/base": (
        f"tests/engines/test_base.py {EVIDENCE}/test_planted.py tests/agreement/test_gradients.py"
    ),
    "ustat_pg/engines/draws": "tests/sampling/test_rng.py tests/agreement/test_gradients.py",
    "ustat_pg/engines": "tests/engines/gradients/test_cpu.py tests/agreement/test_gradients.py",
    "ustat_pg/distributions": "tests/distributions/test_weighted_chi2.py",
    "simulations/engines/runs": (
        f"tests/agreement/test_whole_runs.py {EVIDENCE}/test_planted.py tests/simulations/engines/runs"
    ),
    "simulations/engines": "tests/engines/test_base.py tests/simulations/engines",
    "simulations/evidence": (
        f"{EVIDENCE}/test_functionals.py {EVIDENCE}/test_checks.py {EVIDENCE}/test_results.py "
        f"{EVIDENCE}/test_controls.py {EVIDENCE}/test_planted.py {EVIDENCE} tests/power/test_false_alarms.py"
    ),
    "simulations": "tests/simulations/test_designs.py tests/simulations/test_claims.py",
}
"""Tests of parts that claims see only by draws, by the start of a file's name."""

ROOMS = ("engines", "evidence", "interior_problems")
"""Packages of the experiments that are not claims."""

SIMULATED = (
    "ustat_pg/sampling/rng",
    "ustat_pg/engines/draws",
    "ustat_pg/engines/gradients/lanes",
    "ustat_pg/engines/gradients/scalar",
    "simulations/engines/runs/lanes",
    "ustat_pg/llm",
)
"""Files that only simulation calls, so that enumeration cannot see their errors."""


@dataclass(frozen=True)
class PlantedError:
    """One changed line.

    Arguments:
        name: the error in a few words; unique.
        file: file below the repository's root.
        old: a text that occurs once in the file, compared by words and signs.
        new: the text that replaces it.
        stems: claims that the error may reach, the most sensitive first; if no claim reads the wrong part,
            the test file that refuses it.
        equivalent: the reason that the error changes no number that a claim reads; empty if it changes one.
        silent: the reason that nothing can refute the claim, which must then not be CONFIRMED;
            empty if something can.
    """

    name: str
    file: str
    old: str
    new: str
    stems: tuple[str, ...]
    equivalent: str = ""
    silent: str = ""

    @property
    def allowed(self) -> tuple[str, ...]:
        """The verdicts that the error may have."""
        if self.equivalent:
            return ("CONFIRMED", "INCONCLUSIVE", "ERROR", "TIMEOUT")
        return ("REFUTED", "INCONCLUSIVE") if self.silent else ("REFUTED",)

    @property
    def layer(self) -> str:
        """The package of the file, or claims."""
        package, room, *_ = self.file.removesuffix(".py").split("/")
        return room if package == "ustat_pg" or room in ROOMS else "claims"

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`."""
        word = self.name.partition(": ")[0]
        return word if word in KINDS else "formula"

    @property
    def engines(self) -> tuple[str, ...]:
        """The ways in which claims are run, in turn, until one refutes."""
        return ENGINES[1:] if self.file.startswith(SIMULATED) else ENGINES

    @property
    def tests(self) -> tuple[str, ...]:
        """The files of :data:`TESTS`."""
        found = (text for start, text in TESTS.items() if self.file.startswith(start))
        return tuple(next(found, "").split())

    @property
    def source(self) -> str:
        """The text of the file with the error in it."""
        return planted((ROOT / self.file).read_text(encoding="utf-8"), self.old, self.new)


@cache
def errors(on: str = "bandit") -> dict[str, PlantedError]:
    """The errors that claims on a kind of problem may see, by name, in the order of the file."""
    data = tomllib.loads(Path(__file__).with_name(RECORDS[on]).read_text(encoding="utf-8"))
    return {
        name: PlantedError(name, file, old, new, tuple(stems.split()), *why)
        for file, rows in data.items()
        for name, (stems, old, new, *why) in rows.items()
    }


def pattern(old: str) -> re.Pattern[str]:
    """The pattern of a snippet's words and signs.

    Spaces, line breaks and a comma before a closing bracket do not matter, so that formatting cannot
    hide the snippet. A line break at its end matters.
    """
    first, *rest = re.findall(r"\w+|\S", old)
    words = re.escape(first)
    for sign in rest:
        words += (r"\s*(?:,\s*)?" if sign in ")]}" else r"\s*") + re.escape(sign)
    before = r"(?<!\w)" if re.match(r"\w", first) else ""
    after = r"(?!\w)" if re.match(r"\w", [first, *rest][-1]) else ""
    return re.compile(before + words + after + (r"(?=[ \t]*\n)" if old.endswith("\n") else ""))


def planted(source: str, old: str, new: str) -> str:
    changed, count = pattern(old).subn(lambda _: new.strip(), source)
    assert count, f"{old!r} is no longer there"
    assert changed != source, f"{old!r} is not changed"
    return changed

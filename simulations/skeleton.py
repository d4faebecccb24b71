"""``python -m simulations new STEM``: a claim to start from, which runs as it is."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from ustat_pg.paper import RESULTS
from ustat_pg.validation import InputError

__all__ = ["ROOT", "write"]

ROOT = Path(__file__).resolve().parents[1]

_BEFORE = '    "gradient_mse_lm": Result('
"""The line behind a new result in ``ustat_pg/paper.py``: the language models come last."""

_ENTRY = """\
    "$stem": Result(
        "$label",
        "TODO: the statement in one sentence.",
        "TODO: the statement in a few plain words",
        assumptions="TODO: what it needs. Not in the paper.",
    ),
"""

_CLAIM = '''\
"""$label: TODO: the result in one sentence, and its formula:

MSE = tr Σ/G + (σ² tr F + ‖g‖²)/(G(G-1)).

A skeleton: it asks grpo's error at one prompt, which is Theorem 2. Put your own quantity, prediction and
rivals in its place; a rival is a formula that someone could take for yours.

Falsified by an error whose interval misses the prediction.

Cost: TODO; `python -m simulations plan $stem` says how many replications it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Point, mean_of
from ustat_pg.experiment.figure import Axis, Figure
from ustat_pg.predictions import gradient_mse

from .problems import BanditEntry, Suite, mse_of

STEM = "$stem"

FIRST_ORDER = "no second-order term"
RIVALS = (FIRST_ORDER,)


def _check(entry: BanditEntry, group_size: int) -> Check:
    """The mean of a quantity on a cell, and what it is predicted to be."""
    prediction = gradient_mse(entry.problem, "grpo", group_size)
    cell = GradientCell(entry.problem, group_size)
    wrong = {FIRST_ORDER: prediction.mse - prediction.second_order_term}
    return entry.check(
        f"G={group_size}: grpo", mean_of(cell, mse_of("grpo")), equal(prediction.mse, wrong)
    )


def checks(suite: Suite) -> Iterator[Check]:
    """The result at every group size of the suite, on problems of one prompt."""
    return (_check(entry, size) for entry in suite.single_prompts for size in suite.group_sizes)


FIGURES = (
    Figure(
        STEM,
        "TODO: a few words",
        "TODO: the figure in one sentence, for who cannot see it: a line falls with the group size.",
        STEM,
        y=Axis("mean squared error", scale="log"),
        lines=("grpo",),
        by="problem",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The points of the figure: what is predicted, and what is measured, against G."""
    for entry, _ in suite.shown:
        for group_size in suite.curve_sizes:
            value = gradient_mse(entry.problem, "grpo", group_size).mse
            cell = GradientCell(entry.problem, group_size)
            at = {"problem": entry.name, "group_size": group_size}
            yield Point(STEM, "grpo", at, value, mean_of(cell, mse_of("grpo")))
'''

NEXT = """\
{file} asks what Theorem 2 does, until you put your own result in its place.
Its statement: {paper}, the entry {stem!r}.

  python -m simulations verify {stem} --engine exact    enumerate it, 2 s
  python -m simulations plan {stem}                     what simulation will cost
  python -m simulations mutants --list                  which functions no planted error touches

CONTRIBUTING.md, "Add a claim", says what else belongs to one; the tests ask for it.
"""


def write(stem: str, label: str | None = None, root: Path = ROOT) -> str:
    """Write a claim and its entry among the results; returns what to do next.

    A stem that is no module's name or not new is refused, and a label that is another result's.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise InputError(
            f"stem is {stem!r}: it must be a module's name, of small letters, digits and _"
        )
    file, paper = root / "simulations" / f"{stem}.py", root / "ustat_pg" / "paper.py"
    if stem in RESULTS or file.exists() or (file.parent / stem).exists():
        raise InputError(f"stem {stem!r} is taken: {file} or a result of that name is there")
    labels = {result.label for result in RESULTS.values()}
    if label is None:
        label = next(name for n in range(1, 1000) if (name := f"Beyond {n}") not in labels)
    if label in labels or not re.fullmatch(r"[\w ().,-]+", label):
        raise InputError(f"label is {label!r}: it must be a new one, of letters, digits and spaces")
    source = paper.read_text(encoding="utf-8")
    if source.count(_BEFORE) != 1:
        raise InputError(f"{paper} has no place for a new result: add one by hand, as the others")
    words = {"stem": stem, "label": label}
    entry = Template(_ENTRY).substitute(words)
    file.write_text(Template(_CLAIM).substitute(words), encoding="utf-8")
    paper.write_text(source.replace(_BEFORE, entry + _BEFORE), encoding="utf-8")
    places = {"file": file.relative_to(root), "paper": paper.relative_to(root), "stem": stem}
    return NEXT.format(**places)

"""The figure of Lemma 11 (normalised): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ..evidence import Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..normalised import LARGE, NAIVE, error, graded_error, graded_lines
from ..problems import BanditEntry, Suite
from ..problems.tokens import lopsided

STEM = "normalised"

FIGURES = (
    Figure(
        "normalised",
        "The error of the normalised estimator against group size",
        "G times the error of the normalised estimator about g/σ, against the group size: it comes to "
        "a level that is the predicted limit, and that lies below the dashed line of tr Σ/σ² with rewards "
        "0 and 1, and far above it with graded rewards of which one is rare; simulated points lie on the "
        "predicted curves.",
        "normalised",
        y=Axis("G × squared error about g/σ", limits=(0, None)),
        lines=(
            Line("std", "divided by the group's deviation", "alone"),
            Line("limit", "its limit"),
            Line(f"rival: {NAIVE}", "tr Σ/σ², as if σ were known (rival)", "rival"),
        ),
        by="problem",
        panels=(
            Panel("pass rate 0.8", "skewed"),
            Panel("pass rate 0.3", "balanced"),
            Panel("rewards .6, .4 and, rarely, 0", "rare"),
        ),
        names="outside upper center",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """G times the error about g/σ against G, its limit and the naive one, on three problems."""
    yield from points((suite.skewed, suite.balanced, suite.rare_rewards[0]))


def points(entries: Iterable[BanditEntry]) -> Iterator[Point]:
    for entry in entries:
        limit, wrong = graded_lines(entry)
        lines = {"limit": limit, f"rival: {NAIVE}": wrong[NAIVE]}
        for group_size in (2, 4, 8, 16, 32, 64, 128, 256):
            at = {"problem": entry.name, "group_size": group_size}
            measured, value = (error if entry.problem.binary else graded_error)(entry, group_size)
            yield Point(STEM, "std", at, value, measured if group_size <= LARGE else None)
            for series, line in lines.items():
                yield Point(STEM, series, at, line)


def curves_on_networks(suite: Suite) -> Iterator[Point]:
    yield from points(islice(lopsided(suite.on, suite.generated, suite.seed, suite.dense), 2))

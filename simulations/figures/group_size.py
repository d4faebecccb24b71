"""The figure of Theorem 7 (group_size): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..evidence import Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..group_size import LARGE_C, SMALL_C, crossing, schedules
from ..problems import Suite
from ..shared.splits import Split

STEM = "group_size"

GOOD = (1.0, 1.05)
"""The band of gaps within 5% of the least."""


FIGURES = (
    Figure(
        "group_size",
        "The group size at a budget",
        "Mean suboptimality gap after training against the group size at equal budgets, in three "
        "panels: simulated points of several budgets, schedules and lengths fall on one curve, least "
        "at 3 or 4; under reshuffled epochs the largest group is best; with two directions the "
        "order of small and large groups depends on c.",
        STEM,
        by="panel",
        panels=(
            Panel(
                "one direction",
                "universal",
                y=Axis("mean gap / least predicted", limits=(0.95, 2.5)),
                band=GOOD,
            ),
            Panel(
                "24 prompts, K = 24",
                "epochs",
                y=Axis("", limits=(None, 2.1)),
                lines=(Line("i.i.d.", "i.i.d. prompts"), Line("epochs", "reshuffled epochs")),
                band=GOOD,
            ),
            Panel("two directions, K = 48", "c", y=Axis("", limits=(0.95, 1.9)), band=GOOD),
        ),
        names="upper center",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The gap over its least value against G: budgets and schedules, epochs, two values of c."""
    tug, crowd, two_ways = (suite.landscapes[name][0] for name in ("tug", "crowd", "crossing"))
    decay, constant = schedules(tug)
    for budget, schedule, name, step in (
        (12, decay, "decay", 200),
        (24, decay, "decay", 100),
        (24, constant, "constant", 100),
        (48, constant, "constant", 100),
    ):
        group_sizes = [g for g in (2, 3, 4, 6, 8, 12) if budget % g == 0]
        splits = [Split(tug, budget, g, schedule, step) for g in group_sizes]
        yield from _normalised("universal", f"K = {budget}, {name}, T = {step}", splits, splits)
    drawn = [Split(crowd, 24, g, schedules(crowd)[0], 96) for g in (2, 3, 4, 6, 12)]
    again = [replace(split, design="epochs") for split in drawn]
    yield from _normalised("epochs", "i.i.d.", drawn, drawn)
    yield from _normalised("epochs", "epochs", again, drawn)
    for name, c in (("small c", SMALL_C), ("large c", LARGE_C)):
        splits = [crossing(two_ways, g, c) for g in (2, 3, 4, 6, 8, 12)]
        yield from _normalised("c", name, splits, splits)


def _normalised(
    panel: str, series: str, splits: Sequence[Split], unit: Sequence[Split]
) -> Iterator[Point]:
    """Gaps over the least predicted one, and the curve between them."""
    least = min(split.predicted for split in unit)
    for split in splits:
        at = {"panel": panel, "group_size": split.group_size}
        at |= {"budget": split.budget, "step": split.step}
        yield Point(STEM, series, at, split.predicted / least, split.gap.times(1 / least))
    if splits[0].design == "epochs":
        return
    first = splits[0]
    for size in np.geomspace(2, 12, 30)[1:-1].tolist():

        def noise(c1: Any, c2: Any, c3: Any, group_size: int, size: float = size) -> Any:
            """The noise of groups of any real size, with as many prompts as the budget allows."""
            return (c1 * size + c2 + c3 / (size - 1)) / group_size

        at = {"panel": panel, "group_size": size}
        yield Point(STEM, series, at, first.runs.expected_by(noise, first.step) / least)

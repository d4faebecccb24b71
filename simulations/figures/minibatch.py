"""The figure of Proposition 3 (minibatch): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import gradient_mse

from ..evidence import Linear, Point
from ..evidence.figure import Axis, Figure, Line
from ..minibatch import rivals
from ..problems import Suite, mse_of

MEASURED = (1, 4, 8, 16)
"""The batch sizes at which figures show a measured point."""


FIGURES = (
    Figure(
        "minibatch",
        "Three ways to choose prompts",
        "B times the error against the number of prompts B: level for prompts drawn independently, "
        "falling along a straight line for prompts drawn without replacement, down to the error of "
        "a fixed set where all prompts are used; two wrong formulas, in dashed grey, miss the "
        "simulated points.",
        "designs",
        x=Axis("prompts in a minibatch, B", "batch_size", ticks=(1, 4, 8, 12, 16)),
        y=Axis("B × mean squared error"),
        lines=(
            Line("iid", "i.i.d.", "blue"),
            Line("without-replacement", "without replacement", "orange"),
            Line("fixed", "fixed set", "green, open"),
            Line("rival: (N-B)/N for (N-B)/(N-1)", look="rival"),
            Line("rival: no prompt term", look="second rival"),
        ),
        names="outside upper center",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """B times the MSE against B in the three designs, and the values of two rivals."""
    entry, group_size = suite.digits_rows(16), 4
    problem, moments = entry.problem, entry.problem.moments()
    for batch in (1, 2, 4, 6, 8, 10, 12, 14, 16):
        at = {"problem": entry.name, "group_size": group_size, "batch_size": batch}
        for design in ("iid", "without-replacement", "fixed"):
            if design == "fixed" and batch != problem.contexts:
                continue
            cell = GradientCell(problem, group_size, batch, design)
            value = batch * gradient_mse(moments, "grpo", group_size, batch, design).mse
            drawn = Linear(cell, ((mse_of("grpo"), batch),)) if batch in MEASURED else None
            yield Point("designs", design, at, value, drawn)
        for rival in ("(N-B)/N for (N-B)/(N-1)", "no prompt term"):
            wrong = rivals(moments, group_size, batch, "without-replacement")[rival]
            yield Point("designs", f"rival: {rival}", at, batch * wrong)

"""The figure of Corollary 9 (oracle_policy): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import limit_weights

from ..engines import Gap
from ..evidence import Linear, Point, mean_of
from ..evidence.figure import Axis, Curve, Figure, Line, Panel
from ..oracle_policy import OFFSET, gaps, pairs, runs_at
from ..problems import Suite
from ..shared.runs import GRPO, ORACLE, at_optimum, covariance_of
from ..shared.weights import axes, constants, difference, scale, weight_terms

STEM = "oracle_policy"


def _differences(scaled: str = "") -> tuple[Line, ...]:
    """The lines from gradients, and the points from whole runs, for both problems."""
    return tuple(
        Line(scaled + series, label + kind, look + shape, {"problem": problem})
        for series, kind, shape in (("difference", "", ""), ("runs", ": whole runs", ", open"))
        for problem, label, look in (
            ("triple", "one prompt", "blue"),
            ("quarrel", "two prompts that disagree", "orange"),
        )
    )


FIGURES = (
    Figure(
        "oracle_policy",
        "The limit weights of grpo and of the oracle",
        "On the left the limit weights of grpo and of the oracle fall with the group size and come "
        "together; in the middle their difference falls with slope -2 on logarithmic axes, for one "
        "prompt and for two that disagree, measured on gradients and in whole training runs; on the "
        "right G(G-1) times the difference is level, where orders 1 and 3 would leave the panel.",
        STEM,
        panels=(
            Panel(
                "the two, one prompt",
                y=Axis("weight of the limit law", scale="log"),
                lines=tuple(Line(name, at={"problem": "triple"}) for name in ("grpo", "oracle")),
                names="upper right",
            ),
            Panel(
                "their difference",
                y=Axis("difference of the weights", scale="log"),
                lines=_differences(),
                slopes=((-2, 0.12, 0.3),),
                precise=True,
            ),
            Panel(
                "its order in G",
                y=Axis("G (G-1) times the difference", limits=(0, 0.9)),
                lines=_differences("scaled "),
                curves=(
                    Curve(lambda g: g - 1, through=True),
                    Curve(lambda g: (g - 1) / g**2, through=True),
                ),
                notes=(("order 1", 4.4, 0.9), ("order 3", 17, 0.13)),
                precise=True,
            ),
        ),
        names="outside lower center",
        height=2.3,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The limit weights against G, their difference, and G(G-1) times it, with mean gaps of runs."""
    for entry in (suite.landscapes["triple"][0], suite.landscapes["quarrel"][0]):
        landscape, constant, c = entry.problem, float(constants(entry)[0]), scale(entry)
        problem, axis = at_optimum(landscape), axes(entry)[:, 0]
        for group_size in (2, 3, 4, 6, 8, 12, 16, 24, 32):
            at = {"problem": entry.name, "group_size": group_size}
            for estimator in (GRPO, ORACLE):
                noise = covariance_of(landscape, estimator.name, group_size)
                (weight,) = limit_weights(landscape.curvatures, noise, c)
                terms = tuple(weight_terms(landscape, estimator, axis, c))
                measured = Linear(GradientCell(problem, group_size), terms)
                yield Point(STEM, estimator.name, at, float(weight), measured)
            for series, times in (("difference", 1), ("scaled difference", pairs(group_size))):
                measured = difference(entry, group_size).measured(times)
                value = constant * times / pairs(group_size)
                yield Point(STEM, series, at, value, measured, enumerate=True)
            if group_size not in (2, 4, 8):
                continue
            runs = runs_at(entry, group_size, 200)
            for series, times in (("runs", 1), ("scaled runs", pairs(group_size))):
                measured = gaps(runs, times)
                yield Point(STEM, series, at, None, measured, enumerate=True)
            for estimator in (GRPO, ORACLE):
                gap = Gap(estimator, 200, 200 + OFFSET)
                measured = mean_of(runs.training, gap)
                yield Point(STEM, f"{estimator.name} runs", at, None, measured)

"""The figure of Beyond 3 (length_weights): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.predictions import aggregated_mean, token_mean_bias
from ustat_pg.problems import TokenProblem

from ..evidence import Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..length_weights import DIVISORS, ROOT, G, mean_length, of_bias, scaled_bias
from ..problems import Suite
from ..problems.lengths import worded
from ..shared.peers import mean_in, telling
from ..shared.runs import GRPO

STEM = "length_weights"

BATCHES = (1, 2, 4, 8, 16, 32, 64)


MEASURED = 8
"""The largest number of prompts in a simulated minibatch."""


CLIMBERS = {
    "sum over tokens": ("sequence-sum", "grpo"),
    "token mean": ("token-mean", "grpo"),
    "1/|y|": ("sequence-mean", "grpo"),
    "1/|y|, no baseline": ("sequence-mean", "vanilla"),
}


STEPS = (0, 2, 4, 6, 9, 13, 18, 25, 35, 50, 70, 100, 140, 200, 280, 400)


RATE = 2.0


FIGURES = (
    Figure(
        "length_weights",
        "What dividing by length does",
        "Two panels. On the left, on logarithmic axes, the bias of the token mean against the number of "
        "prompts: simulated points lie on the exact line, which nears its leading term and falls as 1/B, "
        "faster than a dashed rival. On the right the return along exact ascent, with a short answer "
        "worth .8 and a long one worth 1: the sum over tokens and the token mean near 1 in a hundred "
        "steps; 1/|y| first stays at .8 for more than a hundred; without a baseline it stays there.",
        STEM,
        by="panel",
        panels=(
            Panel(
                "the token mean's bias",
                "bias",
                x=Axis("prompts B, groups of 2", "batch_size", "log"),
                y=Axis("bias over the gradient's length", scale="log"),
                lines=(
                    Line("exact", look="blue"),
                    Line("leading", "leading term", "orange"),
                    Line(f"rival: {ROOT}", "rival: as 1/√B", "rival"),
                ),
                names="lower left",
            ),
            Panel(
                "a short answer for .8, a long one for 1",
                "ascent",
                x=Axis(
                    "steps of exact ascent",
                    "step",
                    "symlog",
                    ticks=(0, 2, 5, 10, 20, 50, 100, 200, 400),
                    limits=(0, 420),
                ),
                y=Axis("return", limits=(0.48, 1.02)),
                lines=tuple(map(Line, CLIMBERS, CLIMBERS, ("blue", "green", "orange", "red"))),
                levels=(0.8,),
                notes=(("the short answer", 60, 0.54),),
                names="upper left",
            ),
        ),
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    yield from _bias(suite)
    yield from _ascent()


def _bias(suite: Suite) -> Iterator[Point]:
    """E|y| E ĝ - g along a direction, divided by ‖g‖."""
    entry = worded(suite)[0]
    moments = entry.problem.length_moments(entry.lengths)
    one = scaled_bias(moments, 1)
    direction = telling(entry.problem, [one])
    share = np.sign(direction.along(one)) / float(np.linalg.norm(entry.problem.gradient()))

    def along(vector: np.ndarray) -> float:
        return float(share * direction.along(vector))

    for batch in BATCHES:
        at = {"panel": "bias", "batch_size": batch}
        measured = None
        if batch <= MEASURED:
            measured = mean_in(of_bias(entry, batch), GRPO, direction.number).times(float(share))
        leading = mean_length(moments) * token_mean_bias(moments, G, batch)
        yield Point(STEM, "exact", at, along(scaled_bias(moments, batch)), measured)
        yield Point(STEM, "leading", at, along(leading))
        yield Point(STEM, f"rival: {ROOT}", at, along(one) / batch**0.5)


def two_answers() -> tuple[TokenProblem, PrefixSoftmax]:
    """A prompt whose shortest answer earns .8 and whose longest earns 1, and a policy that tends to go on."""
    space = OutputSpace(1, 4, end=True)
    task = TokenProblem(space, ((),), lambda x, y: {0: 0.8, 4: 1.0}.get(len(y), 0.0))
    tables = np.zeros((1, space.prefixes, space.symbols))
    tables[..., 0] = 1.0
    return task, PrefixSoftmax(space, tables)


def ascent(how: str, estimator: str, steps: int) -> Iterator[float]:
    """The return of the policy on two answers before each step along an estimator's mean. All use
    the same first step, up to the effect of lengths.
    """
    task, policy = two_answers()
    scale = None
    for _ in range(steps):
        bandit = task.at(policy)
        moments = bandit.length_moments()
        yield bandit.objective()
        lengths = moments.lengths
        divisor = DIVISORS.get(how, lambda lengths, mean: np.ones(len(lengths)))
        weights = moments.probs @ (1 / divisor(lengths, mean_length(moments)))
        scale = scale or RATE / float(moments.context_probs @ weights)
        mean = aggregated_mean(moments, how, estimator, G, 4)
        policy = policy.with_theta(policy.theta + scale * mean)


def _ascent() -> Iterator[Point]:
    for series, (how, estimator) in CLIMBERS.items():
        for step, value in enumerate(ascent(how, estimator, STEPS[-1] + 1)):
            if step in STEPS:
                yield Point(STEM, series, {"panel": "ascent", "step": step}, value)

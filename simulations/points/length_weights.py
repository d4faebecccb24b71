"""What figures draw of outputs of unequal length: the token mean's bias against the number of prompts,
and exact ascent along what each way climbs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.experiment import Linear, Point
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.predictions import aggregated_mean, token_mean_bias
from ustat_pg.problems import TokenProblem

from ..count_advantages import telling
from ..length_weights import ROOT, STEM, G, mean_length, measured_bias, scaled_bias
from ..problems import Suite
from ..problems.lengths import worded

BATCHES = (1, 2, 4, 8, 16, 32, 64)
MEASURED = 8
"""The most prompts of minibatches that are drawn."""

CLIMBERS = {
    "sum over tokens": ("sequence-sum", "grpo"),
    "token mean": ("token-mean", "grpo"),
    "1/|y|": ("sequence-mean", "grpo"),
    "1/|y|, no baseline": ("sequence-mean", "vanilla"),
}
STEPS = (0, 2, 4, 6, 9, 13, 18, 25, 35, 50, 70, 100, 140, 200, 280, 400)
RATE = 2.0


def curves(suite: Suite) -> Iterator[Point]:
    """Both panels."""
    yield from _bias(suite)
    yield from _ascent()


def _bias(suite: Suite) -> Iterator[Point]:
    """E|y| E ĝ - g along a direction, over ‖g‖."""
    entry = worded(suite)[0]
    moments = entry.problem.length_moments(entry.lengths)
    one = scaled_bias(moments, 1)
    number, unit = telling(entry.problem, one[None])
    share = np.sign(one @ unit) / float(np.linalg.norm(entry.problem.gradient()))

    def along(vector: np.ndarray) -> float:
        return float(share * vector @ unit)

    for batch in BATCHES:
        at = {"panel": "bias", "batch_size": batch}
        measured = None
        if batch <= MEASURED:
            found = measured_bias(entry, number, batch)
            ((quantity, _),) = found.weights
            measured = Linear(
                found.cell, ((quantity, float(share)),), float(share * found.constant)
            )
        leading = mean_length(moments) * token_mean_bias(moments, G, batch)
        yield Point(STEM, "exact", at, along(scaled_bias(moments, batch)), measured)
        yield Point(STEM, "leading", at, along(leading))
        yield Point(STEM, f"rival: {ROOT}", at, along(one) / batch**0.5)


def two_answers() -> tuple[TokenProblem, PrefixSoftmax]:
    """A prompt whose shortest answer earns .8 and whose longest earns 1, and a policy that writes on."""
    space = OutputSpace(1, 4, end=True)
    task = TokenProblem(space, ((),), lambda x, y: {0: 0.8, 4: 1.0}.get(len(y), 0.0))
    tables = np.zeros((1, space.prefixes, space.symbols))
    tables[..., 0] = 1.0
    return task, PrefixSoftmax(space, tables)


def ascent(how: str, baseline: str, steps: int) -> Iterator[float]:
    """The return of the two answers' policy before each step along the mean of an estimator, all with
    the same first step as far as lengths are alike.
    """
    task, policy = two_answers()
    scale = None
    for _ in range(steps):
        bandit = task.at(policy)
        moments = bandit.length_moments()
        yield bandit.objective()
        weights = (
            moments.probs
            @ {
                "sequence-sum": np.ones_like(moments.lengths),
                "token-mean": 1 / np.full_like(moments.lengths, mean_length(moments)),
                "sequence-mean": 1 / moments.lengths,
            }[how]
        )
        scale = scale or RATE / float(moments.context_probs @ weights)
        mean = aggregated_mean(moments, how, baseline, G, 4)
        policy = policy.with_theta(policy.theta + scale * mean)


def _ascent() -> Iterator[Point]:
    for series, (how, baseline) in CLIMBERS.items():
        for step, value in enumerate(ascent(how, baseline, STEPS[-1] + 1)):
            if step in STEPS:
                yield Point(STEM, series, {"panel": "ascent", "step": step}, value)

"""Beyond the paper: outputs of unequal length. If a loss divides by an output's own length, or by the tokens
of the whole minibatch, its mean is not a multiple of the gradient. The mean is known exactly.

The checks use token problems with an end token, and flowers answered by their species. With 1/|y| in the loss
they cover the MSE and the mean along a direction, with grpo and without a baseline, because the baseline
changes the mean here. With one divisor for all tokens they cover the bias of the token mean, scaled by E|y|,
with one and with several prompts in the minibatch, on the same draws as the plain estimate; its leading term;
and the bias with one divisor for each group.

Falsified by an enumerated mean that differs by more than rounding, or a simulated one whose interval
misses.

Cost: some 10⁵ to 10⁶ minibatches, those of the token mean by the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.estimators import token_weights
from ustat_pg.moments.record import LengthMoments
from ustat_pg.predictions import (
    aggregated_mean,
    gradient_mse,
    length_curl,
    token_mean_bias,
    weighted_mse,
)
from ustat_pg.problems import SoftmaxBandit, WeightedBandit
from ustat_pg.validation import Array

from .engines import TokenMeanCell
from .evidence import Check, equal, mean_of
from .problems import Suite, mse_of
from .problems.lengths import Worded, worded
from .problems.paths import Divisor, around_a_loop, mean_along
from .shared.margins import LOOSE, ROUGH
from .shared.numerics import later_terms
from .shared.peers import mean_in, telling
from .shared.runs import GRPO

RESCALED = "1/|y| only rescales"
NO_EFFECT = "a baseline changes no mean"
SCALED_ERROR = "the error of 1/|y| is the plain one, scaled"
UNBIASED = "the token mean is unbiased"
ROOT = "its bias falls as 1/sqrt(B)"
OWN_GROUP = "a divisor for each group is the same"
LENGTH_ALONE = "the spread of lengths alone makes the bias"
RIVALS = (RESCALED, NO_EFFECT, SCALED_ERROR, UNBIASED, ROOT, OWN_GROUP, LENGTH_ALONE)

G = 2
"""The group size of the checks; the token mean's bias is largest for small groups."""

CONSTANT, PROMPTS = 3, 2
"""A constant length; the number of prompts in a minibatch with weighted tokens."""

DIVISORS: dict[str, Divisor] = {
    "sequence-mean": lambda lengths, mean: lengths,
    "token-mean": lambda lengths, mean: np.full(len(lengths), mean),
}

SIDE = 1.0
"""The side of the loop for the mean's work, in parameters."""

MOST = 100_000
"""The number of minibatches that can be enumerated quickly."""


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of each way's mean, and of the error with 1/|y|."""
    for entry in worded(suite):
        yield from per_output(entry)
        yield from token_means(entry)
        if entry.origin != "real":
            yield from turns(entry)


def multiple(mean: Array, gradient: Array) -> float:
    """The multiple of the gradient nearest to a mean."""
    return float(mean @ gradient) / float(gradient @ gradient)


def weighted(entry: Worded, how: str) -> WeightedBandit:
    """The problem with each output's score weighted like its tokens in a trainer's loss."""
    # A minibatch has two prompts; the mean over these outputs is not a mean over drawn outputs.
    lengths = np.array(entry.lengths)
    tokens = (np.arange(lengths.max()) < lengths[:, None]).astype(np.float64)
    mask = np.tile(tokens, (PROMPTS, 1, 1))
    weights = mask.shape[0] * mask.shape[1] * token_weights(mask, how)[0, :, 0]
    return WeightedBandit.of(entry.problem, np.tile(weights, (entry.problem.contexts, 1)))


def per_output(entry: Worded) -> Iterator[Check]:
    """The checks of weights that depend on each output alone."""
    problem = weighted(entry, "sequence-mean")
    moments = entry.problem.length_moments(entry.lengths)
    gradient = problem.gradient()
    names = ("grpo", "vanilla", "group-mean")
    grpo, vanilla, group = (aggregated_mean(moments, "sequence-mean", n, G) for n in names)
    factor = multiple(grpo, gradient)
    direction = telling(problem, [grpo - vanilla, grpo - factor * gradient])
    cell = GradientCell(problem, G)
    for name, mean, wrong in (
        ("grpo", grpo, {RESCALED: factor * gradient, NO_EFFECT: vanilla}),
        ("vanilla", vanilla, {NO_EFFECT: grpo}),
        ("group-mean", group, {}),
    ):
        # It may be near 0 without a baseline.
        what, size = f"1/|y|: mean of {name}", float(np.linalg.norm(mean))
        yield direction.check(entry, what, cell, Estimator(name), mean, wrong, scale=size)
    error = weighted_mse(problem.weighted_outcomes(), "grpo", G).mse
    plain = gradient_mse(entry.problem.moments(), "grpo", G).mse
    scaled = factor**2 * plain + (1 - factor) ** 2 * float(gradient @ gradient)
    says = equal(error, {SCALED_ERROR: scaled}, scale=error)
    yield entry.check("1/|y|: error of grpo", mean_of(cell, mse_of("grpo")), says)
    outputs = PROMPTS * len(entry.lengths)
    plain_mean = aggregated_mean(moments, "sequence-sum", "grpo", G)
    for how, times in (
        (f"constant:{CONSTANT}", 1 / CONSTANT),
        ("sequence-sum", 1.0),
        ("token-sum", outputs),
    ):
        plainly, mean = weighted(entry, how), times * plain_mean
        what = f"{how.replace('constant:', '1/')}: mean of grpo"
        yield telling(plainly, [mean]).check(entry, what, GradientCell(plainly, G), GRPO, mean)


def turns(entry: Worded) -> Iterator[Check]:
    """The work of the mean around a loop: the part of the field's curl, and the part of the loop's size."""
    problem = entry.problem
    lengths, law = np.array(entry.lengths), problem.context_probs[:, None] * problem.policy.probs
    longer = sum(law[x] * lengths @ problem.policy.scores(x) for x in range(problem.contexts))
    # Rewards and lengths conflict in this plane. Neither side is along the gradient, because there a curl of
    # the wrong symmetry would not be detected.
    sides, _ = np.linalg.qr(np.stack([problem.gradient(), longer], axis=1))
    sides = sides @ np.array([[0.8, -0.6], [0.6, 0.8]])
    first, second = sides.T.round(6)
    for how, divisor in DIVISORS.items():
        moments = problem.length_moments(entry.lengths)
        curl = float(second @ length_curl(moments, how) @ first)

        def turned(side: float, divisor: Divisor = divisor) -> float:
            ends = side * first, side * second
            return around_a_loop(problem, lengths, divisor, G, *ends)[1] / side**2

        near, nearer = turned(SIDE / 8), turned(SIDE / 16)
        later = SIDE**2 * (turned(SIDE) - (4 * nearer - near) / 3)
        around, _ = around_a_loop(problem, lengths, divisor, G, SIDE * first, SIDE * second)
        wrong = {RESCALED: later} if how == "sequence-mean" else {}
        margins = {"digits": SIDE**2 * abs(near - nearer), "relative_margin": ROUGH}
        yield entry.check(
            f"{how}: work around a loop",
            mean_along(GradientCell(around, G), ((GRPO, 1.0),)),
            equal(SIDE**2 * curl + later, wrong, **margins),
        )


def mean_length(moments: LengthMoments) -> float:
    """The mean length E|y| over prompts and outputs."""
    return float(moments.context_probs @ moments.probs @ moments.lengths)


def scaled_bias(moments: LengthMoments, batch_size: int, how: str = "token-mean") -> Array:
    """The bias of a scaled token mean, E|y| E ĝ - g."""
    mean = aggregated_mean(moments, how, "grpo", G, batch_size)
    plain = aggregated_mean(moments, "sequence-sum", "grpo", G)
    return np.asarray(mean_length(moments) * mean - plain)


def of_bias(entry: Worded, batch_size: int, how: str = "token-mean") -> TokenMeanCell:
    """The scaled token mean minus the plain estimate on the same draws."""
    problem = entry.problem
    length = mean_length(problem.length_moments(entry.lengths))
    return TokenMeanCell(
        problem, G, batch_size, lengths=entry.lengths, how=how, scale=length, less_plain=True
    )


def several(problem: SoftmaxBandit) -> int:
    """The largest number of prompts in an enumerated minibatch."""
    counts = problem.outcomes.counts
    groups = int((counts * (counts + 1) // 2).sum())
    return max(2, int(np.log(MOST) / np.log(groups)))


def token_means(entry: Worded) -> Iterator[Check]:
    """The checks of one divisor for all tokens, or for the tokens of each group."""
    problem, moments = entry.problem, entry.problem.length_moments(entry.lengths)
    batch, length = several(problem), mean_length(moments)
    one, more = (scaled_bias(moments, size) for size in (1, batch))
    leading = length * token_mean_bias(moments, G, batch)
    root, spread = one / np.sqrt(batch), spread_alone(moments, batch)
    direction, none = telling(problem, [more, more - root, more - one, more - spread]), 0 * one
    along, what = direction.along, "token mean: bias with one prompt"
    yield direction.check(entry, what, of_bias(entry, 1), GRPO, one, {UNBIASED: none})
    if entry.origin == "real":
        # Names of flowers differ little in length, and such small biases need many draws.
        return
    plain_cell = TokenMeanCell(problem, G, 2, lengths=entry.lengths, scale=length)
    for name in ("vanilla", "oracle", "group-mean"):
        mean = length * aggregated_mean(moments, "token-mean", name, G, 2)
        what, size = f"token mean: mean of {name}", float(np.linalg.norm(mean))
        yield direction.check(
            entry, what, plain_cell, Estimator(name), mean, scale=size, relative_margin=LOOSE
        )
    what, wrong = f"bias with {batch} prompts", {UNBIASED: none, ROOT: root, OWN_GROUP: one}
    cell = of_bias(entry, batch)
    yield direction.check(entry, f"token mean: {what}", cell, GRPO, more, wrong)
    # The leading term is c/B, so B times the bias tends to c.
    plain = float(np.linalg.norm(aggregated_mean(moments, "sequence-sum", "grpo", G)))
    later, error = later_terms(
        lambda size: size / batch * along(scaled_bias(moments, size)),
        batch,
        cancels=lambda size: size / batch * plain,
    )
    yield entry.check(
        f"token mean: leading and later bias with {batch} prompts",
        mean_in(cell, GRPO, direction.number),
        equal(
            along(leading) + later,
            {UNBIASED: later, LENGTH_ALONE: along(spread) + later},
            digits=error,
        ),
    )
    what, by_mean = f"a divisor for each group: {what}", of_bias(entry, batch, "prompt-mean")
    bias = scaled_bias(moments, batch, "prompt-mean")
    yield direction.check(entry, what, by_mean, GRPO, bias, {OWN_GROUP: more})


def spread_alone(moments: LengthMoments, batch_size: int) -> Array:
    """The leading bias without the covariance of the sum and the tokens."""
    of_prompt = moments.probs @ moments.lengths
    rho, mean = moments.context_probs, mean_length(moments)
    inside = moments.probs @ moments.lengths**2 - of_prompt**2
    variance = float(rho @ of_prompt**2 - mean**2 + rho @ inside / G)
    plain = aggregated_mean(moments, "sequence-sum", "grpo", G)
    return np.asarray(plain * variance / mean**2 / batch_size)

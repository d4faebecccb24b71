"""The bias of steps on outputs that are used again (reuse).

The first step θ₁ = θ₀ + η ĝ is fitted to the rewards of its own outputs. A second step on the same outputs
weights each by the exact ratio π_θ₁/π_θ₀ of whole outputs, and is biased all the same:

    E ĝ₂ - E ∇J(θ₁) = (η/B) { E_X[ (E[M s a²] - Q g)/G + (σ² E[M s] + Q g)/(G(G-1)) ] + Cov_X(Q, g) } + O(η²)

with M = s sᵀ + ∇s, a = z - V and Q = E[M a]. It is η times half the gradient of the noise of the estimate,
so it pushes towards more noise. In pass j the bias is j - 1 times as large: to first order, several passes
are one longer step, not several batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..display.numbers import readable
from ..display.shown import Shown, rows
from ..moments.record import ReuseMoments
from ..rounding import DERIVED
from ..validation import Array, InputError, integer, number, positive, shares
from .closed_forms import grpo_error, minibatch_error, reuse_slope
from .covariance import covariance_parts
from .mse import prompt_share

_ROWS = {
    "relative_bias": "length of the bias over the gradient's",
    "along_gradient": "part along the gradient, over its length",
    "noise_along": "noise along the gradient, over its length",
    "bias_to_noise": "bias over noise, along the gradient",
    "rate_at_noise": "rate at which the two are equal",
    "steps_at_noise": "batches after which their sums are equal",
}


@dataclass(frozen=True, eq=False)
class ReuseBias(Shown):
    """The bias of the last step on a batch that is used several times, to first order in the rate.

    Arguments:
        slope: the bias over the learning rate, (d,).
        bias: E ĝ - E ∇J at the parameters of this step, (d,).
        relative_bias: its length over ‖∇J‖; this and each following field is None if ∇J = 0.
        along_gradient: its part along ∇J, over ‖∇J‖; negative if it points against the gradient.
        noise_along: standard deviation of a step's ĝ along ∇J, over ‖∇J‖.
        bias_to_noise: size of the part along ∇J over that deviation; None if there is no noise.
        rate_at_noise: learning rate at which the two are equal, in proportion to √B; None if the bias
            has no part along ∇J.
        steps_at_noise: number of such batches after which the biases' sum is as large as the noise's
            standard deviation, if the parameters do not move much meanwhile; None in the same case.
    """

    slope: Array
    bias: Array
    relative_bias: float | None = None
    along_gradient: float | None = None
    noise_along: float | None = None
    bias_to_noise: float | None = None
    rate_at_noise: float | None = None
    steps_at_noise: float | None = None

    def __str__(self) -> str:
        if self.relative_bias is None:
            return f"∇J = 0; length of the bias {readable(float(np.linalg.norm(self.bias)), 6)}"
        return rows(vars(self), _ROWS)


def reuse_bias(
    moments: ReuseMoments,
    group_size: int,
    batch_size: int = 1,
    *,
    rate: float,
    passes: int = 2,
    minibatches: int = 1,
    design: str = "iid",
) -> ReuseBias:
    """The bias of the last step of grpo on a batch that is used again, to first order in the rate (reuse).

    Each pass takes a plain gradient step of the rate on each minibatch, without clipping. Steps on other
    outputs of the same policy do not bias a step with the ratio of whole outputs, so a minibatch's bias
    grows with the number of its own earlier steps.

    Arguments:
        moments: result of :func:`~ustat_pg.problems.reuse_moments`; they contain the kind of ratio.
        group_size: G >= 2.
        batch_size: B, the prompts of one step.
        rate: η > 0 of each step.
        passes: number of passes over the batch, of which this is the last.
        minibatches: number of steps of each pass, on disjoint minibatches of whole groups.
        design: one of :data:`~ustat_pg.sampling.designs.DESIGNS`; only iid with several minibatches.

    >>> from ustat_pg.problems import SoftmaxBandit, reuse_moments
    >>> hard, easy = (SoftmaxBandit.bernoulli([p, 1 - p], [1, 0]) for p in (0.1, 0.9))
    >>> for problem in (hard, easy):
    ...     print(round(reuse_bias(reuse_moments(problem), 8, rate=0.1).along_gradient, 4))
    0.0133
    -0.0133
    >>> round(reuse_bias(reuse_moments(hard), 8, batch_size=2, rate=0.1, passes=4).along_gradient, 3)
    0.02
    """
    if not isinstance(moments, ReuseMoments):
        raise InputError(
            f"moments are a {type(moments).__name__}: reuse_bias needs those of reuse_moments(problem)"
        )
    size, prompts = integer("group size", group_size, 2), integer("batch size", batch_size)
    eta, count = positive("rate", rate), integer("passes", passes)
    parts = integer("minibatches", minibatches)
    if parts > 1 and design != "iid":
        raise InputError(
            f"design is {design!r} with {parts} minibatches: their prompts depend on each other, so only "
            "iid is known"
        )
    known = moments.moments
    share, rho = prompt_share(known, prompts, design), known.context_probs
    own = reuse_slope(
        size, known.reward_variance[:, None], moments.square, moments.score, moments.product
    )
    slope = (count - 1) * minibatch_error(prompts, moments.between, rho @ own, share)
    slope = slope + (count * parts - 1) * moments.ratio_slope
    return ReuseBias(slope, eta * slope, **_beside_noise(moments, slope, eta, size, prompts, share))


def even_reuse_bias(pass_rates: ArrayLike, outputs: float, passes: float = 2) -> Array:
    """The bias of the last pass along a prompt's gradient, over its length and over η E‖s‖² (reuse).

    (passes - 1)(1 - 2p)/K, for rewards 0 and 1 and scores of equal length in so many directions that none
    holds a visible share: then E[M s a²] = E‖s‖² (1 - 2p) g, and the other terms are small. Since ‖g‖² ≤ σ²
    E‖s‖², the bias is shorter than the noise of a step while η E‖s‖² times this is below 1/√K.

    Arguments:
        pass_rates: p, in [0, 1].
        outputs: K = BG > 1, the outputs of a step.
        passes: number of passes over the batch, of which this is the last, >= 1.

    >>> even_reuse_bias([0.2, 0.5, 0.9], 64, passes=4).round(5)
    array([ 0.02812,  0.     , -0.0375 ])
    """
    p = shares("pass rate", pass_rates)
    if positive("outputs", outputs) <= 1:
        raise InputError(f"outputs is {outputs:g}: leave-one-out needs more than 1")
    return np.asarray(
        (number("passes", passes, minimum=1.0) - 1) * reuse_slope(outputs, 0, 1 - 2 * p, 0, 0)
    )


def _beside_noise(
    moments: ReuseMoments, slope: Array, rate: float, size: int, prompts: int, share: float
) -> dict[str, Any]:
    """The fields of a bias that compare it with the gradient and with the noise along it."""
    gradient = moments.moments.weighted_gradient(np.ones(len(moments.moments)))
    length = float(np.linalg.norm(gradient))
    if length <= DERIVED * math.sqrt(float(moments.moments.norm_squared_advantage.max())):
        return {}
    unit = gradient / length
    c1, c2, c3 = (float(part[0, 0]) for part in covariance_parts(moments.moments, unit[:, None]))
    variance = minibatch_error(prompts, c1, grpo_error(size, c2, c3), share)
    noise, along = math.sqrt(max(variance, 0.0)), float(unit @ slope)
    found: dict[str, Any] = {
        "relative_bias": rate * float(np.linalg.norm(slope)) / length,
        "along_gradient": rate * along / length,
        "noise_along": noise / length,
    }
    if noise > 0 and abs(along) > DERIVED * float(np.linalg.norm(slope)):
        ratio = rate * abs(along) / noise
        found |= {
            "bias_to_noise": ratio,
            "rate_at_noise": rate / ratio,
            "steps_at_noise": 1 / ratio**2,
        }
    return found

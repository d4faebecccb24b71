"""Exact results for prompts drawn by a law of one's own (prompt_sampling).

J weights prompts by ρ(x), the data's law. Let a step draw them by q(x), and multiply a prompt's estimate by
v(x). With leave-one-out over n(x) outputs, E ĝₓ = g(x) and m(x) = E‖ĝₓ‖², so

    E ĝ   = Σ q v g(x)                        the gradient of J itself if v = ρ/q
    E‖ĝ‖² = Σ q v² m(x)                       Σ ρ²/q m(x) if v = ρ/q
    cost  = (Σ q n) (E‖ĝ‖² - ‖g‖²)            outputs times variance, of one drawn prompt

With one size for all, the least cost has q ~ ρ √m, for every ‖g‖². With a size for each prompt, n(x) has
the least (n + κ) m(x) and q ~ ρ √(m/(n + κ)), with κ = Σ q n ‖g‖²/(E‖ĝ‖² - ‖g‖²): a prompt has the group size
that is the best one for itself if drawing a prompt costs κ outputs. If ‖g‖² is small, κ = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad_vec

from ..display.shown import Shown, rows
from ..moments.record import Moments, takes_problems
from ..rounding import DERIVED, SQUARE
from ..validation import (
    Array,
    InputError,
    finite_array,
    integer,
    positive,
    probabilities,
    shares,
)
from .adaptive import Counts, at_prompts
from .closed_forms import (
    chosen_share,
    drawing_weight,
    drawn_cost,
    drawn_square,
    expected_spread,
    grpo_error,
    pair_noise,
    signal_outputs,
)
from .count_tables import require_binary
from .mse import about, no_gradient

ROWS = {
    "expected_size": "outputs drawn for one prompt",
    "cost": "outputs times variance of one prompt",
    "mse": "MSE of the minibatch gradient",
    "squared_bias": "  squared bias",
    "noise_to_signal": "noise to signal, tr Cov ĝ/‖E ĝ‖²",
    "cosine": "cosine of E ĝ to the gradient",
}
"""The label of each number of a law."""

PRIOR = (0.5, 0.5)
"""The Beta law of pass rates that :func:`rate_law` assumes: most prompts are nearly solved or hopeless."""


@dataclass(frozen=True, eq=False)
class DrawnPrediction(Shown):
    """The effect of a law of prompts, in a batch of B prompts.

    Arguments:
        law: q(x), (X,).
        weights: the factors v(x) of the estimates, (X,).
        mean_factor: the weight of g(x) in E ĝ over its weight in J, (X,); all 1 if the estimate is unbiased.
        second_moment: v² E‖ĝₓ‖² of one prompt's group, (X,).
        expected_size: Σ q n.
        cost: outputs times variance of one drawn prompt.
        mse: E‖ĝ - g‖².
        squared_bias: ‖E ĝ - g‖².
        noise_to_signal: tr Cov ĝ/‖E ĝ‖²; None if E ĝ = 0.
        cosine: cosine of the angle between E ĝ and g; None if one of them is 0.
    """

    law: Array
    weights: Array
    mean_factor: Array
    second_moment: Array
    expected_size: float
    cost: float
    mse: float
    squared_bias: float
    noise_to_signal: float | None
    cosine: float | None

    def __str__(self) -> str:
        return rows(vars(self), ROWS)


@dataclass(frozen=True, eq=False)
class PromptLaw(Shown):
    """A law of prompts with the weights that leave the estimate unbiased.

    Arguments:
        law: q(x), (X,).
        weights: ρ/q, (X,); 0 where q is 0.
        sizes: n(x), (X,), whole numbers.
        cost: outputs times variance of one drawn prompt (:func:`sampled_error`).
        data_cost: the same if prompts are drawn by ρ, at the one group size that is best for it.
    """

    law: Array
    weights: Array
    sizes: Counts
    cost: float
    data_cost: float

    @property
    def ratio(self) -> float:
        """The outputs that the law needs over those of the data's law, for the same noise."""
        return self.cost / self.data_cost


def weights_of(probs: Array, law: Array) -> Array:
    """ρ/q, which leaves the estimate unbiased, (X,); 0 where q = 0.

    >>> weights_of(np.array([0.5, 0.5]), np.array([0.8, 0.2]))
    array([0.625, 2.5  ])
    """
    drawn = law > 0
    return np.where(drawn, probs / np.where(drawn, law, 1.0), 0.0)


def mixed(probs: Array, law: Array, share: float) -> Array:
    """(1 - share) q + share ρ, with weights of at most 1/share, (X,).

    >>> mixed(np.array([0.5, 0.5]), np.array([1.0, 0.0]), 0.2)
    array([0.9, 0.1])
    """
    share = float(shares("share of the data's law", share))
    return np.asarray((1 - share) * law + share * probs)


@takes_problems
def sampled_error(
    moments: Moments,
    law: ArrayLike,
    sizes: ArrayLike,
    batch_size: int = 1,
    *,
    estimator: str = "grpo",
    weights: ArrayLike | None = None,
) -> DrawnPrediction:
    """Mean, error and cost if prompts are drawn independently by a law of one's own (prompt_sampling).

    The law must not depend on the rewards in use: pass rates from earlier steps are allowed.

    Arguments:
        moments: the problem, or its moments.
        law: q(x), (X,).
        sizes: the group size, or n(x), (X,).
        batch_size: B.
        estimator: name of an estimator with a closed form.
        weights: v(x), (X,), by default ρ/q; ones for a curriculum without weights.

    Raises:
        InputError: the law does not fit the prompts, or draws one that has no weight in J; or with the
            default weights, a prompt with a gradient is never drawn.

    >>> from ustat_pg.problems import example_problem, problem_from_mapping
    >>> problem = problem_from_mapping(example_problem())
    >>> sampled_error(problem, [0.5, 0.5], 4).squared_bias
    0.0
    >>> sampled_error(problem, [0.5, 0.5], 4, weights=[1, 1]).mean_factor.round(3)
    array([0.833, 1.25 ])
    """
    probs, batch = moments.context_probs, integer("batch size", batch_size)
    drawn = _law(moments, law)
    numbers = np.broadcast_to(sizes, probs.shape) if np.ndim(sizes) == 0 else sizes
    factor, second = at_prompts(moments, numbers, estimator)
    if weights is None:
        if missed := np.flatnonzero(
            (drawn == 0) & (probs > 0) & (moments.gradient_sq > 0)
        ).tolist():
            raise InputError(
                f"law is 0 at prompt {missed[0]}, which has weight in J: an unbiased estimate must draw it"
            )
        given = weights_of(probs, drawn)
    else:
        given = finite_array("weights", weights, 1)
        if given.shape != probs.shape:
            raise InputError(
                f"weights has {len(given)} entries: it must have one per prompt ({len(probs)})"
            )
        factor = factor * given * weights_of(drawn, probs)
    square, along = map(float, moments.mean_gradient(factor))
    outputs = float(drawn @ np.asarray(numbers, dtype=float))
    noise = max(float(drawn_square(drawn, given, second)) - square, 0.0)
    nothing = no_gradient(moments)
    return DrawnPrediction(
        **about(noise / batch, square, along, moments.mean_gradient_sq, nothing=nothing),
        law=drawn,
        weights=given,
        mean_factor=factor,
        second_moment=given**2 * second,
        expected_size=outputs,
        cost=outputs * noise,
    )


@takes_problems
def best_law(
    moments: Moments,
    group_size: int | None = None,
    *,
    share: float = 0.0,
    largest_group: int = 64,
) -> PromptLaw:
    """The law of prompts with the least outputs times variance, and this cost (prompt_sampling).

    Arguments:
        moments: the problem, or its moments.
        group_size: one size for all; by default each prompt has its own.
        share: the share of the data's law in a mixture, which bounds the weights by 1/share.
        largest_group: largest size that is tried, up to 2^16.

    Returns:
        the law; with share 0 no law has a lower cost at the one size. With own sizes its cost is stationary
        in every q(x) and n(x), and the least over a range of κ.

    Raises:
        InputError: the estimates have no noise.

    >>> from ustat_pg.problems import example_problem, problem_from_mapping
    >>> problem = problem_from_mapping(example_problem())
    >>> best = best_law(problem, 4)
    >>> best.law.round(3), best.weights.round(3)
    (array([0.633, 0.367]), array([0.948, 1.091]))
    >>> best_law(problem).cost < best.cost < best.data_cost
    True
    """
    probs, signal = moments.context_probs, moments.mean_gradient_sq
    most = integer("largest group", largest_group, 2, 2**16)
    numbers = np.arange(2.0, most + 1)
    squares = _squares(moments, numbers)
    data = np.asarray(
        [drawn_cost(n, probs @ m, signal) for n, m in zip(numbers, squares.T, strict=True)]
    )
    if not data.min() > SQUARE * float(probs @ squares[:, 0]):
        raise InputError("estimates of these moments have no noise, so all laws are equally good")

    def at(extra: float, places: Counts) -> PromptLaw:
        m, sizes = squares[np.arange(len(probs)), places], numbers[places]
        law = drawing_weight(probs, m, sizes, extra, np.sqrt)
        law = mixed(probs, law / law.sum(), share)
        weights = weights_of(probs, law)
        cost = drawn_cost(law @ sizes, drawn_square(law, weights, m), signal)
        return PromptLaw(law, weights, sizes.astype(int), float(cost), float(data.min()))

    if group_size is not None:
        size = integer("group size", group_size, 2, most)
        return at(0.0, np.full(len(probs), size - 2))

    def own(extra: float) -> PromptLaw:
        return at(extra, ((numbers + extra) * squares).argmin(axis=1))

    best = min((own(extra) for extra in _EXTRA * most), key=lambda found: found.cost)
    for _ in range(_STEPS):
        outputs = float(best.law @ best.sizes)
        before, best = best, own(signal_outputs(outputs, best.cost / outputs + signal, signal))
        still = np.array_equal(best.sizes, before.sizes)
        if still and np.abs(best.law - before.law).max() <= DERIVED:
            break
    return best


_EXTRA = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 36)])
"""The multiples of the largest group that are tried for κ."""
_STEPS = 50
"""The most steps from there to the κ that is the optimum's own; no step raises the cost."""


def _squares(moments: Moments, sizes: Array) -> Array:
    """m(x) at each size, (X, N)."""
    single = np.maximum(moments.norm_squared_advantage - moments.gradient_sq, 0.0)
    pair = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
    errors = grpo_error(sizes, single[:, None], pair[:, None])
    return np.asarray(moments.gradient_sq[:, None] + errors)


def counts(successes: ArrayLike, rollouts: ArrayLike) -> tuple[Array, Array]:
    """Successes and rollouts of each prompt, (X,) both, from one number of rollouts for all or one for each.

    >>> counts([1, 2], 4)[1]
    array([4., 4.])
    """
    seen = finite_array("successes", successes, 1, 0.0)
    tried = finite_array("rollouts", rollouts, minimum=0.0)
    if tried.shape not in ((), seen.shape):
        raise InputError(
            f"rollouts has shape {tried.shape}: one number, or one per prompt ({len(seen)}), is needed"
        )
    return seen, np.broadcast_to(tried, seen.shape)


def rate_law(
    successes: ArrayLike,
    rollouts: ArrayLike,
    *,
    probs: ArrayLike | None = None,
    share: float = 0.2,
    prior: tuple[float, float] = PRIOR,
) -> Array:
    """A law of prompts from the successes among k earlier rollouts of each, q ~ ρ √(E[p (1-p)]), (X,).

    It is the best law if scores of all prompts have equal norms, gradients are small, and pass rates have the
    prior law. Weights make it unbiased in any case, if the rollouts are not those in use.

    Arguments:
        successes, rollouts: s(x) and k(x), (X,); one k for all is enough.
        probs: ρ(x), (X,) (default: equal).
        share: the share of the data's law, which bounds the weights by 1/share.
        prior: a and b of the Beta law of pass rates.

    >>> rate_law([0, 4, 8], 8).round(3)
    array([0.258, 0.484, 0.258])
    """
    seen, tried = counts(successes, rollouts)
    if (over := np.flatnonzero(seen > tried)).size:
        raise InputError(
            f"successes are {seen[over[0]]:g} of {tried[over[0]]:g} rollouts: they must not be more"
        )
    pair = finite_array("prior", prior, 1)
    if len(pair) != 2:
        raise InputError(f"prior has {len(pair)} entries: it must have 2, a and b")
    beta = positive("prior", pair[0]), positive("prior", pair[1])
    data = np.full(len(seen), 1 / len(seen)) if probs is None else probabilities("probs", probs, 1)
    if len(data) != len(seen):
        raise InputError(
            f"probs has {len(data)} entries: it must have one per prompt ({len(seen)})"
        )
    spread = expected_spread(seen, tried - seen, beta)
    law = drawing_weight(data, spread, 1.0, root=np.sqrt)
    return mixed(data, law / law.sum(), share)


@takes_problems
def unweighted_law(moments: Moments, estimator: str, group_size: int) -> Array:
    """The law q ~ ρ/w(x) under which an estimator climbs J itself without weights (prompt_sampling).

    w is the estimator's factor on g(x). So the division by a group's deviation is an importance weight of
    prompts, and this law is the one that it fits.

    Arguments:
        moments: the problem, or its moments.
        estimator: name of an estimator with a closed form, such as std.
        group_size: G.

    Raises:
        InputError: the estimator has the factor 0 or less at a prompt.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coins = SoftmaxBandit.bernoulli([[0.5, 0.5], [0.9, 0.1]], [[1, 0], [1, 0]])
    >>> law = unweighted_law(coins, "std", 8)
    >>> law.round(3), sampled_error(coins, law, 8, estimator="std", weights=[1, 1]).mean_factor.round(3)
    (array([0.556, 0.444]), array([2.065, 2.065]))
    """
    size = integer("group size", group_size)
    factor, _ = at_prompts(moments, [size] * len(moments), estimator)
    if not factor.min() > 0:
        raise InputError(
            f"{estimator} has the factor {factor.min():g} at a prompt: it must be positive"
        )
    law = moments.context_probs / factor
    return np.asarray(law / law.sum())


@takes_problems
def screened_share(moments: Moments, low: float, high: float, rollouts: int | None = None) -> Array:
    """The share of screenings that each prompt passes, if those with other pass rates are dropped, (X,).

    What is left, without weights, is the law q ~ ρ h. If the share h(V) is computed anew at each step, this
    climbs E H(V), H' = h: for the exact rate E min(max(V, low), high) (prompt_sampling).

    Arguments:
        moments: the problem, or its moments; rewards 0 and 1.
        low, high: a prompt is kept if low <= pass rate <= high.
        rollouts: number of earlier rollouts that a pass rate is estimated from, up to 1000; by default it is
            exact.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coins = SoftmaxBandit.bernoulli([[0.5, 0.5], [0.9, 0.1]], [[1, 0], [1, 0]])
    >>> screened_share(coins, 0.0, 0.8), screened_share(coins, 0.0, 0.8, rollouts=4).round(3)
    (array([1., 0.]), array([0.938, 0.344]))
    """
    require_binary(moments, "a screening by pass rates")
    least, most = (float(shares("pass rate", end)) for end in (low, high))
    rates = moments.value
    if rollouts is None:
        return np.asarray((rates >= least) & (rates <= most), dtype=np.float64)
    k = integer("rollouts", rollouts, 1, 1000)
    passed = [s for s in range(k + 1) if least <= s / k <= most]
    if not passed:
        return np.zeros_like(rates)
    return np.asarray(chosen_share(rates, k, passed[0], passed[-1]), dtype=np.float64)


def normalised_factor(probs: ArrayLike, law: ArrayLike, batch_size: int) -> Array:
    """The weight of g(x) in E ĝ if weights ρ/q are divided by their mean over the batch, (X,).

    B E[1/(w(x) + Σ of B-1 others)] = B ∫₀^∞ e^(-t w(x)) (E e^(-t w))^(B-1) dt, w = ρ/q. It tends to 1 as B
    grows; at B = 1 it is q/ρ, as without weights.

    Arguments:
        probs: ρ(x), (X,).
        law: q(x), (X,), positive.
        batch_size: B.

    >>> normalised_factor([0.5, 0.5], [0.8, 0.2], 1).round(9)
    array([1.6, 0.4])
    >>> normalised_factor([0.5, 0.5], [0.8, 0.2], 64).round(2)
    array([1.01, 0.99])
    """
    data, drawn = probabilities("probs", probs, 1), probabilities("law", law, 1)
    others = integer("batch size", batch_size) - 1
    if data.shape != drawn.shape or not drawn.min() > 0 or not data.min() > 0:
        raise InputError("probs and law must be positive at the same prompts")
    weights = weights_of(data, drawn)
    # The integrand at t = u/(1-u) is smooth on [0, 1); the sum of weights sets the scale of t.
    scale = float(weights.min() + others * (drawn @ weights))

    def inside(u: float) -> Array:
        t = u / ((1 - u) * scale)
        common = float(drawn @ np.exp(-t * weights)) ** others
        return np.asarray(np.exp(-t * weights) * common / ((1 - u) ** 2 * scale))

    value, _ = quad_vec(inside, 0.0, 1.0 - 1e-9, epsabs=1e-13, epsrel=1e-13, limit=2000)
    return np.asarray((others + 1) * value)


def _law(moments: Moments, law: ArrayLike) -> Array:
    drawn = probabilities("law", law, 1)
    if len(drawn) != len(moments):
        raise InputError(
            f"law has {len(drawn)} entries: it must have one per prompt ({len(moments)})"
        )
    if (extra := np.flatnonzero((drawn > 0) & (moments.context_probs == 0))).size:
        raise InputError(f"law draws prompt {extra[0]}, which has no weight in J: leave it out")
    return drawn

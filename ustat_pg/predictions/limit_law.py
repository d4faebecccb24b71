"""The law of the suboptimality gap near the optimum (Theorem 8, limit_law; Corollaries 9 and 10,
oracle_policy and optimal_policy).

In the eigenbasis of the curvatures Λ the deviation δ = Uᵀ(θ - θ*) follows, near the optimum, the
linear recursion δ⁺ = (I - ηΛ)δ + ηξ with Cov ξ = Σ, and gap = ½ δᵀΛδ. Under the rates c/t (or
c/(t + t₀)) the second moment of √T δ_T tends to the solution of a Lyapunov equation,

    Γ_jk = c² Σ_jk / (cλ_j + cλ_k - 1),      T gap_T -> Σₖ wₖ χ²₁ in law,

where w are the eigenvalues of ½ Λ^{1/2} Γ Λ^{1/2}. (½ΛΓ has the same eigenvalues, since the two matrices are
similar; ½Γ, or ΛΓ made symmetric, does not.) The finite-T form of the same law uses the recursion's second
moment at T; runs of T steps are compared with it.

Σ is Uᵀ Cov(ĝ) U at the optimum, for the algorithm's own B, G and baseline
(:func:`gradient_covariance`). Σ ↦ Γ ↦ w is monotone: 1/(cλ_j + cλ_k - 1) is a Cauchy matrix, so a larger
covariance (in the order of matrices) has larger weights, one by one. Corollary 10 and the sign in Corollary 9
follow from this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..distributions import WeightedChi2
from ..execution.memory import slices
from ..moments.record import Moments, takes_problems
from ..rounding import GIVEN
from ..validation import Array, InputError, finite_array

_ENTRIES = 1 << 20
"""The largest number of entries of (steps, r, r) arrays in memory at once."""


def _curvatures(value: ArrayLike) -> Array:
    array = finite_array("curvatures", value, 1)
    if (array <= 0).any():
        where = int(np.argmax(array <= 0))
        raise InputError(
            f"curvatures[{where}] is {array[where]:g}: curvatures are the positive eigenvalues of "
            "minus the Hessian; leave flat directions out"
        )
    return array


def _symmetric(name: str, value: ArrayLike, size: int) -> Array:
    array = finite_array(name, value, 2)
    if array.shape != (size, size):
        raise InputError(
            f"{name} has shape {array.shape}: one row and column per curvature, ({size}, {size}), are needed"
        )
    off = float(np.abs(array - array.T).max())
    if off > GIVEN * float(np.abs(array).max()):
        raise InputError(f"{name} differs from its transpose by {off:.3g}: it must be symmetric")
    return (array + array.T) / 2


def _covariance(value: ArrayLike, size: int) -> Array:
    array = _symmetric("covariance", value, size)
    spread = np.linalg.eigvalsh(array)
    if spread[0] < -GIVEN * np.abs(spread).max():
        raise InputError(
            f"covariance has the eigenvalue {spread[0]:.3g}: a covariance has none below 0"
        )
    return array


def _form(curvatures: Array, gamma: Array) -> Array:
    """½ Λ^{1/2} Γ Λ^{1/2}."""
    root = np.sqrt(curvatures)
    return np.asarray(0.5 * root[:, None] * gamma * root)


def _weights(curvatures: Array, gamma: Array) -> Array:
    eigenvalues = np.linalg.eigvalsh(_form(curvatures, gamma))
    noise = 8 * len(eigenvalues) * np.finfo(float).eps * np.abs(eigenvalues[..., -1:])
    return np.where(eigenvalues > noise, eigenvalues, 0.0)


def _law(weights: Array) -> WeightedChi2:
    if not weights.any():
        raise InputError(
            "all weights are 0: without noise (and displacement) the gap is 0 and has no chi-square law"
        )
    return WeightedChi2(weights[weights > 0])


def _lyapunov(curvatures: Array, covariance: Array, c: float) -> Array:
    rate = float(finite_array("c", c, 0))
    exponents = rate * curvatures
    if not exponents.min() > 0.5:
        raise InputError(
            f"c is {rate:g}: c times the least curvature must be above 1/2, so c above "
            f"{0.5 / curvatures.min():g}; below it the effect of the start decays more slowly than 1/√T"
        )
    return np.asarray(rate**2 * covariance / (exponents[:, None] + exponents - 1))


def stationary_covariance(curvatures: ArrayLike, covariance: ArrayLike, c: float) -> Array:
    """Γ, the limit of T E δ_T δ_Tᵀ under the rates c/t, (r, r) (Theorem 8, limit_law).

    Γ_jk = c² Σ_jk / (cλ_j + cλ_k - 1), the solution of (cΛ - ½I)Γ + Γ(cΛ - ½I) = c²Σ

    Arguments:
        curvatures: λ, the positive eigenvalues of -∇²J(θ*), (r,), in any order.
        covariance: Σ = Uᵀ Cov(ĝ) U at θ*, in the same eigenbasis, (r, r).
        c: constant of the rates c/t or c/(t + t₀); c λ_min above 1/2.

    >>> stationary_covariance([1.0, 2.0], [[0.5, 0.2], [0.2, 0.6]], c=1.0).round(12).tolist()
    [[0.5, 0.1], [0.1, 0.2]]
    """
    bends = _curvatures(curvatures)
    return _lyapunov(bends, _covariance(covariance, len(bends)), c)


def limit_weights(curvatures: ArrayLike, covariance: ArrayLike, c: float) -> Array:
    """The weights w of the limit law of T gap_T, (r,), ascending (Theorem 8, limit_law).

    w = eigenvalues of ½ Λ^{1/2} Γ Λ^{1/2}; their sum, the limit of T E gap_T, is
    Σ_j c² λ_j Σ_jj / (2 (2cλ_j - 1))

    Arguments and errors are those of :func:`stationary_covariance`. Weights that are 0 up to rounding are set
    to 0.

    >>> limit_weights([1.0, 2.0], [[0.5, 0.0], [0.0, 0.6]], c=1.0).round(12).tolist()
    [0.2, 0.25]
    """
    bends = _curvatures(curvatures)
    return _weights(bends, stationary_covariance(bends, covariance, c))


def limit_law(curvatures: ArrayLike, covariance: ArrayLike, c: float) -> WeightedChi2:
    """The limit law of T gap_T under c/t, and of (T + t₀) gap_T under c/(t + t₀) (Theorem 8).

    Arguments and errors are those of :func:`stationary_covariance`; a covariance of 0 is an error too.
    Directions without noise have no term.

    >>> f"{limit_law([0.2, 0.5], [[0.4, 0.1], [0.1, 0.3]], c=5.0).mean():.4f}"
    '1.4688'
    """
    return _law(limit_weights(curvatures, covariance, c))


def finite_covariance(
    curvatures: ArrayLike,
    covariance: ArrayLike,
    rates: ArrayLike,
    displacement: ArrayLike | None = None,
    steps: ArrayLike | None = None,
) -> Array:
    """Γ_T = E δ_T δ_Tᵀ of the linear recursion after T steps, for any schedule, (r, r).

    Γ_t = (I - η_t Λ) Γ_{t-1} (I - η_t Λ) + η_t² Σ,   Γ₀ = δ₀ δ₀ᵀ

    With δ₀ = 0 this is a covariance; otherwise it includes the squared mean. The recursion acts entry by
    entry, so many steps are one product and one weighted sum.

    Arguments:
        curvatures, covariance: λ and Σ as for :func:`stationary_covariance`.
        rates: η₁ to η_T, (T,), positive.
        displacement: δ₀ = Uᵀ(θ₀ - θ*), (r,) (default: 0).
        steps: numbers of steps, (n,), ascending whole numbers from 0 to T (default: T).

    Returns:
        (r, r), or (n, r, r) if steps are given.

    >>> finite_covariance([1.0], [[1.0]], [0.5, 0.5], displacement=[2.0], steps=[0, 1, 2]).ravel()
    array([4.    , 1.25  , 0.5625])
    """
    bends = _curvatures(curvatures)
    noise = _covariance(covariance, len(bends))
    schedule = finite_array("rates", rates, 1)
    if (schedule <= 0).any():
        where = int(np.argmax(schedule <= 0))
        raise InputError(f"rates[{where}] is {schedule[where]:g}: rates must be positive")
    total, size = len(schedule), len(bends)
    gamma = np.zeros((size, size))
    if displacement is not None:
        start = finite_array("displacement", displacement, 1)
        if len(start) != size:
            raise InputError(
                f"displacement has {len(start)} entries: it must have one per curvature ({size})"
            )
        gamma = np.outer(start, start)
    wanted = finite_array("steps", total if steps is None else steps, 0 if steps is None else 1)
    times = np.atleast_1d(wanted)
    if (times != np.floor(times)).any() or times[0] < 0 or times[-1] > total:
        raise InputError(f"steps is {wanted.tolist()}: whole numbers from 0 to {total} are allowed")
    if (np.diff(times) < 0).any():
        raise InputError(f"steps is {wanted.tolist()}: it must be ascending")
    out = np.empty((len(times), size, size))
    done = 0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for row, time in enumerate(times.astype(int).tolist()):
            for some in slices(time - done, _ENTRIES // size**2):
                gamma = _advance(gamma, bends, noise, schedule[done:time][some])
            done = time
            out[row] = gamma
    if not np.isfinite(out).all():
        raise InputError(
            f"the recursion diverges: rates reach {schedule.max():g}, and it is stable below "
            f"2/λ_max = {2 / bends.max():g}"
        )
    return out if wanted.ndim else out[0]


def _advance(gamma: Array, curvatures: Array, covariance: Array, rates: Array) -> Array:
    """Γ after these steps: Πₛ fₛ Γ + Σₛ ηₛ² (Π_{u>s} f_u) Σ, f = (1 - ηλ_j)(1 - ηλ_k), by entry."""
    shrink = 1 - rates[:, None] * curvatures
    factors = shrink[:, :, None] * shrink[:, None, :]
    # The product runs from the last step backwards, so that it does not divide by a factor of 0.
    later = np.cumprod(factors[::-1], axis=0)[::-1]
    kept = np.concatenate([later[1:], np.ones((1, *gamma.shape))])
    return np.asarray(later[0] * gamma + np.einsum("t,tjk->jk", rates**2, kept) * covariance)


def finite_weights(
    curvatures: ArrayLike,
    covariance: ArrayLike,
    rates: ArrayLike,
    displacement: ArrayLike | None = None,
) -> Array:
    """The weights of the law of gap_T (not of T gap_T) after T steps, (r,), ascending.

    eigenvalues of ½ Λ^{1/2} Γ_T Λ^{1/2}

    Arguments and errors as for :func:`finite_covariance`.

    >>> finite_weights([1.0], [[1.0]], [0.5, 0.5]).tolist()
    [0.15625]
    """
    bends = _curvatures(curvatures)
    return _weights(bends, finite_covariance(bends, covariance, rates, displacement))


def finite_law(
    curvatures: ArrayLike,
    covariance: ArrayLike,
    rates: ArrayLike,
    displacement: ArrayLike | None = None,
) -> WeightedChi2:
    """The law of gap_T after T steps, to the same order as the limit law (Theorem 8).

    A displacement enters through the second moment of δ_T: the mean is that of the linear recursion, and the
        shape is right when the effect of the start, Π(1 - η_t λ) δ₀, is small compared with δ_T.
    It ignores that curvature and noise change with θ: a run's own law differs by an amount that vanishes as T
        grows, but enough replications detect it at any T.

    Arguments and errors are those of :func:`finite_covariance`; a law without noise is an error too.

    >>> law = finite_law([0.2, 0.5], [[0.4, 0.1], [0.1, 0.3]], 5.0 / (50 + np.arange(1, 4001)))
    >>> f"{4050 * law.mean():.4f}"
    '1.4565'
    """
    return _law(finite_weights(curvatures, covariance, rates, displacement))


def mean_gap(
    curvatures: ArrayLike,
    covariance: ArrayLike,
    rates: ArrayLike,
    displacement: ArrayLike | None = None,
    steps: ArrayLike | None = None,
) -> Array:
    """E gap_T of the linear recursion, ½ tr(Λ Γ_T): a number, or (n,) if steps are given.

    It is exact if the return is quadratic and the noise constant. Arguments and errors are those of
    :func:`finite_covariance`.

    >>> float(mean_gap([1.0], [[1.0]], [0.5, 0.5], displacement=[2.0]))
    0.28125
    """
    bends = _curvatures(curvatures)
    gamma = finite_covariance(bends, covariance, rates, displacement, steps)
    return np.asarray(0.5 * np.diagonal(gamma, axis1=-2, axis2=-1) @ bends)


def weight_derivatives(
    curvatures: ArrayLike, covariance: ArrayLike, change: ArrayLike, c: float
) -> Array:
    """The derivatives dw_k/dε of the weights for Σ + ε change at ε = 0, (r,) (Corollary 9, oracle_policy).

    dw_k/dε = uₖᵀ ½ Λ^{1/2} Γ(change) Λ^{1/2} uₖ, uₖ the weight's eigenvector

    grpo's covariance is the oracle's plus C/(B G(G-1)), C = Uᵀ E[σ²F + g gᵀ] U. So with change = C/B this is
    the limit of G(G-1) (w_k(grpo) - w_k(oracle)); since C is a covariance, it is never negative. Equal
    weights separate along the eigenvectors of the change, and are in ascending order.

    Arguments:
        curvatures, covariance, c: arguments of :func:`stationary_covariance`.
        change: a symmetric matrix, (r, r), not necessarily with positive eigenvalues.

    >>> weight_derivatives([1.0, 2.0], [[0.5, 0], [0, 0.6]], [[0.0, 0], [0, 1.0]], 1.0).round(12)
    array([0.33333333, 0.        ])
    """
    bends = _curvatures(curvatures)
    form = _form(bends, stationary_covariance(bends, covariance, c))
    moved = _form(bends, _lyapunov(bends, _symmetric("change", change, len(bends)), c))
    weights, axes = np.linalg.eigh(form)
    apart = np.flatnonzero(np.diff(weights) > GIVEN * np.abs(weights).max()) + 1
    return np.concatenate(
        [np.linalg.eigvalsh(part.T @ moved @ part) for part in np.split(axes, apart, axis=1)]
    )


def weight_form(curvatures: ArrayLike, basis: ArrayLike, axis: ArrayLike, c: float) -> Array:
    """The matrix M (d, d) with tr(M Cov(ĝ)) = uᵀ ½Λ^{1/2}ΓΛ^{1/2} u (Corollary 9, oracle_policy).

    If u is the eigenvector of a limit weight, this is the weight, as a linear function of the gradient's
    covariance.

    Arguments:
        curvatures, c: arguments of :func:`stationary_covariance`.
        basis: U (d, r), the eigenvectors of the curvatures.
        axis: u (r,).

    >>> weight_form([1.0, 2.0], [[1.0, 0], [0, 1.0]], [0.0, 1.0], 1.0).round(12).tolist()
    [[0.0, 0.0], [0.0, 0.333333333333]]
    """
    bends = _curvatures(curvatures)
    frame, root = np.asarray(basis), np.sqrt(bends) * np.asarray(axis)
    inner = 0.5 * _lyapunov(bends, np.outer(root, root), c)
    return np.asarray(frame @ inner @ frame.T)


def gap_transform(weights: ArrayLike, rate: float) -> float:
    """The Laplace transform of a law of the gap, E exp(-rate Σ wₖ χ²₁) = Π (1 + 2 rate wₖ)^{-1/2} (Theorem 8,
    limit_law).

    Arguments:
        weights: w, not negative, (r,).
        rate: number, at least 0.

    >>> gap_transform([1.5], 1.0)
    0.5
    """
    rows = np.asarray(weights)
    if rate < 0 or (rows < 0).any():
        raise InputError(f"weights are {rows.tolist()} and rate {rate:g}: none may be negative")
    return float(np.prod((1 + 2 * rate * rows) ** -0.5))


@takes_problems
def matrix_correlation(moments: Moments, basis: ArrayLike) -> Array:
    """E[Uᵀ s sᵀ U a | x] for every context, (X, r, r) (Corollary 10, optimal_policy).

    If it is 0 in every context (the matrix form of Assumption 2), no baseline b(x) has a smaller weight than
    the oracle: Cov(ĝ_b) - Cov(ĝ_oracle) = E[(V - b)² F]/(B G) in the directions U. The norm form, which is
    only its trace, is not enough.

    Arguments:
        moments: moments with matrices, at the optimum.
        basis: U, (d, r).

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> sure = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> matrix_correlation(sure.moments(), [[1.0], [0.0]]).tolist()
    [[[0.0]]]
    """
    frame = np.asarray(basis)
    return np.stack([frame.T @ record.advantage @ frame for record in moments.matrices()])


def conditional_transform(gaps: ArrayLike, weights: ArrayLike) -> Array:
    """P(Qᵢ <= gapᵢ), where Qᵢ has the law of run i's own weights, (n,) (Theorem 8, Assumption 8).

    If the noise depends on the endpoint of a run, the limit is a mixture; given the endpoints these values
    are uniform on [0, 1].

    Arguments:
        gaps: (n,), T gap_T with limit weights, gap_T with finite ones.
        weights: weights of each run for its endpoint, (n, r), not negative, not all 0 in a row.

    >>> conditional_transform([1.0, 4.0], [[1.0], [4.0]]).round(6).tolist()
    [0.682689, 0.682689]
    """
    points, rows = np.asarray(gaps), np.asarray(weights)
    top = rows.max(axis=1)
    # The law scales with its largest weight, so one law is enough for all rows with the same ratios.
    ratios, group = np.unique(np.sort(rows / top[:, None], axis=1), axis=0, return_inverse=True)
    out = np.empty(len(points))
    for index, ratio in enumerate(ratios):
        mine = group.ravel() == index
        out[mine] = _law(ratio).cdf(points[mine] / top[mine])
    return out

"""From inner products of micro-batches to the noise of a step, with intervals.

Let completion i add vᵢ/n to a step ĝ of n completions: advantage, clipping, ratio, penalty, weight of length,
all of it. Where prompts are independent and completions of a prompt exchangeable, sums Hₖ over
micro-batches have

    E⟨Hₖ, Hₗ⟩ = β n_same + γ n_other,   E‖Hₖ‖² = α m + β n_same + γ n_other,

exactly, n_same and n_other the pairs of different completions of one prompt and of different ones. So
‖E ĝ‖² = γ, and tr Cov ĝ = E‖ĝ‖² - γ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError

Array = NDArray[np.float64]
Interval = tuple[float, float]

_KNOWN = 0.3
"""The relative error at which a ratio is called known."""
_DRAWS = 999
"""Resampled windows that tell how skewed a ratio's error is."""
_FEW = 10
"""Steps below which nothing is resampled, and the error is taken to be normal."""
_LEVEL = 0.05


@dataclass(frozen=True)
class NoiseEstimate:
    """What the steps of a window say of one step, with standard errors and 95% intervals.

    Errors are those of a jackknife over steps. Intervals of ratios are Fieller's, with
    quantiles by a bootstrap over steps, widened by their kurtosis, since gradients have heavy tails; a
    ratio whose denominator is not told from 0 has no upper end. Constants are NaN unless advantages are
    leave-one-out.

    Arguments:
        signal: ‖E ĝ‖², unbiased, so it may be negative.
        noise_to_signal: tr Cov ĝ / ‖E ĝ‖² of one step.
        k_crit: completions a step at which noise equals signal, in groups of this size.
        budget_over_critical: completions of a step over ``k_crit``.
        c1: tr Cov_X g(X).
        c2: E[τ - ‖g(X)‖²].
        c3: E[φ + ‖g(X)‖²].
        g_star: 1 + √(c3/c1), infinite where c1 is not positive.
        phi_over_tau: φ/τ, as it was given or measured.
        steps: T, of the window so far.
        steps_needed: further steps until noise over signal is known to 30%; infinite while the signal
            is not told from 0. A window that is shorter never gets there.
        top_share: share of Σ‖Hₖ‖² that the largest 1% of micro-batches hold: of α where they are single
            completions. Near 1% tails are light; above 10% errors are rough. NaN of fewer than 100.
    """

    signal: float
    signal_se: float
    signal_interval: Interval
    noise_to_signal: float
    noise_to_signal_se: float
    noise_to_signal_interval: Interval
    k_crit: float
    k_crit_se: float
    k_crit_interval: Interval
    budget_over_critical: float
    budget_over_critical_se: float
    budget_over_critical_interval: Interval
    c1: float
    c1_se: float
    c1_interval: Interval
    c2: float
    c2_se: float
    c2_interval: Interval
    c3: float
    c3_se: float
    c3_interval: Interval
    g_star: float
    g_star_se: float
    g_star_interval: Interval
    phi_over_tau: float
    steps: int
    steps_needed: float
    top_share: float = math.nan

    def meaning(self) -> str:
        """What :meth:`sentence` says, without its numbers: two of one meaning advise the same."""
        low, high = self.budget_over_critical_interval
        if math.isnan(self.signal):
            return "inseparable"
        if not math.isfinite(self.noise_to_signal) or low <= 0:
            return "signal unknown"
        if self.k_crit <= 0:
            return "noise unknown"
        return "below" if high < 1 else "above" if low > 1 else "near"

    def sentence(self) -> str:
        """The estimate in words, with one digit."""
        meaning = self.meaning()
        if meaning == "inseparable":
            return (
                "Signal and noise cannot be separated: every pair of micro-batches has the same share of "
                "common prompts."
            )
        if meaning == "signal unknown":
            return (
                "The signal is not yet distinguishable from 0; keep measuring, or widen the window."
            )
        if meaning == "noise unknown":
            return "The noise is not distinguishable from 0: fewer completions a step would do."
        low, high = map(_short, self.budget_over_critical_interval)
        share = f"{low} to {high}" if low != high else f"about {low}"
        share = share if high != "inf" else f"at least {low}"
        size = round(self.budget_over_critical * self.k_crit)
        more = f"; about {_short(self.steps_needed)} more steps make it known to 30%"
        more = more if 0 < self.steps_needed < math.inf else ""
        return f"A step of {size} completions is {share} times the critical batch size{more}."

    def metrics(self, detail: bool = True) -> dict[str, float]:
        """All that is finite, by name; an interval as ``_low`` and ``_high``."""
        values: dict[str, float] = {}
        for field in fields(self):
            if not detail and field.name.startswith(("c1", "c2", "c3", "phi")):
                continue
            value = getattr(self, field.name)
            if field.name.endswith("_interval"):
                stem = field.name.removesuffix("_interval")
                values |= {f"{stem}_low": value[0], f"{stem}_high": value[1]}
            else:
                values[field.name] = float(value)
        return {name: value for name, value in values.items() if math.isfinite(value)}


def step_sums(
    products: Array, groups: list[NDArray[np.int64]], shares: ArrayLike = (0.0, 0.0)
) -> Array:
    """All that an estimate takes of one step.

    Arguments:
        products: ⟨Hₖ, Hₗ⟩ of its micro-batches, (k, k), H = n times what each adds to the step.
        groups: which prompt each completion is of, for each micro-batch.
        shares: what its completions add to φ and to τ, in any unit.
    """
    names, places = np.unique(np.concatenate(groups), return_inverse=True)
    counts = np.zeros((len(groups), len(names)))
    sizes = np.array([len(group) for group in groups], dtype=float)
    np.add.at(counts, (np.repeat(np.arange(len(groups)), sizes.astype(int)), places), 1)
    same = counts @ counts.T
    other = np.outer(sizes, sizes) - same
    own_same, own_other = np.diagonal(same) - sizes, np.diagonal(other)
    # The variance of a product grows with the number of its pairs.
    apart = ~np.eye(len(groups), dtype=bool)
    root = np.sqrt(np.outer(sizes, sizes))[apart]
    n, o, value = same[apart] / root, other[apart] / root, products[apart] / root
    total, squares = sizes.sum(), np.trace(products)
    return np.array(
        [n @ n, n @ o, o @ o, n @ value, o @ value, squares, own_same.sum(), own_other.sum(),
         total, total**2, products.sum(), len(names), *np.asarray(shares)]
    )  # fmt: skip


def estimate_noise(
    steps: Array,
    *,
    leave_one_out: bool = False,
    phi_over_tau: float | None = 1.0,
    squares: ArrayLike = (),
) -> NoiseEstimate:
    """Signal, noise and constants from the sums of some steps.

    Arguments:
        steps: of :func:`step_sums`, (T, Q), T at least 2.
        leave_one_out: whether advantages are leave-one-out, so that c₁ to c₃ exist.
        phi_over_tau: φ/τ, which parts c₂ from c₃; None for that of the shares.
        squares: ‖Hₖ‖² of all their micro-batches, for ``top_share``.

    Raises:
        InputError: fewer than two steps.
    """
    if len(steps) < 2:
        raise InputError(f"{len(steps)} steps count: an estimate takes at least 2")
    count = len(steps)
    size = steps[:, 8].sum() / steps[:, 11].sum()
    mean = steps[:, 8].mean()

    def constants(sums: Array) -> Array:
        beta, gamma = _slopes(sums)
        alpha = (sums[..., 5] - beta * sums[..., 6] - gamma * sums[..., 7]) / sums[..., 8]
        others = size - 1
        spread = beta / (1 + 1 / others**2)
        ratio = _ratio(sums, phi_over_tau)
        single = alpha / (1 + ratio / others)
        return np.stack([spread - gamma, single - spread, ratio * single + spread], axis=-1)

    width = student(count - 1)
    values: dict[str, float | Interval] = {}

    def put(name: str, value: float, error: float, low: float, high: float) -> None:
        values[name], values[f"{name}_se"] = float(value), float(error)
        values[f"{name}_interval"] = float(low), float(high)

    (noise, signal), covariance = _jackknife(_noise_and_signal, steps)
    error = math.sqrt(covariance[1, 1])
    put("signal", signal, error, signal - width * error, signal + width * error)
    crit = noise / signal if signal > 0 else math.nan if math.isnan(signal) else math.inf
    crit_se = _ratio_se(noise, signal, covariance)
    low, high = _ratio_interval(_noise_and_signal, steps)
    put("k_crit", crit, crit_se, low, high)
    put("noise_to_signal", crit / mean, crit_se / mean, low / mean, high / mean)
    share = mean / crit if crit else math.inf
    put("budget_over_critical", share, share * crit_se / crit if crit else math.nan,
        mean / high if high else math.inf, mean / low if low else math.inf)  # fmt: skip
    # Errors are NaN where the signal is not above 0.
    needed = count * (crit_se / (_KNOWN * crit)) ** 2 - count if crit * crit_se > 0 else math.inf
    if leave_one_out and size > 1 and np.ptp(steps[:, 8] / steps[:, 11]) == 0:
        parts, covariance = _jackknife(constants, steps)
        errors = np.sqrt(np.diagonal(covariance))
        for name, value, error in zip(("c1", "c2", "c3"), parts, errors, strict=True):
            put(name, value, error, value - width * error, value + width * error)
        c1, _, c3 = parts
        ratio = max(c3, 0.0) / c1 if c1 > 0 else math.nan if math.isnan(c1) else math.inf
        pair = covariance[np.ix_([2, 0], [2, 0])]
        slope = _ratio_se(c3, c1, pair) / (2 * math.sqrt(ratio)) if ratio > 0 else math.nan
        low, high = fieller(c3, c1, pair, -width, width)
        put("g_star", 1 + math.sqrt(ratio), slope, 1 + math.sqrt(low), 1 + math.sqrt(high))
    else:
        for name in ("c1", "c2", "c3", "g_star"):
            put(name, *[math.nan] * 4)
    return NoiseEstimate(
        **values,  # type: ignore[arg-type]
        phi_over_tau=float(_ratio(steps.mean(axis=0), phi_over_tau)),
        steps=count,
        steps_needed=max(0.0, needed),
        top_share=_top_share(np.sort(squares)),
    )


def _short(value: float) -> str:
    """With one digit, and no power of ten up to a million."""
    return f"{float(f'{value:.1g}'):g}"


def _top_share(squares: Array) -> float:
    count, total = len(squares) // 100, squares.sum()
    return float(squares[-count:].sum() / total) if count and total else math.nan


def _slopes(sums: Array) -> tuple[Array, Array]:
    """β and γ; of pairs that have no prompt in common γ alone."""
    nn, no, oo, nv, ov = np.moveaxis(sums[..., :5], -1, 0)
    scale = nn * oo - no**2
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(scale > 1e-9 * nn * oo, scale, np.nan)
        beta, gamma = (oo * nv - no * ov) / scale, (nn * ov - no * nv) / scale
        return beta, np.where(nn == 0, ov / np.where(oo > 0, oo, np.nan), gamma)


def _noise_and_signal(sums: Array) -> Array:
    gamma = _slopes(sums)[1]
    return np.stack([(sums[..., 10] - gamma * sums[..., 9]) / sums[..., 8], gamma], axis=-1)


def log_ratio(first: Array, second: Array) -> tuple[float, Interval]:
    """K_crit of some steps' sums over that of others', step by step from the same completions."""

    def logs(both: Array) -> Array:
        noise, signal = np.moveaxis(_noise_and_signal(both.reshape(-1, 2, first.shape[1])), -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            crit = np.log(np.where(signal > 0, noise / signal, np.nan))
        return crit[:, :1] - crit[:, 1:]

    paired = np.concatenate([first, second], axis=1)
    value, apart = _pseudo(logs, paired)
    half = student(len(first) - 1) * math.sqrt((apart**2).sum() / (len(first) * (len(first) - 1)))
    middle = float(value[0, 0])
    return math.exp(middle), (math.exp(middle - half), math.exp(middle + half))


def _ratio(sums: Array, given: float | None) -> Array:
    if given is not None:
        return np.full(sums.shape[:-1], given)
    phi, tau = sums[..., 12], sums[..., 13]
    return np.divide(phi, tau, out=np.ones_like(tau), where=(tau > 0) & (phi > 0))


def _pseudo(function: Callable[[Array], Array], steps: Array) -> tuple[Array, Array]:
    """A function of the mean over steps, and the jackknife's pseudo-values, (T, R)."""
    count, total = len(steps), steps.sum(axis=0)
    without = function((total - steps) / (count - 1))
    return function(total / count), (count - 1) * (without.mean(axis=0) - without)


def _jackknife(function: Callable[[Array], Array], steps: Array) -> tuple[Array, Array]:
    """A function of the mean over steps, and its covariance."""
    value, apart = _pseudo(function, steps)
    return value, apart.T @ apart / (len(steps) * (len(steps) - 1))


def _ratio_se(numerator: float, denominator: float, covariance: Array) -> float:
    """By the delta method; NaN where the ratio has no value."""
    if not denominator > 0:
        return math.nan
    slope = np.array([1.0, -numerator / denominator]) / denominator
    return math.sqrt(max(float(slope @ covariance @ slope), 0.0))


def _ratio_interval(function: Callable[[Array], Array], steps: Array) -> Interval:
    """Fieller's, with the quantiles of numerator - r denominator over its error by a bootstrap over steps.

    Squares of gradients have heavy tails, and a Student's interval misses on one side. The quantiles are
    widened as Student's are with the degrees of freedom that a variance has at the steps' own kurtosis κ,
    2T/(κ - 1): a bootstrap does not draw the large steps that were not seen.
    """
    (numerator, denominator), apart = _pseudo(function, steps)
    if not np.isfinite(apart).all():
        return 0.0, math.inf
    count = len(steps)
    terms = -apart[:, 1]
    if denominator > 0:
        terms = apart[:, 0] - numerator / denominator * apart[:, 1]
    drawn = terms[np.random.default_rng(0).integers(count, size=(_DRAWS, count))]
    spread = np.maximum(drawn.std(axis=1, ddof=1), 1e-3 * terms.std())
    pivots = drawn.mean(axis=1) * math.sqrt(count) / np.where(spread > 0, spread, 1.0)
    square = np.square(terms - terms.mean())
    excess = np.square(square).mean() / max(square.mean() ** 2, 1e-300) - 1
    wider = student(max(4.0, 2 * count / max(excess, 1e-3))) / student(math.inf)
    below, above = wider * np.quantile(pivots, [_LEVEL / 2, 1 - _LEVEL / 2])
    if count < _FEW:
        below, above = -student(count - 1), student(count - 1)
    covariance = apart.T @ apart / (count * (count - 1))
    return fieller(numerator, denominator, covariance, below, above)


def fieller(
    numerator: float, denominator: float, covariance: Array, below: float, above: float
) -> Interval:
    """Fieller's interval of a ratio of positive quantities, from 0 to at most infinity.

    The ratios r for which numerator - r denominator lies from ``below`` to ``above`` of its errors. Where the
    denominator is not told from 0 no ratio is too large, and the upper end is infinite.

    >>> low, high = fieller(6.0, 2.0, np.diag([0.05, 0.05]), -1.96, 1.96)
    >>> round(low, 2), round(high, 2)
    (2.43, 3.88)
    """
    if not np.isfinite([numerator, denominator, *covariance.ravel()]).all():
        return 0.0, math.inf
    numerator, denominator = float(numerator), float(denominator)

    def ends(width: float) -> Interval:
        top, both, bottom = (
            float(width**2 * covariance[i, j]) for i, j in ((0, 0), (0, 1), (1, 1))
        )
        # a r² - 2 b r + c <= 0.
        a, b, c = denominator**2 - bottom, denominator * numerator - both, numerator**2 - top
        inside = b * b - a * c
        if a > 0 and denominator > 0:
            root = math.sqrt(max(inside, 0.0))
            return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
        if a >= 0 or inside <= 0 or c <= 0:
            # A denominator below 0 by more than its error, or a numerator not told from 0.
            return 0.0, math.inf
        return max((b - math.sqrt(inside)) / a, 0.0), math.inf

    return ends(above)[0], ends(below)[1]


def student(freedom: float) -> float:
    """The 97.5% point of Student's t, to 1e-3 from 4 degrees of freedom on (Cornish and Fisher)."""
    z, n = 1.959963984540054, float(freedom)
    if freedom < 4:
        return {1: 12.7062047, 2: 4.3026527, 3: 3.1824463}[int(freedom)]
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )

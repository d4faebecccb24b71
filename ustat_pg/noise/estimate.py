"""Estimates of a step's noise from inner products of micro-batches, with intervals.

Let completion i add vᵢ/n to a step ĝ of n completions; vᵢ includes advantage, clipping, ratio, penalty and
weight of length. If prompts are independent and completions of a prompt exchangeable, sums Hₖ over
micro-batches have

    E⟨Hₖ, Hₗ⟩ = β n_same + γ n_other,   E‖Hₖ‖² = α m + β n_same + γ n_other,

exactly, where n_same and n_other count pairs of different completions of the same prompt and of different
prompts. So ‖E ĝ‖² = γ, and tr Cov ĝ = E‖ĝ‖² - γ.

If a set of X prompts is used in shuffled epochs, two prompts of a step are never the same, and γ = ‖E ĝ‖² -
c/(X-1), where c is the variance of prompts' mean gradients. Their E‖·‖² is that of β, which is larger by the
factor 1 + 1/(G-1)² in groups of G centred at their mean. So ‖E ĝ‖² is known again: γ (X-1)/X + β/(1 +
1/(G-1)²)/X.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..inference import SQUARE, Means, beside, means, ratio
from ..inference.constants import Estimates, constant_estimates
from ..inference.estimate import Estimate
from ..predictions.closed_forms import constants_from
from ..validation import Array, InputError
from .lags import LINE, Lagged, combined, line_sums
from .shares import COLUMNS, rounded, share_sums, shared, shares_of

if TYPE_CHECKING:
    from ..predictions import Decision


_KNOWN = 0.3
"""The relative error below which a ratio counts as known."""
OF_SHARES = 2 + 2 * COLUMNS
"""The number of sums at the end of a step for silent groups, φ and importance weights."""
SUMS = 12 + OF_SHARES
"""The number of all sums of a step."""


class Sums(NamedTuple):
    """The sums of a step, of means over steps, or of a column of either, (...,) each.

    Arguments:
        same_same, same_other, other_other: sums of products of n_same and n_other over pairs of
            micro-batches, each divided by the root of the product of the sizes.
        same_value, other_value: the same with the pairs' ⟨Hₖ, Hₗ⟩ as one factor.
        squares: Σ‖Hₖ‖².
        same, other: numbers of pairs of completions within micro-batches.
        completions, completions_squared: n and n².
        whole: ‖Σ Hₖ‖².
        groups: number of groups of the step if all have one size, else 0.
        silent, told: numbers of silent groups, and of groups with known advantages.
        phi, weighed: results of :func:`~ustat_pg.noise.shares.share_sums` for φ and for weights, (...,
            COLUMNS).
    """

    same_same: Any
    same_other: Any
    other_other: Any
    same_value: Any
    other_value: Any
    squares: Any
    same: Any
    other: Any
    completions: Any
    completions_squared: Any
    whole: Any
    groups: Any
    silent: Any
    told: Any
    phi: Any
    weighed: Any

    @classmethod
    def of(cls, columns: Array) -> Sums:
        """The record of sums in columns, (..., SUMS), as views."""
        numbers, phi, weighed = np.split(columns, [-2 * COLUMNS, -COLUMNS], axis=-1)
        return cls._make([*np.moveaxis(numbers, -1, 0), phi, weighed])


@dataclass(frozen=True)
class NoiseEstimate(Estimates):
    """The noise of one step from the steps of a window, with standard errors and 95% intervals.

    Errors come from a jackknife over steps, and intervals from :mod:`ustat_pg.inference`, because gradients
    have skewed and heavy tails. A ratio has no upper end if its denominator is not distinguishable from 0, or
    if two or three steps of the window dominate it. Constants are NaN unless advantages are leave-one-out.

    Arguments:
        signal: ‖E ĝ‖², unbiased, so it may be negative.
        noise_to_signal: tr Cov ĝ / ‖E ĝ‖² of one step.
        k_crit: completions per step at which noise equals signal, in groups of this size.
        c1: tr Cov_X g(X).
        c2: E[τ - ‖g(X)‖²].
        c3: E[φ + ‖g(X)‖²].
        g_star: 1 + √(c3/c1), infinite if c1 is not positive.
        common: mean ⟨ĝₜ, ĝₜ₊ₖ⟩ of steps up to 10 apart, which is the signal plus its change by the steps. If
            it is far below the signal, a step undoes the gain of the last ones: the learning rate is large.
            NaN if no such pairs are kept.
        silent: q, the share of groups with all advantages 0.
        k_crit_refilled: completions *generated* per step at which noise equals signal, if silent groups were
            dropped and redrawn until no group is silent: K_crit - G q/(1-q); a share 1-q of them is trained
            on.
        weights_share: share of the noise due to importance weights w, E[(1 - 1/w) ‖v‖²] divided by the noise
            of one completion. Without weights the trained policy has drawn this completion, but not the
            others of its group.
        phi_over_tau: φ/τ, given or measured.
        steps: T, number of steps in the window so far.
        constant_steps: number of steps behind c1, c2, c3 and G*: all of their groups have the most common
            size of the window. Two groups of one prompt in a step look like one group of twice the size, so
            the step is left out.
        steps_needed: further steps until noise over signal is known to 30%; infinite while the signal is not
            distinguishable from 0. A shorter window never reaches this.
        lagged_pairs: number of pairs of neighbouring steps that also enter the signal; 0 if they have no
            information on it, or disagree with the pairs within steps.
        top_share: share of Σ‖Hₖ‖² in the largest 1% of micro-batches (share of α if these are single
            completions). Near 1% tails are light; above 10% errors are rough. NaN for fewer than 100
            micro-batches.
    """

    signal: Estimate
    noise_to_signal: Estimate
    k_crit: Estimate
    c1: Estimate
    c2: Estimate
    c3: Estimate
    g_star: Estimate
    common: Estimate
    silent: Estimate
    k_crit_refilled: Estimate
    weights_share: Estimate
    phi_over_tau: float
    steps: int
    steps_needed: float
    constant_steps: int = 0
    lagged_pairs: int = 0
    top_share: float = math.nan

    @property
    def budget_over_critical(self) -> Estimate:
        """The completions of a step divided by ``k_crit``."""
        return self.noise_to_signal.inverse()

    def decide(self, budget: int, population: int | None = None) -> Decision:
        """The group size with the least worst-case loss within the intervals, for a step of this many
        completions.

        Arguments:
            budget: completions of a step.
            population: N, if prompts are drawn without replacement.

        Raises:
            InputError: the constants are not known, or the budget is below 2.
        """
        from ..predictions import MseConstants, decision, group_size_advice

        values = (max(each.value, 0.0) for each in (self.c1, self.c2, self.c3))
        if math.isnan(self.g_star.value):
            raise InputError(
                f"c1, c2 and c3 are not known: {self.constant_steps} steps show them; advantages "
                f"must be leave-one-out up to a factor, and φ/τ must be given or measured"
            )
        return decision(
            self,
            group_size_advice(MseConstants(*values), budget, population=population),
            population,
        )

    def meaning(self) -> str:
        """The meaning of the sentence without its numbers; equal meanings give equal advice."""
        low, high = self.budget_over_critical.interval
        if math.isnan(self.signal.value):
            return "inseparable"
        if self.signal.reason is not None:
            return "few steps"
        if not math.isfinite(self.noise_to_signal.value) or self.signal.low <= 0:
            return "signal unknown"
        if self.k_crit.value <= 0:
            return "noise unknown"
        return "below" if high < 1 else "above" if low > 1 else "near"

    def __str__(self) -> str:
        meaning = self.meaning()
        if meaning == "inseparable":
            return (
                "Signal and noise cannot be separated, because every pair of micro-batches has "
                "the same share of common prompts."
            )
        if meaning == "few steps":
            return f"The signal is not known yet: {self.signal.reason}."
        if meaning == "signal unknown":
            return "The signal is not yet distinguishable from 0: keep measuring, or use a longer window."
        if meaning == "noise unknown":
            return "The noise is not distinguishable from 0: fewer completions per step would be enough."
        low, high = map(_short, self.budget_over_critical.interval)
        share = f"{low} to {high}" if low != high else f"about {low}"
        share = f"at least {low}" if high == "inf" else f"at most {high}" if low == "0" else share
        size = round(self.k_crit.value / self.noise_to_signal.value)
        more = f"; about {_short(self.steps_needed)} more steps make it known to 30%"
        more = more if 0 < self.steps_needed < math.inf else ""
        return f"A step of {size} completions is {share} times the critical batch size{more}."

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON has it."""
        return super().to_dict() | {"budget_over_critical": self.budget_over_critical.to_dict()}

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The quantities with an error and an interval, by name."""
        return super().estimates | {"budget_over_critical": self.budget_over_critical}

    def metrics(self) -> dict[str, float]:
        """The known quantities by name, with errors as ``_se`` and intervals as ``_low`` and ``_high``.

        Infinite values are left out, and so are trivial ends (0 for a ratio, 1 for G*), the share of an
        infinite critical budget, and all values of constants that do not exist.
        """
        values: dict[str, Any] = {
            f"{name}_{part}".removesuffix("_value"): getattr(each, part)
            for name, each in self.estimates.items()
            for part in ("value", "se", "low", "high")
        }
        values |= {name: float(vars(self)[name]) for name in vars(self).keys() - values.keys()}
        hidden = () if self.constant_steps else ("phi", "constant_steps")
        ratios = ("noise_to_signal", "k_crit", "k_crit_refilled", "budget_over_critical")
        nothing = {f"{name}_low": 0.0 for name in ratios}
        nothing |= {"g_star_low": 1.0, "budget_over_critical": 0.0}
        return {
            name: value
            for name, value in values.items()
            if math.isfinite(value) and value != nothing.get(name) and not name.startswith(hidden)
        }


def step_sums(
    products: Array,
    groups: list[NDArray[np.int64]],
    advantages: Sequence[Any] = (),
    weights: Sequence[Any] = (),
    *,
    leave_one_out: bool = False,
) -> Array:
    """The sums of one step that an estimate needs, as in :class:`Sums`.

    Arguments:
        products: ⟨Hₖ, Hₗ⟩ of its micro-batches, (k, k), where H is n times the micro-batch's part of the
            step.
        groups: for each micro-batch the group of each completion, (m,); if a prompt has several groups, also
            its prompt, (m, 2).
        advantages: advantages of each micro-batch's completions, (m,), for φ and silent groups; empty if
            unknown.
        weights: importance weights of the completions, (m,); empty if there are none.
        leave_one_out: whether advantages are leave-one-out up to a factor. Then products between two groups
            of one prompt follow from those within a group; otherwise they are treated as equal.
    """
    sizes = np.array([len(group) for group in groups], dtype=float)
    of = np.concatenate(groups).reshape(int(sizes.sum()), -1)
    names, places = np.unique(of, axis=0, return_inverse=True)
    places = places.reshape(-1)
    batch = np.repeat(np.arange(len(groups)), sizes.astype(int))
    counts = np.zeros((len(groups), len(names)))
    np.add.at(counts, (batch, places), 1)
    size = len(places) / len(names)
    same = counts @ counts.T
    other = np.outer(sizes, sizes) - same
    prompts = np.unique(names[:, -1], return_inverse=True)[1]
    if prompts.max() + 1 < len(names):
        # Their E⟨·, ·⟩ is ‖g(X)‖², and β is 1 + 1/(G-1)² times that.
        whole = counts @ np.eye(prompts.max() + 1)[prompts]
        twins = whole @ whole.T - same
        same, other = same + twins / (1 + around(size) * leave_one_out), other - twins
    own_same, own_other = np.diagonal(same) - sizes, np.diagonal(other)
    # The variance of a product grows with the number of its pairs.
    apart = ~np.eye(len(groups), dtype=bool)
    root = np.sqrt(np.outer(sizes, sizes))[apart]
    n, o, value = same[apart] / root, other[apart] / root, products[apart] / root
    # Constants need groups of one size.
    alike = np.ptp(counts.sum(axis=0)) == 0
    silent, told, phi, weighed = 0, 0, np.zeros(COLUMNS), np.zeros(COLUMNS)
    if alike and _given(advantages):
        a = rounded(np.concatenate(advantages))
        silent, told = (np.bincount(places, a != 0) == 0).sum(), len(names)
        if leave_one_out and size > 2:
            phi = share_sums(products, counts, shares_of(a, places), a, places)
        if _given(weights):
            # A completion with weight 0 adds nothing in both cases.
            w = np.concatenate(weights)
            parts = 1 - np.divide(1, w, out=np.ones_like(w), where=w > 0)
            weighed = share_sums(products, counts, parts, a, places)
    return np.hstack(
        Sums(
            same_same=n @ n,
            same_other=n @ o,
            other_other=o @ o,
            same_value=n @ value,
            other_value=o @ value,
            squares=np.trace(products),
            same=own_same.sum(),
            other=own_other.sum(),
            completions=sizes.sum(),
            completions_squared=sizes.sum() ** 2,
            whole=products.sum(),
            groups=len(names) if alike else 0,
            silent=silent,
            told=told,
            phi=phi,
            weighed=weighed,
        )
    )


def _given(values: Sequence[Any]) -> bool:
    """Whether each micro-batch has values."""
    return len(values) > 0 and not any(each is None for each in values)


def around(size: float) -> float:
    """1/(G-1)², the relative excess of a pair within a centred group over a pair from two groups."""
    return 1 / (size - 1) ** 2 if size > 1 else 0.0


def estimate_noise(
    steps: Array,
    *,
    leave_one_out: bool = False,
    phi_over_tau: float | None = 1.0,
    squares: ArrayLike = (),
    lagged: Lagged | None = None,
    population: int | None = None,
) -> NoiseEstimate:
    """Signal, noise and constants from the sums of some steps.

    Arguments:
        steps: results of :func:`step_sums`, (T, Q), T at least 2.
        leave_one_out: whether advantages are leave-one-out; only then c₁ to c₃ exist.
        phi_over_tau: φ/τ, which separates c₂ from c₃; None to estimate it from gradients (it is 1 in groups
            of 2).
        squares: ‖Hₖ‖² of all micro-batches of the steps, for ``top_share``.
        lagged: pairs of each step with earlier steps.
        population: X, if a set of X prompts is used in shuffled epochs; None if prompts are drawn
            independently. If no prompt is in two micro-batches, c is only bounded, and intervals of the
            signal and the critical budget are wider.

    Raises:
        InputError: there are fewer than two steps.
    """
    if len(steps) < 2:
        raise InputError(f"{len(steps)} steps count: an estimate needs at least 2")
    count, mean = len(steps), Sums.of(steps).completions.mean()
    size, alike = _of_one_size(steps)
    law = Law(population, size)
    parts = means(steps, parts="steps")
    both, common, used = parts.apply(partial(noise_and_signal, law=law)), Estimate(), 0
    if lagged is not None:
        both, common, used = _with_pairs(parts, both, lagged, law)
    signal = both.estimate(1, SQUARE)
    critical = ratio(both, signal.interval)
    if slack := law.slack(parts.full):
        share = 1 + slack / signal.high if signal.high > 0 else math.inf
        # The sum of noise and signal of a step is fixed.
        least = (critical.low + float(mean)) / share - float(mean)
        signal = replace(signal, high=signal.high + slack)
        critical = replace(critical, low=max(least, 0.0))
    silent, weighed = parts.apply(_silent), Estimate()
    if Sums.of(steps).weighed.any():
        weighed = beside(both, parts).apply(_weights_share).estimate(0)
    refilled = beside(both, silent, parts).apply(_refilled)
    # Errors are NaN if the signal is not above 0.
    known = critical.value * critical.se > 0
    needed = count * (critical.se / (_KNOWN * critical.value)) ** 2 - count if known else math.inf
    alike = alike if leave_one_out and size > 1 else alike[:0]
    ratio_of = 1.0 if phi_over_tau is None and size == 2 else phi_over_tau
    found = dict.fromkeys(("c1", "c2", "c3", "g_star"), Estimate())
    if len(alike) > 1:
        parts = means(alike, parts="steps").apply(
            partial(_constants, law=law, phi_over_tau=ratio_of)
        )
        found, ratio_of = constant_estimates(parts, SQUARE), float(parts.full[3])
    return NoiseEstimate(
        signal=signal,
        noise_to_signal=critical / float(mean),
        k_crit=critical,
        **found,
        common=common,
        silent=silent.estimate(0),
        k_crit_refilled=Estimate() if slack else ratio(refilled, signal.interval),
        weights_share=weighed,
        phi_over_tau=math.nan if ratio_of is None else ratio_of,
        steps=count,
        steps_needed=max(0.0, needed),
        constant_steps=len(alike),
        lagged_pairs=used,
        top_share=_top_share(np.sort(squares)),
    )


def _with_pairs(parts: Means, both: Means, lagged: Lagged, law: Law) -> tuple[Means, Estimate, int]:
    """Noise and signal with pairs of steps, the mean product of these pairs, and the number of used pairs."""
    if law.population is not None:
        lagged = _of_epochs(parts.full, lagged, law)
    sums, pairs = line_sums(lagged)
    if not (sums.without[:, 0] > 0).all():
        # If a step is left out, there may be no pairs.
        return both, Estimate(), 0
    shared = sums.apply(lambda columns: columns[..., 3:4] / columns[..., :1]).estimate(0)
    own = parts.apply(partial(_within, law=law))
    # If two steps are measured as one, their product is a pair of neighbouring steps.
    own = own.apply(lambda columns: columns * [1.0, 0.0]) if any(lagged.joined) else own
    gamma = combined(own, sums, pairs)
    if gamma is None:
        return both, shared, 0
    full, without = gamma.full[0], gamma.without[:, 0]
    found = _noise_of(parts.full, full), _noise_of(parts.without, without)
    return replace(both, full=found[0], without=found[1]), shared, len(pairs)


@dataclass(frozen=True)
class Law:
    """The way in which prompts are drawn.

    Arguments:
        population: X, if prompts are drawn without replacement; None if they are independent.
        size: G.
    """

    population: int | None = None
    size: float = 0.0

    def signal(self, beta: Array, gamma: Array) -> Array:
        """‖E ĝ‖² from β and γ; γ if β is not known."""
        if self.population is None or self.size < 2:
            return gamma
        known = np.where(np.isfinite(beta), beta / (1 + around(self.size)), gamma)
        return np.asarray(gamma + (known - gamma) / self.population)

    def slack(self, sums: Array) -> float:
        """The largest excess of the signal over γ if β is unknown: c is at most E‖·‖² of a group's mean."""
        beta, gamma = _slopes(sums)
        if self.population is None or self.size < 2 or np.isfinite(beta):
            return 0.0
        # For micro-batches of m completions: m + m (m - 1) = m² if all belong to one prompt.
        own = Sums.of(sums)
        pairs = own.completions + own.same + own.other
        return max(float(own.squares / pairs - gamma), 0.0) / self.population


def _of_epochs(sums: Array, lagged: Lagged, law: Law) -> Lagged:
    """The products of steps, converted to independent prompts.

    Steps of one epoch have no prompt in common, like pairs of one step; of the pairs of steps k apart, a
    share k B/X belongs to two epochs.
    """
    beta, gamma = _slopes(sums)
    below = float(law.signal(beta, gamma) - gamma)
    epoch = float(law.population or 1) / (
        Sums.of(sums).completions / law.size if law.size > 0 else 1.0
    )

    def shifted(pairs: Array) -> Array:
        pairs = pairs.copy()
        pairs[:, 4] += below * np.maximum(1 - pairs[:, 1] / epoch, 0.0)
        return pairs

    return lagged._replace(pairs=tuple(shifted(each) for each in lagged.pairs))


def _of_one_size(steps: Array) -> tuple[float, Array]:
    """The most common group size of steps with equal groups, and the steps with this size."""
    sums = Sums.of(steps)
    own = np.divide(sums.completions, sums.groups, out=np.zeros(len(steps)), where=sums.groups > 0)
    sizes, times = np.unique(own, return_counts=True)
    size = float(sizes[np.where(sizes > 0, times, 0).argmax()])
    return size, steps[own == size]


def _constants(sums: Array, law: Law, phi_over_tau: float | None) -> Array:
    """c1, c2, c3 and φ/τ, of leave-one-out advantages in groups of one size."""
    own, (alpha, beta, gamma) = Sums.of(sums), _three(sums)
    signal = law.signal(beta, gamma)
    others = law.size - 1
    if phi_over_tau is None:
        phi = shared(own.phi, alpha, own.completions)
    else:
        phi = alpha * phi_over_tau / (1 + phi_over_tau / others)
    tau, spread = alpha - phi / others, beta / (1 + around(law.size))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([*constants_from(tau, phi, spread, signal), phi / tau], axis=-1)


def _silent(sums: Array) -> Array:
    """The share of silent groups, (..., 1); NaN if some are not known."""
    own = Sums.of(sums)
    nothing = np.full_like(own.told, np.nan)
    share = np.divide(own.silent, own.told, out=nothing, where=own.told > 0)
    return np.where(np.isclose(own.told, own.groups), share, np.nan)[..., None]


def _refilled(columns: Array) -> Array:
    """The noise of a generated completion, from noise, signal, silent share and sums; and the signal.

    Groups that are not silent have the mean E h/(1-q) and the mean square E‖h‖²/(1-q).
    """
    noise, signal, silent = (columns[..., place] for place in range(3))
    own = Sums.of(columns[..., 3:])
    with np.errstate(invalid="ignore", divide="ignore"):
        lost = own.completions / own.told * silent / (1 - silent)
        return np.stack([noise - signal * lost, signal], axis=-1)


def _weights_share(columns: Array) -> Array:
    """The share of the noise due to importance weights, from noise, signal and sums, (..., 1)."""
    sums = columns[..., 2:]
    own, (alpha, _, _) = Sums.of(sums), _three(sums)
    made = shared(own.weighed, alpha, own.completions)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(made / columns[..., 0])[..., None]


def _short(value: float) -> str:
    """A number with one digit, written without an exponent up to a million."""
    return f"{float(f'{value:.1g}'):g}"


def _top_share(squares: Array) -> float:
    count, total = len(squares) // 100, squares.sum()
    return float(squares[-count:].sum() / total) if count and total else math.nan


def _slopes(sums: Array) -> tuple[Array, Array]:
    """β and γ; only γ if pairs have no prompt in common."""
    nn, no, oo, nv, ov, *_ = Sums.of(sums)
    scale = nn * oo - no**2
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(scale > LINE * nn * oo, scale, np.nan)
        beta, gamma = (oo * nv - no * ov) / scale, (nn * ov - no * nv) / scale
        return beta, np.where(nn == 0, ov / np.where(oo > 0, oo, np.nan), gamma)


def _three(sums: Array) -> tuple[Array, Array, Array]:
    """The estimates of α, β and γ."""
    own, (beta, gamma) = Sums.of(sums), _slopes(sums)
    return (own.squares - beta * own.same - gamma * own.other) / own.completions, beta, gamma


def _within(sums: Array, law: Law) -> Array:
    """The signal from pairs within steps, and its weight relative to a product of two (n² for noise)."""
    gamma, (nn, no, oo, *_) = law.signal(*_slopes(sums)), Sums.of(sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.where(nn > 0, oo - no**2 / np.where(nn > 0, nn, 1.0), oo) / 2
    return np.stack([gamma, np.where(np.isfinite(gamma), weight, 0.0)], axis=-1)


def noise_and_signal(sums: Array, law: Law = Law()) -> Array:
    """The noise of one completion, and the signal."""
    return _noise_of(sums, law.signal(*_slopes(sums)))


def _noise_of(sums: Array, gamma: Array) -> Array:
    own = Sums.of(sums)
    noise = (own.whole - gamma * own.completions_squared) / own.completions
    return np.stack([noise, gamma], axis=-1)

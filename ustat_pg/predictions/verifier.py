"""The exact effect of an imperfect verifier on the gradient and its noise.

A verifier accepts right answers at the rate a and wrong ones at the rate c, at every prompt and whatever the
answer's text. With pass rate p it sees p̃ = c + (a - c) p, and

    E ĝ = w(p̃) (a - c) g,

w the weight of :class:`~ustat_pg.predictions.CountTable`, 1 of every unbiased estimator: the direction stays,
the gradient is (a - c) times as long, and an estimator that divides by a deviation weighs prompts by the pass
rate that the verifier sees. The moments of the reward it gives are

    E[‖s‖² (z̃ - p̃)]  = (a - c) E[‖s‖² (z - p)]
    E[‖s‖² (z̃ - p̃)²] = (1 - 2p̃) (a - c) E[‖s‖² (z - p)] + p̃ (1 - p̃) E‖s‖²

so that every prediction of rewards 0 and 1 takes them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ..display.shown import Shown
from ..moments.record import ContextMatrices, Moments, takes_problems
from ..validation import Array, changed, number
from .closed_forms import binary_square, seen_rate
from .count_tables import require_binary
from .group_size import mse_constants, optimal_group_size
from .mse import gradient_mse


@takes_problems
def verified_moments(
    moments: Moments, true_positive_rate: float, false_positive_rate: float
) -> Moments:
    """Moments of the rewards 0 and 1 that a verifier gives which errs.

    Arguments:
        moments: those of a verifier that never errs, or a problem; rewards 0 and 1.
        true_positive_rate: a, the share of right answers that are accepted.
        false_positive_rate: c, the share of wrong answers that are accepted.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> seen = verified_moments(coin, 0.9, 0.1)
    >>> seen.value, round(float((seen.gradient_sq / coin.moments().gradient_sq)[0]), 12)
    (array([0.5]), 0.64)
    """
    right = number("true_positive_rate", true_positive_rate, minimum=0.0, maximum=1.0)
    wrong = number("false_positive_rate", false_positive_rate, minimum=0.0, maximum=1.0)
    require_binary(moments, "a verifier that errs")
    signal = right - wrong
    value = seen_rate(moments.value, right, wrong)
    variance = value * (1 - value)

    def matrices() -> Iterator[ContextMatrices]:
        for p, known in zip(value, moments.matrices(), strict=True):
            advantage = signal * known.advantage
            yield ContextMatrices(
                fisher=known.fisher,
                advantage=advantage,
                squared_advantage=binary_square(p, advantage, known.fisher),
                gradient=signal * known.gradient,
            )

    norm_advantage = signal * moments.norm_advantage
    square = binary_square(value, norm_advantage, moments.fisher_trace)
    return changed(
        moments,
        value=value,
        reward_variance=variance,
        norm_advantage=norm_advantage,
        norm_squared_advantage=np.maximum(square, 0.0),
        gradient_sq=signal**2 * moments.gradient_sq,
        mean_gradient_sq=signal**2 * moments.mean_gradient_sq,
        reward_range=(0.0, 1.0),
        matrices=matrices,
        weighted_gradient=lambda weights: signal * moments.weighted_gradient(weights),
    )


@dataclass(frozen=True)
class VerifierEffect(Shown):
    """The cost of a verifier's errors.

    Arguments:
        true_positive_rate, false_positive_rate: a and c.
        estimator, group_size, batch_size: what was asked.
        signal: a - c, the length of the mean gradient where the estimator is unbiased, in ∇J; at 0 or below
            nothing is learnt, or the wrong thing.
        pass_rates: p̃ of each prompt, (X,).
        mean_factors: ⟨E ĝ, g⟩/‖g‖² of each prompt, (X,).
        noise_to_signal: tr Cov ĝ/‖E ĝ‖²; None where the mean gradient is 0.
        without_errors: the same of a verifier that never errs.
        best_group_size, best_without_errors: G* of grpo at each; infinite of a single prompt.
    """

    true_positive_rate: float
    false_positive_rate: float
    estimator: str
    group_size: int
    batch_size: int
    signal: float
    pass_rates: Array
    mean_factors: Array
    noise_to_signal: float | None
    without_errors: float | None
    best_group_size: float
    best_without_errors: float

    def __str__(self) -> str:
        errs = (
            f"With {self.false_positive_rate:.3g} of the wrong answers accepted and "
            f"{1 - self.true_positive_rate:.3g} of the right ones refused"
        )
        if self.signal <= 0:
            push = "is 0" if self.signal == 0 else "points the wrong way"
            return f"{errs} the mean gradient {push}."
        lines = [f"{errs} the gradient of the expected reward is {self.signal:.4g} times as long."]
        if self.noise_to_signal is not None and self.without_errors:
            times = self.noise_to_signal / self.without_errors
            lines.append(
                f"Noise over signal of {self.estimator} at G = {self.group_size} is "
                f"{self.noise_to_signal:.4g}, {times:.3g} times that of a verifier that never errs."
            )
        if isfinite(self.best_without_errors):
            lines.append(
                f"The best group size is {self.best_group_size:.3g}; without errors it is "
                f"{self.best_without_errors:.3g}."
            )
        return "\n".join(lines)


@takes_problems
def verifier_effect(
    moments: Moments,
    true_positive_rate: float,
    false_positive_rate: float,
    estimator: str = "grpo",
    group_size: int = 8,
    batch_size: int = 1,
) -> VerifierEffect:
    """The effect of a verifier's errors on an estimator's mean and noise, and to the best group size.

    Arguments:
        moments: those of a verifier that never errs, or a problem; rewards 0 and 1.
        true_positive_rate: a, the share of right answers that are accepted.
        false_positive_rate: c, the share of wrong answers that are accepted.
        estimator: a name with a closed form, as :func:`~ustat_pg.predictions.gradient_mse` takes it.
        group_size: G >= 1.
        batch_size: B >= 1.

    >>> from ustat_pg.problems import load_problem
    >>> effect = verifier_effect(load_problem("ustat:coin"), 0.9, 0.05)
    >>> effect.signal, effect.noise_to_signal > effect.without_errors
    (0.85, True)
    """
    seen = verified_moments(moments, true_positive_rate, false_positive_rate)
    signal = round(true_positive_rate - false_positive_rate, 12)
    clean, noisy = (gradient_mse(one, estimator, group_size, batch_size) for one in (moments, seen))
    return VerifierEffect(
        true_positive_rate=true_positive_rate,
        false_positive_rate=false_positive_rate,
        estimator=estimator,
        group_size=group_size,
        batch_size=batch_size,
        signal=signal,
        pass_rates=seen.value,
        mean_factors=signal * noisy.mean_factor,
        noise_to_signal=noisy.noise_to_signal,
        without_errors=clean.noise_to_signal,
        best_group_size=optimal_group_size(mse_constants(seen)),
        best_without_errors=optimal_group_size(mse_constants(moments)),
    )

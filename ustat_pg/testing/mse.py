"""The exact MSE of an advantage function beside those of known baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..baselines import BASELINES
from ..engines import Estimator, GradientCell, SquaredError
from ..engines.base import Replications
from ..engines.gradients.exact import ExactEngine
from ..predictions.mse import gradient_mse
from ..problems import SoftmaxBandit
from ..validation import InputError, integer
from .function import UnderTest, reports
from .unbiased import PROPORTIONAL, mean_gradient

_OF_MOMENTS = {"value", "optimal_baseline"}
"""What a baseline may need beside the rewards for its error to follow from a problem's moments alone."""


def _ratio(one: float, other: float) -> float:
    if other == 0:
        return float("nan") if one == 0 else float("inf")
    return one / other


@dataclass(frozen=True)
class MseReport:
    """The exact MSE E‖ĝ - g‖² that an advantage function leaves, beside those of known baselines.

    Arguments:
        function: its name.
        group_size: G.
        batch_size: B.
        mse: variance + squared_bias.
        variance: E‖ĝ - E ĝ‖².
        squared_bias: ‖E ĝ - g‖².
        factor: c = ⟨E ĝ, g⟩/‖g‖², 1 if unbiased; NaN where g = 0.
        rescaled_mse: E‖ĝ/c - g‖², the MSE once the learning rate makes up for c; a function that
            shrinks the gradient has a small ``mse`` and gains nothing, which shows here. NaN
            unless c > 0.
        grpo_mse, oracle_mse, vanilla_mse, minimum_variance_mse: the same quantity for these.
    """

    function: str
    group_size: int
    batch_size: int
    mse: float
    variance: float
    squared_bias: float
    factor: float
    rescaled_mse: float
    grpo_mse: float
    oracle_mse: float
    vanilla_mse: float
    minimum_variance_mse: float

    @property
    def ratio_to_grpo(self) -> float:
        """MSE over that of grpo: below 1 is a gain. NaN where both are 0."""
        return _ratio(self.mse, self.grpo_mse)

    @property
    def rescaled_ratio_to_grpo(self) -> float:
        """The ratio to grpo at equal step length, from ``rescaled_mse``."""
        return _ratio(self.rescaled_mse, self.grpo_mse)

    def __str__(self) -> str:
        text = (
            f"{self.function} at G = {self.group_size}, B = {self.batch_size}: "
            f"MSE {self.mse:.4g}, {self.ratio_to_grpo:.4g} times grpo's ({self.grpo_mse:.4g}; "
            f"oracle {self.oracle_mse:.4g}, minimum-variance {self.minimum_variance_mse:.4g})"
        )
        if self.squared_bias:
            text += (
                f"; biased, {self.squared_bias:.3g} of it is squared bias; E ĝ has {self.factor:.4g} "
                f"of the gradient, and with that made up for the MSE is {self.rescaled_mse:.4g}, "
                f"{self.rescaled_ratio_to_grpo:.4g} times grpo's"
            )
        return text


@reports
def exact_mse(
    function: Callable[..., Any],
    *,
    problem: SoftmaxBandit,
    group_size: int,
    batch_size: int = 1,
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    rtol: float = 1e-9,
) -> MseReport:
    """The MSE of the gradient estimate that these advantages make, by enumeration.

    MSE = E‖ĝ - g‖² = tr Cov ĝ + ‖E ĝ - g‖² over every outcome of a minibatch of B prompts drawn
    i.i.d.; those of grpo and the baselines that depend on the prompt only are the closed forms of
    Theorem 2 (mse) and Proposition 3 (minibatch).

    Arguments:
        function, layout, inputs, array: arguments of :func:`assert_unbiased`.
        problem: what the policy is trained on.
        group_size: G >= 2.
        batch_size: B >= 1.
        rtol: a squared bias below rtol² times the MSE is rounding, and 0 in the report; 1e-5 for
            single precision.

    >>> from ustat_pg.estimators import group_mean
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> report = exact_mse(group_mean, problem=coin, group_size=2)
    >>> report.factor, report.ratio_to_grpo, report.rescaled_ratio_to_grpo
    (0.5, 0.5, 1.0)
    """
    under = UnderTest(function, layout, inputs, array, rtol)
    if not isinstance(problem, SoftmaxBandit):
        raise InputError(f"problem is a {type(problem).__name__}: it must be a SoftmaxBandit")
    cell = GradientCell(
        problem, integer("group size", group_size, 2), integer("batch size", batch_size)
    )
    target = problem.gradient()
    bias = mean_gradient(under, cell) - target
    estimator = Estimator(
        under.name, function=lambda z, draws: under(z, draws.squared_norms, draws.contexts)
    )
    mse = float(
        ExactEngine(tuples=True).measure(cell, [SquaredError(estimator)], Replications()).mean[0]
    )
    squared_bias, length = float(bias @ bias), float(target @ target)
    if squared_bias <= rtol**2 * max(mse, 1e-300):
        squared_bias = 0.0
    factor = 1 + float(bias @ target) / length if length else float("nan")
    rescaled = float("nan")
    if factor > PROPORTIONAL:
        second_moment = mse + (2 * factor - 1) * length
        rescaled = max(second_moment / factor**2 - length, 0.0)
    moments = problem.moments()
    known: dict[str, Any] = {
        f"{name.replace('-', '_')}_mse": gradient_mse(
            moments, name, cell.group_size, cell.batch_size
        ).mse
        for name, record in BASELINES.items()
        if record.closed_form and not record.whole_group and set(record.needs) <= _OF_MOMENTS
    }
    return MseReport(
        function=under.name,
        group_size=cell.group_size,
        batch_size=cell.batch_size,
        mse=mse,
        variance=max(mse - squared_bias, 0.0),
        squared_bias=squared_bias,
        factor=factor,
        rescaled_mse=rescaled,
        **known,
    )

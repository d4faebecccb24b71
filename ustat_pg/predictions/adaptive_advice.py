"""The comparison of groups sized by their rewards with the best fixed group (adaptive_groups)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ..display.numbers import readable
from ..display.shown import Shown
from ..moments.record import Moments, takes_problems
from ..validation import InputError, integer
from .adaptive import best_two_stage, known_rates_bound, plan_mse
from .group_size import mse_constants

Interval = tuple[float, float]

NEAR = 0.05
"""The saving below which a second stage is not worth its code."""


@dataclass(frozen=True)
class AdaptiveAdvice(Shown):
    """A comparison of a fixed group, the best two-stage plan, and sizes by known pass rates, at equal noise.

    Arguments:
        group_size: the fixed size with the least outputs times noise.
        plan: the best plan "n₁+n₂ if mixed", in words; use it with the weights of
            :func:`~ustat_pg.estimators.two_stage`.
        plan_size: mean number of outputs that the plan draws for a prompt.
        plan_ratio: outputs times noise of the plan, divided by that of the fixed group.
        bound_ratio: the same ratio for group sizes fixed by each prompt's known pass rate.
        plan_interval: the 95% interval of ``plan_ratio``; None if the ratio is exact.

    >>> print(str(AdaptiveAdvice(4, "3+3 if mixed", 4.4, 0.96, 0.79)).splitlines()[-1])
    A fixed group of 4 is within 5% of the best two-stage plan, '3+3 if mixed'; sizes by known pass
    rates would save 21%.
    """

    group_size: int
    plan: str
    plan_size: float
    plan_ratio: float
    bound_ratio: float
    plan_interval: Interval | None = None

    def _sentence(self) -> str:
        low, high = self.plan_interval or (self.plan_ratio, self.plan_ratio)
        rest = f"sizes by known pass rates would save {max(1 - self.bound_ratio, 0):.0%}"
        if self.bound_ratio >= 1 - NEAR and low >= 1 - NEAR:
            return (
                f"A fixed group of {self.group_size} is within 5% of sizes by known pass rates: adaptive "
                "groups are not worth their code here."
            )
        if low >= 1 - NEAR:
            return (
                f"A fixed group of {self.group_size} is within 5% of the best two-stage plan, "
                f"'{self.plan}'; {rest}."
            )
        ends = "" if self.plan_interval is None else f" (95%: {1 - high:.0%} to {1 - low:.0%})"
        if high > 1:
            known = (
                f"{readable(low, 2)} to {readable(high, 2)}"
                if isfinite(high)
                else f"{readable(low, 2)} and more"
            )
            return (
                f"It is not known whether two stages save outputs compared with a fixed group of "
                f"{self.group_size}: the best plan, '{self.plan}', needs {readable(self.plan_ratio, 2)} "
                f"times its outputs (95%: {known})."
            )
        return (
            f"'{self.plan}' with the weights of two_stage saves {1 - self.plan_ratio:.0%} of the outputs"
            f"{ends} that a fixed group of {self.group_size} needs for the same noise; {rest}."
        )

    def __str__(self) -> str:
        rows = [
            ("fixed group", str(self.group_size), "1.000"),
            (
                "two stages",
                f"{self.plan} ({readable(self.plan_size)} outputs)",
                f"{self.plan_ratio:.3f}",
            ),
            ("known pass rates", "sizes by prompt", f"{self.bound_ratio:.3f}"),
        ]
        lines = [f"{name:18}{what:32}{ratio:>8}" for name, what, ratio in rows]
        head = f"{'':50}{'outputs':>8}"
        return "\n".join([head, *lines, "", self._sentence()])


@takes_problems
def adaptive_advice(
    moments: Moments, *, stage_cost: float = 0.0, largest_group: int = 64
) -> AdaptiveAdvice:
    """The comparison of two-stage plans with fixed groups on a problem.

    Arguments:
        moments: of the problem, or the problem; rewards 0 and 1.
        stage_cost: cost of the second draw, in outputs.
        largest_group: largest group that is tried.

    Raises:
        InputError: rewards are not 0 or 1, or the estimates have no noise.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> rare = SoftmaxBandit.tabular(
    ...     [0.5, 0.5], [[3.0, 0.0], [-3.0, 0.0]], [[[1.0], [0.0]]] * 2, [[[1.0], [1.0]]] * 2)
    >>> adaptive_advice(rare).plan
    '3+1 if mixed'
    """
    sizes = range(2, integer("largest group", largest_group, 3) + 1)
    constants = mse_constants(moments)
    costs = {size: size * constants.mse(size, 1) for size in sizes}
    fixed = min(costs, key=lambda size: costs[size])
    if costs[fixed] <= 0:
        raise InputError("estimates of these moments have no noise, so all plans are equally good")
    plan, cost = best_two_stage(moments, largest_group=largest_group, stage_cost=stage_cost)
    return AdaptiveAdvice(
        group_size=fixed,
        plan=plan.text,
        plan_size=plan_mse(moments, plan).expected_size,
        plan_ratio=cost / costs[fixed],
        bound_ratio=known_rates_bound(moments, largest_group)[0] / costs[fixed],
    )

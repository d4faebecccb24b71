"""The explanation of a published way of sampling: what it climbs, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..display.numbers import readable
from ..display.shown import Shown
from ..predictions import plan_mse, plan_weight
from ..predictions.adaptive import unbiased_plan
from ..sampling.plans import SCHEMES, Plan, Scheme
from ..validation import one_of
from .effects import GRID, PASS_RATES, moments_of_pass_rates
from .explanation import curve, plot_weight
from .text import wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class SchemeExplanation(Shown):
    """The effect of a published way of sampling on rewards 0 and 1.

    Arguments:
        name: name of the scheme in :data:`~ustat_pg.sampling.plans.SCHEMES`.
        scheme: its plan, estimator and source.
        weight: ``pass_rate`` and ``w``, the factor of a prompt's mean gradient.
        pass_rates, mean_factor: the prompts' pass rates, and w at each.
        sizes: mean number of outputs drawn for one used group, at each pass rate.
        noise_to_rloo: outputs times noise over signal, divided by RLOO's in groups of the same mean size.
        unbiased_noise_to_rloo: the same ratio for the sequential estimator under the plan; None if it does
            not exist.
    """

    name: str
    scheme: Scheme
    weight: dict[str, list[float]]
    pass_rates: list[float]
    mean_factor: list[float]
    sizes: list[float]
    noise_to_rloo: float
    unbiased_noise_to_rloo: float | None

    def __str__(self) -> str:
        plan = Plan.parse(self.scheme.plan)
        note = f" ({self.scheme.note})" if self.scheme.note else ""
        pairs = zip(self.pass_rates, self.mean_factor, self.sizes, strict=True)
        rows = [f"  {p:8.4g} {w:10.4g} {size:10.4g}" for p, w, size in pairs]
        rest = (
            "  estimators.sequential has none: the plan may stop at one output, and it needs the first two."
            if self.unbiased_noise_to_rloo is None
            else "  estimators.sequential with this plan has w = 1 everywhere; it needs "
            f"{readable(self.unbiased_noise_to_rloo)} times RLOO's outputs for the same noise over signal."
        )
        lines = [
            f"{self.name}: {plan.text}, advantages {self.scheme.estimator}",
            f"  {self.scheme.source}{note}",
            "",
            "What it climbs",
            "  Φ with Φ' = w: the mean estimate is w times the gradient of a prompt.",
            *curve(self.weight, self.pass_rates),
            "",
            f"  {'p':>8} {'w':>10} {'outputs':>10}",
            *rows,
            "",
            "Noise",
            f"  {readable(self.noise_to_rloo)} times the outputs of RLOO in groups of the same mean size, "
            "for the same noise, relative to the estimator's own mean.",
            "",
            "The unbiased form of the same plan",
            rest,
        ]
        return "\n".join(map(wrapped, lines))

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot w against the pass rate, with the prompts marked.

        Arguments:
            axes: to draw on; new ones unless given.
        """
        return plot_weight(axes, self.name, self.weight, self.pass_rates, self.mean_factor)


def explain_scheme(name: str, pass_rates: ArrayLike | None = None) -> SchemeExplanation:
    """Explain what a published way of sampling climbs and what it costs (adaptive_groups).

    Arguments:
        name: one of :data:`~ustat_pg.sampling.plans.SCHEMES`.
        pass_rates: pass rates of equally likely prompts (default: .1, .2, ..., .9).

    Raises:
        InputError: the name is unknown, or a pass rate is outside [0, 1].

    >>> found = explain_scheme("dapo", [0.5])
    >>> round(found.sizes[0], 3), found.scheme.plan
    (16.0, '16, refill silent')
    """
    scheme = SCHEMES[one_of("scheme", name, SCHEMES)]
    moments = moments_of_pass_rates(PASS_RATES if pass_rates is None else pass_rates)
    prediction = plan_mse(moments, scheme.plan, scheme.estimator)
    unbiased = unbiased_plan(moments, scheme.plan)
    size = max(round(prediction.expected_size), 2)
    rloo = plan_mse(moments, str(size), "grpo").critical_budget
    assert rloo is not None
    plan = Plan.parse(scheme.plan)
    share = min(float(moments.context_probs @ plan.kept_share(moments.value)), 1.0)
    rates = np.union1d(GRID[1:-1], moments.value)
    weight = plan_weight(scheme.plan, scheme.estimator, rates, kept_share=share)
    return SchemeExplanation(
        name=name,
        scheme=scheme,
        weight={"pass_rate": rates.tolist(), "w": weight.tolist()},
        pass_rates=moments.value.tolist(),
        mean_factor=prediction.mean_factor.tolist(),
        sizes=prediction.sizes.tolist(),
        noise_to_rloo=(prediction.critical_budget or np.inf) / rloo,
        unbiased_noise_to_rloo=None
        if unbiased is None or unbiased.critical_budget is None
        else unbiased.critical_budget / rloo,
    )

"""Lemma 1: the grpo gradient is the U-statistic of order 2 with kernel ½ (s₁ - s₂)(z₁ - z₂).

An algebraic identity, so it is checked sample by sample: on every group that can occur, and on
drawn ones with larger G, grpo as trainers compute it must equal the U-statistic computed by the
definition, its O(G d) form, and the sum of its Hoeffding parts; and g + first part must equal the
oracle. One group that differs by more than rounding falsifies it.

That the parts are uncorrelated is a statement about means: MSE(grpo) = MSE(oracle) + E‖second‖².

Cost: seconds; the definition's loop over pairs is most of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import Interval, Statement, equal
from ustat_pg.engines import Distance, Estimator, GradientCell
from ustat_pg.experiment import Check, Claim, Identity, Linear, Point, mean_of
from ustat_pg.predictions import gradient_mse

from .problems import Suite, mse_of

STEM = "ustatistic"

RIVALS = {
    "V-statistic": "V-statistic",
    "kernel without 1/2": "kernel without 1/2",
    "kernel s1 z1": "kernel s1 z1",
    "kernel (s1 - s2)(z1 + z2)/2": "kernel (s1 - s2)(z1 + z2)/2",
    "std-normalised": "std-normalised",
    "g + first part only": "g + first",
}

ROUNDING = 1e-11
"""Discrepancies are relative to the largest score times the largest reward."""

IDENTITIES = (
    ("grpo", "U-statistic"),
    ("grpo", "U-statistic in O(G d)"),
    ("grpo", "g + first + second"),
    ("oracle", "g + first"),
)


def claim(suite: Suite) -> Claim:
    """The identities on single prompts, every group where there are few, drawn groups everywhere."""
    checks = []
    same = Statement(0.0, Interval(0.0, ROUNDING), scale=0.0)
    for entry in suite.single_prompts:
        for group_size in dict.fromkeys((*suite.group_sizes[:3], 3)):
            cell = GradientCell(entry.problem, group_size)
            at = f"{entry.name} G={group_size}"
            for estimator, formula in IDENTITIES:
                rivals = tuple(RIVALS.items()) if formula == "U-statistic" else ()
                checks.append(
                    Check(
                        f"{at}: {estimator} = {formula}",
                        entry.origin,
                        Identity(cell, formula, rivals, estimator),
                        same,
                    )
                )
        cell = GradientCell(entry.problem, 2)
        second = Distance(Estimator("grpo"), Estimator("oracle"))
        weights = ((mse_of("grpo"), 1.0), (mse_of("oracle"), -1.0), (second, -1.0))
        scale = gradient_mse(entry.problem.moments(), "grpo", 2).mse
        checks.append(
            Check(
                f"{entry.name} G=2: parts uncorrelated",
                entry.origin,
                Linear(cell, weights),
                equal(0.0, scale=scale),
            )
        )
    return Claim(STEM, tuple(RIVALS), tuple(checks))


def curves(suite: Suite) -> Iterator[Point]:
    """The two parts of grpo's error against G: what the oracle has too, and what it has not."""
    for entry, _ in suite.shown:
        problem = suite.prompts(entry, 1)[0].problem
        moments = problem.moments()
        for size in suite.curve_sizes:
            predicted = gradient_mse(moments, "grpo", size)
            second = Distance(Estimator("grpo"), Estimator("oracle"))
            for part, value, quantity in (
                ("first", predicted.first_order_term, mse_of("oracle")),
                ("second", predicted.second_order_term, second),
                ("grpo", predicted.mse, mse_of("grpo")),
            ):
                yield Point(
                    "parts",
                    part,
                    {"problem": entry.name, "group_size": size},
                    value,
                    mean_of(GradientCell(problem, size), quantity),
                )

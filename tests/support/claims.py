"""Small claims that a smoke run settles, and what is asked of any claim and of any run."""

import json
from functools import lru_cache
from math import log

import numpy as np

from simulations.engines import Decay, Gap, GapTransform, Training
from simulations.evidence import (
    Check,
    Claim,
    LawDistance,
    LawExcess,
    LawShare,
    Linear,
    LogSlope,
    Pit,
    Ratio,
    equal,
    mean_of,
    positive,
)
from simulations.evidence.results import plain
from simulations.problems import Suite, mse_of
from simulations.problems.landscapes import triple
from simulations.shared.runs import ball, covariance_of
from ustat_pg.distributions import WeightedChi2, sup_distance
from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.predictions import finite_weights, gradient_mse

SKEWED = Suite().skewed.problem
GRADIENTS = (
    *("ustatistic", "mse", "minibatch", "oracle", "optimality", "normalised"),
    *("practical_mse", "arcsine", "count_advantages", "best_baseline"),
)
"""The claims of the suite that need no run."""


def claims_of(run) -> str:
    """The claims of a run as they are written."""
    return json.dumps([plain(result) for result in run.claims])


def small_claim(truth: float = 1.0, rival: float = 1.5) -> Claim:
    """grpo's MSE on two cells, said to be ``truth`` times itself, against a rival."""
    checks = []
    for size in (2, 3):
        value = gradient_mse(SKEWED.moments(), "grpo", size).mse
        cell = GradientCell(SKEWED, size)
        statement = equal(truth * value, {"other": rival * value}, scale=truth * value)
        functional = mean_of(cell, mse_of("grpo"))
        checks.append(Check(f"G={size}", "made-up", functional, statement, problem="skewed"))
    return Claim("mse", ("other",), tuple(checks))


# Whole training runs.

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
LANDSCAPE = triple()
STEPS, EARLY = 50, 25
SCHEDULE = Decay(2.0 / float(LANDSCAPE.curvatures[0]), 100.0)
OTHER = "oracle's weights"
DIGITS = 0.02
"""Own error of the linear recursion after so few steps."""


def training(group_size=2, **changed):
    """Runs from the optimum, on a ball which makes the range of gaps small."""
    asked = {"schedule": SCHEDULE, "projection": ball(LANDSCAPE, 1.0)} | changed
    return Training(LANDSCAPE, group_size, STEPS, **asked)


@lru_cache
def weights(estimator, group_size=2, steps=STEPS):
    """Weights of the gap's law, by the linear recursion."""
    noise = covariance_of(LANDSCAPE, estimator, group_size)
    return tuple(finite_weights(LANDSCAPE.curvatures, noise, SCHEDULE.rates(steps)).tolist())


def transform(own, rate):
    """E exp(-rate gap) of a gap with these weights."""
    return float(np.prod((1 + 2 * rate * np.array(own)) ** -0.5))


def claim_of_runs(factor: float = 1.0) -> Claim:
    """A check of each kind; weights times ``factor`` in a prediction."""
    runs, own, wrong = training(), weights("grpo"), weights("oracle")
    early, larger = sum(weights("grpo", 2, EARLY)), sum(weights("grpo", 4))
    rate = 1 / sum(own)
    text = tuple(factor * weight for weight in own)
    pit, against = (Pit(e, STEPS, own) for e in (GRPO, ORACLE))
    apart = sup_distance(WeightedChi2(wrong), WeightedChi2(own))
    gap = mean_of(runs, Gap(GRPO, STEPS))
    table = {
        "transform": (
            mean_of(runs, GapTransform(GRPO, STEPS, rate)),
            equal(transform(text, rate), {OTHER: transform(wrong, rate)}, scale=1.0, digits=DIGITS),
        ),
        "order": (
            Linear(runs, ((Gap(GRPO, STEPS), 1.0), (Gap(ORACLE, STEPS), -1.0))),
            positive(sum(own) - sum(wrong), [OTHER], scale=sum(own)),
        ),
        "growth": (
            Ratio(gap, mean_of(runs, Gap(GRPO, EARLY)), early),
            equal(sum(text) / early, digits=0.1, relative_margin=0.2),
        ),
        "ratio across cells": (
            LogSlope((0.0, 1.0), (gap, mean_of(training(4), Gap(GRPO, STEPS))), (sum(own), larger)),
            equal(log(larger / sum(text)), scale=1.0, digits=0.03, relative_margin=0.1),
        ),
        "distribution": (
            LawDistance(runs, pit),
            equal(0.0, {OTHER: apart}, scale=1.0, relative_margin=0.05, digits=2 * DIGITS),
        ),
        "excess": (
            LawExcess(runs, against, pit),
            equal(apart, {OTHER: 0.0}, scale=1.0, relative_margin=0.1, digits=2 * DIGITS),
        ),
        "share": (
            LawShare(runs, pit, 0.5),
            equal(0.5, scale=1.0, relative_margin=0.05, digits=DIGITS),
        ),
    }
    checks = tuple(Check(name, "made-up", *parts) for name, parts in table.items())
    return Claim("limit_law", (OTHER,), checks)

"""The figure of Theorem 8 (limit_law): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.stats import norm

from ustat_pg.distributions import WeightedChi2

from ..engines import Coordinate, Decay, OneRun
from ..evidence import LawShare, Pit, Point, mean_of
from ..limit_law import NORMAL, ORACLE, near, rivals
from ..problems import Suite
from ..problems.landscapes import LandscapeEntry
from ..shared.mixture import Mixture
from ..shared.runs import GRPO

STEM = "limit_law"

LEVELS = np.arange(1, 64) / 64


STARTS = ((-0.8, -3.0), (1.5, -1.0), (-0.8, 1.0), (1.5, 3.0))
"""The starting points of the runs that the plot of the return shows."""


STEPS = (*range(64), *(round(2 ** (n / 4)) for n in range(24, 49)))
"""The steps of these runs that the plot shows."""


def curves(suite: Suite) -> Iterator[Point]:
    """Densities and quantiles of (T + t₀) gap, of the predicted law and of two rivals; a mixture."""
    runs = near(suite.landscapes["steep"][0], 2, 10.0, 80.0, 2000, 0.2, -0.2)
    time, law, cell = 2080.0, runs.law(), runs.training
    pit = Pit(GRPO, runs.steps, runs.weights())
    laws: dict[str, Any] = {
        "weighted chi-square": law,
        NORMAL: norm(law.mean(), law.var() ** 0.5),
        ORACLE: WeightedChi2(rivals(runs)[ORACLE]),
    }
    places = np.linspace(0, float(law.ppf(0.99)), 160)
    for name, other in laws.items():
        for place, density in zip(places, other.pdf(places), strict=True):
            at = {"quantile": float(place) * time}
            yield Point(STEM, f"density: {name}", at, float(density) / time)
        for level in LEVELS.tolist():
            at = {"level": level, "quantile": float(other.ppf(level)) * time}
            share = LawShare(cell, pit, level) if other is law else None
            yield Point(STEM, name, at, level, share)
    yield from _on_a_ridge(suite.landscapes["calm mixture"][0])


def _on_a_ridge(entry: LandscapeEntry) -> Iterator[Point]:
    """The shares of a mixture's runs below the quantiles of their own law and of the law of the mean weight;
    the return with its ridge of maximisers, and runs that end at different points there.
    """
    mixture = Mixture(entry)
    for series, pit, shares in (
        ("own weight", mixture.own_law, LEVELS),
        ("mean weight", mixture.mean_law, mixture.shares(LEVELS)),
    ):
        for level, share in zip(LEVELS.tolist(), shares.tolist(), strict=True):
            at: dict[str, object] = {"problem": entry.name, "level": level}
            yield Point("mixture", series, at, share, LawShare(mixture.training, pit, level))
    landscape, heights = entry.problem, np.linspace(-4, 4, 9)
    for x in np.linspace(-1.2, 2.0, 41).tolist():
        points = np.stack([np.full(len(heights), x), heights], axis=-1)
        for y, value in zip(heights, landscape.maximum - landscape.gap(points), strict=True):
            yield Point("mixture", "return", {"x": x, "y": float(y)}, float(value))
    for run, start in enumerate(STARTS):
        cell = OneRun(landscape, 2, STEPS[-1], Decay(20.0, 60.0), start=start, number=run)
        for step in STEPS:
            for coordinate, axis in enumerate("xy"):
                at = {"run": run, "step": step, "axis": axis}
                where = mean_of(cell, Coordinate(GRPO, step, coordinate))
                yield Point("mixture", "run", at, None, where)

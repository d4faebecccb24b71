"""Runs with different endpoints: the noise depends on an unidentified parameter (Assumption 8)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit
from scipy.stats import chi2, norm

from ustat_pg.predictions import finite_weights

from ..engines import Decay, Training
from ..evidence import ConditionalPit, Pit
from ..problems.landscapes import LandscapeEntry
from .runs import GRPO, NearOptimum, parts_of, rates_of

SPREAD = 3.0
"""The standard deviation of the second parameter at the start."""


@dataclass(frozen=True)
class Mixture:
    """Runs of grpo at G = 2 with a second parameter that starts at random and hardly moves."""

    entry: LandscapeEntry
    steps: int = 320
    schedule: Decay = Decay(8.0, 160.0)  # noqa: RUF009 - frozen

    @property
    def training(self) -> Training:
        spread = np.array([0.0, SPREAD])
        return Training(self.entry.problem, 2, self.steps, self.schedule, start_scale=spread)

    @property
    def off(self) -> float:
        """The largest distance of a run's law from its predicted one, as a probability."""
        return NearOptimum(self.entry, 2, self.steps, self.schedule).off_of()

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The weights of the gap if the second action is never 1, and if it is always 1."""
        landscape, rates = self.entry.problem, rates_of(self.schedule, self.steps)
        parts = (parts_of(landscape, np.array([0.0, logit])) for logit in (-40.0, 40.0))
        low, high = (
            float(finite_weights(landscape.curvatures, first + single / 2 + pair / 2, rates)[0])
            for first, single, pair in parts
        )
        return low, high

    def weights(self, count: int = 500) -> np.ndarray:
        """Equally likely weights: the second parameter ends where it began."""
        low, high = self.ends
        logits = SPREAD * norm.ppf((np.arange(count) + 0.5) / count)
        return np.asarray(low + (high - low) * expit(logits))

    @property
    def own_law(self) -> ConditionalPit:
        """The transform of each run by the law of its own endpoint."""
        return ConditionalPit(GRPO, self.steps, self.entry.problem.d - 1, *self.ends)

    @property
    def mean_law(self) -> Pit:
        """The transform of every run by the law of the mean weight."""
        return Pit(GRPO, self.steps, (float(self.weights().mean()),))

    def shares(self, levels: np.ndarray, count: int = 500) -> np.ndarray:
        """The mixture's cdf at the quantiles of the law of the mean weight, by number of weights."""
        places = self.weights().mean() * chi2.ppf(levels, 1)[:, None]
        return np.asarray(chi2.cdf(places / self.weights(count), 1).mean(axis=1))

"""Proposition 13 at its maximisers: the points where the mean estimate is 0, with and without a penalty, and
the ends of whole runs, for two prompts that pull in opposite directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.estimators import kl_coefficients
from ustat_pg.predictions import (
    arcsine_objective,
    bernstein_objective,
    climbed_maximiser,
    count_table,
    gradient_covariance,
    kl_penalty,
)
from ustat_pg.problems import WeightedBandit
from ustat_pg.validation import Array, changed

from ..engines import Coordinate, Decay, Training
from ..evidence import Check, Linear, equal, mean_of
from ..interior_problems.location_bandit import LocationBandit
from ..problems.landscapes import LandscapeEntry
from ..problems.paths import mean_along
from ..shared.numerics import Approximate, derivative
from ..shared.runs import VANILLA, ball

Objective = Callable[[Array], Array]


RETURN = "the expected reward is climbed"
ARCSINE = "the arcsine is climbed at finite G"
ORDER = "the polynomial is of degree G + 1"
STD = Estimator("std")
BETA = 0.2
"""The weight of a penalty against the rewards."""


def climbed(name: str, group_size: int) -> Objective:
    """The Bernstein objective of a table by counts."""
    return partial(bernstein_objective, count_table(name, group_size))


def wrong_objectives(group_size: int) -> dict[str, Objective]:
    """The objectives that, according to rivals, the estimator divided by the deviation maximises."""
    return {RETURN: lambda p: p, ARCSINE: arcsine_objective, ORDER: climbed("std", group_size + 1)}


REACH = 0.5
"""Half the length of the first interval on which the return is interpolated."""


@dataclass(frozen=True)
class Pull:
    """Two prompts that pull in opposite directions on a parameter, with the policy at -1 as reference;
    whole runs have the given steps.
    """

    entry: LandscapeEntry
    group_size: int
    steps: int = 150

    @property
    def landscape(self) -> LocationBandit:
        assert isinstance(self.entry.problem, LocationBandit)
        return self.entry.problem

    def rates(self, u: float) -> Array:
        return self.landscape.curve(u * self.landscape.paths[:, 0])[0]

    def probs(self, u: float) -> Array:
        return np.asarray(self.landscape.at([u]).policy.probs)

    @cached_property
    def reference(self) -> Array:
        return self.probs(-1.0)

    def penalty(self, kind: str, place: str, u: float) -> float:
        """β times the divergence that a penalty reduces."""
        law = zip(self.landscape.context_probs, self.probs(u), self.reference, strict=True)
        return BETA * sum(share * kl_penalty(p, r, kind, place) for share, p, r in law)

    def best(self, objective: Objective, penalty: Callable[[float], float] | None = None) -> float:
        """The parameter at which an objective minus a penalty is greatest."""
        probs = self.landscape.context_probs
        return climbed_maximiser(
            self.rates, objective, -1.0, 2.5, context_probs=probs, penalty=penalty
        )

    def height(self, objective: Objective, u: float) -> float:
        return float(self.landscape.context_probs @ objective(self.rates(u)))

    def slope(self, objective: Objective, u: float, order: int = 1) -> Approximate:
        height = np.vectorize(partial(self.height, objective), otypes=[float])
        return derivative(height, u, REACH, order)

    def wrong_slopes(self, u: float) -> dict[str, float]:
        return {rival: self.slope(objective, u).value for rival, objective in self.afar.items()}

    @property
    def objective(self) -> Objective:
        return climbed("std", self.group_size)

    @property
    def afar(self) -> dict[str, Objective]:
        """The rivals' objectives, without those with a maximiser near the point."""
        wrong = wrong_objectives(self.group_size)
        del wrong[ORDER]
        return wrong

    def checks(self, both: bool) -> Iterator[Check]:
        """The points where the mean estimate is 0, with no, one or both penalties, and where runs end."""
        top, size = self.best(self.objective), self.group_size
        cell = GradientCell(self.landscape.at([top]), size)
        yield self.entry.check(
            f"G={size}: mean at the maximiser",
            mean_along(cell, ((STD, 1.0),)),
            equal(0.0, self.wrong_slopes(top), scale=1.0),
        )
        for kind, place in (("k3", "loss"), ("k1", "reward"))[: 1 + both]:
            yield from self.balance(kind, place)
        predicted, off, drawn = self.end(top)
        ends = {rival: self.best(objective) + off for rival, objective in self.afar.items()}
        yield self.entry.check(
            f"G={size}: end of runs", drawn, equal(predicted, ends, scale=1.0, digits=abs(off))
        )

    def balance(self, kind: str, place: str) -> Iterator[Check]:
        """At the maximiser, rewards and penalty pull with equal strength: the objective's slope there."""
        size = self.group_size
        top = self.best(self.objective, partial(self.penalty, kind, place))
        force, error = self.slope(self.objective, top)
        bandit = self.landscape.at([top])
        ratios = np.log(self.reference / bandit.policy.probs)[..., None]
        pull = WeightedBandit.of(
            changed(bandit, reward_values=np.ones_like(bandit.reward_values)),
            kl_coefficients(ratios, kind, place)[..., 0],
            np.zeros((bandit.contexts, 1)),
        )
        for what, cell, weights in (
            ("rewards", GradientCell(bandit, size), ((STD, 1.0),)),
            ("penalty", GradientCell(pull, size), ((VANILLA, -BETA),)),
        ):
            yield self.entry.check(
                f"G={size}: {kind} in the {place}, pull of the {what} at the maximiser",
                mean_along(cell, weights),
                equal(force, self.wrong_slopes(top), digits=error),
            )

    def end(self, top: float) -> tuple[float, float, Linear]:
        """The mean parameter after whole runs from the best expected reward: its second-order prediction,
        the predicted distance from the maximiser, and the measured value.
        """
        size, off = self.group_size, float(self.landscape.maximiser[0]) - top
        curvature, bend = (self.slope(self.objective, top, order).value for order in (2, 3))
        curvature = -curvature
        moments, square = self.landscape.at([top]).moments(), off**2
        noise = float(gradient_covariance(moments, "std", size)[0, 0])
        schedule = Decay(2 / curvature, 20.0)
        for rate in schedule.rates(self.steps):
            keep = 1 - rate * curvature
            off, square = keep * off + rate * bend / 2 * square, keep**2 * square + rate**2 * noise
        runs = Training(
            *(self.landscape, size, self.steps, schedule),
            start=self.landscape.maximiser,
            projection=ball(self.landscape, 1.2),
        )
        return top + off, off, mean_of(runs, Coordinate(STD, self.steps, 0))

"""Whether the order of baselines and of group sizes survives other optimizers than plain SGD.

An open question, answered by measurement alone: no theory here says what Adam or Muon make of a noisy
gradient. A transformer learns addition in a few steps at one budget; each optimizer with each estimator
has the rate, of a grid by factors of two, that did best in runs of another seed. Intervals decide what is
said, and no verdict is made of it.

``python -m simulations.networks.optimizers`` tunes the rates again, in some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ustat_pg.engines import Constant, Estimator, Gap, NetworkTraining
from ustat_pg.experiment import Linear, Point

from ..problems import Suite
from .learners import Learner, large

STEPS, BUDGET, RUNS = 60, 64, 32
"""T, K, and the runs of a block."""

TUNING_SEED = 777
"""The seed of the runs that choose the rates, which no figure has."""

GRIDS = {
    "sgd": (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    "adam": (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
    "muon": (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
}

SERIES = ("vanilla", "oracle", "grpo", "group-mean", "std")
GROUP_SIZES = (2, 4, 8, 16)
SMALL = 4
"""The group size at which baselines are compared."""

CELLS = (*((name, SMALL) for name in SERIES), *(("grpo", g) for g in GROUP_SIZES if g != SMALL))
"""Estimators and group sizes."""

RATES = {
    "sgd": (0.8, 0.4, 0.1, 0.8, 0.1, 0.4, 0.2, 0.2),
    "adam": (0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005),
    "muon": (0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01),
}
"""The rates that did best, in the order of CELLS."""


@dataclass(frozen=True)
class Race:
    """The runs of an optimizer with an estimator.

    Arguments:
        learner: which policy on which problem.
        optimizer: sgd, adam or muon.
        baseline, group_size: the estimator; B = K/G.
    """

    learner: Learner
    optimizer: str
    baseline: str
    group_size: int

    def runs(self, rate: float) -> NetworkTraining:
        """The runs at a rate."""
        return NetworkTraining(
            self.learner.problem, self.learner.policy, self.group_size, STEPS, Constant(rate),
            BUDGET // self.group_size, device=self.learner.device, block=RUNS,
            optimizer=self.optimizer,
        )  # fmt: skip

    def value(self, rate: float) -> Linear:
        """The mean return after the last step."""
        gap = Gap(Estimator(self.baseline), STEPS)
        return Linear(self.runs(rate), ((gap, -1.0),), self.learner.problem.optimum)

    def tuned(self) -> list[float]:
        """The mean return at each rate of the grid, in the runs that tune."""
        found = []
        for rate in GRIDS[self.optimizer]:
            own = self.value(rate)
            mean = own.cell.measure(
                "autograd", own.quantities, seed=TUNING_SEED, replications=RUNS
            ).mean
            found.append(self.learner.problem.optimum - float(mean[0]))
        return found


def races(suite: Suite) -> Iterator[tuple[Race, float]]:
    """All of them, with their rates."""
    learner = large(suite)
    for optimizer, rates in RATES.items():
        for (baseline, group_size), rate in zip(CELLS, rates, strict=True):
            yield Race(learner, optimizer, baseline, group_size), rate


def curves(suite: Suite) -> Iterator[Point]:
    """The return of each at its rate."""
    for race, rate in races(suite):
        at = {"panel": race.optimizer, "group_size": race.group_size, "rate": rate}
        yield Point("transformer_optimizers", race.baseline, at, None, race.value(rate))


if __name__ == "__main__":
    for race, _ in races(Suite("smoke", on="transformer")):
        found = race.tuned()
        best = GRIDS[race.optimizer][found.index(max(found))]
        print(race.optimizer, race.baseline, race.group_size, [round(v, 3) for v in found], best)

"""Training runs of networks: what the policy-level results say where nothing is quadratic.

No result gives the gap of a network in closed form, and its optimum is at infinity, so that the
Polyak-Łojasiewicz inequality fails. What is checked, on prefix policies and on transformers alike:

- grpo is unbiased: under small constant steps its mean gap is that of exact gradient ascent, which
  reads score tables and draws nothing; group-mean goes the same way (G-1)/G times as fast;
- no PL constant holds along the path: from the step where ‖∇J‖²/(2 gap) is largest the gap falls more
  slowly than that constant says;
- at a budget, one prompt a step (B = 1) loses to the group sizes that c₁, c₂, c₃ recommend.

The rest is measured and decides nothing: trained return against G at several budgets and steps, and
how far Assumption 2 fails along training.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.engines import Constant, Estimator, Gap, NetworkTraining
from ustat_pg.experiment import Check, Linear, LogSlope, Point, mean_of
from ustat_pg.experiment.probes import Probe, pl_ratio
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.predictions import mse_constants, optimal_group_size
from ustat_pg.predictions.group_size import MseConstants
from ustat_pg.problems import TokenBandit, TokenProblem, digit_addition

from .networks import initial, tasks
from .problems import Suite

__all__ = ["GROUP_SIZE_RIVALS", "PATH_RIVALS", "Study", "group_sizes", "map_points", "paths"]

GRPO, GROUP_MEAN = Estimator("grpo"), Estimator("group-mean")

SUM = "the group's sum for its mean"
SHRUNK = "full-mean baseline: (G-1)/G of the step"
PL = "a PL constant all along"
PATH_RIVALS = (SUM, SHRUNK, PL)

LARGEST = "B = 1 is best"
SAME = "the group size makes no difference"
GROUP_SIZE_RIVALS = (LARGEST, SAME)

OWN_ERROR = 0.02
"""Of exact ascent as a prediction of the mean gap, of the gap at the start: noise curves the path."""

EFFECT = 0.1
"""A share of the gap that is looked for when two group sizes are compared."""

PATH, LONG = 100, 300
"""Steps in which half of the gap would be gained at the first one's pace; and those after which PL is
looked at.
"""


@dataclass(frozen=True)
class Study:
    """Runs of one policy on one problem.

    Arguments:
        name, group: as an entry's.
        problem: the prompts and their verifier.
        policy: at the start.
        rate: η of the small steps.
        device: on which the runs are made.
    """

    name: str
    group: str
    problem: TokenProblem
    policy: SoftmaxPolicy
    rate: float
    device: str = "cpu"

    @classmethod
    def of(
        cls, name: str, group: str, problem: TokenProblem, policy: SoftmaxPolicy, device: str
    ) -> Study:
        """With the rate at which PATH steps of the first one's pace gain half of the gap."""
        bandit = problem.bandit(policy)
        gradient = bandit.gradient()
        rate = problem.gap(bandit) / (2 * PATH * float(gradient @ gradient))
        return cls(name, group, problem, policy, float(f"{rate:.2g}"), device)

    def runs(
        self, group_size: int, budget: int, steps: int, rate: float, block: int
    ) -> NetworkTraining:
        """B = budget/G prompts a step."""
        return NetworkTraining(
            self.problem,
            self.policy,
            group_size,
            steps,
            Constant(rate),
            budget // group_size,
            device=self.device,
            chunk=min(block, 64),
            block=block,
        )

    def ascent(self, rate: float, steps: int) -> list[TokenBandit]:
        """Exact gradient ascent: the bandit before each step and after the last."""
        policy, path = self.policy, []
        for _ in range(steps):
            path.append(self.problem.bandit(policy))
            policy = policy.with_theta(policy.theta + rate * path[-1].gradient())
        return [*path, self.problem.bandit(policy)]

    @cached_property
    def path(self) -> list[TokenBandit]:
        """At the study's own rate, beyond its steps."""
        return self.ascent(self.rate, LONG)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Along the path, (LONG + 1,)."""
        return np.array([self.problem.gap(bandit) for bandit in self.path])

    @cached_property
    def pl(self) -> np.ndarray:
        """‖∇J‖²/(2 gap) along the path, (LONG + 1,)."""
        return np.array([pl_ratio(bandit) for bandit in self.path])

    @cached_property
    def peak(self) -> int:
        """The step at which it is largest."""
        return int(self.pl.argmax())

    def under_pl(self, step: int) -> float:
        """The gap at a step, if from the peak on the PL ratio there held."""
        shrink = 1 - 2 * self.pl[self.peak] * self.rate
        return float(self.gaps[self.peak] * shrink ** (step - self.peak))


def _unlearned(on: str, rng: np.random.Generator) -> tuple[TokenProblem, SoftmaxPolicy]:
    """Addition of digits under a policy that is mostly wrong."""
    problem = tasks()["addition"]
    while True:
        policy = initial(on, problem, seed=int(rng.integers(2**31)))
        if 0.75 < problem.gap(problem.bandit(policy)) < 0.95:
            return problem, policy


def studies(suite: Suite) -> Iterator[Study]:
    """Addition of digits under a policy of random parameters, made up and generated."""
    seeds = [("made-up", "addition", [20260321])]
    seeds += [
        ("generated", f"addition#{suite.seed}.{number}", [suite.seed, number, 6])
        for number in range(suite.generated)
    ]
    for group, name, seed in seeds:
        problem, policy = _unlearned(suite.on, np.random.default_rng(seed))
        yield Study.of(name, group, problem, policy, suite.device)


def large(suite: Suite) -> Study:
    """Addition of two digits in base 4, 16 prompts and 16 answers: what figures show."""
    problem = digit_addition(4, 1)
    policy = initial(suite.on, problem, seed=20260321, scale=0.5)
    return Study.of("addition in base 4", "made-up", problem, policy, suite.device)


def paths(suite: Suite) -> Iterator[Check]:
    """Small constant steps: the mean gap on exact ascent's path, and no PL constant along it."""
    size, budget, block = 2, 32, 256
    for study in studies(suite):
        training = study.runs(size, budget, PATH, study.rate, block)
        own = OWN_ERROR * float(study.gaps[0])
        exact = {
            pace: study.problem.gap(study.ascent(study.rate * pace, PATH)[-1])
            for pace in (1.0, (size - 1) / size, float(size))
        }
        at = f"{study.name} G={size} B={budget // size}"
        for estimator, pace, wrong in (
            (GRPO, 1.0, {SHRUNK: (size - 1) / size, SUM: float(size)}),
            (GROUP_MEAN, (size - 1) / size, {SUM: 1.0}),
        ):
            rivals = {name: exact[other] for name, other in wrong.items()}
            yield Check(
                f"{at}: {estimator.label} on the path of exact ascent, T={PATH}",
                study.group,
                mean_of(training, Gap(estimator, PATH)),
                equal(exact[pace], rivals, digits=own),
            )
        excess = float(study.gaps[LONG]) - study.under_pl(LONG)
        if excess > 2 * own:
            runs = study.runs(size, budget, LONG, study.rate, block)
            yield Check(
                f"{at}: gap at T={LONG} above what PL from step {study.peak} on allows",
                study.group,
                Linear(runs, ((Gap(GRPO, LONG), 1.0),), -study.under_pl(LONG)),
                positive(excess, [PL], scale=float(study.gaps[LONG])),
            )


@dataclass(frozen=True)
class Sweep:
    """A sweep of group sizes: budgets K, steps T and the rate of the kind of policy."""

    budgets: tuple[int, ...]
    steps: tuple[int, ...]
    rate: float
    sizes: tuple[int, ...] = (2, 4, 8, 16)


SWEEPS = {
    "tokens": Sweep((16, 64), (30, 60, 150), 4.0),
    "transformer": Sweep((16, 64), (50, 100, 300), 0.1),
}


def group_sizes(suite: Suite) -> Iterator[Check]:
    """One prompt a step against the recommended group size, in a few long steps."""
    budget, size, steps = 16, 4, 10
    for study in studies(suite):
        # Three times the rate at which so few steps would gain half of the gap.
        rate = 3 * study.rate * PATH / steps
        best, worst = (
            mean_of(study.runs(g, budget, steps, rate, 256), Gap(GRPO, steps))
            for g in (size, budget)
        )
        yield Check(
            f"{study.name} K={budget} T={steps}: gap at G={budget} over that at G={size}",
            study.group,
            LogSlope((0.0, 1.0), (best, worst), (0.4, 0.4 * (1 + EFFECT))),
            positive(log(1 + EFFECT), GROUP_SIZE_RIVALS, scale=1.0),
        )


STAGES = ("initial", "middle", "final")


def stages(study: Study, rate: float, steps: int) -> dict[str, MseConstants]:
    """c₁, c₂ and c₃ at the start, half-way and the end of exact ascent at the sweep's rate."""
    path = study.ascent(rate, steps)
    places = dict(zip(STAGES, (0, steps // 2, steps), strict=True))
    return {name: mse_constants(path[place].moments()) for name, place in places.items()}


def group_size_points(suite: Suite) -> Iterator[Point]:
    """Trained return against G at every budget and step, and the curves that c₁, c₂, c₃ predict."""
    study, sweep = large(suite), SWEEPS[suite.on]
    for budget in sweep.budgets:
        for size in sweep.sizes:
            training = study.runs(size, budget, sweep.steps[-1], sweep.rate, 32)
            for step in sweep.steps:
                at: dict[str, float | str] = {"panel": "trained", "problem": study.name}
                at |= {"group_size": size, "budget": budget, "step": step}
                gap = Linear(training, ((Gap(GRPO, step), -1.0),), study.problem.optimum)
                yield Point(f"{suite.on}_group_size", f"K = {budget}, T = {step}", at, None, gap)
    for name, constants in stages(study, sweep.rate, sweep.steps[0]).items():
        best = optimal_group_size(constants)
        least = _curve(constants, best)
        for size in np.geomspace(2, sweep.sizes[-1], 40):
            yield Point(
                f"{suite.on}_group_size",
                name,
                {"panel": "predicted", "problem": study.name, "group_size": float(size)},
                _curve(constants, size) / least,
            )


def _curve(known: MseConstants, size: float) -> float:
    return known.c1 * size + known.c2 + known.c3 / (size - 1)


def path_points(suite: Suite) -> Iterator[Point]:
    """The gap and the PL ratio along small constant steps, beside those of exact ascent."""
    study = next(studies(suite))
    training = study.runs(4, 32, LONG, study.rate, 32)
    few = study.runs(4, 32, LONG, study.rate, 8)
    for step in range(0, LONG + 1, 20):
        at: dict[str, float | str] = {"problem": study.name, "step": step}
        gap = mean_of(training, Gap(GRPO, step))
        yield Point(f"{suite.on}_path", "gap", {"panel": "gap", **at}, float(study.gaps[step]), gap)
        if step >= study.peak:
            bound = {"panel": "gap", **at}
            yield Point(f"{suite.on}_path", "PL", bound, study.under_pl(step))
        probe = mean_of(few, Probe(GRPO, step, "pl"))
        yield Point(f"{suite.on}_path", "pl", {"panel": "pl", **at}, float(study.pl[step]), probe)


MAP_BASELINES = ("vanilla", "grpo", "minimum-variance", "norm-weighted")
TRAINED = ("vanilla", "grpo", "oracle", "minimum-variance", "norm-weighted")


def map_points(suite: Suite) -> Iterator[Point]:
    """How far Assumption 2 fails along training: correlation, and errors over the oracle's, at the
    parameters that grpo comes to; and the return when each baseline trains, on the same draws.
    """
    study, sweep = large(suite), SWEEPS[suite.on]
    steps = sweep.steps[-1]
    training, trained = (study.runs(4, 64, steps, sweep.rate, block) for block in (8, 32))
    marks = sorted({0, *(int(n) for n in np.geomspace(steps / 60, steps, 9))})
    for step in marks:
        at: dict[str, float | str] = {"problem": study.name, "step": step}
        for baseline in TRAINED:
            gap = Gap(Estimator(baseline), step)
            reached = Linear(trained, ((gap, -1.0),), study.problem.optimum)
            yield Point(f"{suite.on}_map", baseline, {"panel": "return", **at}, None, reached)
        probe = mean_of(training, Probe(GRPO, step, "correlation"))
        yield Point(f"{suite.on}_map", "grpo", {"panel": "correlation", **at}, None, probe)
        for baseline in MAP_BASELINES:
            size = 4 if baseline == "norm-weighted" else 8
            probe = mean_of(training, Probe(GRPO, step, "relative-mse", baseline, size))
            own = {"panel": "error", **at, "group_size": size}
            yield Point(f"{suite.on}_map", baseline, own, None, probe)

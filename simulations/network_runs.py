"""Training runs of networks: what can be asked of them where nothing is quadratic.

Lemma 6 assumes a PL constant and Theorem 8 an optimum within reach; no network has either, since its
optimum is at infinity. What is checked, on prefix policies and on transformers alike:

- one training step of any length, G = 2 and one prompt: the mean gap after it is a sum over all prompts and
  pairs of outputs, whose scores are read in tables. Neither the step of group-mean, nor that of the
  group's sum, nor a step without noise (exact ascent) leaves that gap;
- a few long steps at a budget: one prompt a step (B = 1) loses to four outputs a prompt, which c₁, c₂ and
  c₃ recommend.

The rest is measured and decides nothing: the gap and ‖∇J‖²/(2 gap) along small constant steps, trained
return against G at several budgets and steps, and how far Assumption 2 fails along training.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.engines import Constant, Estimator, Gap, NetworkTraining
from ustat_pg.experiment import Check, Linear, LogSlope, Point, mean_of
from ustat_pg.experiment.probes import Probe, pl_ratio
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.predictions import gradient_mse, mse_constants, optimal_group_size
from ustat_pg.predictions.group_size import MseConstants
from ustat_pg.problems import TokenBandit, TokenProblem, digit_addition

from .networks import Drawn, initial, tasks, until
from .problems import Suite

__all__ = ["GROUP_SIZE_RIVALS", "STEP_RIVALS", "Study", "group_sizes", "map_points", "one_step"]

GRPO, GROUP_MEAN = Estimator("grpo"), Estimator("group-mean")

SUM = "the group's sum for its mean"
SHRUNK = "full-mean baseline: (G-1)/G of the step"
FREE = "a step without noise"
STEP_RIVALS = (SUM, SHRUNK, FREE)

LARGEST = "B = 1 is as good as any"
GROUP_SIZE_RIVALS = (LARGEST,)

EFFECT = 0.07
"""A share of the gap that is looked for when two group sizes are compared."""

LEAST, MORE_NOISE = 0.05, 1.5
"""Limits of a study at its start: pass rate of the hardest prompt; noise of one prompt a step, over that of
several.
"""

BUDGET, SMALL = 16, 4
"""K, and the group size against G = K."""

PATH, LONG = 100, 300
"""Steps in which half of the gap would be gained at the first one's pace; and those of figures."""


@dataclass(frozen=True)
class Study:
    """Runs of one policy on one problem.

    Arguments:
        name, origin: as an entry's.
        problem: the prompts and their verifier.
        policy: at the start.
        rate: η of the small steps.
        device: on which the runs are made.
    """

    name: str
    origin: str
    problem: TokenProblem
    policy: SoftmaxPolicy
    rate: float
    device: str = "cpu"

    @classmethod
    def of(
        cls, name: str, origin: str, problem: TokenProblem, policy: SoftmaxPolicy, device: str
    ) -> Study:
        """With the rate at which PATH steps of the first one's pace gain half of the gap."""
        bandit = problem.bandit(policy)
        gradient = bandit.gradient()
        rate = problem.gap(bandit) / (2 * PATH * float(gradient @ gradient))
        return cls(name, origin, problem, policy, float(f"{rate:.2g}"), device)

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
            chunk=min(block, 256),
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

    def after_one_step(self, rate: float, pace: float = 1.0) -> float:
        """The mean gap after one step of grpo at G = 2, B = 1, enumerated.

        ĝ = ½ (s - s')(z - z') at a prompt x and two outputs, times ``pace``.
        """
        bandit = self.problem.bandit(self.policy)
        table, mean = bandit.policy.probs, 0.0
        for x, share in enumerate(bandit.context_probs):
            scores, rewards = bandit.policy.scores(x), bandit.mean_rewards[x]
            for i in range(len(rewards)):
                for j in range(i, len(rewards)):
                    chance = share * table[x, i] * table[x, j] * (1 + (i < j))
                    step = (scores[i] - scores[j]) * (rewards[i] - rewards[j]) / 2
                    mean += chance * self._gap(self.policy.theta + rate * pace * step)
        return float(mean)

    def without_noise(self, rate: float) -> float:
        """The gap after one step of exact ascent."""
        gradient = self.problem.bandit(self.policy).gradient()
        return self._gap(self.policy.theta + rate * gradient)

    def _gap(self, theta: np.ndarray) -> float:
        return self.problem.gap(self.problem.bandit(self.policy.with_theta(theta)))


def _unlearned(on: str, rng: np.random.Generator) -> Drawn:
    """Addition of digits under a policy that is mostly wrong, has a gradient at every prompt, and whose
    moments say that one prompt a step has half as much noise again as four outputs a prompt.
    """
    problem = tasks()["addition"]

    def draw() -> Drawn:
        return problem, initial(on, problem, seed=int(rng.integers(2**31)))

    def holds(bandit: TokenBandit) -> bool:
        gap, moments = problem.gap(bandit), bandit.moments()
        few, many = (gradient_mse(moments, "grpo", g, BUDGET // g).mse for g in (SMALL, BUDGET))
        return bool(0.75 < gap < 0.95 and moments.value.min() > LEAST and many > MORE_NOISE * few)

    return until(draw, holds)


@lru_cache(maxsize=4)
def studies(suite: Suite) -> tuple[Study, ...]:
    """Addition of digits under a policy of random parameters, made up and generated."""
    seeds = [("made-up", "addition", [20260321])]
    seeds += [
        ("generated", f"addition#{suite.seed}.{number}", [suite.seed, number, 6])
        for number in range(suite.generated)
    ]
    out = []
    for origin, name, seed in seeds:
        problem, policy = _unlearned(suite.on, np.random.default_rng(seed))
        out.append(Study.of(name, origin, problem, policy, suite.device))
    return tuple(out)


def large(suite: Suite) -> Study:
    """Addition of two digits in base 4, 16 prompts and 16 answers: what figures show."""
    problem = digit_addition(4, 1)
    policy = initial(suite.on, problem, seed=20260321, scale=0.5)
    return Study.of("addition in base 4", "made-up", problem, policy, suite.device)


def one_step(suite: Suite) -> Iterator[Check]:
    """A single long step, against the sum over all its outcomes."""
    size = 2
    for study in studies(suite):
        # Long enough for curvature to count as much as the slope does.
        rate = 20 * study.rate
        training = study.runs(size, size, 1, rate, 4096)
        exact = {pace: study.after_one_step(rate, pace) for pace in (1.0, 1 / size, float(size))}
        free = study.without_noise(rate)
        for estimator, own, rivals in (
            (GRPO, 1.0, {SHRUNK: exact[1 / size], SUM: exact[float(size)], FREE: free}),
            (GROUP_MEAN, 1 / size, {SUM: exact[1.0]}),
        ):
            yield Check(
                f"{study.name} G={size} B=1: one step of {rate:.3g}, {estimator.label}",
                study.origin,
                mean_of(training, Gap(estimator, 1)),
                equal(exact[own], rivals),
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
    """One prompt a step against four outputs a prompt, in a few long steps.

    What stands as predicted is the least effect that is looked for: none is known in closed form.
    """
    budget, size, steps = BUDGET, SMALL, 10
    for study in studies(suite):
        # Three times the rate at which so few steps would gain half of the gap.
        rate = 3 * study.rate * PATH / steps
        best, worst = (
            mean_of(study.runs(g, budget, steps, rate, 512), Gap(GRPO, steps))
            for g in (size, budget)
        )
        yield Check(
            f"{study.name} K={budget} T={steps}: gap at G={budget} over that at G={size}, by some "
            f"{EFFECT:.0%}",
            study.origin,
            LogSlope((0.0, 1.0), (best, worst), (0.4, 0.4 * (1 + EFFECT))),
            positive(log(1 + EFFECT), GROUP_SIZE_RIVALS, scale=1.0),
        )


STAGES = ("initial", "middle", "final")


def stages(study: Study, rate: float, steps: int) -> dict[str, MseConstants]:
    """c₁, c₂ and c₃ at the start, half-way and the end of exact ascent at the sweep's rate and for as
    long as its longest runs.
    """
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
    for name, constants in stages(study, sweep.rate, sweep.steps[-1]).items():
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
    study = studies(suite)[0]
    training = study.runs(4, 32, LONG, study.rate, 32)
    few = study.runs(4, 32, LONG, study.rate, 8)
    peak = int(study.pl.argmax())
    for step in range(0, LONG + 1, 20):
        at: dict[str, float | str] = {"problem": study.name, "step": step}
        gap = mean_of(training, Gap(GRPO, step))
        yield Point(f"{suite.on}_path", "gap", {"panel": "gap", **at}, float(study.gaps[step]), gap)
        if step >= peak:
            # What the gap would be, had the ratio stayed at its peak.
            shrink = max(1 - 2 * study.pl[peak] * study.rate, 0.0)
            kept = float(study.gaps[peak] * shrink ** (step - peak))
            yield Point(f"{suite.on}_path", "PL", {"panel": "gap", **at}, kept)
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

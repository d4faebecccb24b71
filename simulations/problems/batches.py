"""Problems for Theorem 12, on which a policy moves away from the one that drew its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from ustat_pg.moments.record import TokenOutcomes
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.predictions import practical_mse
from ustat_pg.problems import SoftmaxBandit, modular_sum, token_outcomes

from ..engines import PracticalCell, PracticalError, RatioBias, Rule
from .bandits import BanditEntry, Bandits, rare
from .entry import Entry, streams
from .tokens import Drawn, initial, until

REFERENCE_SEED, ENDS_SEED, THREE_TOKENS_SEED, ONE_TOKEN_SEED = (
    20261212,
    20261201,
    20261203,
    20261208,
)
"""Seeds of made-up problems. The values are arbitrary, but fixed so that draws stay the same."""

ALGORITHM = Rule()
"""The rule of Algorithm 2: the token's ratio, and no ratio on the penalty."""

SEEN = {"token": 0.01, "prefix": 0.002, "gspo": 0.003}
"""The least ratio of squared bias to variance that some thousand groups distinguish from 0."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A problem at θ_old, where a batch begins, with the direction of its steps."""

    entry: BanditEntry
    most_tokens: int

    @property
    def problem(self) -> SoftmaxBandit:
        return self.entry.problem

    def _unit(self, vector: np.ndarray) -> np.ndarray:
        """The vector v at which E(v·s)² = 1: a step along it moves log-probabilities by about 1."""
        along = self.problem.policy.inner(vector)
        square = self.problem.context_probs @ (self.problem.policy.probs * along**2).sum(axis=1)
        # Rounding to few digits gives the same parameters on machines whose last bits differ.
        return np.asarray((vector / np.sqrt(square)).round(6))

    @cached_property
    def drift(self) -> np.ndarray:
        """The direction of the gradient; a step of length η along it has a divergence of about η²/2."""
        return self._unit(self.problem.gradient())

    @cached_property
    def reference(self) -> SoftmaxPolicy:
        """An earlier policy: a step of length 1 away in some direction."""
        vector = np.random.default_rng(REFERENCE_SEED).normal(size=self.problem.d)
        return self.problem.policy.with_theta(self.problem.policy.theta + self._unit(vector))

    def away(self, distance: float) -> TokenOutcomes:
        """All outputs, with the policy at the given distance along the drift."""
        theta = self.problem.policy.theta + distance * self.drift
        return token_outcomes(self.problem, theta, self.reference)

    def cell(self, group_size: int, distance: float, **options: Any) -> PracticalCell:
        usual: dict[str, Any] = {"minibatch": 1, "drift": self.drift, "reference": self.reference}
        return PracticalCell(self.problem, group_size, distance, **(usual | options))

    def squared_bias(
        self, step: np.ndarray, group_size: int, beta: float, rule: Rule = ALGORITHM
    ) -> float:
        """The squared bias of Algorithm 2's minibatch after a step."""
        key = step.tobytes()
        if key not in self._after:
            theta = self.problem.policy.theta + step
            self._after[key] = token_outcomes(self.problem, theta, self.reference)
        return practical_mse(
            *(self._after[key], "std", group_size),
            ratio=rule.ratio,
            beta=beta,
            kl_ratio=rule.kl_ratio,
        ).squared_bias

    @cached_property
    def _after(self) -> dict[bytes, TokenOutcomes]:
        """The outcomes after steps, which all rules share."""
        return {}

    def next_order(self, rate: float, beta: float, rule: Rule = ALGORITHM) -> float:
        """The odd orders of a squared bias after one step, pair by pair in absolute value: the size of the
        terms that its leading order leaves out.
        """
        at = token_outcomes(self.problem, None, self.reference)
        pull = beta * np.expm1(at.reference - at.new)[0]
        penalties = (pull[..., None] * at.scores[0]).sum(axis=1)
        probs, rewards, scores = at.probs[0], at.rewards[0], at.scores[0].sum(axis=1)
        total = 0.0
        for k, j in combinations_with_replacement(range(len(probs)), 2):
            gradient = (rewards[k] - rewards[j]) * (scores[k] - scores[j])
            step = rate * (gradient + penalties[k] + penalties[j]) / 2
            ways = (self.squared_bias(way, 2, beta, rule) for way in (step, -step))
            total += probs[k] * probs[j] * (1 + (k != j)) * abs(next(ways) - next(ways)) / 2
        return float(total)

    def shows(self) -> bool:
        """Whether enumeration can detect the bias of each rule and distinguish the rules."""
        rates = (self.problem.policy.probs * self.problem.mean_rewards).sum(axis=1)
        if not 0.15 < rates.min() < 0.45:
            return False
        rules = {Rule(ratio, None, "sequence"): share for ratio, share in SEEN.items()}
        quantities = [kind(rule) for rule in rules for kind in (RatioBias, PracticalError)]
        # Errors are about the gradient divided by the deviation.
        weights = tuple(1 / np.sqrt(rates * (1 - rates)))
        means = self.cell(4, 0.25, weights=weights).measure("exact", quantities).mean
        pairs = zip(means[::2], means[1::2], rules.values(), strict=True)
        return all(bias > share * error for bias, error, share in pairs)


def batches(on: str, count: int, seed: int) -> Iterator[Batch]:
    """Token problems of several tokens, made-up ones first; lengths are unequal, or all are three tokens."""
    yield _batch(on, "ends", "made-up", np.random.default_rng(ENDS_SEED), 2, True)
    yield _batch(on, "three tokens", "made-up", np.random.default_rng(THREE_TOKENS_SEED), 3, False)
    for name, origin, rng in streams("ends", seed, count, 7):
        yield _batch(on, name, origin, rng, 2, True)


def _batch(
    on: str, name: str, origin: str, rng: np.random.Generator, length: int, end: bool
) -> Batch:
    problem = modular_sum(2, length, end=end, prompts=[(1,)])

    def draw() -> Drawn:
        return problem, initial(on, problem, seed=int(rng.integers(2**31)))

    def batch(bandit: SoftmaxBandit) -> Batch:
        return Batch(Entry(name, origin, bandit), length)

    # Tables of scores would have no parameters that can move.
    drawn = until(draw, lambda bandit: batch(bandit).shows(), otherwise=draw)
    return batch(drawn[0].at(drawn[1]))


def one_token_prompts(on: str, count: int, seed: int) -> Iterator[BanditEntry]:
    problem = modular_sum(3, 1, prompts=[(1,)])
    streams = [("one token", "made-up", [ONE_TOKEN_SEED])]
    for number in range(1, count + 1):
        streams.append((f"one token#{seed}.{number}", "generated", [seed, number, 8]))
    for name, origin, numbers in streams:
        policy = initial(on, problem, seed=int(np.random.default_rng(numbers).integers(2**31)))
        yield Entry(name, origin, problem.at(policy))


def graded_prompts(suite: Bandits) -> Iterator[BanditEntry]:
    """Rewards close together and a rare one far away, so that a group estimates their deviation badly."""
    numbers = [("rare", "made-up", 0.01, 0.1)]
    for name, origin, rng in streams("rare", suite.seed, suite.generated, 9):
        numbers.append((name, origin, rng.uniform(0.008, 0.02), rng.uniform(0.05, 0.15)))
    for name, origin, rate, apart in numbers:
        probs = [(1 - rate) / 2, (1 - rate) / 2, rate]
        yield Entry(name, origin, rare(probs, [0.5 + apart, 0.5 - apart, 0.0]))

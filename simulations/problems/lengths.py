"""Problems whose outputs have unequal lengths, and the lengths: token problems with an end token, and
flowers with the names of their species as answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ustat_pg.policies import OutputSpace, PrefixSoftmax, SoftmaxPolicy
from ustat_pg.problems import SoftmaxBandit, TokenBandit, TokenProblem

from .bandits import Bandits
from .entry import Entry, streams
from .tokens import Drawn, until

SPECIES = ("setosa", "versicolor", "virginica")
"""The classes of the iris data, in order; an answer is spelt letter by letter."""


@dataclass(frozen=True)
class Worded(Entry[SoftmaxBandit]):
    """A problem with the tokens of each output."""

    lengths: tuple[int, ...]


def counting(longest: int, rates: tuple[float, ...] = (0.35, 0.65)) -> TokenProblem:
    """Outputs that repeat one word as often as the prompt has it, so that all lengths differ."""
    space = OutputSpace(1, longest, end=True)
    prompts = tuple((0,) * (1 + 2 * n) for n in range(len(rates)))
    return TokenProblem(
        space, prompts, lambda x, y: float(len(x) == len(y)), np.array(rates), "counting"
    )


def _telling(bandit: TokenBandit) -> bool:
    """Whether enumeration shows that 1/|y| turns the mean and that the token mean has a visible bias."""
    assert bandit.policy.space is not None
    lengths, rewards = bandit.policy.space.lengths, bandit.mean_rewards
    value = (bandit.policy.probs * rewards).sum(axis=1)
    if not value.min() > 0.1:
        return False
    by_length, plain, pairs = np.zeros((3, bandit.d))
    laws = zip(bandit.context_probs, bandit.policy.probs, rewards, strict=True)
    for x, (share, p, z) in enumerate(laws):
        scores = bandit.policy.scores(x)
        centred = share * p * (z - p @ z)
        plain += centred @ scores
        by_length += centred / lengths @ scores
        # Two outputs divided by the tokens of both.
        weights = share * np.outer(p, p) * (z[:, None] - z) / (lengths[:, None] + lengths)
        pairs += (weights.sum(axis=1) - weights.sum(axis=0)) @ scores
    length = float(bandit.context_probs @ bandit.policy.probs @ lengths)
    size = float(np.linalg.norm(plain))
    cosine = float(by_length @ plain) / (size * float(np.linalg.norm(by_length)))
    return cosine < 0.9 and float(np.linalg.norm(length * pairs - plain)) > 0.15 * size


def _entry(name: str, origin: str, problem: TokenProblem, policy: SoftmaxPolicy) -> Worded:
    lengths = tuple(problem.space.lengths.tolist())
    return Worded(name, origin, problem.at(policy), lengths)


def worded(suite: Bandits) -> list[Worded]:
    entries = []
    # Policies under which lengths and rewards are correlated.
    for longest, seed in ((4, 54), (3, 24))[: 1 if suite.size == "smoke" else 2]:
        task = counting(longest)
        start = PrefixSoftmax.random(task.space, 2, seed=seed)
        entries.append(_entry(f"counting to {longest}", "made-up", task, start))
    for name, origin, rng in streams("counting", suite.seed, suite.generated, 9):
        rates = tuple(rng.dirichlet([8.0, 8.0]).tolist())

        def draw(rng: np.random.Generator = rng, rates: tuple[float, ...] = rates) -> Drawn:
            problem = counting(int(rng.integers(3, 6)), rates)
            return problem, PrefixSoftmax.random(problem.space, 2, seed=int(rng.integers(2**31)))

        problem, policy = until(draw, _telling)
        entries.append(_entry(name, origin, problem, policy))
    lengths = tuple(map(len, SPECIES))
    flowers = suite.iris.problem
    rows = np.argsort(flowers.policy.probs.max(axis=1).round(9), kind="stable")[:2]
    unsure = flowers.restrict(rows.tolist(), True)
    return [*entries, Worded("iris by name", "real", unsure, lengths)]

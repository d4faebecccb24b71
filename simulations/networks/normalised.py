"""Lemma 11 on networks: prompts of rewards 0 and 1 and few outputs, so that large groups are enumerated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.experiment import Claim, Point
from ustat_pg.predictions import normalised_distance, normalised_limit
from ustat_pg.problems import SoftmaxBandit, TokenBandit

from ..normalised import OF_BINARY, STEM, checks, points
from ..problems import BanditEntry, Suite
from ..problems.entry import Entry
from ..problems.tokens import Drawn, bandit_of, drawn_task, initial, until

MOST_OUTPUTS = 4
"""Outputs of the largest problem whose groups of 64 are enumerated."""

SMALLEST = 0.02
"""The limit of the distance, against that of the error, from which the two estimates are told apart."""


def lopsided(suite: Suite) -> Iterator[BanditEntry]:
    """Single prompts, the first of a drawn problem at which the two estimates can be told apart."""
    yield _lopsided(suite, "lopsided", "made-up", np.random.default_rng(20261111))
    for number in range(suite.generated):
        rng = np.random.default_rng([suite.seed, number, 6])
        yield _lopsided(suite, f"lopsided#{suite.seed}.{number}", "generated", rng)


def _lopsided(suite: Suite, name: str, origin: str, rng: np.random.Generator) -> BanditEntry:
    def draw() -> Drawn:
        problem = drawn_task(rng)
        while problem.space.count > MOST_OUTPUTS:
            problem = drawn_task(rng)
        return problem, initial(suite.on, problem, seed=int(rng.integers(2**31)))

    def prompts(bandit: TokenBandit) -> Iterator[int]:
        return (x for x in range(bandit.contexts) if shows(bandit.restrict([x])))

    problem, policy = until(draw, lambda bandit: any(True for _ in prompts(bandit)))
    bandit = bandit_of(problem, policy, suite.dense)
    return Entry(f"{name}-{problem.name}", origin, bandit.restrict([next(prompts(bandit))]))


def shows(problem: SoftmaxBandit) -> bool:
    """Whether the two estimates can be told apart at a problem's one prompt: its pass rate is off one
    half and not near 0 or 1, and its gradient is not 0.
    """
    (value,) = (problem.mean_rewards * problem.policy.probs).sum(axis=1)
    if not (problem.binary and 0.2 < abs(value - 0.5) < 0.4):
        return False
    moments = problem.moments()
    return bool(normalised_distance(moments)[0] > SMALLEST * normalised_limit(moments)[0])


def claim(suite: Suite) -> Claim:
    """The slope of the distance, and both limits."""
    return Claim(STEM, OF_BINARY, tuple(checks(lopsided(suite))))


def curves(suite: Suite) -> Iterator[Point]:
    """G times the error, on two prompts."""
    yield from points(list(lopsided(suite))[:2])

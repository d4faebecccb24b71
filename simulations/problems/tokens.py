"""Token problems under a prefix softmax or a transformer, small enough to enumerate groups.

A network at fixed parameters is a bandit whose arms are outputs, so the claims on bandits also run
on these without changes. Some policies are drawn, some improved by exact gradient steps up to a return:
at the start a verifier's reward is rare; later the likely outputs are the right ones, and
then ‖s‖² and the reward are correlated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np

from ustat_pg.policies import PrefixSoftmax, SoftmaxPolicy
from ustat_pg.predictions import normalised_distance, normalised_limit
from ustat_pg.problems import (
    SoftmaxBandit,
    TokenBandit,
    TokenProblem,
    bracket_matching,
    digit_addition,
    modular_sum,
    sorting,
)
from ustat_pg.validation import InputError

from .bandits import BanditEntry
from .entry import Entry, streams

WIDTH = 8
"""The width of the transformers whose groups are enumerated; they have about 900 parameters."""

STEP_LENGTH = 0.3
"""The length of an exact gradient step in parameter space."""

IMPROVING_STEPS = 500
"""The number of gradient steps after which the search for a return stops."""

FIRST_SEED, TRAINED_SEED, ONE_TOKEN_SEED, LOPSIDED_SEED = 20260301, 20260311, 20260312, 20261111
"""Seeds of made-up problems. The values are arbitrary, but fixed so that draws stay the same."""

DRAWS = 1000
"""The number of draws after which a claim accepts a weaker problem, if it can."""

MOST_OUTPUTS = 4
"""The most outputs of a token problem whose groups of 64 are enumerated."""

SMALLEST = 0.02
"""The least ratio of the distance to the error at which the two estimates are distinguishable."""

Drawn = tuple[TokenProblem, SoftmaxPolicy]


def tasks() -> dict[str, TokenProblem]:
    """Made-up problems of a few outputs each, by name."""
    return {
        "sums": modular_sum(2, 2, end=True),
        "sorting": sorting(2, 2, graded=True, prompts=[(1, 0), (1, 1), (0, 0)]),
        "addition": digit_addition(2, 1, end=True, prompts=[(0, 1), (1, 1), (1, 0)]),
        "brackets": bracket_matching(1, 2, end=True, graded=True),
    }


def drawn_task(rng: np.random.Generator) -> TokenProblem:
    """One of the four kinds of problem with prompts, grading and end token drawn."""
    kind, graded, end = int(rng.integers(4)), bool(rng.integers(2)), bool(rng.integers(2))
    if kind == 0:
        lengths = rng.permutation([1, 2, 3])
        prompts = [rng.integers(2, size=n).tolist() for n in lengths]
        return modular_sum(2, 2, end=end, graded=graded, prompts=prompts)
    if kind == 3:
        return bracket_matching(1, 2, end=end, graded=graded)
    rows = [(int(n) // 2, int(n) % 2) for n in rng.permutation(4)[:3]]
    if kind == 1:
        return sorting(2, 2, graded=graded, prompts=rows)
    return digit_addition(2, 1, end=end, graded=graded, prompts=rows)


def initial(on: str, problem: TokenProblem, seed: int, scale: float = 1.0) -> SoftmaxPolicy:
    """A policy of random parameters for a kind of problem, tokens or transformer."""
    if on == "tokens":
        return PrefixSoftmax.random(problem.space, problem.contexts, seed=seed, scale=scale)
    if find_spec("torch") is None:
        raise InputError("transformers need torch: pip install 'ustat_pg[torch]'")
    from ustat_pg.policies.transformer import TransformerPolicy

    return TransformerPolicy.initial(problem.space, problem.prompts, width=WIDTH, seed=seed)


def improved(problem: TokenProblem, policy: SoftmaxPolicy, value: float) -> SoftmaxPolicy:
    """The policy after exact gradient steps of one length, until its return is at least the given value."""
    for _ in range(IMPROVING_STEPS):
        bandit = problem.bandit(policy)
        if bandit.objective() >= value:
            return policy
        gradient = bandit.gradient()
        length = float(np.linalg.norm(gradient))
        if not length > 1e-9:
            break
        theta = policy.theta + STEP_LENGTH * gradient / length
        # Rounding to few digits gives the same parameters and draws on machines whose last bits differ.
        policy = policy.with_theta(theta.round(6))
    raise InputError(f"a return of {value} is not reached in {IMPROVING_STEPS} steps")


def until(
    draw: Callable[[], Drawn],
    holds: Callable[[TokenBandit], bool],
    otherwise: Callable[[], Drawn] | None = None,
) -> Drawn:
    """The first drawn problem and policy that has a property, however many draws it takes. If ``otherwise``
    is given, this is returned after ``DRAWS`` draws, and a claim makes the checks that it allows.
    """
    for number in itertools.count():
        if otherwise is not None and number == DRAWS:
            return otherwise()
        problem, policy = draw()
        if holds(problem.bandit(policy)):
            break
    return problem, policy


def _one_token(on: str, rng: np.random.Generator) -> Drawn:
    """One token, right or wrong, with pass rates from 1/4 to 3/4 but not near 1/2: grpo's second-order
    part is more than 3/8 of its explicit bound, and the oracle's error exceeds rounding.
    """
    problem = modular_sum(2, 1, prompts=[(0,), (1,), (1, 1)])

    def holds(bandit: TokenBandit) -> bool:
        off = abs(bandit.moments().value - 0.5)
        return bool(((off > 0.1) & (off < 0.25)).all())

    def draw() -> Drawn:
        return problem, initial(on, problem, seed=int(rng.integers(2**31)), scale=0.7)

    return until(draw, holds)


def drawn(on: str, rng: np.random.Generator) -> Drawn:
    """A drawn problem whose hardest prompt is rarely solved, but often enough to be measured."""

    def draw() -> Drawn:
        problem = drawn_task(rng)
        return problem, initial(on, problem, seed=int(rng.integers(2**31)))

    return until(draw, lambda bandit: 0.1 < bandit.moments().value.min() < 0.35)


def _climbs(on: str, rng: np.random.Generator) -> list[Drawn]:
    """A drawn problem, and its policy improved to two returns; drawn again if it cannot reach them."""
    while True:
        problem, policy = drawn(on, rng)
        aims = [float(rng.uniform(*ends)) * problem.optimum for ends in ((0.35, 0.45), (0.6, 0.8))]
        try:
            later = [improved(problem, policy, aim) for aim in aims]
        except InputError:
            continue
        return [(problem, climber) for climber in dict.fromkeys((policy, *later))]


def bandit_of(problem: TokenProblem, policy: SoftmaxPolicy, dense: bool) -> TokenBandit:
    """The problem at a policy, with scores in all parameters, or in as few coordinates as they span."""
    bandit = problem.at(policy)
    return bandit if dense else problem.bandit(bandit.policy.reduced())


def bandits(on: str, count: int, seed: int = 0, *, dense: bool = False) -> Iterator[BanditEntry]:
    """The problems of the suite, made-up ones first, then ``count`` generated ones of each kind.

    Scores are ``dense`` if they keep all parameters, which engines that differentiate need.
    """

    def entry(name: str, origin: str, problem: TokenProblem, policy: SoftmaxPolicy) -> BanditEntry:
        return Entry(name, origin, bandit_of(problem, policy, dense))

    for number, (name, problem) in enumerate(tasks().items()):
        yield entry(name, "made-up", problem, initial(on, problem, seed=FIRST_SEED + number))
    for name, value in (("sums", 0.8), ("addition", 0.4)):
        problem = tasks()[name]
        policy = improved(problem, initial(on, problem, seed=TRAINED_SEED), value)
        yield entry(f"{name}-trained", "made-up", problem, policy)
    yield entry("one-token", "made-up", *_one_token(on, np.random.default_rng(ONE_TOKEN_SEED)))
    for number in range(count):
        rng = np.random.default_rng([seed, number, 5])
        yield entry(f"one-token#{seed}.{number}", "generated", *_one_token(on, rng))
        for problem, policy in _climbs(on, rng):
            value = problem.bandit(policy).objective()
            name = f"{problem.name}#{seed}.{number} at {value:.3f}"
            yield entry(name, "generated", problem, policy)


def lopsided(on: str, count: int, seed: int = 0, dense: bool = False) -> Iterator[BanditEntry]:
    """The first prompt of each drawn problem at which an estimate divided by the group's deviation is
    distinguishable from an estimate divided by the true deviation.
    """

    def apart(bandit: TokenBandit) -> list[int]:
        return [x for x in range(bandit.contexts) if told_apart(bandit.restrict([x]))]

    for name, origin, rng in streams("lopsided", seed, count, 6, LOPSIDED_SEED):

        def draw(rng: np.random.Generator = rng) -> Drawn:
            problem = drawn_task(rng)
            while problem.space.count > MOST_OUTPUTS:
                problem = drawn_task(rng)
            return problem, initial(on, problem, seed=int(rng.integers(2**31)))

        problem, policy = until(draw, lambda bandit: bool(apart(bandit)))
        bandit = bandit_of(problem, policy, dense)
        yield Entry(f"{name}-{problem.name}", origin, bandit.restrict(apart(bandit)[:1]))


def told_apart(problem: SoftmaxBandit) -> bool:
    """Whether a prompt's pass rate is not near 0, one half or 1, and its gradient is not 0."""
    (value,) = (problem.mean_rewards * problem.policy.probs).sum(axis=1)
    if not (problem.binary and 0.2 < abs(value - 0.5) < 0.4):
        return False
    moments = problem.moments()
    return bool(normalised_distance(moments)[0] > SMALLEST * normalised_limit(moments)[0])

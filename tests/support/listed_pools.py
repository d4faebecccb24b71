"""Pools of bandits small enough to list, and the means of statistics over all of them."""

import itertools
import math

import numpy as np

from ustat_pg.engines import GradientCell, SquaredError
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.problems import SoftmaxBandit, modular_sum
from ustat_pg.validation import changed

LENGTHS, PROXIES = np.array([1.0, 3.0, 2.0]), np.array([0.5, 0.4, 0.9])
"""Lengths and proxies of a completion, by its arm."""


def linear(features, rewards, context_probs=(0.4, 0.6)):
    """Two contexts whose arms have these features and sure rewards."""
    values = np.array(rewards)[..., None]
    return SoftmaxBandit.linear(context_probs, features, [0.7, -0.4], values, np.ones(values.shape))


def bandit():
    """Three arms, rewards not binary."""
    features = [[[1.0, 0.2], [-0.5, 1.0], [0.3, -2.0]], [[0.1, 1.0], [2.0, -0.3], [-1.0, 0.4]]]
    return linear(features, [[1.0, 0.3, -0.5], [0.2, 1.5, 0.9]])


def many_contexts():
    """Twelve contexts of four arms with sure rewards 0 and 1."""
    rng = np.random.default_rng(1)
    rewards = (rng.random((12, 4, 1)) < 0.4).astype(float)
    features, probs = rng.normal(size=(12, 4, 3)), np.full(12, 1 / 12)
    return SoftmaxBandit.linear(probs, features, [0.5, -0.4, 0.3], rewards, np.ones_like(rewards))


def ordered_pools(problem, context, rollouts=4):
    """Every ordered pool of one context: arms (n, N) and probabilities (n,)."""
    probs = problem.policy.probs[context]
    arms = np.array(list(itertools.product(range(len(probs)), repeat=rollouts)))
    return arms, probs[arms].prod(axis=1)


def pool_of(problem, contexts, arms):
    """The scored pool of given arms (P, N) of contexts (P,)."""
    contexts = np.asarray(contexts)
    scores = np.stack([problem.policy.scores(x)[a] for x, a in zip(contexts, arms, strict=True)])
    rewards = problem.mean_rewards[contexts[:, None], arms]
    known = {"lengths": LENGTHS[arms % 3], "token_proxy": PROXIES[arms % 3]}
    return ScoredPool.from_scores(rewards, scores, **known)


def expectation(problem, context, statistic, rollouts=4):
    """The exact mean of a statistic (pool to (P,)) over all ordered pools of a context."""
    arms, probs = ordered_pools(problem, context, rollouts)
    return float(probs @ statistic(pool_of(problem, np.full(len(arms), context), arms)))


def exact_mse(problem, context, estimator, group_size):
    one = problem.restrict([context])
    return float(GradientCell(one, group_size).measure("exact", [SquaredError(estimator)]).mean[0])


def two_arms():
    """Two arms, so few that pools of three prompts can be listed."""
    features = [[[1.0, 0.2], [-0.5, 1.0]], [[0.1, 1.0], [2.0, -0.3]]]
    return linear(features, [[1.0, 0.3], [0.2, 1.5]])


def sets_of_prompts(problem, prompts, rollouts=4, groups=1):
    """Every choice of prompts, and of multisets of outcomes in their groups, with its probability."""
    atoms = []
    for x, chance in enumerate(problem.context_probs):
        p, laws = problem.policy.probs[x], []
        for first in range(rollouts + 1):
            arms = np.array([0] * first + [1] * (rollouts - first))
            law = math.comb(rollouts, first) * p[0] ** first * p[1] ** (rollouts - first)
            laws.append((arms, law))
        for own in itertools.combinations_with_replacement(range(len(laws)), groups):
            arms, chances = zip(*(laws[place] for place in own), strict=True)
            orders = len(set(itertools.permutations(own)))
            atoms.append((x, arms, chance * orders * math.prod(chances)))
    for chosen in itertools.product(atoms, repeat=prompts):
        contexts, arms, chances = zip(*chosen, strict=True)
        yield np.repeat(contexts, groups).tolist(), np.concatenate(arms), math.prod(chances)


def sampled(problem, prompts, rollouts, seed):
    """A pool of prompts and rollouts drawn at random."""
    rng = np.random.default_rng([seed, 99])
    contexts = rng.choice(problem.contexts, prompts, p=problem.context_probs)
    arms = np.empty((prompts, rollouts), dtype=int)
    for x in range(problem.contexts):
        own = contexts == x
        law = problem.policy.probs[x]
        arms[own] = rng.choice(len(law), (own.sum(), rollouts), p=law / law.sum())
    return pool_of(problem, contexts, arms)


def token_problem():
    problem = changed(modular_sum(3, 2), probs=[0.2, 0.3, 0.5])
    space = OutputSpace(3, 2)
    return problem.at(PrefixSoftmax.random(space, contexts=3, seed=4, scale=0.8, shared=True))

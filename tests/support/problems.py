"""Problems that tests of several engines share: corners of laws, token problems, paths."""

from fractions import Fraction
from functools import cache
from importlib.util import find_spec

import numpy as np

from ustat_pg.engines import Estimator
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import (
    SoftmaxBandit,
    bracket_matching,
    modular_sum,
    random_problem,
    sorting,
)
from ustat_pg.validation import changed

FORMS = {"tabular": "plain", "linear": "linear", "shared": "shared-linear"}
"""A kind of generated problem for each form of policy."""


# Corners.


def cornered() -> SoftmaxBandit:
    """Outcomes of probability zero, nearly zero, and rows of unequal length."""
    return SoftmaxBandit.tabular(
        [0.0, 0.5, 0.0, 0.5 - 1e-12, 1e-12, 0.0],
        np.tile([0.0, -40.0, 25.0], (6, 1)) * np.arange(6)[:, None],
        np.tile([[1.0, 0.0, 2.0]], (6, 3, 1)),
        np.tile([[0.0, 1e-11, 1 - 1e-11], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], (6, 1, 1)),
    )


def vanishing() -> list[SoftmaxBandit]:
    """All norms zero, all but one arm's zero, one arm nearly sure: 0/0 and what is near it."""
    rewards, law = [[[1.0], [0.4], [0.7]]], np.ones((1, 3, 1))
    logits = ([0.0, -800.0, -800.0], [40.0, 0.0, 0.0], [16.0, 0.0, 0.5])
    return [
        SoftmaxBandit.linear([1.0], np.zeros((1, 3, 2)), [1.0, 1.0], rewards, law),
        *(SoftmaxBandit.tabular([1.0], [row], rewards, law) for row in logits),
    ]


def far_from_zero() -> SoftmaxBandit:
    """Rewards near 2^30 that are exact: what subtracts them must not lose what is left."""
    near = random_problem(2, "plain")
    rewards = np.round(near.reward_values * 1024) / 1024 + 2.0**30
    return SoftmaxBandit.tabular(near.context_probs, near.policy.logits, rewards, near.reward_probs)


def library_problem(problem):
    """A problem of tests/support/independent.py in the library: scores that are no table's are features."""
    width = max(len(law) for laws in problem.rewards for law in laws)
    # a law with fewer values repeats its last one, with probability 0
    padded = [
        [[*law, *[(law[-1][0], Fraction(0))] * (width - len(law))] for law in laws]
        for laws in problem.rewards
    ]
    pairs = np.array(padded, dtype=float)
    laws = pairs[..., 0], pairs[..., 1]
    chances, scores = (
        np.array(part, dtype=float) for part in (problem.context_probs, problem.scores)
    )
    logits = np.log(np.array(problem.arm_probs, dtype=float))
    if scores.shape[-1] == logits.size:
        return SoftmaxBandit.tabular(chances, logits, *laws)
    theta = np.zeros(scores.shape[-1])
    return SoftmaxBandit.linear(chances, scores, theta, *laws, offset=logits)


# Outputs of tokens.

SMALL = changed(modular_sum(2, 2, end=True, graded=True), probs=[0.3, 0.7])
"""Seven outputs, so that groups can be enumerated."""

SORTING = sorting(2, 2, graded=True, prompts=[(1, 0), (1, 1), (0, 0)])

BRACKETS = bracket_matching(1, 2, end=True, graded=True)
"""Prompts of no token to two."""


def prefix(problem, **options):
    """A softmax per prefix on a token problem."""
    return problem.at(PrefixSoftmax.random(problem.space, problem.contexts, seed=6, **options))


def network(problem):
    """A small transformer on a token problem, in tables."""
    from ustat_pg.policies.transformer import TransformerPolicy

    policy = TransformerPolicy.initial(problem.space, problem.prompts, width=4, seed=6)
    return problem.at(policy)


def bare(problem):
    """A network that is not put in tables."""
    from ustat_pg.policies.transformer import TransformerPolicy

    return problem.bandit(
        TransformerPolicy.initial(problem.space, problem.prompts, width=4, seed=2)
    )


_MAKERS = {
    **{form: lambda kind=kind: random_problem(1, kind, contexts=3) for form, kind in FORMS.items()},
    "prefix": lambda: prefix(SMALL),
    "prefix-shared": lambda: prefix(SMALL, shared=True),
    "sorting": lambda: prefix(SORTING),
}
if find_spec("torch") is not None:
    _MAKERS |= {
        "transformer": lambda: network(SMALL),
        "transformer-short": lambda: SMALL.bandit(network(SMALL).policy.reduced()),
        "transformer-sorting": lambda: network(SORTING),
        "transformer-ragged": lambda: network(BRACKETS),
        "transformer-bare": lambda: bare(BRACKETS),
    }

NAMED = tuple(_MAKERS)
"""A problem of each form of policy that the library has."""


@cache
def named(name: str) -> SoftmaxBandit:
    """The problem of that name, made once."""
    return _MAKERS[name]()


# Whole runs.


def smooth(contexts, arms, d, values, uniform=True, seed=0):
    """Smooth features, an offset, rewards of several values, some of probability zero."""
    generator = np.random.default_rng([seed, contexts, arms, d, values])
    law = generator.dirichlet(np.ones(values), size=(contexts, arms))
    law[generator.random(law.shape) < 0.2] = 0.0
    law += (law.sum(axis=-1, keepdims=True) == 0) / values
    chances = np.full(contexts, 1 / contexts) if uniform else generator.dirichlet(np.ones(contexts))
    return SoftmaxBandit.linear(
        chances,
        generator.normal(size=(contexts, arms, d)),
        generator.normal(size=d),
        generator.normal(size=(contexts, arms, values)),
        law / law.sum(axis=-1, keepdims=True),
        generator.normal(size=(contexts, arms)),
    )


RUN_ESTIMATORS = [
    Estimator("vanilla"),
    Estimator("constant", constant=-0.4),
    Estimator("oracle"),
    Estimator("grpo"),
    Estimator("group-mean"),
]

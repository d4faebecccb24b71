"""A second mind's brute force for the gradient theorems, in exact rational arithmetic.

Nothing here is imported from the library, and no closed form is used: every minibatch is enumerated, and
mean, covariance and MSE are read off the enumerated law.

1. Problems: finite contexts, arms with a score vector each, a finite reward law per arm.
2. Moments: per-context expectations, summed outcome by outcome.
3. Brute force: the law of the estimator, from its definition.

Every number is a `fractions.Fraction`, and every vector an array of them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from itertools import combinations_with_replacement, permutations, product
from math import factorial, prod
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]  # of Fractions
Law = dict[tuple[Fraction, ...], Fraction]  # value of a random vector -> its probability

ZERO = Fraction(0)
ONE = Fraction(1)


# --------------------------------------------------------------------------------------------
# 1. Problems
# --------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """One possible rollout in a context: an arm's score with one value of its reward."""

    prob: Fraction
    score: Array
    reward: Fraction
    square: Fraction  # ||s||^2


@dataclass(frozen=True, eq=False)
class Problem:
    """Finite contexts x arms x rewards: `scores[x][k]`, `rewards[x][k] = ((value, prob), ...)`."""

    name: str
    context_probs: Array
    arm_probs: tuple[Array, ...]
    scores: tuple[Array, ...]
    rewards: tuple[tuple[tuple[tuple[Fraction, Fraction], ...], ...], ...]

    def __post_init__(self) -> None:
        assert sum(self.context_probs) == 1
        for x in self.contexts:
            assert sum(o.prob for o in self.outcomes(x)) == sum(self.arm_probs[x]) == 1
            assert not (self.arm_probs[x] @ self.scores[x]).any()  # E[s | x] = 0

    @property
    def contexts(self) -> range:
        return range(len(self.context_probs))

    def outcomes(self, x: int) -> list[Outcome]:
        """Every (arm, reward) of context x that has a positive probability."""
        return [
            Outcome(p * q, s, z, s @ s)
            for p, s, law in zip(self.arm_probs[x], self.scores[x], self.rewards[x], strict=True)
            for z, q in law
            if p * q > 0
        ]

    def mean(self, f: Callable[[int], Any]) -> Any:
        """E f(X) over the contexts."""
        return sum(self.context_probs[x] * f(x) for x in self.contexts)


def fractions(text: str) -> Array:
    """Read "4/5 .1 .1" as Fractions."""
    return np.array([Fraction(word) for word in text.split()])


def tabular_scores(arm_probs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Scores e_k - pi(x) in the block of context x, zero in the others (context-major).

    They are the gradient of log softmax in the logits, and rational: no exponential is needed.
    """
    ends = np.cumsum([len(pi) for pi in arm_probs])
    scores = [np.full((len(pi), ends[-1]), ZERO) for pi in arm_probs]
    for score, pi, end in zip(scores, arm_probs, ends, strict=True):
        score[:, end - len(pi) : end] = np.eye(len(pi), dtype=object) - pi
    return tuple(scores)


def tabular(name: str, context_probs: str, arm_probs: list[str], rewards: list[str]) -> Problem:
    """A tabular softmax bandit. A reward is a number, or "value:prob,value:prob"."""

    def law(word: str) -> tuple[tuple[Fraction, Fraction], ...]:
        pairs = [pair.split(":") if ":" in pair else (pair, "1") for pair in word.split(",")]
        return tuple((Fraction(z), Fraction(p)) for z, p in pairs)

    pi = tuple(fractions(text) for text in arm_probs)
    laws = tuple(tuple(law(word) for word in text.split()) for text in rewards)
    return Problem(name, fractions(context_probs), pi, tabular_scores(pi), laws)


def one_rewarded(name: str, arm_probs: str, arm: int) -> Problem:
    """One context; only `arm` is rewarded, by 1."""
    rewards = ["1" if k == arm else "0" for k in range(len(arm_probs.split()))]
    return tabular(name, "1", [arm_probs], [" ".join(rewards)])


def uniform_arms(arms: int) -> Problem:
    """One context, uniform arms, the first rewarded."""
    return one_rewarded(f"uniform {arms}", f"1/{arms} " * arms, 0)


#: V = .8 and b* = .128: Assumption 2 fails.
SKEWED = one_rewarded("skewed", ".8 .1 .05 .05", 0)
#: Unequal norms, and Assumption 2 holds all the same: V = b* = .3.
BALANCED = one_rewarded("balanced", ".4 .3 .2 .1", 1)
#: Equal norms: Assumption 2 for every reward.
UNIFORM = uniform_arms(4)
#: The smallest problem, where the explicit bound is attained up to its factor one half.
TWO_ARMS = uniform_arms(2)
#: Random rewards of both signs, contexts of unequal probability, V of both signs.
TWO_CONTEXTS = tabular(
    "two contexts",
    "1/3 2/3",
    ["1/4 3/4", "3/5 2/5"],
    ["1:1/2,-1:1/2 2:1/5,0:4/5", "-2:1/2,1/2:1/2 -1/3"],
)
THREE_CONTEXTS = tabular(
    "three contexts",
    "1/2 1/3 1/6",
    ["1/2 1/4 1/4", "1/6 1/3 1/2", "1/5 1/5 3/5"],
    ["1 0 -1:1/3,1:2/3", "2 -1:1/2,1/2:1/2 0", "-1 -3:1/4,0:3/4 1/2"],
)
#: Equally probable contexts, for the fixed and the without-replacement designs.
UNIFORM_CONTEXTS = tabular(
    "uniform contexts",
    "1/3 1/3 1/3",
    ["1/2 1/2", "1/4 3/4", "9/10 1/10"],
    ["1:2/3,0:1/3 0", "0 1", "-1 2:1/2,1:1/2"],
)
#: All rewards equal: no gradient and no reward variance.
DEGENERATE = tabular("degenerate", "1/2 1/2", ["1/3 2/3", "1/2 1/2"], ["3/4 3/4", "3/4 3/4"])
#: Not tabular: features (-1, 0, 1) around their mean 0, so that one arm has score zero (0/0).
ZERO_SCORE = Problem(
    "zero score",
    fractions("1"),
    (fractions("1/4 1/2 1/4"),),
    (fractions("-1 0 1")[:, None],),
    ((((ZERO, ONE),), ((ONE, ONE),), ((ZERO, Fraction(1, 4)), (Fraction(2), Fraction(3, 4)))),),
)

ONE_PROMPT = [SKEWED, BALANCED, UNIFORM, TWO_ARMS, ZERO_SCORE]
PROBLEMS = [*ONE_PROMPT, TWO_CONTEXTS, THREE_CONTEXTS, UNIFORM_CONTEXTS, DEGENERATE]


# --------------------------------------------------------------------------------------------
# 2. Moments of a context, by direct expectation over its outcomes
# --------------------------------------------------------------------------------------------


class Moments:
    """The moments of one context that baselines and rules of the theory are made of."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        def expect(f: Callable[[Outcome], Any]) -> Any:
            return sum(o.prob * f(o) for o in outcomes)

        self.value = V = expect(lambda o: o.reward)
        self.sigma2 = expect(lambda o: (o.reward - V) ** 2)
        self.trF = expect(lambda o: o.square)
        self.tau = expect(lambda o: o.square * (o.reward - V) ** 2)
        # The minimum-variance baseline.
        self.b_star = expect(lambda o: o.square * o.reward) / self.trF
        self.g = expect(lambda o: o.reward * o.score)
        self.g2 = self.g @ self.g


@cache
def moments(problem: Problem, x: int = 0) -> Moments:
    """The moments of context x."""
    return Moments(problem.outcomes(x))


@cache
def gradient(problem: Problem) -> Array:
    """The target g = grad J = E s z over contexts, arms and rewards."""
    return problem.mean(lambda x: moments(problem, x).g)


# --------------------------------------------------------------------------------------------
# 3. Brute force: the law of the estimator
# --------------------------------------------------------------------------------------------

Group = tuple[Outcome, ...]
# The name of a baseline; a number is the constant baseline itself, a function any other.
Name = str | Fraction | Callable[[Moments, Array, Array], Any]


def norm_weighted(m: Moments, z: Array, w: Array) -> Array:
    """The others' rewards, weighted by their squared norms; 0 where these are all zero."""
    others = w.sum() - w
    sums = (w * z).sum() - w * z
    return np.array([s / o if o else ZERO for s, o in zip(sums, others, strict=True)])


CONSTANT = Fraction(3, 7)

#: What is subtracted from the rewards z of a group with squared norms w, in a context with moments m.
BASELINES: dict[Name, Callable[[Moments, Array, Array], Any]] = {
    "vanilla": lambda m, z, w: ZERO,
    "grpo": lambda m, z, w: (z.sum() - z) / (len(z) - 1),
    "group-mean": lambda m, z, w: z.sum() / len(z),
    "oracle": lambda m, z, w: m.value,
    CONSTANT: lambda m, z, w: CONSTANT,
    "minimum-variance": lambda m, z, w: m.b_star,
    "norm-weighted": norm_weighted,
}


def group_gradient(m: Moments, name: Name, group: Group) -> Array:
    """(1/G) sum_i s_i (z_i - baseline_i), as in Algorithm 1."""
    z, w = np.array([(o.reward, o.square) for o in group]).T
    baseline = BASELINES.get(name, name)
    advantages = z - (baseline(m, z, w) if callable(baseline) else baseline)
    return advantages @ np.stack([o.score for o in group]) / Fraction(len(group))


def groups(outcomes: list[Outcome], size: int) -> Iterator[tuple[Fraction, Group]]:
    """Every group up to its order, after the probability of all its orders."""
    for picks in combinations_with_replacement(range(len(outcomes)), size):
        counts = Counter(picks)
        orders = factorial(size) // prod(map(factorial, counts.values()))
        prob = orders * prod(outcomes[k].prob ** n for k, n in counts.items())
        yield prob, tuple(outcomes[k] for k in picks)


@cache
def group_law(problem: Problem, x: int, name: Name, group_size: int) -> Law:
    """The law of one group's gradient at context x: every group, one by one."""
    law: Law = defaultdict(Fraction)
    for prob, group in groups(problem.outcomes(x), group_size):
        law[tuple(group_gradient(moments(problem, x), name, group))] += prob
    return law


def sum_law(first: Law, second: Law) -> Law:
    """The law of the sum of two independent vectors."""
    law: Law = defaultdict(Fraction)
    for (u, p), (v, q) in product(first.items(), second.items()):
        law[tuple(a + b for a, b in zip(u, v, strict=True))] += p * q
    return law


def context_draws(problem: Problem, batch_size: int, design: str) -> list[tuple[int, ...]]:
    """Every minibatch of contexts in a sampling design, as often as its probability is greater."""
    if design == "iid":
        return list(product(problem.contexts, repeat=batch_size))
    assert len(set(problem.context_probs)) == 1, "this design needs equally probable contexts"
    if design == "without-replacement":
        return list(permutations(problem.contexts, batch_size))
    assert (design, batch_size) == ("fixed", len(problem.contexts)), "every context once"
    return [tuple(problem.contexts)]


def minibatch_law(
    problem: Problem, name: Name, group_size: int, batch_size: int, design: str
) -> Law:
    """The law of (1/B) sum_b of the groups' gradients: every draw, every tuple of groups."""
    law: Law = defaultdict(Fraction)
    draws = context_draws(problem, batch_size, design)
    for draw in draws:
        prob = Fraction(1, len(draws))
        if design == "iid":
            prob = prod(problem.context_probs[x] for x in draw)
        total = reduce(sum_law, (group_law(problem, x, name, group_size) for x in draw))
        for value, p in total.items():
            law[tuple(v / batch_size for v in value)] += prob * p
    return law


class Exact(NamedTuple):
    """The mean and the covariance of an estimator, and its MSE around a target."""

    mean: Array
    covariance: Array
    mse: Fraction


def read_off(law: Law, target: Array) -> Exact:
    """Mean, covariance and MSE of a law."""
    values, probs = np.array(list(law), dtype=object), np.array(list(law.values()))
    assert probs.sum() == 1
    assert all(type(number) is Fraction for number in values.flat)
    mean = probs @ values
    spread, error = values - mean, values - target
    return Exact(mean, spread.T @ (probs[:, None] * spread), probs @ (error**2).sum(axis=1))


@cache
def brute_force(
    problem: Problem, name: Name, group_size: int, batch_size: int = 1, design: str = "iid"
) -> Exact:
    """The estimator around g = grad J, by enumeration."""
    law = minibatch_law(problem, name, group_size, batch_size, design)
    return read_off(law, gradient(problem))


def given_one(problem: Problem, x: int, name: Name, group_size: int, known: Outcome) -> Array:
    """E[ghat | the first output is a known one] at context x: every group of others."""
    m = moments(problem, x)
    if group_size == 1:
        return group_gradient(m, name, (known,))
    return sum(
        prob * group_gradient(m, name, (known, *rest))
        for prob, rest in groups(problem.outcomes(x), group_size - 1)
    )


def outputs_parts(
    problem: Problem, name: Name, group_size: int, batch_size: int
) -> tuple[Fraction, Fraction]:
    """Hoeffding's parts of E Cov(ghat | X) over B prompts: first order, and all the others."""

    def first(x: int) -> Fraction:
        mean = read_off(group_law(problem, x, name, group_size), ZERO).mean
        return group_size * sum(
            known.prob * ((given_one(problem, x, name, group_size, known) - mean) ** 2).sum()
            for known in problem.outcomes(x)
        )

    def whole(x: int) -> Fraction:
        return read_off(group_law(problem, x, name, group_size), ZERO).covariance.trace()

    one = problem.mean(first) / batch_size
    return one, problem.mean(whole) / batch_size - one


def group_mse(problem: Problem, x: int, name: Name, group_size: int) -> Fraction:
    """The MSE of one group around g(x), by enumeration."""
    return read_off(group_law(problem, x, name, group_size), moments(problem, x).g).mse

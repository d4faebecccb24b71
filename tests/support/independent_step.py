"""A second mind's brute force for rollouts used again, for remembered rewards and for drawn prompts.

Nothing is imported from the library, and no closed form is used: every group and every minibatch is
enumerated in fractions. Policies are rational functions of their parameters, differentiated by dual
numbers a + b t with t² = 0, so that a step θ₀ + ηĝ is exact to first order in η.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tests.support.independent import ONE, ZERO, Array, groups

# --------------------------------------------------------------------------------------------
# 1. Dual numbers
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dual:
    """The number a + b t, where t² = 0."""

    a: Fraction
    b: Fraction = ZERO

    def __add__(self, other: Any) -> "Dual":
        other = dual(other)
        return Dual(self.a + other.a, self.b + other.b)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = dual(other)
        return Dual(self.a * other.a, self.a * other.b + self.b * other.a)

    def __truediv__(self, other: Any) -> "Dual":
        other = dual(other)
        return Dual(self.a / other.a, (self.b - self.a / other.a * other.b) / other.a)

    def __neg__(self) -> "Dual":
        return Dual(-self.a, -self.b)

    def __sub__(self, other: Any) -> "Dual":
        return self + -dual(other)

    __radd__, __rmul__ = __add__, __mul__


def dual(x: Any) -> Dual:
    return x if isinstance(x, Dual) else Dual(Fraction(x))


def slopes(f: Callable[[Array], Array], size: int) -> Array:
    """The Jacobian at θ = 0 of f, a vector of dual numbers: one column for each parameter."""
    columns = []
    for j in range(size):
        at = np.array([Dual(ZERO, ONE if i == j else ZERO) for i in range(size)])
        columns.append([dual(x).b for x in f(at)])
    return np.array(columns).T


# --------------------------------------------------------------------------------------------
# 2. Policies: tokens chosen with probability proportional to p_k (1 + f_k·θ + θ'C_kθ/2)
# --------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """One token's law: probabilities at θ = 0, and what bends them."""

    probs: Array
    linear: Array  # (arms, d)
    square: Array  # (arms, d, d), symmetric

    def weight(self, arm: int, theta: Array) -> Any:
        return self.probs[arm] * (
            ONE + self.linear[arm] @ theta + Fraction(1, 2) * (theta @ self.square[arm] @ theta)
        )

    def weight_gradient(self, arm: int, theta: Array) -> Array:
        return self.probs[arm] * (self.linear[arm] + self.square[arm] @ theta)

    def prob(self, arm: int, theta: Array) -> Any:
        return self.weight(arm, theta) / sum(self.weight(k, theta) for k in range(len(self.probs)))

    def score(self, arm: int, theta: Array) -> Array:
        total = sum(self.weight(k, theta) for k in range(len(self.probs)))
        gradient = sum(self.weight_gradient(k, theta) for k in range(len(self.probs)))
        return self.weight_gradient(arm, theta) / self.weight(arm, theta) - gradient / total


Tokens = tuple[tuple[Choice, int], ...]


class Rollout(NamedTuple):
    """An output with one value of its reward, and the derivatives of what a surrogate makes of it."""

    prob: Fraction
    score: Array
    reward: Fraction
    square: Fraction  # ||s||²
    whole: Array  # Jacobian of ratio x score, the ratio of the whole output
    tokens: Array  # Jacobian of the sum over tokens of ratio x score, each token its own ratio


@dataclass(frozen=True, eq=False)
class Prompt:
    """The outputs of a prompt as tokens, and the law of each one's reward."""

    outputs: tuple[Tokens, ...]
    laws: tuple[tuple[tuple[Fraction, Fraction], ...], ...]
    size: int

    def score(self, tokens: Tokens, theta: Array) -> Array:
        return sum(choice.score(arm, theta) for choice, arm in tokens)

    def prob(self, tokens: Tokens, theta: Array) -> Any:
        return prod((choice.prob(arm, theta) for choice, arm in tokens), start=ONE)

    def gradient(self, theta: Array) -> Array:
        """grad V at θ."""
        return sum(
            self.prob(tokens, theta) * sum(z * q for z, q in law) * self.score(tokens, theta)
            for tokens, law in zip(self.outputs, self.laws, strict=True)
        )

    def hessian(self) -> Array:
        return slopes(self.gradient, self.size)

    def rollouts(self) -> list[Rollout]:
        found, origin = [], np.full(self.size, ZERO)
        for tokens, law in zip(self.outputs, self.laws, strict=True):
            prob, score = self.prob(tokens, origin), self.score(tokens, origin)
            whole = slopes(
                lambda at, tokens=tokens, prob=prob: (
                    self.prob(tokens, at) / prob * self.score(tokens, at)
                ),
                self.size,
            )
            each = sum(
                slopes(
                    lambda at, choice=choice, arm=arm: (
                        choice.prob(arm, at) / choice.probs[arm] * choice.score(arm, at)
                    ),
                    self.size,
                )
                for choice, arm in tokens
            )
            found += [Rollout(prob * q, score, z, score @ score, whole, each) for z, q in law]
        return found


def random_fraction(rng: Random, low: int = -4, high: int = 4, largest: int = 4) -> Fraction:
    return Fraction(rng.randint(low, high), rng.randint(1, largest))


def random_choice(rng: Random, arms: int, size: int) -> Choice:
    weights = np.array([Fraction(rng.randint(1, 6)) for _ in range(arms)])
    linear = np.array([[random_fraction(rng) for _ in range(size)] for _ in range(arms)])
    half = np.array(
        [[[random_fraction(rng) for _ in range(size)] for _ in range(size)] for _ in range(arms)]
    )
    return Choice(weights / weights.sum(), linear, half + half.transpose(0, 2, 1))


def random_law(rng: Random, binary: bool) -> tuple[tuple[Fraction, Fraction], ...]:
    """One or two values with their probabilities."""
    if binary:
        p = Fraction(rng.randint(0, 4), 4)
        return tuple((z, q) for z, q in ((ONE, p), (ZERO, 1 - p)) if q)
    if rng.random() < 0.5:
        return ((random_fraction(rng), ONE),)
    p = Fraction(rng.randint(1, 3), 4)
    return ((random_fraction(rng), p), (random_fraction(rng), 1 - p))


def random_prompt(rng: Random, *, arms: int = 3, size: int = 2, binary: bool = False) -> Prompt:
    choice = random_choice(rng, arms, size)
    outputs = tuple(((choice, k),) for k in range(arms))
    return Prompt(outputs, tuple(random_law(rng, binary) for _ in outputs), size)


def random_two_tokens(rng: Random, *, size: int = 2, binary: bool = False) -> Prompt:
    """Two tokens of two values; the first ends the output at its last value with no second."""
    first = random_choice(rng, 3, size)
    seconds = [random_choice(rng, 2, size) for _ in range(2)]
    outputs: list[Tokens] = [
        ((first, k), (second, j)) for k, second in enumerate(seconds) for j in range(2)
    ]
    outputs.append(((first, 2),))
    return Prompt(tuple(outputs), tuple(random_law(rng, binary) for _ in outputs), size)


# --------------------------------------------------------------------------------------------
# 3. A second step on the same rollouts
# --------------------------------------------------------------------------------------------


def leave_one_out(z: Array) -> Array:
    return z - (z.sum() - z) / Fraction(len(z) - 1)


class Step(NamedTuple):
    """ĝ of some rollouts, and the Jacobian of what the surrogate's gradient becomes as θ moves."""

    gradient: Array
    whole: Array
    tokens: Array


def steps(
    rollouts: list[Rollout], size: int, advantages: Callable[[Array], Array] = leave_one_out
) -> list[tuple[Fraction, Step]]:
    """Every group of a prompt, with its probability."""
    found = []
    for prob, group in groups(rollouts, size):
        a = advantages(np.array([o.reward for o in group]))
        parts = zip(
            *((x.score * w, x.whole * w, x.tokens * w) for x, w in zip(group, a, strict=True)),
            strict=True,
        )
        found.append((prob, Step(*(sum(part) / Fraction(size) for part in parts))))
    return found


def second_step(
    prompts: Sequence[tuple[Fraction, Prompt]],
    size: int,
    batch: int = 1,
    metric: Array | None = None,
    ratio: str = "whole",
    advantages: Callable[[Array], Array] = leave_one_out,
) -> Array:
    """The slope in η of E ĝ₂, ĝ₂ of the same rollouts at θ₀ + ηPĝ: all batches of prompts, all groups."""
    laws = [(weight, steps(p.rollouts(), size, advantages)) for weight, p in prompts]
    metric = np.eye(prompts[0][1].size, dtype=object) * ONE if metric is None else metric
    total = np.full(len(metric), ZERO)
    for draw in product(laws, repeat=batch):
        for picked in product(*(law for _, law in draw)):
            prob = prod((w for w, _ in draw), start=ONE) * prod(p for p, _ in picked)
            moved = metric @ sum(step.gradient for _, step in picked) / batch
            total += prob * sum(getattr(step, ratio) for _, step in picked) @ moved / batch
    return total


def slope_of_gradient(
    prompts: Sequence[tuple[Fraction, Prompt]], metric: Array | None = None
) -> Array:
    """The slope in η of E grad J(θ₀ + ηPĝ), for an unbiased ĝ: the Hessian of J times P grad J."""
    hessian = sum(weight * p.hessian() for weight, p in prompts)
    origin = np.full(prompts[0][1].size, ZERO)
    gradient = sum(weight * p.gradient(origin) for weight, p in prompts)
    return hessian @ (gradient if metric is None else metric @ gradient)


# --------------------------------------------------------------------------------------------
# 4. Baselines with a memory
# --------------------------------------------------------------------------------------------

Law = Sequence[tuple[Fraction, Fraction]]  # (value, probability)


def reward_law(rollouts: list[Rollout]) -> list[tuple[Fraction, Fraction]]:
    return [(o.reward, o.prob) for o in rollouts]


def memories(law: Law, count: int) -> Iterator[tuple[Fraction, tuple[Fraction, ...]]]:
    """Every list of remembered rewards, after its probability."""
    for picks in product(law, repeat=count):
        yield prod((p for _, p in picks), start=ONE), tuple(z for z, _ in picks)


def remembered(
    rollouts: list[Rollout],
    size: int,
    law: Law,
    count: int,
    baseline: Callable[[Array, Sequence[Fraction]], Array],
) -> tuple[Array, Fraction]:
    """Mean and E||ĝ||² of a group whose baseline reads `count` earlier rewards with their own law.

    `baseline(z, memory)` is a baseline for each output of the group.
    """
    mean, second = np.full(len(rollouts[0].score), ZERO), ZERO
    for prob, group in groups(rollouts, size):
        z = np.array([o.reward for o in group])
        scores = np.stack([o.score for o in group])
        for chance, memory in memories(law, count):
            g = (z - baseline(z, memory)) @ scores / Fraction(size)
            mean = mean + prob * chance * g
            second += prob * chance * (g @ g)
    return mean, second

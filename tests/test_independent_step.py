"""Rollouts used again, remembered rewards and drawn prompts: formulas against every outcome, in fractions.

The formulas stand here as a second mind wrote them (tests/support/independent_step.py enumerates).
"""

from fractions import Fraction
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.independent import ONE, ZERO
from tests.support.independent_step import (
    Array,
    Prompt,
    leave_one_out,
    random_prompt,
    random_two_tokens,
    remembered,
    reward_law,
    second_step,
    slope_of_gradient,
    steps,
)

THIRD = Fraction(1, 3)
PROMPTS = [
    random_prompt(Random(seed), arms=2 + seed % 3, size=1 + seed % 2, binary=bool(seed % 2))
    for seed in range(6)
]
TWO_TOKENS = [random_two_tokens(Random(seed), binary=bool(seed % 2)) for seed in (1, 2)]


class Means(NamedTuple):
    """Expectations over the rollouts of a prompt; `cubic` is E[M P s a²], `plain` E[M P s]."""

    g: Array
    sigma2: Fraction
    tau: Fraction
    trace: Fraction
    kappa: Fraction
    Q: Array
    cubic: Array
    plain: Array
    value: Fraction


def means(prompt: Prompt, metric: Array | None = None, ratio: str = "whole") -> Means:
    rollouts = prompt.rollouts()
    P = np.eye(prompt.size, dtype=object) if metric is None else metric

    def expect(f: Any) -> Any:
        return sum(o.prob * f(o) for o in rollouts)

    V = expect(lambda o: o.reward)
    return Means(
        expect(lambda o: o.score * o.reward),
        expect(lambda o: (o.reward - V) ** 2),
        expect(lambda o: o.square * (o.reward - V) ** 2),
        expect(lambda o: o.square),
        expect(lambda o: o.square * (o.reward - V)),
        expect(lambda o: getattr(o, ratio) * (o.reward - V)),
        expect(lambda o: getattr(o, ratio) @ P @ o.score * (o.reward - V) ** 2),
        expect(lambda o: getattr(o, ratio) @ P @ o.score),
        V,
    )


def reuse(prompt: Prompt, size: int, metric: Array | None = None, ratio: str = "whole") -> Array:
    """The first-order bias of a second step at one prompt."""
    m = means(prompt, metric, ratio)
    Qg = m.Q @ (m.g if metric is None else metric @ m.g)
    return (m.cubic - Qg) / size + (m.sigma2 * m.plain + Qg) / (size * (size - 1))


# ---------------------------------------------------------------- rollouts used again


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_a_second_step_on_the_same_rollouts(prompt, size):
    one = [(ONE, prompt)]
    assert (second_step(one, size) - slope_of_gradient(one) == reuse(prompt, size)).all()
    P = np.diag([Fraction(k + 1, 3) for k in range(prompt.size)]).astype(object) * ONE
    biased = second_step(one, size, metric=P) - slope_of_gradient(one, P)
    assert (biased == reuse(prompt, size, P)).all()


@pytest.mark.parametrize("ratio", ["whole", "tokens"])
@pytest.mark.parametrize("prompt", TWO_TOKENS, ids=range(2))
def test_a_second_step_with_ratios_of_tokens(prompt, ratio):
    """The reuse with M of tokens, and the bias of token ratios that fresh rollouts have as well."""
    one = [(ONE, prompt)]
    m = means(prompt, ratio=ratio)
    fresh = (m.Q - prompt.hessian()) @ m.g
    assert fresh.any() == (ratio == "tokens")
    biased = second_step(one, 2, ratio=ratio) - slope_of_gradient(one)
    assert (biased == reuse(prompt, 2, ratio=ratio) + fresh).all()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_second_step_on_a_batch_of_prompts(batch):
    pair = [(THIRD, PROMPTS[1]), (1 - THIRD, PROMPTS[3])]
    found = [(weight, means(p), reuse(p, 2)) for weight, p in pair]
    Q, g = (sum(w * getattr(m, name) for w, m, _ in found) for name in ("Q", "g"))
    spread = sum(w * m.Q @ m.g for w, m, _ in found) - Q @ g
    want = (sum(w * b for w, _, b in found) + spread) / batch
    assert spread.any()
    assert (second_step(pair, 2, batch) - slope_of_gradient(pair) == want).all()


def test_minibatches_of_whole_groups_are_biased_from_the_second_epoch():
    pair = [(THIRD, PROMPTS[1]), (1 - THIRD, PROMPTS[3])]
    target = slope_of_gradient(pair)
    laws = [(w, steps(p.rollouts(), 2)) for w, p in pair]
    first = again = np.full(len(target), ZERO)
    for (u, left), (v, right) in product(laws, repeat=2):
        for (p, a), (q, b) in product(left, right):
            first = first + u * v * p * q * b.whole @ a.gradient
            again = again + u * v * p * q * a.whole @ (a.gradient + b.gradient)
    assert (first == target).all()
    assert (again - 2 * target == second_step(pair, 2) - target).all()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_minibatches_that_split_groups_are_biased_in_the_first_epoch(size):
    prompt = PROMPTS[1]
    m, half = means(prompt), size // 2
    slope = np.full(prompt.size, ZERO)
    for group in product(prompt.rollouts(), repeat=size):
        a = leave_one_out(np.array([o.reward for o in group]))
        step = sum(o.score * w for o, w in zip(group[:half], a[:half], strict=True)) / half
        second = sum(o.whole * w for o, w in zip(group[half:], a[half:], strict=True))
        slope = slope + np.prod([o.prob for o in group]) * second @ step / (size - half)
    assert (slope - m.Q @ m.g == m.Q @ m.g / (size - 1) ** 2).all()


# ---------------------------------------------------------------- a memory of earlier rewards


@pytest.mark.parametrize(("size", "count"), [(1, 1), (1, 3), (2, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("prompt", PROMPTS[:3], ids=range(3))
def test_a_baseline_of_others_and_earlier_rewards(prompt, size, count):
    m, others = means(prompt), size - 1 + count

    def pooled(z, memory):
        return (z.sum() - z + sum(memory)) / Fraction(others)

    rollouts = prompt.rollouts()
    mean, second = remembered(rollouts, size, reward_law(rollouts), count, pooled)
    g2 = m.g @ m.g
    assert (mean == m.g).all()
    noise = m.tau - g2 + m.sigma2 * m.trace / others + (size - 1) * g2 / others**2
    assert second - g2 == noise / size


@pytest.mark.parametrize("law", [((ONE / 2, THIRD), (-2 * ONE, 1 - THIRD)), ((3 * ONE, ONE),)])
@pytest.mark.parametrize("prompt", PROMPTS[:3], ids=range(3))
def test_the_weight_of_a_memory_whose_mean_is_off(prompt, law):
    m, size, count = means(prompt), 3, 2
    centre = sum(z * p for z, p in law)
    e, v = centre - m.value, sum(p * (z - centre) ** 2 for z, p in law) / count
    g2 = m.g @ m.g
    A = (m.sigma2 * m.trace + g2) / (size - 1)
    best = (A + e * m.kappa) / (A + (e**2 + v) * m.trace)

    def error(weight):
        def baseline(z, memory):
            others = (z.sum() - z) / Fraction(size - 1)
            return (1 - weight) * others + weight * sum(memory) / Fraction(count)

        mean, second = remembered(prompt.rollouts(), size, law, count, baseline)
        assert (mean == m.g).all()
        return second - g2

    assert size * error(best) == m.tau - g2 + A - best * (A + e * m.kappa)
    assert error(best) < min(error(best + THIRD), error(best - THIRD))


# ---------------------------------------------------------------- prompts drawn by another law


def test_drawn_prompts_with_weights():
    rho, drawn, sizes = [1, 3, 2], [2, 1, 3], [2, 3, 4]
    prompts = [random_prompt(Random(seed)) for seed in (1, 2, 3)]
    mean, second, want = np.full(2, ZERO), ZERO, ZERO
    for p, r, q, n in zip(prompts, rho, drawn, sizes, strict=True):
        weight, m = Fraction(r, q), means(p)
        g2 = m.g @ m.g
        want += (
            Fraction(q, 6)
            * weight**2
            * (g2 + (m.tau - g2) / n + (m.sigma2 * m.trace + g2) / (n * (n - 1)))
        )
        for prob, step in steps(p.rollouts(), n):
            mean = mean + Fraction(q, 6) * prob * weight * step.gradient
            second += Fraction(q, 6) * prob * weight**2 * (step.gradient @ step.gradient)
    assert (
        mean == sum(Fraction(r, 6) * means(p).g for p, r in zip(prompts, rho, strict=True))
    ).all()
    assert second == want

"""Rollouts used again, remembered rewards and drawn prompts: formulas against every outcome, in fractions.

The formulas stand here as a second mind wrote them (tests/support/independent_step.py enumerates). At the
end the library's own functions meet the same enumerations.
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
    Choice,
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
from ustat_pg.predictions import (
    best_law,
    best_memory_weight,
    gradient_mse,
    memory_mse,
    reuse_bias,
    sampled_error,
)
from ustat_pg.problems import SoftmaxBandit, reuse_moments

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


# ---------------------------------------------------------------- the library's functions


def linear(prompt: Prompt) -> Prompt:
    """The prompt with weights that are exponential in θ, up to the second order."""
    outputs = []
    for ((choice, arm),) in prompt.outputs:
        square = choice.linear[:, :, None] * choice.linear[:, None, :]
        outputs.append(((Choice(choice.probs, choice.linear, square), arm),))
    return Prompt(tuple(outputs), prompt.laws, prompt.size)


def bandit(prompts: dict[Prompt, Fraction]) -> SoftmaxBandit:
    """The library's problem of linear prompts with equal numbers of arms."""
    choices = [prompt.outputs[0][0][0] for prompt in prompts]
    laws = np.zeros((2, len(prompts), len(choices[0].probs), 2))
    for x, prompt in enumerate(prompts):
        for arm, law in enumerate(prompt.laws):
            laws[:, x, arm, : len(law)] = np.array(law, float).T
    return SoftmaxBandit.linear(
        np.array([*prompts.values()], float),
        np.array([choice.linear for choice in choices], float),
        np.zeros(choices[0].linear.shape[1]),
        *laws,
        np.log(np.array([choice.probs for choice in choices], float)),
    )


def near(value: Any) -> Any:
    return pytest.approx(np.array(value, float), rel=1e-9, abs=1e-12)


LINEAR = [linear(random_prompt(Random(seed), binary=bool(seed % 2))) for seed in range(3)]
PAIR = {LINEAR[0]: THIRD, LINEAR[1]: 1 - THIRD}


@pytest.mark.parametrize(("prompts", "size", "batch"), [
    *(({prompt: ONE}, size, 1) for prompt in LINEAR for size in (2, 3)),
    (PAIR, 2, 1),
    (PAIR, 2, 2),
])  # fmt: skip
def test_reuse_bias_is_that_of_every_batch(prompts, size, batch):
    laws = [(weight, prompt) for prompt, weight in prompts.items()]
    want = second_step(laws, size, batch) - slope_of_gradient(laws)
    assert want.any()
    found = reuse_bias(reuse_moments(bandit(prompts)), size, batch, rate=0.5)
    assert found.slope == near(want)
    assert found.bias == near(want / 2)


@pytest.mark.parametrize(("size", "count"), [(1, 1), (1, 3), (2, 2), (3, 1)])
@pytest.mark.parametrize("prompt", LINEAR, ids=range(3))
def test_errors_with_a_memory_are_those_of_every_group(prompt, size, count):
    rollouts = prompt.rollouts()
    problem, g = bandit({prompt: ONE}), means(prompt).g
    mine = reward_law(rollouts)
    for law, weight in product((mine, [(3 * ONE, THIRD), (-ONE, 1 - THIRD)]), (None, THIRD)):
        if weight and size == 1:
            continue

        def baseline(z, memory, weight=weight):
            others, earlier = z.sum() - z, sum(memory)
            if weight is None:
                return (others + earlier) / Fraction(size - 1 + count)
            return (1 - weight) * others / (size - 1) + weight * earlier / count

        _, second = remembered(rollouts, size, law, count, baseline)
        centre = sum(z * p for z, p in law)
        past = {
            "drift": float(centre - means(prompt).value),
            "past_variance": float(sum(p * (z - centre) ** 2 for z, p in law)),
        }
        chosen = None if weight is None else float(weight)
        found = memory_mse(problem, size, count, weight=chosen, **past)
        assert found == near(second - g @ g)
        if law is mine:
            name = f"memory:{count}" if weight is None else f"weighted-memory:{count},{chosen!r}"
            assert gradient_mse(problem, name, size).mse == near(second - g @ g)


@pytest.mark.parametrize("prompt", LINEAR, ids=range(3))
def test_the_best_memory_weight_has_the_least_error_of_every_group(prompt):
    rollouts, law, size, count = prompt.rollouts(), [(ONE / 2, THIRD), (ZERO, 1 - THIRD)], 2, 2
    m, centre = means(prompt), sum(z * p for z, p in [(ONE / 2, THIRD), (ZERO, 1 - THIRD)])

    def error(weight):
        def baseline(z, memory):
            return (1 - weight) * (z.sum() - z) / (size - 1) + weight * sum(memory) / count

        return remembered(rollouts, size, law, count, baseline)[1]

    at = [error(Fraction(k, 2)) for k in range(3)]
    # The parabola through three weights.
    bend, start = 2 * (at[0] - 2 * at[1] + at[2]), 4 * at[1] - 3 * at[0] - at[2]
    best = min(max(-start / (2 * bend), ZERO), ONE)
    variance = sum(p * (z - centre) ** 2 for z, p in law)
    past = {"drift": float(centre - m.value), "past_variance": float(variance)}
    assert best_memory_weight(bandit({prompt: ONE}), size, count, **past) == near(best)


@pytest.mark.parametrize("drawn", [(ONE / 4, 3 * ONE / 4), (ONE / 5, 4 * ONE / 5)])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)])
def test_errors_of_drawn_prompts_are_those_of_every_group(drawn, sizes):
    mean, second = np.full(2, ZERO), ZERO
    for (prompt, rho), q, n in zip(PAIR.items(), drawn, sizes, strict=True):
        for prob, step in steps(prompt.rollouts(), n):
            mean = mean + prob * rho * step.gradient
            second += prob * rho**2 / q * (step.gradient @ step.gradient)
    noise = second - mean @ mean
    problem = bandit(PAIR)
    found = sampled_error(problem, np.array(drawn, float), sizes, 3)
    assert found.mse == near(noise / 3)
    outputs = sum(q * n for q, n in zip(drawn, sizes, strict=True))
    assert found.cost == near(outputs * noise)
    # No law of these two prompts costs less than the best one.
    one = sampled_error(problem, np.array(drawn, float), sizes[0]).cost
    assert best_law(problem, sizes[0]).cost < one
    assert best_law(problem, sizes[0]).law[1] == near(_least(sizes[0]))


def _least(size: int) -> float:
    """The share of the second prompt with the least cost: a root of its second moment, by enumeration."""
    roots = [
        float(rho)
        * float(sum(p * (s.gradient @ s.gradient) for p, s in steps(x.rollouts(), size))) ** 0.5
        for x, rho in PAIR.items()
    ]
    return roots[1] / sum(roots)

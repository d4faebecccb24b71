"""Laws of prompts: the best one against a search, estimated ones against integrals, and refusals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import beta

from ustat_pg.predictions import (
    best_law,
    normalised_factor,
    rate_law,
    sampled_error,
    screened_share,
    unweighted_law,
)
from ustat_pg.problems import SoftmaxBandit, random_problem

COINS = SoftmaxBandit.bernoulli([[0.5, 0.5], [0.9, 0.1]], [[1, 0], [1, 0]])


def searched(problem: SoftmaxBandit, sizes: tuple[int, ...]) -> float:
    """The least cost over all laws at these sizes, by Nelder and Mead from the definition of the cost."""
    m, n = problem.moments(), np.array(sizes, dtype=float)
    noise = (m.norm_squared_advantage - m.gradient_sq) / n
    noise += (m.reward_variance * m.fisher_trace + m.gradient_sq) / (n * (n - 1))

    def cost(logs: np.ndarray) -> float:
        law = np.exp(logs - logs.max())
        law /= law.sum()
        second = (m.context_probs**2 / law * (m.gradient_sq + noise)).sum()
        return float((law @ n) * (second - m.mean_gradient_sq))

    options = {"xatol": 1e-7, "fatol": 1e-13, "maxiter": 500}
    start = np.log(m.context_probs)
    return float(minimize(cost, start, method="Nelder-Mead", options=options).fun)


@pytest.mark.parametrize("strength", [1.0, 12.0])
def test_no_law_and_no_sizes_cost_less(strength: float) -> None:
    # The strong problem's gradients are not small against their noise, so κ counts.
    if strength == 1.0:
        problem = random_problem(1)
    else:
        logits = [[0.3, 0.0], [-1.0, 0.0]]
        problem = SoftmaxBandit.tabular(
            [0.4, 0.6], logits, [[[1.0], [0.0]]] * 2, [[[1.0], [1.0]]] * 2
        )
    best = best_law(problem, largest_group=9)
    sizes = range(2, 10)
    near = [range(max(2, n - 1), min(9, n + 1) + 1) for n in best.sizes.tolist()]
    every = product(*near) if strength == 1.0 else product(sizes, repeat=2)
    assert best.cost == pytest.approx(min(searched(problem, each) for each in every), rel=1e-9)
    assert best.cost == pytest.approx(sampled_error(problem, best.law, best.sizes).cost)
    one = best_law(problem, 3)
    assert one.cost == pytest.approx(searched(problem, (3,) * problem.contexts), rel=1e-9)


def test_a_share_of_the_data_bounds_the_weights() -> None:
    plain, some = (best_law(COINS, 4, share=share) for share in (0.0, 0.25))
    assert some.weights.max() <= 4
    assert plain.cost < some.cost < sampled_error(COINS, [0.5, 0.5], 4).cost
    np.testing.assert_allclose(some.law, 0.75 * plain.law + 0.125)
    assert best_law(COINS, 4).ratio == pytest.approx(plain.cost / plain.data_cost)


def test_a_law_from_counts_is_the_root_of_the_posterior_spread() -> None:
    counts, rollouts, prior = [0, 2, 6], [3, 6, 6], (0.7, 1.4)
    spreads = [
        quad(lambda p, s=s, k=k: p * (1 - p) * beta(prior[0] + s, prior[1] + k - s).pdf(p), 0, 1)[0]
        for s, k in zip(counts, rollouts, strict=True)
    ]
    data = np.array([0.5, 0.3, 0.2])
    law = rate_law(counts, rollouts, probs=data, share=0.0, prior=prior)
    wanted = data * np.sqrt(spreads)
    np.testing.assert_allclose(law, wanted / wanted.sum(), rtol=1e-7)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_weights_over_their_mean_by_all_batches(batch: int) -> None:
    probs, law = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    weights, factor = probs / law, np.zeros(3)
    for drawn in product(range(3), repeat=batch):
        for x in drawn:
            factor[x] += np.prod(law[[*drawn]]) * weights[x] / weights[[*drawn]].sum() / probs[x]
    np.testing.assert_allclose(normalised_factor(probs, law, batch), factor, rtol=1e-10)


def test_screening_and_levelling() -> None:
    assert screened_share(COINS, 0.6, 1.0).tolist() == [0, 1]
    np.testing.assert_allclose(
        screened_share(COINS, 0.25, 0.75, 4), [1 - 2 / 16, 1 - 0.9**4 - 0.1**4]
    )
    assert screened_share(COINS, 0.4, 0.45, 3).tolist() == [0, 0]
    law = unweighted_law(COINS, "std", 6)
    level = sampled_error(COINS, law, 6, estimator="std", weights=[1, 1])
    assert np.ptp(level.mean_factor) == pytest.approx(0, abs=1e-12)
    assert "outputs times variance" in str(level)


@pytest.mark.parametrize("probs", [[0.5, 0.5], [0.7, 0.3], [[0.5, 0.5]] * 2])
def test_prompts_that_are_alike_have_the_best_fixed_size(probs) -> None:
    """Their law is known from the start, while the sizes are not."""
    coins = SoftmaxBandit.bernoulli(probs, np.broadcast_to([1, 0], np.shape(probs)))
    assert best_law(coins).ratio == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("batch", [2, 100_000])
def test_normalised_weights_in_a_large_batch(batch) -> None:
    """All but one draw in 10⁹ are of one prompt, whose weight the mean of all then is."""
    found = normalised_factor([0.5, 0.5], [1 - 1e-9, 1e-9], batch)[0]
    assert found == pytest.approx(2, rel=2e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sampled_error(COINS, [1.0, 0.0], 4), "law is 0 at prompt 1"),
        (lambda: sampled_error(COINS, [1.0], 4), "law has 1 entries"),
        (lambda: sampled_error(COINS, [0.5, 0.5], 4, weights=[1]), "weights has 1 entries"),
        (lambda: sampled_error(_unused(), [0.5, 0.5], 4), "no weight in J"),
        (lambda: sampled_error(COINS, [0.5, 0.5], [4]), "sizes has 1 entries"),
        (lambda: best_law(COINS, 1), "group size is 1"),
        (lambda: best_law(SoftmaxBandit.bernoulli([0.5, 0.5], [1, 1])), "no noise"),
        (lambda: rate_law([3], 2), "successes are 3 of 2"),
        (lambda: rate_law([1, 1], 2, probs=[1.0]), "probs has 1 entries"),
        (lambda: rate_law([1], 2, prior=(0, 1)), "prior is 0"),
        (lambda: rate_law([1], 2, prior=(1,)), "prior has 1 entries"),
        (lambda: rate_law([1, 1], [2, 2, 2]), "rollouts has shape"),
        (lambda: best_law(COINS, largest_group=10**9), "largest group is 1000000000"),
        (lambda: screened_share(COINS, 0, 1, 10**6), "rollouts is 1000000"),
        (lambda: rate_law([1], 2, share=1.5), "share of the data's law is 1.5"),
        (lambda: unweighted_law(COINS, "vanilla", 0), "group size is 0"),
        (lambda: screened_share(random_problem(0), 0, 1), "rewards"),
        (lambda: normalised_factor([0.5, 0.5], [1.0, 0.0], 2), "positive"),
    ],
)
def test_what_is_refused(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def _unused() -> SoftmaxBandit:
    rewards = [[[1.0], [0.0]]] * 2
    return SoftmaxBandit.tabular([1.0, 0.0], [[0.0, 0.0]] * 2, rewards, [[[1.0], [1.0]]] * 2)

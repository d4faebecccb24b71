"""Closed forms in groups to 64 and minibatches to 10,000, by sums over the number of first outputs."""

from math import sqrt
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from ustat_pg import estimators
from ustat_pg.predictions import (
    frac_reward_zero_std,
    gradient_covariance,
    gradient_mse,
    mean_gradient,
    mse_constants,
    oracle_ratio,
    paired_constants,
    weighted_mse,
)
from ustat_pg.problems import SoftmaxBandit, WeightedBandit

PROMPTS = 40
"""Prompts of a problem whose prompts are drawn without replacement."""

generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)
few = settings(max_examples=20, phases=[Phase.generate])
"""Each example asks many sizes of every estimator; a smaller seed is no simpler one."""


def size_of(rng, least, most):
    """A whole number on the scale of logarithms."""
    return round(np.exp(rng.uniform(np.log(least), np.log(most))))


def bandit(rng, prompts, *, binary=False, uniform=False):
    """Prompts of two outputs: the first is rare at one prompt, nearly sure at another."""
    rates = rng.uniform(0.1, 0.9, size=prompts)
    rates[0], rates[-1] = 10 ** rng.uniform(-4, -2), 1 - 10 ** rng.uniform(-4, -2)
    chances = rng.dirichlet(np.full(prompts, 0.7)) + 1e-3
    rewards = np.tile([1.0, 0.0], (prompts, 1)) if binary else rng.normal(size=(prompts, 2))
    return SoftmaxBandit.linear(
        np.full(prompts, 1 / prompts) if uniform else chances / chances.sum(),
        rng.normal(size=(prompts, 2, 3)),
        np.zeros(3),
        rewards[..., None],
        np.ones((prompts, 2, 1)),
        np.log(np.stack([rates, 1 - rates], axis=1)),
    )


class Law(NamedTuple):
    """E ĝ (X, d), E ĝ ĝᵀ (X, d, d), E (1/G) Σ ‖Aᵢ sᵢ‖² (X,) of a group at each prompt, the chance (X,) of
    unequal outputs, and the prompts' chances.
    """

    means: np.ndarray
    seconds: np.ndarray
    terms: np.ndarray
    mixed: np.ndarray
    rho: np.ndarray

    @property
    def unit(self):
        """What rounding is relative to."""
        return self.rho @ self.terms

    @property
    def mean(self):
        return self.rho @ self.means

    def covariance(self, batch, design="iid"):
        apart, count = self.means - self.mean, len(self.rho)
        between = (self.rho[:, None] * apart).T @ apart
        outer = np.einsum("xi,xj->xij", self.means, self.means)
        within = np.einsum("x,xij->ij", self.rho, self.seconds - outer)
        # Without replacement the shares of a finite population vary less.
        drawn = 1.0 if design == "iid" else (count - batch) / (count - 1)
        return (drawn * between + within) / batch

    def error(self, target, batch, design="iid"):
        off = self.mean - target
        return np.trace(self.covariance(batch, design)) + off @ off


def law_of(problem, size, advantages):
    """The law of the estimate with ``advantages(rewards (G+1, G), prompt)``."""
    rows, second = [], np.arange(size) >= np.arange(size + 1)[:, None]
    for x, probs in enumerate(problem.policy.probs):
        chance = binom.pmf(np.arange(size + 1), size, probs[0])
        rewards = problem.mean_rewards[x][second.astype(int)]
        terms = advantages(rewards, x)[..., None] * problem.policy.scores(x)[second.astype(int)]
        ghat, squares = terms.mean(axis=1), (terms**2).sum(axis=2).mean(axis=1)
        mixed = chance[1:-1].sum()
        rows.append((chance @ ghat, (chance[:, None] * ghat).T @ ghat, chance @ squares, mixed))
    return Law(*map(np.array, zip(*rows, strict=True)), problem.context_probs)


def by_name(name, **known):
    return lambda rewards, x: estimators.advantages(name, rewards, **known)


def baselines(problem, rng):
    """Closed forms for any rewards: what is asked of them beside the name, and their advantages."""
    probs, rewards = problem.policy.probs, problem.mean_rewards
    norms = probs * [(problem.policy.scores(x) ** 2).sum(axis=1) for x in range(len(probs))]
    best, value = ((weight * rewards).sum(axis=1) / weight.sum(axis=1) for weight in (norms, probs))
    critic, constant = rng.normal(size=len(probs)), float(rng.normal())
    return {
        "grpo": ({}, by_name("grpo")),
        "group-mean": ({}, by_name("group-mean")),
        "vanilla": ({}, lambda rewards, x: rewards),
        "oracle": ({}, lambda rewards, x: rewards - value[x]),
        "minimum-variance": ({}, lambda rewards, x: rewards - best[x]),
        "constant": ({"constant": constant}, lambda rewards, x: rewards - constant),
        "critic": ({"critic": critic}, lambda rewards, x: rewards - critic[x]),
    }


def agree(problem, name, law, size, batch, design="iid", **known):
    """Asserts that error and covariance are those of the law."""
    moments, near = problem.moments(), {"rtol": 1e-9, "atol": 1e-10 * law.unit / batch}
    result = gradient_mse(moments, name, size, batch, design, **known).mse
    np.testing.assert_allclose(result, law.error(problem.gradient(), batch, design), **near)
    covariance = gradient_covariance(moments, name, size, batch, design, **known)
    np.testing.assert_allclose(covariance, law.covariance(batch, design), **near)


@few
@given(generators)
def test_errors_of_baselines_for_any_rewards(rng):
    problem = bandit(rng, 4)
    for name, (known, advantages) in baselines(problem, rng).items():
        for ends in ((2, 8), (33, 64)):
            size, batch = size_of(rng, *ends), size_of(rng, 32, 10_000)
            agree(problem, name, law_of(problem, size, advantages), size, batch, **known)
    alone = law_of(problem.restrict([3]), size, by_name("grpo"))
    covariance = gradient_covariance(problem.moments().at(3), "grpo", size)
    np.testing.assert_allclose(covariance, alone.covariance(1), rtol=1e-9, atol=1e-10 * alone.unit)


@few
@given(generators)
def test_designs(rng):
    problem, size = bandit(rng, PROMPTS, uniform=True), size_of(rng, 2, 64)
    moments, target = problem.moments(), problem.gradient()
    constants, part = mse_constants(moments), size_of(rng, 2, PROMPTS - 1)
    by = baselines(problem, rng)
    laws = {name: law_of(problem, size, by[name][1]) for name in ("grpo", "oracle", "vanilla")}
    for design, batch in (
        ("without-replacement", part),
        ("fixed", PROMPTS),
        ("iid", size_of(rng, 32, 10_000)),
    ):
        population = None if design == "iid" else PROMPTS
        for name, law in laws.items():
            agree(problem, name, law, size, batch, design)
            curve = constants.mse(size, batch, name, population=population)
            near = {"rel": 1e-9, "abs": 1e-10 * law.unit / batch}
            assert curve == pytest.approx(law.error(target, batch, design), **near)
        errors = [laws[name].error(target, batch, design) for name in ("grpo", "oracle")]
        assert oracle_ratio(moments, size, batch, design) == pytest.approx(
            errors[0] / errors[1], rel=1e-9
        )
    binary = bandit(rng, PROMPTS, binary=True, uniform=True)
    for name in ("std", "maxrl"):
        law = law_of(binary, size, by_name(name))
        agree(binary, name, law, size, part, "without-replacement")


@few
@given(generators)
def test_constants_of_a_run_s_own_pairs(rng):
    problem, size = bandit(rng, 4), size_of(rng, 2, 64)
    law, constants = law_of(problem, size, by_name("grpo")), mse_constants(problem.moments())
    single = law.unit
    pairs = (size * np.trace(law.rho @ law.seconds.transpose(1, 0, 2)) - single) / (size - 1)
    oracle = law_of(problem, 2, baselines(problem, rng)["oracle"][1]).unit
    # α = τ + φ/(G-1), of which τ is that of the oracle.
    ratio = (single - oracle) * (size - 1) / oracle
    gradient = problem.gradient()
    result = paired_constants(single, pairs, gradient @ gradient, size, ratio)
    wanted = constants.c1, constants.c2, constants.c3
    assert result == pytest.approx(wanted, rel=1e-7, abs=1e-9 * size * single)


TABLES = (
    *("std", "std-ddof1", "others-std", "maxrl", "group-mean", "vanilla", "grpo", "bayes:0.3,2.5"),
    *("shrinkage:0.35,0.7", "pass-at-k:{k}", "loo-table:{b}", "count-table:{b},{c}"),
)


@few
@given(generators)
def test_estimators_by_counts(rng):
    problem = bandit(rng, 3, binary=True)
    moments, gradient = problem.moments(), problem.gradient()
    for name in TABLES:
        for ends in ((2, 8), (9, 32), (33, 64)):
            size, batch = size_of(rng, *ends), size_of(rng, 32, 10_000)
            b, c = (",".join(map(repr, row.tolist())) for row in rng.normal(size=(2, size)))
            spec = name.format(k=int(rng.integers(1, size + 1)), b=b, c=c)
            law = law_of(problem, size, by_name(spec))
            agree(problem, spec, law, size, batch)
            near = {"rtol": 1e-9, "atol": 1e-11 * sqrt(law.unit)}
            np.testing.assert_allclose(mean_gradient(moments, spec, size), law.mean, **near)
            result, length = gradient_mse(moments, spec, size, batch), sqrt(law.mean @ law.mean)
            noise = np.trace(law.covariance(batch)) / length**2
            assert result.noise_to_signal == pytest.approx(noise, rel=1e-7)
            cosine = law.mean @ gradient / length / sqrt(gradient @ gradient)
            assert result.cosine == pytest.approx(cosine, rel=1e-9, abs=1e-9)
            if name in ("std", "maxrl"):
                kept = law.rho @ law.mixed
                assert frac_reward_zero_std(moments, size) == pytest.approx(1 - kept, abs=1e-12)
                dynamic = mean_gradient(moments, spec, size, dynamic_sampling=True)
                np.testing.assert_allclose(dynamic, law.mean / kept, **near)


@few
@given(generators)
def test_weighted_scores(rng):
    problem = WeightedBandit.of(bandit(rng, 3, binary=True), rng.uniform(0.1, 3, size=(3, 2)))
    for name in ("grpo", "std", "maxrl"):
        size, batch = size_of(rng, 2, 64), size_of(rng, 2, 10_000)
        law = law_of(problem, size, by_name(name))
        result = weighted_mse(problem.weighted_outcomes(), name, size, batch)
        near = {"rtol": 1e-9, "atol": 1e-11 * sqrt(law.unit)}
        np.testing.assert_allclose(result.mean, law.mean, **near)
        error = law.error(problem.gradient(), batch)
        assert result.mse == pytest.approx(error, rel=1e-9, abs=1e-10 * law.unit / batch)

"""Gradients' errors, means and covariances by sums over counts: large groups and batches, every design."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from ustat_pg.engines import Draws, Estimator, GradientCell
from ustat_pg.engines.gradients.exact import minibatches
from ustat_pg.moments import Moments
from ustat_pg.predictions import (
    gradient_covariance,
    gradient_mse,
    mean_gradient,
    oracle_ratio,
    silent_share,
)
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check
from . import Asked, Drawn, Known, ratio, rounding

Array = NDArray[np.float64]

LARGEST_GROUP = 64
LARGEST_BATCH = 10_000

PROMPTS = 40
"""Prompts of a problem whose prompts are drawn without replacement."""

TABLES = (
    *("std", "std-ddof1", "others-std", "maxrl", "group-mean", "vanilla", "grpo", "bayes:0.3,2.5"),
    *("shrinkage:0.35,0.7", "pass-at-k:{k}", "loo-table:{b}", "count-table:{b},{c}"),
)
"""Estimators by counts, with numbers that are drawn."""


def groups(
    problem: SoftmaxBandit, estimator: Estimator, group_size: int
) -> Iterator[tuple[int, Array, Draws, Array, Array]]:
    """Every group that there can be, prompt by prompt: the prompt, chances, outputs, advantages, scores."""
    for draws, chance in minibatches(GradientCell(problem, group_size)):
        x, advantages = int(draws.contexts[0, 0]), estimator.advantages(problem, draws)[:, 0]
        yield x, chance, draws, advantages, problem.policy.scores(x)[draws.arms[:, 0]]


@dataclass(frozen=True)
class Law:
    """The law of one group's estimate at each prompt, by all counts of its outcomes: E ĝ (X, d),
    E ĝ ĝᵀ (X, d, d) and the chance of unequal rewards; and both moments again of the sizes of the
    terms that are added up for them.
    """

    problem: SoftmaxBandit
    means: Array
    seconds: Array
    mixed: Array
    sizes: Array
    squares: Array

    @classmethod
    def of(cls, problem: SoftmaxBandit, estimator: Estimator, group_size: int) -> Law:
        probs, d = problem.context_probs, problem.d
        means, seconds = np.zeros((len(probs), d)), np.zeros((len(probs), d, d))
        mixed, sizes, squares = np.zeros(len(probs)), np.zeros_like(means), np.zeros_like(seconds)
        for x, chance, draws, advantages, scores in groups(problem, estimator, group_size):
            given = chance / probs[x]
            estimates = (advantages[..., None] * scores).mean(axis=1)
            means[x] += given @ estimates
            seconds[x] += (given[:, None] * estimates).T @ estimates
            mixed[x] += given @ (np.ptp(draws.rewards[:, 0], axis=-1) > 0)
            terms = term_sizes(draws, advantages, scores).mean(axis=1)
            sizes[x] += given @ terms
            squares[x] += (given[:, None] * terms).T @ terms
        return cls(problem, means, seconds, mixed, sizes, squares)

    @property
    def mean(self) -> Known:
        """E ĝ of a minibatch."""
        rho = self.problem.context_probs
        return rho @ self.means, rounding(rho @ self.sizes)

    @property
    def between(self) -> Known:
        """Cov E[ĝ | x], of one prompt."""
        rho, (mean, error) = self.problem.context_probs, self.mean
        apart, errors = self.means - mean, rounding(self.sizes) + error
        size = np.abs(apart) + errors
        both = (rho[:, None] * size).T @ errors
        return (rho[:, None] * apart).T @ apart, both + both.T

    def covariance(self, batch_size: int, design: str) -> Known:
        """Cov ĝ of a minibatch, by the variance of how often a prompt is in it."""
        rho, (between, error) = self.problem.context_probs, self.between
        outer = np.einsum("xi,xj->xij", self.means, self.means)
        within = np.einsum("x,xij->ij", rho, self.seconds - outer) / batch_size
        terms = np.einsum("x,xij->ij", rho, self.squares) / batch_size
        often = shared(batch_size, design, len(rho))
        errors = rounding(2 * terms, often * between) + often * error
        return often * between + within, errors

    def error(self, batch_size: int, design: str) -> Known:
        """E‖ĝ - g‖² of a minibatch."""
        (mean, error), (covariance, errors) = self.mean, self.covariance(batch_size, design)
        off = mean - self.problem.gradient()
        # The gradient is off by no more than the mean, which has its terms.
        return np.trace(covariance) + off @ off, np.trace(errors) + 4 * (
            np.abs(off) + error
        ) @ error


def term_sizes(draws: Draws, advantages: Array, scores: Array) -> Array:
    """The sizes of what an output's term A s is made of: a reward, a baseline, a score."""
    sizes = np.abs(advantages) + np.abs(draws.rewards[:, 0])
    return np.asarray(sizes[..., None] * np.abs(scores))


def shared(batch_size: int, design: str, prompts: int) -> float:
    """Variance of a prompt's share of a minibatch, over p(1-p) of its chance p."""
    if prompts == 1:
        return 1 / batch_size if design == "iid" else 0.0
    chance = 1 / prompts
    # Without replacement it is there or not.
    often = binom(batch_size, chance) if design == "iid" else binom(1, batch_size / prompts)
    return float(often.var()) / batch_size**2 / (chance * (1 - chance))


def problem(
    drawn: Drawn, contexts: int, *, binary: bool = False, uniform: bool = False
) -> SoftmaxBandit:
    """Prompts of two outcomes each, some all but sure or hopeless, some asked hardly ever."""
    rng = drawn.rng
    rates = rng.uniform(0.1, 0.9, size=contexts)
    rates[0], rates[-1] = 10 ** rng.uniform(-4, -2), 1 - 10 ** rng.uniform(-4, -2)
    chances = np.full(contexts, 1 / contexts)
    if not uniform:
        chances = rng.dirichlet(np.full(contexts, 0.7)) + 1e-3
        chances /= chances.sum()
    values = np.tile([1.0, 0.0], (contexts, 1)) if binary else rng.normal(size=(contexts, 2))
    # Features differ between prompts, so that their gradients are neither alike nor at right angles.
    return SoftmaxBandit.linear(
        chances,
        rng.normal(size=(contexts, 2, 3)),
        np.zeros(3),
        values[..., None],
        np.ones((contexts, 2, 1)),
        np.log(np.stack([rates, 1 - rates], axis=1)),
    )


def _estimator(drawn: Drawn, bandit: SoftmaxBandit, name: str) -> tuple[Estimator, dict[str, Any]]:
    if name == "constant":
        number = float(drawn.rng.normal())
        return Estimator(name, number), {"constant": number}
    if name == "critic":
        values = drawn.rng.normal(size=bandit.contexts)
        return Estimator(name, values=tuple(values)), {"critic": values}
    return Estimator(name), {}


CLOSED = ("grpo", "vanilla", "oracle", "group-mean", "minimum-variance", "constant", "critic")
"""Baselines whose error has a closed form for any rewards."""


def _of(
    drawn: Drawn, where: str, law: Law, moments: Moments, name: str, size: tuple[int, int],
    design: str = "iid", **options: Any,
) -> Iterator[Check]:  # fmt: skip
    """The error and the covariance of an estimator, by its law in groups and batches of a size."""
    predicted = gradient_mse(moments, name, *size, design, **options)
    yield drawn.check(f"{where}: error of {name}", predicted.mse, *law.error(size[1], design))
    yield drawn.check(
        f"{where}: covariance of {name}",
        gradient_covariance(moments, name, *size, design, **options),
        *law.covariance(size[1], design),
    )


def errors(drawn: Drawn) -> Iterator[Check]:
    """Errors of every baseline with a closed form, i.i.d. prompts, any rewards."""
    bandit = problem(drawn, 4)
    moments = bandit.moments()
    for name in CLOSED:
        for least, most in ((2, 8), (33, LARGEST_GROUP)):
            group, batch = drawn.size(least, most), drawn.size(32, LARGEST_BATCH)
            estimator, options = _estimator(drawn, bandit, name)
            law, where = Law.of(bandit, estimator, group), f"G={group} B={batch}"
            yield from _of(drawn, where, law, moments, name, (group, batch), **options)
    last = bandit.contexts - 1
    group = drawn.size(2, LARGEST_GROUP)
    alone = Law.of(bandit.restrict([last]), Estimator("grpo"), group)
    yield drawn.check(
        f"G={group}: covariance at one of several prompts",
        gradient_covariance(moments.at(last), "grpo", group),
        *alone.covariance(1, "iid"),
    )


def designs(drawn: Drawn) -> Iterator[Check]:
    """Errors where prompts are not drawn independently, and ratios to the oracle's."""
    bandit = problem(drawn, PROMPTS, uniform=True)
    moments = bandit.moments()
    for design, batch in (
        ("without-replacement", drawn.size(2, 20)),
        ("without-replacement", drawn.size(32, PROMPTS - 1)),
        ("fixed", PROMPTS),
        ("iid", drawn.size(32, LARGEST_BATCH)),
    ):
        group = drawn.size(2, LARGEST_GROUP)
        laws = {
            name: Law.of(bandit, Estimator(name), group)
            for name in ("grpo", "oracle", "group-mean")
        }
        where = f"G={group} B={batch} {design}"
        for name, law in laws.items():
            yield from _of(drawn, where, law, moments, name, (group, batch), design)
        yield drawn.check(
            f"{where}: error over the oracle's",
            oracle_ratio(moments, group, batch, design),
            *ratio(laws["grpo"].error(batch, design), laws["oracle"].error(batch, design)),
        )
    binary = problem(drawn, PROMPTS, binary=True, uniform=True)
    for design, batch in (("without-replacement", drawn.size(2, PROMPTS - 1)), ("fixed", PROMPTS)):
        group, name = drawn.size(2, LARGEST_GROUP), str(drawn.rng.choice(["std", "maxrl"]))
        law = Law.of(binary, Estimator(name), group)
        where = f"G={group} B={batch} {design}, by counts"
        yield from _of(drawn, where, law, binary.moments(), name, (group, batch), design)


def tables(drawn: Drawn) -> Iterator[Check]:
    """Estimators by counts: error, covariance, mean, noise to signal and cosine."""
    bandit = problem(drawn, 3, binary=True)
    moments, gradient = bandit.moments(), bandit.gradient()
    for name in TABLES:
        for least, most in ((2, 8), (9, 32), (33, LARGEST_GROUP)):
            group, batch = drawn.size(least, most), drawn.size(32, LARGEST_BATCH)
            values = [
                ",".join(map(repr, row.tolist())) for row in drawn.rng.normal(size=(2, group))
            ]
            spec = name.format(k=int(drawn.rng.integers(1, group + 1)), b=values[0], c=values[1])
            law, called = Law.of(bandit, Estimator(spec), group), spec.partition(",")[0]
            where = f"G={group} B={batch} {called}"
            prediction = gradient_mse(moments, spec, group, batch)
            (mean, error), (covariance, errors) = law.mean, law.covariance(batch, "iid")
            yield drawn.check(f"{where}: error", prediction.mse, *law.error(batch, "iid"))
            yield drawn.check(
                f"{where}: covariance",
                gradient_covariance(moments, spec, group, batch),
                covariance,
                errors,
            )
            yield drawn.check(f"{where}: mean", mean_gradient(moments, spec, group), mean, error)
            signal = mean @ mean, 2 * np.abs(mean) @ error
            yield drawn.check(
                f"{where}: noise to signal",
                prediction.noise_to_signal,
                *ratio((np.trace(covariance), np.trace(errors)), signal),
            )
            # Turning it by the error of one vector's length turns the cosine by no more.
            length = sqrt(mean @ mean), sqrt(error @ error)
            along = gradient / sqrt(gradient @ gradient)
            yield drawn.check(
                f"{where}: cosine", prediction.cosine, *ratio((mean @ along, length[1]), length)
            )
            if name in ("std", "maxrl"):
                kept = bandit.context_probs @ law.mixed, rounding(1.0)
                yield drawn.check(
                    f"{where}: silent groups", silent_share(moments, group), 1 - kept[0], kept[1]
                )
                yield drawn.check(
                    f"{where}: mean with dynamic sampling",
                    mean_gradient(moments, spec, group, dynamic_sampling=True),
                    *ratio(law.mean, kept),
                )


ASKED: Asked = {
    "mse": (errors,),
    "minibatch": (designs,),
    "count_advantages": (tables,),
}

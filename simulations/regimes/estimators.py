"""Estimators output by output, by loops over the group: rewards below 0, all but equal, large groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import fmean, pstdev, stdev

import numpy as np
from numpy.typing import NDArray

from ustat_pg import estimators

from ..evidence import Check
from . import Asked, Drawn, rounding

Array = NDArray[np.float64]


def _others(rewards: list[float], i: int) -> list[float]:
    return rewards[:i] + rewards[i + 1 :]


def _by_output(
    function: Callable[[float, list[float]], float],
) -> Callable[[list[float]], list[float]]:
    """A formula of an output's reward and those of the others, for every output."""
    return lambda rewards: [function(z, _others(rewards, i)) for i, z in enumerate(rewards)]


def _by_others(reward: float, others: list[float]) -> float:
    spread = stdev(others) if len(others) > 1 else 0.0
    return (reward - fmean(others)) / (spread or 1.0)


def _maxrl(rewards: list[float]) -> list[float]:
    mean = fmean(rewards)
    return [(z - mean) / mean if mean > 0 else 0.0 for z in rewards]


PLAIN: dict[str, tuple[Callable[[Array], Array], Callable[[list[float]], list[float]]]] = {
    "grpo": (estimators.grpo, _by_output(lambda reward, others: reward - fmean(others))),
    "group-mean": (estimators.group_mean, lambda z: [reward - fmean(z) for reward in z]),
    "std": (
        estimators.standardised,
        lambda z: [(reward - fmean(z)) / (pstdev(z) or 1.0) for reward in z],
    ),
    "std-ddof1": (
        estimators.unbiased_std,
        lambda z: [(reward - fmean(z)) / (stdev(z) or 1.0) for reward in z],
    ),
    "std with epsilon": (
        lambda z: estimators.standardised(z, ddof=1, epsilon=0.03),
        lambda z: [(reward - fmean(z)) / (stdev(z) + 0.03) for reward in z],
    ),
    "others-std": (estimators.others_standardised, _by_output(_by_others)),
    "maxrl": (estimators.maxrl, _maxrl),
    "bayes": (
        lambda z: estimators.bayes(z, successes=0.3, failures=2.5),
        _by_output(lambda reward, others: reward - (sum(others) + 0.3) / (len(others) + 2.8)),
    ),
    "shrinkage": (
        lambda z: estimators.shrinkage(z, amount=0.35, mean_value=0.7),
        _by_output(lambda reward, others: reward - 0.65 * fmean(others) - 0.35 * 0.7),
    ),
}
"""Estimators of rewards alone, and the same by a loop over plain numbers."""


DIVISORS: dict[str, Callable[[list[float]], float]] = {
    "std": pstdev,
    "std-ddof1": stdev,
    "std with epsilon": lambda z: stdev(z) + 0.03,
    "others-std": lambda z: min(stdev(_others(z, i)) for i in range(len(z))),
    "maxrl": fmean,
}
"""The least number of rewards' own size that an estimator divides by."""


def _error(name: str, some: Array, advantages: Array) -> Array:
    """How far a difference of two rewards, and a quotient by one, may be off, (G,)."""
    error = rounding(np.abs(some).max())
    if name not in DIVISORS:
        return np.full(some.shape, error)
    return np.asarray(error * (1 + np.abs(advantages)) / abs(DIVISORS[name](some.tolist())))


def rewards(drawn: Drawn) -> Iterator[tuple[str, Array]]:
    """Rewards of all signs, below 0 alone, all but equal, and large."""
    for what, scale, shift in (
        ("of both signs", 1.0, 0.0),
        ("below 0", 1.0, -9.0),
        ("nearly equal", 0.01, 0.6),
        ("large", 1e6, 3e6),
    ):
        for size in (drawn.size(3, 8), drawn.size(33, 64)):
            yield f"G={size} {what}", shift + scale * drawn.rng.normal(size=size)


def advantages(drawn: Drawn) -> Iterator[Check]:
    for what, some in rewards(drawn):
        for name, (function, plainly) in PLAIN.items():
            known = np.array(plainly(some.tolist()))
            yield drawn.check(f"{what}: {name}", function(some), known, _error(name, some, known))


def best_of_k(drawn: Drawn) -> Iterator[Check]:
    """pass@k over every subset."""
    for shift in (0.0, -3.0):
        size = int(drawn.rng.integers(5, 9))
        k, some = int(drawn.rng.integers(2, size)), shift + drawn.rng.normal(size=size)

        def over_subsets(reward: float, others: list[float], k: int = k) -> float:
            beside = fmean(max(reward, *chosen) for chosen in combinations(others, k - 1))
            return k * (beside - fmean(map(max, combinations(others, k))))

        yield drawn.check(
            f"G={size} k={k} about {shift:g}: pass@k",
            estimators.pass_at_k(some, k=k),
            _by_output(over_subsets)(some.tolist()),
            rounding(2 * k * np.abs(some).max()),
        )


def tokens(drawn: Drawn) -> Iterator[Check]:
    """Weights of tokens in every way, of a constant that is no whole number too."""
    shape = (drawn.size(2, 6), drawn.size(2, 12), 5)
    lengths = drawn.rng.integers(1, shape[-1] + 1, size=shape[:2])
    mask = (np.arange(shape[-1]) < lengths[..., None]).astype(float)
    constant = round(float(drawn.rng.uniform(0.2, 7.0)), 3)
    prompts, group, outputs = shape[0], shape[1], shape[0] * shape[1]
    for how, divisor in {
        "sequence-sum": outputs,
        f"constant:{constant}": outputs * constant,
        "sequence-mean": outputs * lengths[..., None],
        "prompt-mean": prompts * lengths.sum(axis=1)[:, None, None],
        "token-mean": lengths.sum(),
        "token-sum": 1,
    }.items():
        known = mask / divisor
        yield drawn.check(
            f"B={prompts} G={group}: {how}",
            estimators.token_weights(mask, how),
            known,
            rounding(known),
        )


ASKED: Asked = {
    "count_advantages": (best_of_k,),
    "normalised": (advantages,),
    "length_weights": (tokens,),
}

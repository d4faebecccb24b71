"""Outputs of unequal length, by counts and by the law of a minibatch's tokens: large groups and batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from ustat_pg.engines import Estimator
from ustat_pg.experiment import Check
from ustat_pg.predictions import aggregated_mean
from ustat_pg.problems import SoftmaxBandit

from . import Asked, Drawn
from .gradients import groups

Array = NDArray[np.float64]

BASELINES = ("vanilla", "grpo", "group-mean", "oracle")


def _problem(drawn: Drawn) -> tuple[SoftmaxBandit, tuple[int, ...]]:
    """Prompts of three outputs, with their lengths."""
    rng, prompts = drawn.rng, 2
    bandit = SoftmaxBandit.linear(
        rng.dirichlet([2.0] * prompts),
        rng.normal(size=(prompts, 3, 3)),
        rng.normal(size=3),
        rng.normal(size=(prompts, 3, 1)),
        np.ones((prompts, 3, 1)),
    )
    return bandit, tuple(sorted(rng.choice(np.arange(1, 12), size=3, replace=False).tolist()))


def _groups(
    bandit: SoftmaxBandit, lengths: tuple[int, ...], name: str, group_size: int
) -> tuple[Array, Array, Array]:
    """Chance, Σ A s and tokens of every group that there can be."""
    outcomes = []
    for _, chance, draws, advantages, scores in groups(bandit, Estimator(name), group_size):
        sums = (advantages[..., None] * scores).sum(axis=1)
        outcomes.append((chance, sums, np.array(lengths)[draws.arms[:, 0]].sum(axis=1)))
    chances, sums, tokens = zip(*outcomes, strict=True)
    return np.concatenate(chances), np.concatenate(sums), np.concatenate(tokens)


def means(drawn: Drawn) -> Iterator[Check]:
    """The mean of every way to add up tokens."""
    bandit, lengths = _problem(drawn)
    moments, arm_lengths = bandit.length_moments(lengths), np.array(lengths, dtype=float)
    for name in BASELINES:
        for group, batch in (
            (drawn.size(5, 12), 1),
            (drawn.size(13, 64), drawn.size(2, 6)),
            (drawn.size(2, 8), drawn.size(20, 100)),
        ):
            chances, sums, tokens = _groups(bandit, lengths, name, group)
            law = np.bincount(tokens, chances)
            others = np.ones(1)
            for _ in range(batch - 1):
                others = fftconvolve(others, law)
            # The others' tokens are hardly ever far from their mean.
            totals = np.flatnonzero(others > 1e-16 * others.max())
            length = np.arange(1, tokens.max() + 1)[:, None]
            inverse = (1 / (length + totals)) @ others[totals]
            reckoned = {
                "token-mean": batch * (chances * inverse[tokens - 1]) @ sums,
                "prompt-mean": (chances / tokens) @ sums,
                "sequence-sum": chances @ sums / group,
            }
            for how, value in reckoned.items():
                yield drawn.check(
                    f"G={group} B={batch}: {how} of {name}",
                    aggregated_mean(moments, how, name, group, batch),
                    value,
                )
            scaled = np.zeros(bandit.d)
            for _, chance, draws, advantages, scores in groups(bandit, Estimator(name), group):
                weights = advantages / arm_lengths[draws.arms[:, 0]]
                scaled += chance @ (weights[..., None] * scores).mean(axis=1)
            yield drawn.check(
                f"G={group} B={batch}: sequence-mean of {name}",
                aggregated_mean(moments, "sequence-mean", name, group, batch),
                scaled,
            )


ASKED: Asked = {"length_weights": (means,)}

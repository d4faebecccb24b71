"""Outputs of unequal length, by counts and by the law of a minibatch's tokens: large groups and batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ustat_pg.engines import Estimator
from ustat_pg.predictions import aggregated_mean
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check
from . import Asked, Drawn, rounding
from .gradients import groups, term_sizes

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
) -> tuple[Array, Array, Array, Array]:
    """Chance, Σ A s, Σ A s/L and tokens of every group that there can be; beside the sums, (n, 2, d), those
    of their terms' sizes.
    """
    outcomes = []
    for _, chance, draws, advantages, scores in groups(bandit, Estimator(name), group_size):
        long = np.array(lengths)[draws.arms[:, 0]]
        terms = np.stack(
            [advantages[..., None] * scores, term_sizes(draws, advantages, scores)], axis=2
        )
        scaled = (terms / long[..., None, None]).sum(axis=1)
        outcomes.append((chance, terms.sum(axis=1), scaled, long.sum(axis=1)))
    chances, sums, means, tokens = map(np.concatenate, zip(*outcomes, strict=True))
    return chances, sums, means, tokens


def means(drawn: Drawn) -> Iterator[Check]:
    """The mean of every way to add up tokens."""
    bandit, lengths = _problem(drawn)
    moments = bandit.length_moments(lengths)
    for name in BASELINES:
        for group, batch in (
            (drawn.size(5, 12), 1),
            (drawn.size(13, 64), drawn.size(2, 6)),
            (drawn.size(2, 8), drawn.size(20, 100)),
        ):
            chances, sums, scaled, tokens = _groups(bandit, lengths, name, group)
            law = np.bincount(tokens, chances)
            others = np.ones(1)
            for _ in range(batch - 1):
                # Terms of one sign keep their digits, as they would not by a Fourier transform.
                others = np.convolve(others, law)
            length = np.arange(1, tokens.max() + 1)[:, None]
            inverse = (1 / (length + np.arange(len(others)))) @ others
            for how, weights, terms in (
                ("token-mean", batch * chances * inverse[tokens - 1], sums),
                ("prompt-mean", chances / tokens, sums),
                ("sequence-sum", chances / group, sums),
                ("sequence-mean", chances / group, scaled),
            ):
                value, size = np.tensordot(weights, terms, 1)
                yield drawn.check(
                    f"G={group} B={batch}: {how} of {name}",
                    aggregated_mean(moments, how, name, group, batch),
                    value,
                    rounding(size),
                )


ASKED: Asked = {"length_weights": (means,)}

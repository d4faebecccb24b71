"""Random problems for property tests and claims, by seed; every corner case is a kind."""

from __future__ import annotations

import numpy as np

from ..validation import integer, one_of
from .softmax_bandit import SoftmaxBandit

KINDS = (
    "plain",
    "binary",
    "assumption-2",
    "uniform-contexts",
    "linear",
    "shared-linear",
    "near-deterministic",
    "rarely-solved",
    "nearly-always-solved",
    "equal-rewards",
    "negative-rewards",
    "one-context",
    "two-arms",
)
"""The kinds that :func:`random_problem` can draw.

``assumption-2`` has a uniform policy: ‖s‖² is the same for every outcome, so that Assumption 2
holds for every reward. All other kinds are drawn from continuous laws and violate it, except
``equal-rewards``, which satisfies it, and two-armed problems, in which ‖s‖² may be equal too.
"""


def random_problem(
    seed: int, kind: str = "plain", *, contexts: int = 3, arms: int | None = None
) -> SoftmaxBandit:
    """A random problem of one kind; the same seed gives the same problem.

    Arguments:
        seed: a whole number, at least 0.
        kind: one of :data:`KINDS`.
        contexts: X (1 for the kind ``one-context``).
        arms: K; 2 for the kind ``two-arms`` (default for other kinds: 3 or 4).

    >>> random_problem(1, "two-arms").arms
    2
    """
    one_of("kind", kind, KINDS)
    rng = np.random.default_rng([integer("seed", seed, 0), KINDS.index(kind)])
    x = 1 if kind == "one-context" else integer("contexts", contexts)
    k = 2 if kind == "two-arms" else int(rng.integers(3, 5))
    k = k if arms is None else integer("arms", arms, 2)
    logits = rng.normal(0.0, 0.8, (x, k))
    context_probs = rng.dirichlet(np.full(x, 4.0))
    values = rng.uniform(0.0, 1.0, (x, k, 2))
    chance = rng.uniform(0.2, 0.8, (x, k, 1))
    if kind == "uniform-contexts":
        context_probs = np.full(x, 1 / x)
    elif kind == "assumption-2":
        logits = np.zeros((x, k))
    elif kind == "near-deterministic":
        logits[:, 0] += 12.0
    elif kind in ("binary", "rarely-solved", "nearly-always-solved"):
        values = np.broadcast_to([1.0, 0.0], (x, k, 2)).copy()
        edge = rng.uniform(1e-3, 1e-2, (x, k, 1))
        if kind == "rarely-solved":
            chance = edge
        elif kind == "nearly-always-solved":
            chance = 1 - edge
    elif kind == "equal-rewards":
        values = np.full((x, k, 2), rng.uniform(0.2, 0.8))
    elif kind == "negative-rewards":
        values = rng.uniform(-2.0, 0.5, (x, k, 2))
    law = np.concatenate([chance, 1 - chance], axis=-1)
    if kind == "linear":
        d = int(rng.integers(2, 6))
        features = rng.normal(size=(x, k, d))
        return SoftmaxBandit.linear(context_probs, features, rng.normal(0.0, 0.7, d), values, law)
    if kind == "shared-linear":
        m = int(rng.integers(2, 4))
        return SoftmaxBandit.shared_linear(
            context_probs, rng.normal(size=(x, m)), rng.normal(0.0, 0.7, (k, m)), values, law
        )
    return SoftmaxBandit.tabular(context_probs, logits, values, law)

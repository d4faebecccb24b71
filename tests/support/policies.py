"""Policies of every form, each with scores found in another way."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from tests.support.networks import backward_loop
from ustat_pg.policies import (
    ArmLinearSoftmax,
    OutputSpace,
    PrefixSoftmax,
    SharedLinearSoftmax,
    TabularSoftmax,
    TabulatedPolicy,
)
from ustat_pg.problems import bracket_matching

X, K, M = 3, 4, 2
GENERATOR = np.random.default_rng(11)
TABLE = GENERATOR.normal(size=(X, K))
ARM_FEATURES = GENERATOR.normal(size=(X, K, 5))
ARM_THETA = GENERATOR.normal(size=5)
OFFSET = np.random.default_rng(12).normal(size=(X, K))
BENDS = np.random.default_rng(13).normal(size=(X, K, 5))
CONTEXT_FEATURES = GENERATOR.normal(size=(X, M))
WEIGHTS = GENERATOR.normal(size=(K, M))

LINEAR = {
    "tabular": TabularSoftmax(TABLE),
    "linear": ArmLinearSoftmax(ARM_FEATURES, ARM_THETA),
    "offset": ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, OFFSET),
    "bent": ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, OFFSET, BENDS),
    "bent-plain": ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, bends=BENDS),
    "shared": SharedLinearSoftmax(CONTEXT_FEATURES, WEIGHTS),
    "one-arm": TabularSoftmax(TABLE[:, :1]),
    "one-context": SharedLinearSoftmax(CONTEXT_FEATURES[:1], WEIGHTS),
    "sharp": TabularSoftmax(TABLE * 30),
}

SPACES = {
    "fixed": OutputSpace(3, 3),
    "ended": OutputSpace(2, 3, end=True),
    "one-token": OutputSpace(4, 1),
    "one-or-none": OutputSpace(3, 1, end=True),
    "one-symbol": OutputSpace(1, 3, end=True),
    "one-output": OutputSpace(1, 2),
}
PREFIX = {
    f"{name}-{'shared' if shared else 'apart'}": PrefixSoftmax.random(
        space, 3, seed=4, shared=shared
    )
    for name, space in SPACES.items()
    for shared in (False, True)
}


def prefixes(space):
    """In the order of the table: by length, then by digits."""
    return [
        way
        for t in range(space.length)
        for way in itertools.product(range(space.vocabulary), repeat=t)
    ]


def brute(policy, context):
    """Log-probabilities and dense scores of the outputs, token by token."""
    space = policy.space
    number = {way: n for n, way in enumerate(prefixes(space))}
    table = policy.tables[context if policy.contexts is None else 0]
    logs, scores = [], []
    for row in space.outputs.tolist():
        tokens_ = [t for t in row if t >= 0]
        score, log = np.zeros(policy.tables.shape), 0.0
        for t, token in enumerate(tokens_):
            n = number[tuple(tokens_[:t])]
            chance = np.exp(table[n]) / np.exp(table[n]).sum()
            log += np.log(chance[token])
            block = score[context if policy.contexts is None else 0, n]
            block -= chance
            block[token] += 1
        logs.append(log)
        scores.append(score.ravel())
    return np.array(logs), np.array(scores)


ENDED = bracket_matching(1, 3, end=True)
"""Prompts of 0 to 3 tokens, outputs of 1 to 3, end token included."""


def transformer(**options):
    """A small transformer on these prompts."""
    from ustat_pg.policies.transformer import TransformerPolicy

    options = {"width": 4, "heads": 2, "seed": 3} | options
    return TransformerPolicy.initial(ENDED.space, ENDED.prompts, **options)


def _on(space, prompts, **options):
    from ustat_pg.policies.transformer import TransformerPolicy

    return TransformerPolicy.initial(space, prompts, width=4, **options)


_TRANSFORMERS = {
    "ended": transformer,
    "deep": lambda: transformer(layers=2, heads=1),
    "even": lambda: _on(OutputSpace(3, 2), [(1,), (2,)], layers=2, seed=2),
    "one-token": lambda: _on(OutputSpace(3, 1), [(0,), (4, 1)], seed=1),
    "fixed": lambda: _on(OutputSpace(2, 3), [()], seed=2),
}


def written_out(policy, context):
    """Log-probabilities and scores of logits φ·θ - ½ β·θ² + an offset, features written out."""
    contexts, arms = policy.probs.shape
    if isinstance(policy, TabularSoftmax):
        features = np.eye(contexts * arms).reshape(contexts, arms, -1)[context]
    elif isinstance(policy, SharedLinearSoftmax):
        features = np.kron(np.eye(arms), policy.features[context])
    else:
        features = policy.features[context]
    bends, offset = getattr(policy, "bends", None), getattr(policy, "offset", None)
    bends = np.zeros_like(features) if bends is None else bends[context]
    logits = features @ policy.theta - bends @ policy.theta**2 / 2
    logits += 0.0 if offset is None else offset[context]
    logs, tangent = logits - np.log(np.exp(logits).sum()), features - bends * policy.theta
    return logs, tangent - np.exp(logs) @ tangent


def own(policy, context):
    """Log-probabilities and scores as the policy says, to be tested by differences."""
    logits = policy.logits[context]
    return logits - np.log(np.exp(logits).sum()), policy.scores(context)


def _tables():
    """The tables of a linear policy in its own parameters, and in as few."""
    policy = LINEAR["offset"]
    logs, scores = np.log(policy.probs), np.stack([policy.scores(x) for x in range(X)])
    return {
        "tables": TabulatedPolicy(logs, scores, policy.theta, policy),
        "tables-reduced": TabulatedPolicy(logs, scores).reduced(),
    }


@dataclass(frozen=True)
class Form:
    """How to make a policy of a form, and what its tests may allow.

    Arguments:
        make: makes the policy.
        oracle: log-probabilities and scores at a context, (K,) and (K, d), in another way.
        rounding: of products, absolute.
        slope: of differences of log-probabilities, absolute; 0 for none.
        stride: differences are taken in one parameter out of so many.
    """

    make: Callable[[], Any]
    oracle: Callable[[Any, int], tuple[Any, Any]]
    rounding: float = 1e-13
    slope: float = 0.0
    stride: int = 1


FORMS = {
    **{name: Form(lambda p=p: p, written_out, slope=1e-7) for name, p in LINEAR.items()},
    **{f"prefix-{name}": Form(lambda p=p: p, brute, slope=1e-8) for name, p in PREFIX.items()},
    **{name: Form(lambda p=p: p, own) for name, p in _tables().items()},
    "tables": Form(lambda: _tables()["tables"], lambda policy, x: own(LINEAR["offset"], x)),
}
if find_spec("torch") is not None:
    FORMS |= {
        f"transformer-{name}": Form(
            make, backward_loop, 1e-11, slope=1e-8 if name == "ended" else 0.0, stride=7
        )
        for name, make in _TRANSFORMERS.items()
    }


@cache
def policy_of(name: str) -> Any:
    """The policy of that name, made once."""
    return FORMS[name].make()


@cache
def dense(name: str) -> tuple[Any, Any]:
    """Its log-probabilities (X, K) and scores (X, K, d), found in another way."""
    policy = policy_of(name)
    pairs = [FORMS[name].oracle(policy, x) for x in range(len(policy.probs))]
    return tuple(np.stack(part) for part in zip(*pairs, strict=True))

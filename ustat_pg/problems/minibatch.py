"""A minibatch of a problem: one draw of prompts and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..display.shown import Shown
from ..registry import record_of
from ..validation import Array, InputError, finite_array, integer, number, record

_GIVEN = {
    "constant": "write constant=0.5",
    "predicted_value": "write critic=[...], a value for each context",
    "earlier": "call ustat_pg.estimators.advantages with earlier rewards",
    "best_table": "write estimator=best_table(problem, group_size).estimator, of ustat_pg.predictions",
}
"""How to give estimators the values that problems do not have."""


@record()
class Minibatch(Shown):
    """A minibatch of B prompts with G outputs each, and an estimator's advantages for them.

    Arguments:
        contexts: x, (B,).
        actions: the arm of each output, (B, G).
        rewards: z, (B, G).
        scores: s = ∇_θ log π(action | x), (B, G, d).
        advantages: A, (B, G).
    """

    contexts: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: Array
    scores: Array
    advantages: Array

    @property
    def gradient(self) -> Array:
        """ĝ = (1/BG) Σ_b Σᵢ s_{b,i} A_{b,i}, (d,)."""
        return np.einsum("bgd,bg->d", self.scores, self.advantages) / self.rewards.size


def draw(
    problem: Any,
    rng: np.random.Generator,
    group_size: int,
    batch_size: int,
    estimator: str | Callable[[Array], ArrayLike],
    constant: float | None,
    critic: ArrayLike | None,
) -> Minibatch:
    """The minibatch of :meth:`~ustat_pg.problems.SoftmaxBandit.sample`."""
    if not isinstance(rng, np.random.Generator):
        raise InputError(f"rng is {rng!r}: it must be a NumPy Generator, np.random.default_rng(0)")
    size, batch = integer("group size", group_size), integer("batch size", batch_size)
    contexts = rng.choice(problem.contexts, size=batch, p=problem.context_probs)
    drawn = np.stack([rng.choice(len(p), size=size, p=p) for p in problem.outcomes.probs[contexts]])
    rows = contexts[:, None]
    actions, rewards = problem.outcomes.arms[rows, drawn], problem.outcomes.rewards[rows, drawn]
    if callable(estimator):
        advantages = finite_array("advantages", estimator(rewards))
        if advantages.shape != rewards.shape:
            raise InputError(
                f"advantages have shape {advantages.shape} for rewards {rewards.shape}: they must be equal"
            )
    else:
        advantages = _advantages(problem, estimator, contexts, actions, rewards, constant, critic)
    scores = {x: problem.policy.scores(x) for x in np.unique(contexts).tolist()}
    return Minibatch(
        contexts,
        actions,
        rewards,
        np.stack([scores[x][arms] for x, arms in zip(contexts.tolist(), actions, strict=True)]),
        advantages,
    )


def _advantages(
    problem: Any,
    name: str,
    contexts: NDArray[np.int64],
    actions: NDArray[np.int64],
    rewards: Array,
    constant: float | None,
    critic: ArrayLike | None,
) -> Array:
    """Advantages of a named estimator, (B, G), with the values that it needs in addition to rewards."""
    from ..estimators import advantages

    probs, norms = problem.policy.probs, problem.policy.squared_norms
    # Moments cannot be used, because a problem with weighted scores has none.
    known: dict[str, Any] = {
        "value": expected_reward(probs, problem.mean_rewards)[contexts],
        "optimal_baseline": optimal_baseline(probs, problem.mean_rewards, norms)[contexts],
        "squared_norms": norms[contexts[:, None], actions],
    }
    if constant is not None:
        known["constant"] = number("constant", constant)
    if critic is not None:
        values = finite_array("critic", critic, 1)
        if len(values) != problem.contexts:
            raise InputError(
                f"critic has {len(values)} values: one per context ({problem.contexts}) is needed"
            )
        known["predicted_value"] = values[contexts]
    needs = record_of(name).needs
    missing = [need for need in needs if need not in known]
    if missing:
        raise InputError(f"{name} needs its {missing[0]}: {_GIVEN[missing[0]]}")
    for argument, need in (("constant", "constant"), ("critic", "predicted_value")):
        if need in known and need not in needs:
            raise InputError(f"{argument} is given, which {name} does not take")
    return np.asarray(advantages(name, rewards, **{need: known[need] for need in needs}))


def _total(array: Any) -> Any:
    return array.sum(-1)


def expected_reward(probs: Any, rewards: Any, total: Callable[[Any], Any] = _total) -> Any:
    """V = E z for outcomes on the last axis, in NumPy or torch."""
    return total(probs * rewards)


def optimal_baseline(
    probs: Any, rewards: Any, squared_norms: Any, total: Callable[[Any], Any] = _total
) -> Any:
    """b* = E[‖s‖² z] / E‖s‖² for outcomes on the last axis; V if all scores are 0."""
    value = expected_reward(probs, rewards, total)
    weights = probs * squared_norms
    weight = total(weights)
    # V is subtracted first, so that an offset of the rewards costs no digits.
    return value + total(weights * (rewards - value[..., None])) / (weight + (weight == 0))

"""Conversion of functions with the signature of verl's and SkyRL's registers to advantage functions of
groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rounding import SINGLE_GIVEN
from ..validation import Array, InputError, integer
from .function import Violation, show


def registered(function: Callable[..., Any], *, tokens: int = 3) -> Callable[[Array], Array]:
    """An estimator from verl's or SkyRL's register as a function of groups, for the assertions of this
    module.

    The function is called with the keywords ``token_level_rewards`` (n·G, T) with the reward on an output's
    last token, ``response_mask`` (n·G, T) with outputs of 1 to T tokens by their places in the group, and
    ``index`` (n·G,) with the groups' names. It returns the advantages (n·G, T), alone or first in a tuple.
    Bind other arguments with ``functools.partial``. The inputs have double precision; if the function
    computes in single precision, use ``rtol=1e-5``.

    Arguments:
        function: the registered function, of torch tensors.
        tokens: T, the largest number of tokens of an output.

    Returns:
        a function of rewards (n, G) to advantages (n, G), for the layout ``"batched"``.

    Raises:
        InputError: it cannot be called.
        AssertionError: in a call, if the result has another shape, the tokens of an output have different
            advantages, or advantages depend on the outputs' lengths, for example by division.

    >>> import torch
    >>> def group_mean(token_level_rewards, response_mask, index):
    ...     scores = token_level_rewards.sum(-1)
    ...     means = torch.stack([scores[torch.as_tensor(index == i)].mean() for i in index])
    ...     advantages = (scores - means)[:, None] * response_mask
    ...     return advantages, advantages
    >>> registered(group_mean)(np.array([[1.0, 0.0]]))
    array([[ 0.5, -0.5]])
    """
    if not callable(function):
        raise InputError(f"function is {function!r}: it must be callable")
    most = integer("tokens", tokens)
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", type(inner).__name__)

    def answer(rewards: Array, lengths: NDArray[np.int64]) -> Array:
        import torch

        count, size = rewards.shape
        lengths = np.tile(lengths, count)
        mask = np.arange(most) < lengths[:, None]
        last = np.arange(most) == lengths[:, None] - 1
        outcome = function(
            token_level_rewards=torch.tensor(rewards.reshape(-1, 1) * last),
            response_mask=torch.tensor(mask, dtype=torch.float64),
            index=np.repeat([f"prompt {number}" for number in range(count)], size).astype(object),
        )
        outcome = outcome[0] if isinstance(outcome, tuple) else outcome
        if tuple(getattr(outcome, "shape", ())) != mask.shape:
            raise Violation(
                f"{name} returned shape {tuple(getattr(outcome, 'shape', ()))} for rewards of shape "
                f"{mask.shape}: they must be equal"
            )
        values = outcome.detach().cpu().double().numpy()
        of_output = values[:, :1]
        off = np.abs(np.where(mask, values - of_output, 0.0)).max(axis=1)
        if (off > SINGLE_GIVEN * np.abs(values).max(initial=1e-300)).any():
            row = int(off.argmax())
            raise Violation(
                f"{name} gives the tokens of one output different advantages, "
                f"{show(values[row, mask[row]])}: only one number per output can be checked"
            )
        return np.asarray(of_output.reshape(count, size))

    def advantages(rewards: Array) -> Array:
        lengths = 1 + np.arange(rewards.shape[1]) % most

        def even_of(rewards: Array) -> Array:
            return answer(rewards, np.full_like(lengths, most))

        values, even = answer(rewards, lengths), even_of(rewards)
        if not _same(values, even):
            row = int(np.abs(values - even).max(axis=1).argmax())
            raise Violation(
                f"{name} {_by_length(even_of, rewards, lengths / most, values, even)}: of rewards "
                f"{show(rewards[row])} in {lengths.tolist()} tokens the advantages are "
                f"{show(values[row])}, in {most} tokens each {show(even[row])}; only a function of the "
                "rewards can be checked, and tokens=1 leaves lengths out"
            )
        return values

    advantages.__name__ = name
    return advantages


def _same(one: Array, two: Array) -> bool:
    """Whether values are equal up to rounding in single precision."""
    return bool(np.abs(one - two).max() <= SINGLE_GIVEN * max(np.abs(two).max(), 1e-300))


def _by_length(
    even_of: Callable[[Array], Array],
    rewards: Array,
    shares: Array,
    values: Array,
    even: Array,
) -> str:
    """A text on the effect of lengths; ``even`` are the advantages if outputs are 1/shares times as long."""
    if _same(values, even / shares):
        return "divides an output's advantage by its length"
    if _same(values, even * shares):
        return "multiplies an output's advantage by its length"
    if _same(values, even_of(rewards / shares)):
        return "divides an output's reward by its length"
    return "depends on the lengths of outputs"

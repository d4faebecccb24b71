"""A memory of earlier rewards of each prompt, for training loops."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import device

from ..validation import InputError, integer, number
from .arrays import Array, rewards_of, sum_of_others


class PromptMemory:
    """A baseline from the other rewards and from the last rewards of the same prompt (reward_memory).

    An output of a prompt with n remembered rewards z₁, ..., zₙ has

        Aᵢ = zᵢ - (Σ_{j≠i} zⱼ + Σₘ wₘ zₘ)/(G-1 + Σₘ wₘ),   wₘ = keep^age,

    where the age is the number of later visits of the prompt. With keep = 1 it is
    :func:`ustat_pg.estimators.memory`. If there are neither others nor earlier rewards, in a group of one of
    a new prompt, the baseline is the mean of all earlier rewards of other prompts, at first 0.

    It is unbiased, because it never contains the group that it is used on: call :meth:`advantages` once for
    each batch.

    Arguments:
        memory: n >= 1, the most rewards that are remembered of a prompt.
        keep: share of a reward's weight that remains after each later visit, in (0, 1]; below 1 the memory
            forgets, for a changing policy.

    >>> import numpy as np
    >>> memory = PromptMemory(4)
    >>> memory.advantages(["2+2=", "3+5="], np.array([[1.0], [0.0]]))
    array([[1.],
           [0.]])
    >>> memory.advantages(["2+2=", "7-1="], np.array([[0.0], [1.0]]))
    array([[-1. ],
           [ 0.5]])
    """

    def __init__(self, memory: int, *, keep: float = 1.0) -> None:
        self._most = integer("memory", memory)
        self._keep = number("keep", keep, above=0.0, maximum=1.0)
        # Rewards and their weights, by prompt; sum and number of all rewards.
        self._prompts: dict[Hashable, tuple[list[float], list[float]]] = {}
        self._all = [0.0, 0.0]

    def __len__(self) -> int:
        """The number of remembered prompts."""
        return len(self._prompts)

    def advantages(self, prompts: Sequence[Hashable], rewards: Array) -> Array:
        """The advantages by the current memory, which then remembers these groups.

        Arguments:
            prompts: a text or number for each prompt, B of them.
            rewards: (B, G), G >= 1.
        """
        xp, values = rewards_of(rewards, "vanilla")
        keys = self._keys(prompts, values)
        known = [self._prompts.get(key, ([], [])) for key in keys]
        total = [sum(w * z for z, w in zip(*each, strict=True)) for each in known]
        weight = [sum(each[1]) for each in known]
        size = values.shape[-1]
        if size == 1:
            mean = self._all[0] / self._all[1] if self._all[1] else 0.0
            total = [t if w else mean for t, w in zip(total, weight, strict=True)]
            weight = [w or 1.0 for w in weight]
        # Half precision would lose small weights.
        wide = xp.result_type(values.dtype, xp.float32)
        sums, weights = (
            xp.asarray([[one] for one in part], dtype=wide, device=device(values))
            for part in (total, weight)
        )
        inside = sum_of_others(xp, xp.astype(values, wide)) + sums
        baseline = inside / (size - 1 + weights)
        self._remember(keys, values)
        return values - xp.astype(baseline, values.dtype)

    def update(self, prompts: Sequence[Hashable], rewards: Array) -> None:
        """Remember groups that need no advantages; arguments and errors are those of :meth:`advantages`."""
        _, values = rewards_of(rewards, "vanilla")
        self._remember(self._keys(prompts, values), values)

    def state_dict(self) -> dict[str, Any]:
        """The memory as plain data, for a checkpoint: JSON keeps it without loss, if prompts are texts or
        whole numbers.
        """
        return {
            "memory": self._most,
            "keep": self._keep,
            "prompts": [[key, list(z), list(w)] for key, (z, w) in self._prompts.items()],
            "all": list(self._all),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`: an interrupted run then equals an uninterrupted one.

        Raises:
            InputError: the state is of a memory with other settings, or is none.
        """
        mine = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(mine):
            has = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise InputError(f"the state has {has}: a memory's has {sorted(mine)}")
        for name in ("memory", "keep"):
            if state[name] != mine[name]:
                raise InputError(
                    f"the state has {name} = {state[name]}: this memory has {mine[name]}"
                )
        try:
            total, count = map(float, state["all"])
            known = {key: ([*map(float, z)], [*map(float, w)]) for key, z, w in state["prompts"]}
            sound = all(len(z) == len(w) for z, w in known.values())
            parts = [total, count, *(part for z, w in known.values() for part in (*z, *w))]
        except (TypeError, ValueError) as error:
            raise InputError(f"the state is not one of a memory: {error}") from None
        if not sound or not np.isfinite(parts).all():
            raise InputError(
                "the state is not one of a memory: each prompt must have as many weights as rewards, and all "
                "must be finite"
            )
        self._prompts, self._all = known, [total, count]

    @staticmethod
    def _keys(prompts: Sequence[Hashable], values: Array) -> list[Hashable]:
        # Numbers of an array or a tensor are not equal as keys, or JSON does not know them.
        given: list[Any] = [*prompts]
        keys = [key.item() if getattr(key, "ndim", None) == 0 else key for key in given]
        if isinstance(prompts, str) or values.ndim != 2 or not 0 < len(keys) == values.shape[0]:
            raise InputError(
                f"rewards have shape {tuple(values.shape)}: they must be (B, G), with a prompt for each row"
            )
        try:
            set(keys)
        except TypeError as error:
            raise InputError(
                f"a prompt must be a text or a number, so write messages as text: {error}"
            ) from None
        return keys

    def _remember(self, keys: Sequence[Hashable], values: Array) -> None:
        for place, key in enumerate(keys):
            group = [float(values[place, i]) for i in range(values.shape[1])]
            z, w = self._prompts.get(key, ([], []))
            z, w = [*z, *group], [*(self._keep * each for each in w), *(1.0 for _ in group)]
            self._prompts[key] = z[-self._most :], w[-self._most :]
            self._all = [self._all[0] + sum(group), self._all[1] + len(group)]

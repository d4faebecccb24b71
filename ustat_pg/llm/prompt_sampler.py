"""A sampler of prompts by any law, with the weights that keep the gradient unbiased (prompt_sampling).

::

    sampler = PromptSampler.by_rates(successes, 8, prompts=16, repeat=8)
    loader = DataLoader(dataset, batch_size=128, sampler=sampler)

Draw b of step t is a function of (seed, t, b), so all processes see the same prompts, and a resumed run goes
on where it was. A weight is that of the law at the time of the draw: a loader may draw ahead of the training.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import Sampler

from ..execution.memory import refused
from ..predictions import rate_law
from ..predictions.drawing_advice import SHARE
from ..predictions.prompt_sampling import PRIOR, counts, weights_of
from ..sampling import rng
from ..validation import Array, InputError, finite_array, integer, number, probabilities

_NAME = "prompts"


class PromptSampler(Sampler[int]):
    """Indices of prompts, drawn independently by a law, in the order of TRL's ``RepeatSampler``.

    Arguments:
        law: q(x), (X,).
        probs: ρ(x), the weights of prompts in the objective, (X,) (default: equal).
        prompts: number of draws of a step, between which the law does not change.
        repeat: times that a drawn index is given in a row: the group size, if a trainer counts outputs.
        reuse: times that the indices of a step are given, for trainers that take several steps with them.
        steps: number of steps of an epoch (default: as many as give each prompt once on average).
        seed: seed of the draws.

    Raises:
        InputError: the law does not fit ``probs``, or has 0 where they have not.

    >>> sampler = PromptSampler([0.9, 0.1], prompts=2, repeat=2, steps=2, seed=1)
    >>> list(sampler), len(sampler)
    ([0, 0, 1, 1, 0, 0, 0, 0], 8)
    >>> sampler.take(0), sampler.weights.round(3).tolist()
    (0.5555555555555556, [0.556, 5.0])
    """

    def __init__(
        self,
        law: ArrayLike,
        *,
        probs: ArrayLike | None = None,
        prompts: int = 1,
        repeat: int = 1,
        reuse: int = 1,
        steps: int | None = None,
        seed: int = 0,
    ) -> None:
        self.law = probabilities("law", law, 1)
        count = len(self.law)
        self.probs = (
            np.full(count, 1 / count) if probs is None else probabilities("probs", probs, 1)
        )
        if self.probs.shape != self.law.shape or ((self.law == 0) & (self.probs > 0)).any():
            raise InputError(
                "law must have a positive entry for each prompt with a weight in probs"
            )
        self.prompts, self.repeat = integer("prompts", prompts), integer("repeat", repeat)
        self.reuse = integer("reuse", reuse)
        default = max(count // self.prompts, 1)
        self.steps = default if steps is None else integer("steps", steps)
        self._key = rng.cell_key(integer("seed", seed, 0), _NAME)
        self._step = 0
        self._drawn: dict[int, deque[float]] = defaultdict(deque)
        self._seen: Array | None = None

    @classmethod
    def by_rates(
        cls,
        successes: ArrayLike,
        rollouts: ArrayLike,
        *,
        probs: ArrayLike | None = None,
        share: float = SHARE,
        prior: tuple[float, float] = PRIOR,
        memory: float = 1.0,
        **arguments: Any,
    ) -> PromptSampler:
        """The sampler by :func:`~ustat_pg.predictions.rate_law`, which :meth:`update` keeps up to date.

        Arguments:
            successes, rollouts, probs, share, prior: as for that function.
            memory: factor on a prompt's earlier counts at each update of it, for a policy that moves.
            arguments: the others of the class.
        """
        seen, tried = counts(successes, rollouts)
        known: dict[str, Any] = {"share": share, "prior": prior}
        law = rate_law(seen, tried, probs=probs, **known)
        sampler = cls(law, probs=probs, **arguments)
        sampler._memory = number("memory", memory, minimum=0.0, maximum=1.0)
        sampler._rates, sampler._seen = known, np.stack([seen, tried])
        return sampler

    _memory = 1.0
    _rates: Mapping[str, Any] = {}

    @property
    def updates(self) -> bool:
        """Whether rewards change the law."""
        return self._seen is not None

    @property
    def weights(self) -> Array:
        """ρ/q of the law in use, (X,); :meth:`take` has those at the time of a draw."""
        return weights_of(self.probs, self.law)

    def __len__(self) -> int:
        return self.steps * self.prompts * self.repeat * self.reuse

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.steps):
            chosen = self._draw()
            for _ in range(self.reuse):
                for index in chosen:
                    yield from [index] * self.repeat

    def _draw(self) -> list[int]:
        words = rng.words(self._key, self._step, rng.CONTEXT_SLOT, self.prompts)
        chosen = (rng.thresholds(self.law)[None] <= words.reshape(-1, 1)).sum(axis=1).tolist()
        self._step += 1
        if self._seen is not None:
            weights = self.weights
            for index in chosen:
                self._drawn[index].append(float(weights[index]))
        return [*map(int, chosen)]

    def take(self, index: int) -> float:
        """The weight of the earliest draw of a prompt whose weight is left; of a fixed law its weight.

        Raises:
            InputError: the law is updated, and the prompt has no such draw.
        """
        place = integer("index", index, 0, len(self.law) - 1)
        if self._seen is None:
            return float(self.weights[place])
        waiting = self._drawn[place]
        if not waiting:
            raise InputError(
                f"prompt {index} has no draw whose weight is left: take it once per draw"
            )
        return waiting.popleft()

    def update(self, indices: Sequence[int], rewards: ArrayLike) -> None:
        """Count the rewards of some prompts, 0 and 1, (B, G); later draws use the new law.

        Raises:
            InputError: the law is fixed, or rewards are not 0 or 1.
        """
        if self._seen is None:
            raise InputError("this law is fixed: make the sampler by PromptSampler.by_rates")
        values = finite_array("rewards", rewards, 2)
        if len(values) != len(indices):
            raise InputError(f"rewards have {len(values)} rows: they must have one per index")
        if not np.isin(values, (0.0, 1.0)).all():
            raise InputError("a law by pass rates needs rewards that are 0 or 1")
        places = [integer("index", index, 0, self._seen.shape[1] - 1) for index in indices]
        for place, row in zip(places, values, strict=True):
            self._seen[:, place] = self._memory * self._seen[:, place] + (row.sum(), row.size)
        self.law = rate_law(*self._seen, probs=self.probs, **self._rates)

    def state_dict(self) -> dict[str, Any]:
        """The place in the draws, the law and the counts, in plain types.

        Take it between steps: draws that a loader has made ahead are not made again.
        """
        return {
            "step": self._step,
            "law": self.law.tolist(),
            "seen": None if self._seen is None else self._seen.tolist(),
            "drawn": {index: [*waiting] for index, waiting in self._drawn.items() if waiting},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; a trainer must not skip its own batches too.

        Raises:
            InputError: the state is of a sampler with other prompts or of the other kind, or is none.
        """
        with refused("the state is not one of a PromptSampler"):
            step, seen, law = state["step"], state["seen"], state["law"]
            drawn = {int(i): deque(map(float, w)) for i, w in state["drawn"].items()}
        law = probabilities("law", law, 1)
        if law.shape != self.law.shape:
            raise InputError(f"the state has {len(law)} prompts: this sampler has {len(self.law)}")
        if (seen is None) == self.updates:
            kinds = ("a fixed law", "a law by rates")
            raise InputError(
                f"the state has {kinds[seen is not None]}: this sampler has {kinds[self.updates]}"
            )
        if seen is not None:
            seen = finite_array("seen", seen, 2, 0.0).copy()
            if seen.shape != (2, len(law)):
                raise InputError(
                    f"the state has counts of shape {seen.shape}: {(2, len(law))} is needed"
                )
        self._step = integer("step", step, 0)
        self.law, self._seen, self._drawn = law, seen, defaultdict(deque, drawn)

"""The latest steps of a training as sums, from which estimates and comparisons are computed."""

from __future__ import annotations

import hashlib
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..validation import Array, InputError
from .completions import Alternative, Blocks, alternatives, group_blocks
from .estimate import SUMS, NoiseEstimate, Sums, estimate_noise, step_sums
from .lags import Lagged, Trail


class _Held(NamedTuple):
    """A step that cannot separate signal from noise by itself, so it is measured with the next step."""

    rows: Array
    groups: list[Any]
    advantages: list[Any]
    weights: list[Any]
    pairs: Array


class Window:
    """The steps from which an estimate is computed.

    Arguments:
        size: the largest number of steps.
        optimizer: its memory weights pairs of neighbouring steps; None for no such pairs.
    """

    def __init__(self, size: int, optimizer: Any) -> None:
        self.trail = Trail(optimizer)
        self.taken = 0
        self.steps: deque[Array] = deque(maxlen=size)
        self._squares: deque[Array] = deque(maxlen=size)
        self._blocks: deque[Blocks] = deque(maxlen=size)
        self._lagged: deque[tuple[int, bool, Array]] = deque(maxlen=size)
        self._held: _Held | None = None
        self._unknown = "no step counts"

    @property
    def holds(self) -> bool:
        """Whether a step waits for the next."""
        return self._held is not None

    def drop_held(self) -> None:
        """Forget the step that waits for the next."""
        if self._held is not None:
            self.trail.drop(self.taken + 1)
        self._held = None

    def add(
        self,
        rows: Array,
        groups: list[NDArray[np.int64]],
        advantages: list[Any],
        weights: list[Any],
        draw: int,
        leave_one_out: bool = False,
    ) -> None:
        """Take up a step.

        Arguments:
            rows: n times the contribution of each micro-batch to the step, (k, numbers).
            groups: groups of each micro-batch's completions, each with its prompt, (m, 2).
            advantages: advantages of each micro-batch's completions; None if unknown.
            weights: importance weights in the same form.
            draw: the draw of the sketch.
            leave_one_out: whether the advantages are leave-one-out, up to a factor.
        """
        names = np.unique(np.concatenate(groups), axis=0)
        whole = len(groups) > 1 and len(np.unique(names[:, 1])) > 1
        if whole:
            self.drop_held()
        held, self._held = self._held, None
        size = float(sum(map(len, groups)))
        pairs = self.trail.take(self.taken + 1, draw, rows.sum(axis=0), size)
        step = _Held(rows, groups, advantages, weights, pairs)
        if not whole and held is None:
            self._held = step
            return
        parts = [step] if held is None else [held, step]
        self.taken += 1
        self.steps.append(_sums(parts, leave_one_out))
        self._squares.append(np.concatenate([np.square(part.rows).sum(axis=1) for part in parts]))
        self._lagged.append((self.taken, not whole, np.concatenate([p.pairs for p in parts])))
        if not whole:
            self._unknown = "a step holds one prompt or one micro-batch"
        elif len(np.unique(names[:, 1])) < len(names):
            self._unknown = "a prompt has several groups in a step"
        elif any(advantage is not None for advantage in advantages):
            try:
                self._blocks.append(
                    group_blocks(rows, [group[:, 0] for group in groups], advantages)
                )
            except InputError as error:
                self._unknown = str(error)

    def estimate(
        self, leave_one_out: bool, phi_over_tau: float | None, population: int | None = None
    ) -> NoiseEstimate:
        """Signal, noise and their ratios, as :class:`ustat_pg.noise.NoiseMeter` is configured."""
        return estimate_noise(
            np.array(self.steps),
            leave_one_out=leave_one_out,
            phi_over_tau=phi_over_tau,
            squares=np.concatenate([*self._squares, []]),
            lagged=Lagged(*zip(*self._lagged, strict=True)) if self._lagged else None,
            population=population,
        )

    def compare(
        self,
        estimators: Sequence[str],
        sizes: Sequence[int] | None,
        population: int | None = None,
    ) -> list[Alternative]:
        """The noise of other estimators and group sizes."""
        if len(self._blocks) < 2:
            raise InputError(
                f"{len(self._blocks)} steps show what other estimators do, and 2 are needed: {self._unknown}"
            )
        return alternatives(self._blocks, estimators, sizes, population)

    def state_dict(self) -> dict[str, Any]:
        """The window, in numbers that JSON can store."""
        return {
            "taken": self.taken,
            "steps": [row.tolist() for row in self.steps],
            "squares": [row.tolist() for row in self._squares],
            "lagged": [[*known, pairs.tolist()] for *known, pairs in self._lagged],
            "blocks": [[part.tolist() for part in vars(row).values()] for row in self._blocks],
            "trail": self.trail.state_dict(),
            "held": self._held and _listed(self._held),
            "unknown": self._unknown,
        }

    def load_state_dict(self, state: dict[str, Any], gradients: bool = True) -> None:
        """Continue from the result of :meth:`state_dict`, with or without the gradients in it."""
        if any(len(row) != SUMS for row in state["steps"]):
            raise InputError(
                f"the window is of another release: it has {len(state['steps'][0])} sums of each step, and "
                f"{SUMS} are needed; start with an empty one"
            )
        self.taken, self._unknown = int(state["taken"]), state["unknown"]
        for kept, name in ((self.steps, "steps"), (self._squares, "squares")):
            kept.clear()
            kept.extend(np.array(row, dtype=float) for row in state[name])
        self._lagged.clear()
        self._lagged.extend(
            (unit, joined, np.array(pairs, dtype=float).reshape(-1, 5))
            for unit, joined, pairs in state["lagged"]
        )
        self._blocks.clear()
        self._blocks.extend(Blocks(*map(np.array, row)) for row in state["blocks"])
        trail = state["trail"]
        self.trail.load_state_dict(trail if gradients else trail | {"kept": []})
        self._held = None
        if gradients and (held := state["held"]):
            rows, *given, pairs = held
            groups, advantages, weights = (
                [None if each is None else np.array(each) for each in part] for part in given
            )
            lagged = np.array(pairs, dtype=float).reshape(-1, 5)
            self._held = _Held(np.array(rows), groups, advantages, weights, lagged)


def _listed(held: _Held) -> list[Any]:
    given = [
        [each if each is None else each.tolist() for each in part]
        for part in (held.groups, held.advantages, held.weights)
    ]
    return [held.rows.tolist(), *given, held.pairs.tolist()]


def _sums(parts: list[_Held], leave_one_out: bool) -> Array:
    """The sums of a step. Two steps taken as one have products of all pairs, and means of the other sums."""

    def of(several: list[_Held]) -> Array:
        rows = np.concatenate([part.rows for part in several])
        groups = [group for part in several for group in part.groups]
        advantages = [each for part in several for each in part.advantages]
        weights = [each for part in several for each in part.weights]
        return step_sums(rows @ rows.T, groups, advantages, weights, leave_one_out=leave_one_out)

    together = of(parts)
    if len(parts) == 1:
        return together
    five, rest = np.split(together, [5])
    alone = Sums.of(np.mean([of([part]) for part in parts], axis=0))
    both = Sums.of(np.append(five, rest / len(parts)))
    return np.hstack(
        both._replace(completions_squared=alone.completions_squared, whole=alone.whole)
    )


def numbered(prompts: Any, what: str = "prompts") -> NDArray[np.int64]:
    """The prompts as numbers that are the same in every process."""
    if hasattr(prompts, "detach"):
        prompts = prompts.detach().cpu().numpy()
    try:
        if isinstance(prompts, (str, bytes)) or not len(prompts):
            raise TypeError
        # A text counts by its characters, whatever its type; any other prompt must be a whole number.
        names = [
            prompt if isinstance(prompt, str) else operator.index(prompt) for prompt in prompts
        ]
    except TypeError:
        raise InputError(
            f"{what} are {prompts!r}: give one number or text for each completion of the micro-batch"
        ) from None
    digests = [hashlib.blake2b(f"{name}".encode(), digest_size=7).digest() for name in names]
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.int64)

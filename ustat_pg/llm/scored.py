"""A pool of rollouts once it is scored: rewards and Gram matrices, nothing of the model's size.

A score is s = ∇ log π(y | x), summed over the tokens of a completion. Of N completions of a prompt
only K_ij = ⟨s_i, s_j⟩ is kept, N² numbers however large the model is, and of the gradients of
different prompts only the inner products of sums over folds of prompts. Every moment of
:mod:`ustat_pg.llm.estimates` is made of these.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError, finite_array, frozen, integer

__all__ = ["LEAST_ROLLOUTS", "ScoredPool", "leave_one_out", "prompt_gradient_weights"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

LEAST_ROLLOUTS = 4
"""Rollouts a prompt must have: an error takes a jackknife of statistics of order three."""

_ASYMMETRY = 1e-6
"""How far a Gram matrix may be from symmetric, against its largest diagonal entry."""
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class ScoredPool:
    """N rollouts for each of P prompts, with rewards and inner products of scores.

    Arguments:
        prompts: the prompts' names, P different ones.
        rewards: z, (P, N) with N >= 4.
        gram: K_ij = ⟨s_i, s_j⟩ within each prompt, (P, N, N).
        lengths: sampled tokens of each completion, (P, N).
        token_proxy: Σ_t (1 - 2π_t + Σ_v π_v²) over the tokens of each completion, (P, N): verl's
            stand-in for ‖s‖².
        folds: the fold of each prompt, (P,), whole numbers from 0 with none left out.
        fold_gram: inner products of the folds' sums of prompt gradients, (F, F), the gradient of a
            prompt being (1/N) Σ_i (z_i - mean of the others) s_i; None where it is not known, and
            then nothing that compares prompts can be estimated.
        config: what made the pool: model, task, seed, versions; of JSON's types.

    Raises:
        InputError: shapes that do not match, entries that are not finite, fewer than 4 rollouts, a
            Gram matrix that is not symmetric or has a negative diagonal, names that repeat, folds
            that leave one out.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 1.0]], np.ones((1, 4, 2)))
    >>> pool.size, pool.rollouts, pool.gram[0, 0].tolist()
    (1, 4, [2.0, 2.0, 2.0, 2.0])
    """

    prompts: tuple[str, ...]
    rewards: Array
    gram: Array
    lengths: Array
    token_proxy: Array
    folds: Integers
    fold_gram: Array | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = tuple(self.prompts)
        if not names or not all(isinstance(name, str) for name in names):
            raise InputError(f"prompts are {names!r:.80}: they must be names, at least one")
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise InputError(f"prompt {twice!r} occurs twice: prompts must have different names")
        rewards = finite_array("rewards", self.rewards, 2)
        count, rollouts = rewards.shape
        if rollouts < LEAST_ROLLOUTS:
            raise InputError(
                f"there are {rollouts} rollouts per prompt: at least {LEAST_ROLLOUTS} are needed"
            )
        if len(names) != count:
            raise InputError(f"there are {len(names)} prompts and rewards of {count}")
        lengths = _of_shape("lengths", self.lengths, rewards.shape, "prompts, rollouts")
        proxy = _of_shape("token_proxy", self.token_proxy, rewards.shape, "prompts, rollouts")
        for name, array in (("lengths", lengths), ("token_proxy", proxy)):
            _refuse_negative(name, array, names)
        gram = _of_shape(
            "gram", self.gram, (count, rollouts, rollouts), "prompts, rollouts, rollouts"
        )
        object.__setattr__(self, "prompts", names)
        object.__setattr__(self, "rewards", rewards)
        object.__setattr__(self, "gram", frozen(_symmetric(gram, names)))
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "token_proxy", frozen(np.maximum(proxy, 0.0)))
        self._set_folds(count)
        try:
            config = json.loads(json.dumps(dict(self.config), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(f"config cannot be written as JSON: {error}") from None
        object.__setattr__(self, "config", config)

    def _set_folds(self, count: int) -> None:
        folds = np.asarray(self.folds)
        if folds.shape != (count,) or folds.dtype.kind not in "iu":
            raise InputError(
                f"folds have shape {folds.shape} and type {folds.dtype}: they must be whole "
                f"numbers, one for each of {count} prompts"
            )
        used = np.unique(folds)
        if used[0] != 0 or used[-1] != len(used) - 1:
            raise InputError(f"folds are {used.tolist()}: they must be 0, 1, 2, ... with no gap")
        object.__setattr__(self, "folds", folds.astype(np.int64))
        self.folds.setflags(write=False)
        if self.fold_gram is None:
            return
        between = _of_shape("fold_gram", self.fold_gram, (len(used), len(used)), "folds, folds")
        labels = ["all folds"]
        object.__setattr__(self, "fold_gram", frozen(_symmetric(between[None], labels)[0]))

    @classmethod
    def from_scores(
        cls,
        rewards: ArrayLike,
        scores: ArrayLike,
        *,
        prompts: Sequence[str] | None = None,
        lengths: ArrayLike | None = None,
        token_proxy: ArrayLike | None = None,
        folds: ArrayLike | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> ScoredPool:
        """The pool of scores that fit in memory.

        Arguments:
            rewards: (P, N).
            scores: s, (P, N, d).
            prompts: names; None for 0, 1, 2, ...
            lengths, token_proxy: (P, N); None for ones, and for squared norms.
            folds: (P,); None for a fold for each prompt.

        Raises:
            InputError: as for the class.
        """
        z, s = finite_array("rewards", rewards, 2), finite_array("scores", scores, 3)
        if s.shape[:2] != z.shape:
            raise InputError(f"scores have shape {s.shape}: they must begin with {z.shape}")
        if z.shape[1] < LEAST_ROLLOUTS:
            raise InputError(
                f"there are {z.shape[1]} rollouts per prompt: at least {LEAST_ROLLOUTS} are needed"
            )
        count = len(z)
        labels = np.arange(count) if folds is None else np.asarray(folds)
        if labels.shape != (count,) or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise InputError(
                f"folds have shape {labels.shape}: one whole number a prompt is needed"
            )
        gradients = np.einsum("pn,pnd->pd", prompt_gradient_weights(z), s)
        sums = np.zeros((int(labels.max()) + 1, s.shape[2]))
        np.add.at(sums, labels, gradients)
        gram = s @ s.swapaxes(1, 2)
        return cls(
            prompts=tuple(map(str, range(count))) if prompts is None else tuple(prompts),
            rewards=z,
            gram=gram,
            lengths=np.ones_like(z) if lengths is None else np.asarray(lengths),
            token_proxy=np.einsum("pii->pi", gram)
            if token_proxy is None
            else np.asarray(token_proxy),
            folds=labels,
            fold_gram=sums @ sums.T,
            config=config or {},
        )

    @property
    def size(self) -> int:
        """P, the number of prompts."""
        return len(self.prompts)

    @property
    def rollouts(self) -> int:
        """N, the rollouts of each prompt."""
        return int(self.rewards.shape[1])

    @property
    def squared_norms(self) -> Array:
        """‖s‖² of each rollout, (P, N)."""
        return np.einsum("pii->pi", self.gram)

    @property
    def fold_sizes(self) -> Integers:
        """Prompts in each fold, (F,)."""
        return np.bincount(self.folds)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one .npz file without pickles; it is there whole or not at all."""
        target = Path(path)
        if target.suffix != ".npz":
            raise InputError(f"the file {target.name!r} must end in .npz")
        target.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {
            "format": np.int64(_FORMAT),
            "prompts": np.array(json.dumps(self.prompts)),
            "config": np.array(json.dumps(self.config)),
            "rewards": self.rewards,
            "gram": self.gram,
            "lengths": self.lengths,
            "token_proxy": self.token_proxy,
            "folds": self.folds,
        }
        if self.fold_gram is not None:
            arrays["fold_gram"] = self.fold_gram
        temporary = target.with_name(f".{target.name}.{uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoredPool:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: no such file, not a scored pool, or one of a later format.
        """
        source = Path(path)
        try:
            # Opened here, since NumPy leaves files open that it cannot read.
            with source.open("rb") as file:
                found = np.load(file, allow_pickle=False)
                if not isinstance(found, np.lib.npyio.NpzFile):
                    raise ValueError("one array only")
                with found:
                    arrays = {name: found[name] for name in found.files}
        except FileNotFoundError:
            raise InputError(f"there is no scored pool at {source}") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{source} is not a scored pool (.npz): {error}") from None
        number = arrays.pop("format", None)
        if number is None or number.shape != () or int(number) != _FORMAT:
            raise InputError(
                f"{source} is not a scored pool of format {_FORMAT}: it says {number!r:.40}"
            )
        required = {"prompts", "config", "rewards", "gram", "lengths", "token_proxy", "folds"}
        missing, unknown = required - set(arrays), set(arrays) - required - {"fold_gram"}
        if missing or unknown:
            raise InputError(
                f"{source} is not a scored pool: missing {sorted(missing)}, "
                f"unknown {sorted(unknown)}"
            )
        try:
            names = tuple(json.loads(str(arrays.pop("prompts"))))
            config = json.loads(str(arrays.pop("config")))
        except (ValueError, TypeError) as error:
            raise InputError(f"{source} is not a scored pool: {error}") from None
        return cls(prompts=names, config=config, **arrays)

    def select_prompts(self, chosen: Sequence[int]) -> ScoredPool:
        """The pool of some prompts only, by number and in that order.

        Inner products of folds survive where whole folds are chosen; else ``fold_gram`` is None.

        Raises:
            InputError: no prompts, one that is not there, or one twice.
        """
        index = _selection("prompt", chosen, self.size)
        kept, folds = np.unique(self.folds[index], return_inverse=True)
        whole = np.array_equal(np.bincount(folds), self.fold_sizes[kept])
        between = (
            None if self.fold_gram is None or not whole else self.fold_gram[np.ix_(kept, kept)]
        )
        return ScoredPool(
            prompts=tuple(self.prompts[i] for i in index),
            rewards=self.rewards[index],
            gram=self.gram[index],
            lengths=self.lengths[index],
            token_proxy=self.token_proxy[index],
            folds=folds.astype(np.int64),
            fold_gram=between,
            config=self.config,
        )

    def select_rollouts(self, chosen: Sequence[int]) -> ScoredPool:
        """The pool of some rollouts of every prompt only, by number and in that order.

        Gradients of prompts were made of all rollouts, so ``fold_gram`` is None unless all are kept.

        Raises:
            InputError: fewer than 4, one that is not there, or one twice.
        """
        index = _selection("rollout", chosen, self.rollouts)
        return ScoredPool(
            prompts=self.prompts,
            rewards=self.rewards[:, index],
            gram=self.gram[:, index[:, None], index],
            lengths=self.lengths[:, index],
            token_proxy=self.token_proxy[:, index],
            folds=self.folds,
            fold_gram=self.fold_gram if len(index) == self.rollouts else None,
            config=self.config,
        )


def leave_one_out(rewards: Array) -> Array:
    """z_i less the mean of the others of its row, (..., N)."""
    count = rewards.shape[-1]
    # From the mean, so that equal rewards leave exactly nothing however large they are.
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    flat = (rewards == rewards[..., :1]).all(axis=-1, keepdims=True)
    return np.where(flat, 0.0, centred * (count / (count - 1)))


def prompt_gradient_weights(rewards: Array) -> Array:
    """What each score is multiplied by in the gradient of its prompt: (z_i - mean of the others)/N.

    >>> prompt_gradient_weights(np.array([1.0, 0.0, 0.0, 0.0])).round(4).tolist()
    [0.25, -0.0833, -0.0833, -0.0833]
    """
    return leave_one_out(rewards) / rewards.shape[-1]


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...], axes: str) -> Array:
    array = finite_array(name, value, len(shape))
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}: it must be {shape} ({axes})")
    return array


def _refuse_negative(name: str, array: Array, prompts: Sequence[str]) -> None:
    low = array.min(axis=1)
    # Sums of probabilities may fall below 0 by rounding.
    if low.min() < -1e-5 * max(1.0, float(array.max())):
        x = int(low.argmin())
        raise InputError(f"{name} of prompt {prompts[x]!r} holds {low[x]}: none may be negative")


def _symmetric(gram: Array, prompts: Sequence[str]) -> Array:
    """The symmetric part, after refusing what is not an inner product."""
    diagonal = np.einsum("pii->pi", gram)
    if diagonal.min() < 0:
        x = int(diagonal.min(axis=1).argmin())
        raise InputError(
            f"the Gram matrix of prompt {prompts[x]!r} has {diagonal[x].min()} on its diagonal: "
            "squared norms cannot be negative"
        )
    turned = gram.swapaxes(1, 2)
    off = np.abs(gram - turned).max(axis=(1, 2))
    bad = off > _ASYMMETRY * diagonal.max(axis=1)
    if bad.any():
        x = int(bad.argmax())
        raise InputError(
            f"the Gram matrix of prompt {prompts[x]!r} is not symmetric: entries differ from their "
            f"mirror image by up to {off[x]:.3g}"
        )
    return (gram + turned) / 2


def _selection(name: str, chosen: Sequence[int], count: int) -> NDArray[np.intp]:
    index = [integer(name, i, 0) for i in chosen]
    if not index:
        raise InputError(f"no {name}s are chosen: at least one is needed")
    if max(index) >= count:
        raise InputError(f"{name} {max(index)} is not there: there are {count}, counted from 0")
    if len(set(index)) < len(index):
        raise InputError(f"a {name} is chosen twice: each may be chosen once")
    return np.array(index, dtype=np.intp)

"""A pool of rollouts once it is scored: rewards, norms and a few sums, nothing of the model's size.

A score is s = ∇ log π(y | x), summed over the tokens of a completion. Of N completions of a prompt
the squared norms are kept, and the inner products of three sums, Σ s, Σ z̃ s and Σ z̃² s with z̃ the
reward less its mean: every moment of :mod:`ustat_pg.llm.estimates` is made of these. Prompts are
compared by sketches of their gradients. Weighted leave-one-out baselines need the Gram matrix
K_ij = ⟨s_i, s_j⟩ too, N² numbers a prompt, which is kept where it was made.

**Rollouts of an older policy.** Trainers take several steps on one batch of rollouts. With the
log-probabilities of the policy that drew them, ρ_t = π_θ/π_old of each token is known, and the step is

    ĝ = (1/G) Σ_i A_i Σ_t w_t s_t,   s_t = ∇ log π_θ(y_t | y_{<t}),

w of :func:`~ustat_pg.estimators.importance_weights`, clipped by the sign of A_i or truncated. The sign
depends on the group. But where rewards are 0 and 1 and no advantage of a success is negative, nor one of a
failure positive, it is that of the reward: each rollout then has one weighted score whatever its group, and
:func:`~ustat_pg.llm.tables.raw_moments` has the noise and the signal of ĝ from all groups of the pool.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators import KL_KINDS, RATIOS, clipped_weights, importance_weights, kl_values
from ..reading import json_value, read_arrays
from ..validation import InputError, finite_array, frozen, integer, number, one_of
from ..whole_files import whole_file

__all__ = [
    "LEAST_ROLLOUTS",
    "ScoredPool",
    "TokenWeights",
    "address",
    "divergences",
    "leave_one_out",
    "length_weights",
    "moment_weights",
    "write_arrays",
]

Array = NDArray[np.float64]

LEAST_ROLLOUTS = 4
"""Rollouts a prompt must have: an error takes a jackknife of statistics of order three."""

_ASYMMETRY = 1e-6
"""How far inner products may be from symmetric, against its largest diagonal entry."""
_APART = 1e-2
"""How far sums may be from those of the Gram matrix, over the largest: those not held whole are off."""
_FORMAT = 2
_SKETCHES = {"sketches": 2, "length_sketches": 3, "total_sketches": 2}
"""Arrays of sketches, and their dimensions."""
_SURE = 1e-6
"""Surprise of a token, in nats, that is rounding where the policy is sure of each."""


@dataclass(frozen=True, eq=False)
class ScoredPool:
    """N rollouts for each of P prompts, with rewards, norms and inner products of sums of scores.

    Arguments:
        prompts: the prompts' names, P different ones.
        rewards: z, (P, N) with N >= 4.
        squared_norms: ‖s_i‖², (P, N).
        sums: inner products of Σ s, Σ z̃ s and Σ z̃² s, z̃ = z less its mean, (P, 3, 3).
        lengths: sampled tokens of each completion, (P, N).
        token_proxy: Σ_t (1 - 2π_t + Σ_v π_v²) over the tokens of each completion, (P, N): verl's
            stand-in for ‖s‖².
        sketches: of each prompt's gradient (1/N) Σ_i (z_i - mean of the others) s_i, (P, k): inner
            products of different prompts' are unbiased for the gradients'. None where they are not
            known, and then nothing that compares prompts can be estimated.
        surprise: Σ_t (-log π_t - H_t) of each completion, H the entropy, (P, N), or None.
        surprise_variance: Σ_t Var log π_v of each completion, (P, N), or None.
        gram: K_ij = ⟨s_i, s_j⟩ within each prompt, (P, N, N), or None: weighted baselines need it.
        length_sums: inner products of Σ s/|y| and Σ z̃ s/|y|, |y| the lengths, (P, 2, 2), or None: losses that
            average the tokens of a completion need them.
        length_sketches: sketches of the same two sums, (P, 2, k), or None; given together.
        total_sketches: sketches of Σ s, (P, k), or None: of a pool whose scores are weighted by token
            (:mod:`ustat_pg.llm.pool`). Their mean is not 0, and s then is Σ_t w_t s_t all over.
        divergences: k1, k2, k3 of KL(π_old ‖ π_θ) of each completion, (P, N, 3); of such a pool.
        bound: tokens of each completion whose weight was clipped or truncated, (P, N); of such a pool.
        config: what made the pool: model, task, seed, versions; of JSON's types.

    Raises:
        InputError: shapes that do not match, entries that are not finite, fewer than 4 rollouts, a
            matrix that is not symmetric or has a negative diagonal, names that repeat.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 1.0]], np.ones((1, 4, 2)))
    >>> pool.size, pool.rollouts, pool.squared_norms.tolist(), pool.sums[0, 0].tolist()
    (1, 4, [[2.0, 2.0, 2.0, 2.0]], [32.0, 0.0, 8.0])
    """

    prompts: tuple[str, ...]
    rewards: Array
    squared_norms: Array
    sums: Array
    lengths: Array
    token_proxy: Array
    sketches: Array | None = None
    surprise: Array | None = None
    surprise_variance: Array | None = None
    gram: Array | None = None
    length_sums: Array | None = None
    length_sketches: Array | None = None
    total_sketches: Array | None = None
    divergences: Array | None = None
    bound: Array | None = None
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
        object.__setattr__(self, "prompts", names)
        object.__setattr__(self, "rewards", rewards)
        if (self.surprise is None) != (self.surprise_variance is None):
            raise InputError("surprise and surprise_variance are given together, or neither")
        if (self.length_sums is None) != (self.length_sketches is None):
            raise InputError("length_sums and length_sketches are given together, or neither")
        given = {getattr(self, n) is None for n in ("total_sketches", "divergences", "bound")}
        if len(given) > 1:
            raise InputError("total_sketches, divergences and bound are given together, or neither")
        shapes = {
            "sums": (count, 3, 3),
            "divergences": (count, rollouts, 3),
            "gram": (count, rollouts, rollouts),
            "length_sums": (count, 2, 2),
        }
        for name in _ARRAYS[1:]:
            value = getattr(self, name)
            if value is None:
                continue
            shape = shapes.get(name, rewards.shape)
            if name in _SKETCHES:
                array = finite_array(name, value, _SKETCHES[name])
                if len(array) != count:
                    raise InputError(f"there are {count} prompts and {name} of {len(array)}")
                if array.ndim == 3 and array.shape[1] != 2:
                    raise InputError(f"{name} has shape {array.shape}: it must be ({count}, 2, k)")
            else:
                array = _of_shape(name, value, shape)
            if name in ("sums", "gram", "length_sums"):
                array = _symmetric(name, array, names)
            elif name not in (*_SKETCHES, "surprise", "divergences"):
                _refuse_negative(name, array, names)
                array = np.maximum(array, 0.0)
            object.__setattr__(self, name, frozen(array))
        if self.gram is not None:
            weights = moment_weights(rewards)
            made = weights @ self.gram @ weights.swapaxes(1, 2)
            room = _APART * np.maximum(
                np.abs(made).max(axis=(1, 2)), np.abs(self.sums).max(axis=(1, 2))
            )
            off = np.abs(made - self.sums).max(axis=(1, 2)) > room
            if off.any():
                raise InputError(
                    f"sums of prompt {names[int(off.argmax())]!r} are not those of its rewards and its Gram "
                    "matrix: a pool of other rewards is scored anew"
                )
        try:
            config = json.loads(json.dumps(dict(self.config), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(f"config cannot be written as JSON: {error}") from None
        object.__setattr__(self, "config", config)

    @classmethod
    def from_scores(
        cls,
        rewards: ArrayLike,
        scores: ArrayLike,
        *,
        prompts: Sequence[str] | None = None,
        lengths: ArrayLike | None = None,
        token_proxy: ArrayLike | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> ScoredPool:
        """The pool of scores that fit in memory; its sketches are the gradients.

        Arguments:
            rewards: (P, N).
            scores: s, (P, N, d).
            prompts: names; None for 0, 1, 2, ...
            lengths, token_proxy: (P, N); None for ones, and for squared norms.

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
        weights = moment_weights(z)
        sums = weights @ s
        sizes = np.ones_like(z) if lengths is None else _of_shape("lengths", lengths, z.shape)
        if sizes.min() <= 0:
            raise InputError(f"lengths hold {sizes.min():g}: each must be positive")
        by_length = length_weights(weights, sizes) @ s
        gram = s @ s.swapaxes(1, 2)
        norms = np.einsum("pii->pi", gram)
        return cls(
            prompts=tuple(map(str, range(len(z)))) if prompts is None else tuple(prompts),
            rewards=z,
            squared_norms=norms,
            sums=sums @ sums.swapaxes(1, 2),
            lengths=sizes,
            token_proxy=norms if token_proxy is None else np.asarray(token_proxy),
            sketches=sums[:, 1] / (z.shape[1] - 1),
            gram=gram,
            length_sums=by_length @ by_length.swapaxes(1, 2),
            length_sketches=by_length,
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
    def looks(self) -> int:
        """How many looks the pool was planned for (:mod:`ustat_pg.llm.constants`); 1 unless ``config`` says.

        Intervals of the pool share their 5% of errors equally among them.
        """
        return integer("looks", self.config.get("looks", 1))

    @property
    def weighted(self) -> bool:
        """Whether scores are weighted by token: rollouts of an older policy."""
        return self.total_sketches is not None

    @property
    def on_policy_z(self) -> float | None:
        """Σ (-log π - H) over all tokens in its standard errors; None where it was not recorded.

        A martingale of mean 0 for tokens that the scored policy drew at temperature 1. A policy that
        cannot surprise, and does not, has 0.
        """
        if self.surprise is None or self.surprise_variance is None:
            return None
        total, variance = float(self.surprise.sum()), float(self.surprise_variance.sum())
        if variance > 0:
            return total / math.sqrt(variance)
        return math.copysign(math.inf, total) if abs(total) > _SURE * self.lengths.sum() else 0.0

    def entries(self) -> Iterator[dict[str, Array]]:
        """What each prompt has in the arrays that are there, by their names."""
        known = {name: getattr(self, name) for name in _ARRAYS}
        for place in range(self.size):
            yield {name: array[place] for name, array in known.items() if array is not None}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one .npz file without pickles; it is there whole or not at all."""
        target = Path(path)
        if target.suffix != ".npz":
            raise InputError(f"the file {target.name!r} must end in .npz")
        known = {name: getattr(self, name) for name in _ARRAYS}
        write_arrays(
            target,
            format=np.int64(_FORMAT),
            prompts=np.array(json.dumps(self.prompts)),
            config=np.array(json.dumps(self.config)),
            **{name: array for name, array in known.items() if array is not None},
        )
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoredPool:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: no such file, not a scored pool, or one of another format.
        """
        source = Path(path)
        arrays = read_arrays(source)
        try:
            if (number := int(arrays.pop("format"))) != _FORMAT:
                raise ValueError(f"it has format {number}; score the rollouts anew")
            prompts, config = (
                json_value(str(arrays.pop(name)), name) for name in ("prompts", "config")
            )
            return cls(prompts=tuple(prompts), config=config, **arrays)
        except KeyError as error:
            raise InputError(f"{source} is not a scored pool: {error} is missing") from None
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{source} is not a scored pool (.npz) of format {_FORMAT}: {error}"
            ) from None

    def select_prompts(self, chosen: Sequence[int]) -> ScoredPool:
        """The pool of some prompts only, by number and in that order.

        Raises:
            InputError: no prompts, one that is not there, or one twice.
        """
        index = [integer("prompt", i, 0) for i in chosen]
        if not index:
            raise InputError("no prompts are chosen: at least one is needed")
        if max(index) >= self.size:
            raise InputError(
                f"prompt {max(index)} is not there: there are {self.size}, counted from 0"
            )
        if len(set(index)) < len(index):
            raise InputError("a prompt is chosen twice: each may be chosen once")
        known: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        kept: dict[str, Any] = {
            name: None if array is None else array[index] for name, array in known.items()
        }
        names = tuple(self.prompts[i] for i in index)
        # Of the files of all prompts, by their places.
        config = {name: own for name, own in self.config.items() if name != "made_of"}
        return ScoredPool(prompts=names, config=config, **kept)


_ARRAYS = tuple(f.name for f in fields(ScoredPool) if f.name not in ("prompts", "config"))


def address(name: str) -> int:
    """A number of a prompt's name that does not depend on its place in a file."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write one .npz file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        np.savez_compressed(file, **arrays)


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    array = finite_array(name, value, len(shape))
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}: it must be {shape}")
    return array


def _refuse_negative(name: str, array: Array, prompts: Sequence[str]) -> None:
    low = array.min(axis=1)
    # Sums of probabilities may fall below 0 by rounding.
    if low.min() < -1e-5 * max(1.0, float(array.max())):
        x = int(low.argmin())
        raise InputError(f"{name} of prompt {prompts[x]!r} holds {low[x]}: none may be negative")


def _symmetric(name: str, matrices: Array, prompts: Sequence[str]) -> Array:
    """The symmetric part, after refusing what holds no inner products."""
    diagonal = np.einsum("pii->pi", matrices)
    if diagonal.min() < 0:
        x = int(diagonal.min(axis=1).argmin())
        raise InputError(
            f"{name} of prompt {prompts[x]!r} has {diagonal[x].min()} on its diagonal: "
            "squared norms cannot be negative"
        )
    turned = matrices.swapaxes(1, 2)
    off = np.abs(matrices - turned).max(axis=(1, 2))
    bad = off > _ASYMMETRY * diagonal.max(axis=1)
    if bad.any():
        x = int(bad.argmax())
        raise InputError(
            f"{name} of prompt {prompts[x]!r} is not symmetric: entries differ from their "
            f"mirror image by up to {off[x]:.3g}"
        )
    return (matrices + turned) / 2


def leave_one_out(rewards: Array) -> Array:
    """z_i less the mean of the others of its row, (..., N)."""
    count = rewards.shape[-1]
    # From the mean, so that equal rewards leave exactly nothing however large they are.
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    flat = (rewards == rewards[..., :1]).all(axis=-1, keepdims=True)
    return np.where(flat, 0.0, centred * (count / (count - 1)))


def moment_weights(rewards: Array) -> Array:
    """1, z̃ and z̃² of each rollout, z̃ = z less the mean of its row: the weights of ``sums``, (..., 3, N).

    >>> moment_weights(np.array([1.0, 0.0, 0.0, 0.0]))[1].tolist()
    [0.75, -0.25, -0.25, -0.25]
    """
    count = rewards.shape[-1]
    centred = leave_one_out(rewards) * ((count - 1) / count)
    return np.stack([np.ones_like(centred), centred, centred**2], axis=-2)


def length_weights(weights: Array, lengths: Array) -> Array:
    """1/|y| and z̃/|y| of each rollout, the weights of ``length_sums``, (..., 2, N).

    Arguments:
        weights: those of :func:`moment_weights`, (..., 3, N).
        lengths: |y|, (..., N).
    """
    return weights[..., :2, :] / lengths[..., None, :]


@dataclass(frozen=True, kw_only=True)
class TokenWeights:
    """What multiplies the score of each token of a rollout.

    Arguments:
        ratio: one of :data:`~ustat_pg.estimators.RATIOS`: token (PPO, GRPO), sequence (TRL's
            ``RLOOTrainer``), gspo, prefix, or none.
        clip: ε of PPO's clipping, below 1 and above; None for none.
        clip_high: ε above, where it is another, as in DAPO.
        truncate: the most that a weight may be, as in CISPO (TRL's ``epsilon_high`` there), which keeps
            the score of every token; None for no limit.

    Raises:
        InputError: an unknown ratio, numbers out of range, ``clip_high`` without ``clip``, or both ways
            of bounding a weight.

    >>> logs = np.log([[2.0, 0.5], [2.0, 0.5]])
    >>> weights = TokenWeights(clip=0.2)
    >>> weights.of(logs, np.ones((2, 2)), np.array([1.0, 0.0]))
    array([[0. , 0.5],
           [2. , 0. ]])
    """

    ratio: str = "token"
    clip: float | None = None
    clip_high: float | None = None
    truncate: float | None = None

    def __post_init__(self) -> None:
        one_of("ratio", self.ratio, RATIOS)
        for name in ("clip", "clip_high", "truncate"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), minimum=0.0)
        if self.clip_high is not None and self.clip is None:
            raise InputError("clip_high is given without clip: it is the upper one of two bounds")
        if self.clip is not None and self.truncate is not None:
            raise InputError("weights are clipped or truncated: clip and truncate are both given")

    @property
    def config(self) -> dict[str, Any]:
        """The arguments, of JSON's types."""
        return asdict(self)

    def of(self, log_ratio: ArrayLike, mask: ArrayLike, rewards: ArrayLike) -> Array:
        """w of each token.

        Arguments:
            log_ratio: log π_θ - log π_old of each token, (N, T).
            mask: 1 for a token and 0 past a completion's end, (N, T).
            rewards: z, (N,); where weights are clipped each is 0 or 1, and says the advantage's sign.

        Returns:
            (N, T), 0 past a completion's end.

        Raises:
            InputError: as the two functions say, and other rewards.
        """
        logs = np.asarray(log_ratio, dtype=np.float64)
        weights = importance_weights(logs, np.asarray(mask, np.float64), ratio=self.ratio)
        if self.truncate is not None:
            weights = np.minimum(weights, self.truncate)
        if self.clip is not None:
            z = np.asarray(rewards, dtype=np.float64)
            if not np.isin(z, (0, 1)).all():
                raise InputError(
                    f"rewards hold {z[~np.isin(z, (0, 1))][0]:g}: clipping goes by the sign of the "
                    "advantage, which rewards 0 and 1 alone say without the rest of the group"
                )
            weights = clipped_weights(weights, 2 * z - 1, low=self.clip, high=self.clip_high)
        return np.asarray(weights, dtype=np.float64)

    def bound(self, log_ratio: ArrayLike, mask: ArrayLike, rewards: ArrayLike) -> Array:
        """How many tokens of each completion have another weight than their ratio, (N,)."""
        free = TokenWeights(ratio=self.ratio).of(log_ratio, mask, rewards)
        return np.asarray((self.of(log_ratio, mask, rewards) != free).sum(axis=1), dtype=float)


def divergences(log_ratio: ArrayLike) -> Array:
    """k1, k2 and k3 of KL(π_old ‖ π_θ), summed over each completion's tokens.

    Arguments:
        log_ratio: log π_θ - log π_old of each token of completions that π_old drew, 0 past their ends,
            (N, T).

    Returns:
        (N, 3). k1 and k3 are unbiased for the divergence of whole completions, the expected sum of their
        tokens' divergences; k2 is not.

    >>> divergences(np.log([[2.0, 1.0]])).round(4).tolist()
    [[-0.6931, 0.2402, 0.3069]]
    """
    logs = np.asarray(log_ratio, dtype=np.float64)
    return np.stack([kl_values(logs, kind).sum(axis=-1) for kind in KL_KINDS], axis=-1)

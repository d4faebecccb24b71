"""A scored pool of rollouts: the reward, the squared norm and a sketch of the score of each.

A score is s = ∇ log π(y | x), summed over the tokens of a completion, as long as the model has parameters.
Its sketch is S s, where S is a random matrix of k rows with E SᵀS = 1, the same for all completions. Inner
products of different completions' sketches are unbiased for those of their scores, within a prompt and
between prompts; squared norms are stored exactly. All moments, curves and intervals of
:mod:`ustat_pg.llm.pool.estimates` come from these.

**Rollouts of an older policy.** Trainers take several steps on one batch of rollouts. With the
log-probabilities of the policy that drew them, ρ_t = π_θ/π_old of each token is known, and the step is

    ĝ = (1/G) Σ_i A_i Σ_t w_t s_t,   s_t = ∇ log π_θ(y_t | y_{<t}),

with w from :func:`~ustat_pg.estimators.importance_weights`, clipped by the sign of A_i or truncated. If
rewards are 0 and 1 and that sign is the reward's, each rollout has the same weighted score in every group,
and :func:`~ustat_pg.llm.pool.tables.raw_moments` gives the noise and the signal of ĝ from all groups of the
pool.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...estimators import RATIOS, clipped_weights, importance_weights
from ...execution.memory import slices
from ...files.reading import json_value, read_arrays
from ...files.whole import whole_file
from ...validation import Array, InputError, finite_array, frozen, integer, number, one_of

LEAST_ROLLOUTS = 4
"""The least rollouts of a prompt, because an error needs a jackknife of statistics of order three."""

_FORMAT = 3
_AT_ONCE = 2**22
"""The number of sketches' entries that are multiplied at once."""
PLAIN = "plain"
"""The name of the inner product Σ_j u_j v_j, in which a step is the gradient."""

_SURE = 1e-6
"""The surprise of a token, in nats, that rounding explains if the policy is sure of every token."""


@dataclass(frozen=True, eq=False)
class ScoredPool:
    """A pool of N rollouts for each of P prompts, each with its reward, squared norm and a sketch of its
    score.

    A prompt that occurs in several steps of a log has a row for each of its groups (``clusters``).

    Arguments:
        prompts: names of the rows, P different ones.
        rewards: z, (P, N) with N >= 4.
        squared_norms: ‖s_i‖², (P, N).
        scores: sketches of s_i, (P, N, k); scores themselves if they have at most k entries.
        lengths: sampled tokens of each completion, (P, N).
        token_proxy: Σ_t (1 - 2π_t + Σ_v π_v²) of each completion, (P, N): verl's proxy for ‖s‖².
        surprise: Σ_t (-log π_t - H_t) of each completion, H the entropy, (P, N).
        surprise_variance: Σ_t Var log π_v of each completion, (P, N).
        divergences: k1, k2, k3 of KL(π_old ‖ π_θ) of each completion, (P, N, 3), summed over its tokens; only
            for a pool with scores Σ_t w_t s_t, which do not have mean 0. k1 and k3 are unbiased for the
            divergence of whole completions; k2 is not.
        bound: number of tokens of each completion with a clipped or truncated weight, (P, N); only for such a
            pool.
        clusters: a number for each row, (P,), equal for equal prompts (default: all different).
        plain_scores: sketches of s_i, (P, N, k), only for a pool in the metric of a step. Its ``scores`` are
            then those of √P s_i: k numbers for entries of large v, and m for those of small v.
        capped_scores: sketches of the latter entries with v not below its floor, (P, N, m).
        other_norms: ‖s_i‖², its parts in the metric of large and of small v, and the latter with v not below
            its floor, (P, N, 4).
        config: origin of the pool in JSON's types: model, task, seed, versions.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 1.0]], np.ones((1, 4, 2)))
    >>> pool.size, pool.rollouts, pool.squared_norms.tolist(), pool.gram[0, 0].tolist()
    (1, 4, [[2.0, 2.0, 2.0, 2.0]], [2.0, 2.0, 2.0, 2.0])
    """

    prompts: tuple[str, ...]
    rewards: Array
    squared_norms: Array
    scores: NDArray[np.floating]
    lengths: Array
    token_proxy: Array
    surprise: Array | None = None
    surprise_variance: Array | None = None
    divergences: Array | None = None
    bound: Array | None = None
    clusters: Array | None = None
    plain_scores: NDArray[np.floating] | None = None
    capped_scores: NDArray[np.floating] | None = None
    other_norms: Array | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rewards = finite_array("rewards", self.rewards, 2)
        count, rollouts = rewards.shape
        names = tuple(self.prompts)
        if not count or len(names) != count or len(set(names)) < count:
            raise InputError(f"prompts are {names!r:.80}: each of the {count} needs its own name")
        if rollouts < LEAST_ROLLOUTS:
            raise InputError(
                f"there are {rollouts} rollouts per prompt: at least {LEAST_ROLLOUTS} are needed"
            )
        object.__setattr__(self, "prompts", names)
        shapes: dict[str, tuple[int | None, ...]] = {
            "scores": (rollouts, None),
            "divergences": (rollouts, 3),
            "clusters": (),
            "plain_scores": (rollouts, None),
            "capped_scores": (rollouts, None),
            "other_norms": (rollouts, 4),
        }
        for name, value in self._arrays().items():
            shape = (count, *shapes.get(name, (rollouts,)))
            array = finite_array(name, value, len(shape))
            if any(n not in (None, size) for n, size in zip(shape, array.shape, strict=True)):
                raise InputError(f"{name} has shape {array.shape}: it must be {shape}")
            if name.endswith("scores"):
                # They keep their precision, because they are nearly all of a pool's size.
                array = array.astype(np.result_type(value, np.float32), copy=False)
            elif name in ("squared_norms", "lengths", "token_proxy", "surprise_variance", "bound"):
                # Sums of probabilities may fall below 0 by rounding.
                array = np.maximum(array, 0.0)
            object.__setattr__(self, name, frozen(array))
        object.__setattr__(
            self, "config", json.loads(json.dumps(dict(self.config), allow_nan=False))
        )

    def _arrays(self) -> dict[str, Array]:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def from_scores(
        cls,
        rewards: ArrayLike,
        scores: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        token_proxy: ArrayLike | None = None,
    ) -> ScoredPool:
        """The pool of scores that fit in memory; it keeps the whole scores.

        Arguments:
            rewards: (P, N).
            scores: s, (P, N, d).
            lengths, token_proxy: (P, N) (default: ones, and squared norms).
        """
        z, s = finite_array("rewards", rewards, 2), finite_array("scores", scores, 3)
        if s.shape[:2] != z.shape:
            raise InputError(f"scores have shape {s.shape}: they must begin with {z.shape}")
        norms = np.square(s).sum(axis=2)
        return cls(
            prompts=tuple(map(str, range(len(z)))),
            rewards=z,
            squared_norms=norms,
            scores=s,
            lengths=np.ones_like(z) if lengths is None else np.asarray(lengths),
            token_proxy=norms if token_proxy is None else np.asarray(token_proxy),
        )

    @cached_property
    def gram(self) -> Array:
        """The matrix K_ij = ⟨s_i, s_j⟩ within each prompt, (P, N, N): exact for i = j, else unbiased."""
        made = np.concatenate([rows @ rows.swapaxes(1, 2) for _, rows in self._wide()])
        own = np.arange(self.rollouts)
        made[:, own, own] = self.squared_norms
        return frozen(made)

    @cached_property
    def gradients(self) -> Array:
        """Sketches of each prompt's gradient (1/N) Σ_i (z_i - mean of the others) s_i, (P, k)."""
        return frozen(self.combined(leave_one_out(self.rewards) / self.rollouts))

    def combined(self, weights: Array) -> Array:
        """Sketches of Σ_i w_i s_i at each prompt, (P, k), for weights (P, N)."""
        return np.concatenate([(weights[part, None] @ rows)[:, 0] for part, rows in self._wide()])

    def _wide(self) -> Iterator[tuple[slice, Array]]:
        """The scores in double precision, some prompts at a time, because all would not fit in memory."""
        for part in slices(self.size, _AT_ONCE / self.scores[0].size):
            yield part, self.scores[part].astype(np.float64)

    @property
    def size(self) -> int:
        """P, the number of rows: prompts, or groups of a log."""
        return len(self.prompts)

    @cached_property
    def places(self) -> NDArray[np.intp]:
        """The place of each row's prompt among the different ones, (P,)."""
        if self.clusters is None:
            return np.arange(self.size)
        return np.unique(self.clusters, return_inverse=True)[1]

    @property
    def distinct(self) -> int:
        """D, the number of different prompts."""
        return int(self.places.max()) + 1

    def by_prompt(self, values: Array) -> Array:
        """Values of rows, (P, ...), averaged over the rows of each prompt, (D, ...).

        Rows of different prompts are independent, but rows of one prompt are not, so errors and products of
        two prompts use these averages.
        """
        if self.distinct == self.size:
            return values
        return averaged(values, self.places)

    @property
    def rollouts(self) -> int:
        """N, the rollouts of each prompt."""
        return int(self.rewards.shape[1])

    @property
    def looks(self) -> int:
        """The number of planned looks at the pool (:mod:`ustat_pg.llm.advice.model_pool`), from ``config``;
        else 1.

        Intervals share their 5% of errors equally among the looks.
        """
        return integer("looks", self.config.get("looks", 1))

    @property
    def weighted(self) -> bool:
        """Whether scores are weighted by token: rollouts of an older policy."""
        return self.bound is not None

    @property
    def on_policy_z(self) -> float | None:
        """Σ (-log π - H) over all tokens, in standard errors; None if it was not recorded.

        It is a martingale with mean 0 for tokens that the scored policy drew at temperature 1. For a
        deterministic policy without surprise it is 0.
        """
        if self.surprise is None or self.surprise_variance is None:
            return None
        total, variance = float(self.surprise.sum()), float(self.surprise_variance.sum())
        if variance > 0:
            return total / math.sqrt(variance)
        return math.copysign(math.inf, total) if abs(total) > _SURE * self.lengths.sum() else 0.0

    @property
    def metric(self) -> str:
        """The metric of inner products: plain, or that of an optimizer's step."""
        return str(self.config.get("metric", {}).get("name", PLAIN))

    @cached_property
    def metrics(self) -> dict[str, ScoredPool]:
        """The same rollouts in other metrics, if the pool was scored for an optimizer.

        ``plain``; ``floored``, the pool's own with v not below its floor; and ``small``, the coordinates of
        v below the floor alone. The c1, c2 and c3 of the last are parts of the pool's own.
        """
        norms, plain_scores, capped = self.other_norms, self.plain_scores, self.capped_scores
        if norms is None or plain_scores is None or capped is None:
            return {}
        plain, large, small, less = np.moveaxis(norms, 2, 0)
        above = self.scores.shape[2] - capped.shape[2]
        of_large, of_small = self.scores[..., :above], self.scores[..., above:]
        arrays = {
            PLAIN: (plain, plain_scores),
            "floored": (large + less, np.concatenate([of_large, capped], axis=2)),
            "small": (small, of_small),
        }
        bare: dict[str, Any] = {"plain_scores": None, "capped_scores": None, "other_norms": None}
        return {
            name: replace(
                self,
                squared_norms=own,
                scores=scores,
                config={**self.config, "metric": {"name": name}},
                **bare,
            )
            for name, (own, scores) in arrays.items()
        }

    def in_metric(self, name: str) -> ScoredPool:
        """The pool in its own metric or in one of ``metrics``."""
        return {self.metric: self, **self.metrics}[
            one_of("metric of this pool", name, (self.metric, *self.metrics))
        ]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one .npz file without pickles; the file is complete or does not exist."""
        target = Path(path)
        write_arrays(
            target,
            format=np.int64(_FORMAT),
            prompts=np.array(json.dumps(self.prompts)),
            config=np.array(json.dumps(self.config)),
            **self._arrays(),
        )
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoredPool:
        """Read a file of :meth:`save`."""
        source = Path(path)
        arrays = read_arrays(source)
        try:
            if (number := int(arrays.pop("format"))) != _FORMAT:
                raise ValueError(f"it has format {number}: score the rollouts again")
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
        """The pool of some prompts, by number and in that order."""
        arrays: dict[str, Any] = {name: array[chosen] for name, array in self._arrays().items()}
        names = tuple(self.prompts[i] for i in chosen)
        return ScoredPool(prompts=names, config=self.config, **arrays)

    def select_rollouts(self, chosen: Sequence[int] | NDArray[np.intp]) -> ScoredPool:
        """The pool of some rollouts of every prompt, by number and in that order."""
        arrays: dict[str, Any] = {
            name: array if name == "clusters" else array[:, chosen]
            for name, array in self._arrays().items()
        }
        return ScoredPool(prompts=self.prompts, config=self.config, **arrays)


_ARRAYS = tuple(f.name for f in fields(ScoredPool) if f.name not in ("prompts", "config"))


def averaged(values: Array, places: NDArray[np.intp]) -> Array:
    """Values of rows, (P, ...), averaged over the rows of each place, (D, ...)."""
    rows = np.bincount(places)
    sums = np.zeros((len(rows), *values.shape[1:]))
    np.add.at(sums, places, values)
    return sums / rows.reshape(-1, *[1] * (values.ndim - 1))


def address(name: str) -> int:
    """A number from a prompt's name, independent of its place in a file."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write a complete .npz file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        # Sketches are nearly random: compression takes long and only saves 40% of the size.
        np.savez(file, **arrays)


def leave_one_out(rewards: Array) -> Array:
    """z_i minus the mean of the others of its row, (..., N)."""
    count = rewards.shape[-1]
    # The mean is subtracted first, so that equal rewards give exactly 0 for any size.
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    flat = (rewards == rewards[..., :1]).all(axis=-1, keepdims=True)
    return np.where(flat, 0.0, centred * (count / (count - 1)))


@dataclass(frozen=True, kw_only=True)
class TokenWeights:
    """Factors of the scores of a rollout's tokens.

    Arguments:
        ratio: one of :data:`~ustat_pg.estimators.RATIOS`: token (PPO, GRPO), sequence (TRL's
            ``RLOOTrainer``), gspo, prefix, or none.
        clip: ε of PPO's clipping, below and above 1; None for no clipping.
        clip_high: ε above 1, if it differs, as in DAPO.
        truncate: largest weight, as in CISPO (TRL's ``epsilon_high`` there), which keeps the score of every
            token; None for no limit.

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
            raise InputError("clip_high is given without clip: it is the upper of two bounds")
        if self.clip is not None and self.truncate is not None:
            raise InputError(
                "clip and truncate are both given: weights are either clipped or truncated"
            )

    def of(self, log_ratio: ArrayLike, mask: ArrayLike, rewards: ArrayLike) -> Array:
        """w of each token, (N, T), 0 past a completion's end.

        Arguments:
            log_ratio: log π_θ - log π_old of each token, (N, T).
            mask: 1 for a token and 0 past a completion's end, (N, T).
            rewards: z, (N,); 0 or 1 if weights are clipped, because they give the sign of the advantage.
        """
        logs = np.asarray(log_ratio, dtype=np.float64)
        weights = importance_weights(logs, np.asarray(mask, np.float64), ratio=self.ratio)
        if self.truncate is not None:
            weights = np.minimum(weights, self.truncate)
        if self.clip is not None:
            z = np.asarray(rewards, dtype=np.float64)
            if not np.isin(z, (0, 1)).all():
                raise InputError(
                    f"rewards hold {z[~np.isin(z, (0, 1))][0]:g}: clipping needs the sign of the "
                    f"advantage, and only rewards 0 and 1 give it without the rest of the group"
                )
            weights = clipped_weights(weights, 2 * z - 1, low=self.clip, high=self.clip_high)
        return np.asarray(weights, dtype=np.float64)

    def bound(self, log_ratio: ArrayLike, mask: ArrayLike, rewards: ArrayLike) -> Array:
        """The number of tokens of each completion with a weight that differs from their ratio, (N,)."""
        free = TokenWeights(ratio=self.ratio).of(log_ratio, mask, rewards)
        return np.asarray((self.of(log_ratio, mask, rewards) != free).sum(axis=1), dtype=float)

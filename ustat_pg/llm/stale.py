"""Rollouts of an older policy: what weights the scores of their tokens, by ratio and clipping.

Trainers take several steps on one batch of rollouts. With the log-probabilities of the policy that drew
them, ρ_t = π_θ/π_old of each token is known, and the step is

    ĝ = (1/G) Σ_i A_i Σ_t w_t s_t,   s_t = ∇ log π_θ(y_t | y_{<t}),

w of :func:`~ustat_pg.estimators.importance_weights`, clipped by the sign of A_i or truncated. The sign
depends on the group. But where rewards are 0 and 1 and no advantage of a success is negative, nor one of a
failure positive, it is that of the reward: each rollout then has one weighted score whatever its group, and
:func:`~ustat_pg.llm.tables.raw_moments` has the noise and the signal of ĝ from all groups of the pool.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators import KL_KINDS, RATIOS, clipped_weights, importance_weights, kl_values
from ..validation import InputError, number, one_of

__all__ = ["TokenWeights", "divergences"]

Array = NDArray[np.float64]


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

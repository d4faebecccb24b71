"""The softmax bandit with finitely many contexts, K arms and any finite reward law; all moments by
enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..files.digests import digest
from ..moments.record import ContextMatrices, LengthMoments, Moments, RewardLevels
from ..policies import ArmLinearSoftmax, SharedLinearSoftmax, SoftmaxPolicy, TabularSoftmax
from ..rounding import GIVEN
from ..validation import (
    Array,
    InputError,
    changed,
    field,
    finite_array,
    frozen,
    integer,
    probabilities,
    record,
    shares,
)
from .minibatch import Minibatch, draw

_LARGEST_MAGNITUDE = 1e50
"""The largest allowed reward and logit, because variances of squared errors need fourth powers."""


@record()
class Outcomes:
    """The outcomes of one rollout: the (arm, reward) pairs of positive probability, per context.

    Arguments:
        counts: number of outcomes, (X,); rows are padded to the longest with probability 0.
        arms: (X, M).
        rewards: (X, M).
        probs: (X, M), each row sums to 1.
    """

    counts: NDArray[np.int64]
    arms: NDArray[np.int64]
    rewards: Array
    probs: Array


def _by_arm(name: str, probs: ArrayLike, numbers: Array) -> tuple[Array, Array]:
    """The logits of a policy and a number for each arm, (X, K) each."""
    law = finite_array("probs", probs)
    if law.ndim not in (1, 2):
        raise InputError(f"probs have shape {law.shape}: they must be (K,) or (X, K)")
    law = probabilities("probs", law, law.ndim)
    if law.shape != numbers.shape:
        raise InputError(
            f"{name} has shape {numbers.shape} and probs {law.shape}: they must be equal"
        )
    if (law == 0).any():
        where = np.argwhere(law == 0)[0].tolist()
        raise InputError(f"probs is 0 at {where}, which has no logit: leave the arm out")
    return np.log(np.atleast_2d(law)), np.atleast_2d(numbers)


def _equal(contexts: int, context_probs: ArrayLike | None) -> ArrayLike:
    return np.full(contexts, 1 / contexts) if context_probs is None else context_probs


@record()
class SoftmaxBandit:
    """A contextual bandit with a softmax policy at its current parameters.

    Arguments:
        policy: probabilities and scores over X contexts and K arms.
        context_probs: ρ(x), (X,).
        reward_values: the values a reward can take, (X, K, R).
        reward_probs: their probabilities given context and arm, (X, K, R).

    >>> bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> bandit.moments().value
    array([0.5])
    """

    policy: SoftmaxPolicy
    context_probs: Array = field(probabilities, ndim=1)
    reward_values: Array = field(finite_array, ndim=3)
    reward_probs: Array = field(probabilities, ndim=3)

    def __attrs_post_init__(self) -> None:
        shape = self.policy.logits.shape
        if len(self.context_probs) != shape[0]:
            raise InputError(
                f"context_probs has {len(self.context_probs)} entries: the policy has {shape[0]} contexts"
            )
        values, law = self.reward_values.shape, self.reward_probs.shape
        if values[:2] != shape or values != law:
            raise InputError(
                f"reward_values has shape {values} and reward_probs {law}: they must be equal, the first "
                f"two contexts and arms, {shape}"
            )
        if not np.abs(self.policy.logits).max() <= _LARGEST_MAGNITUDE:
            raise InputError(
                f"the policy's logits exceed {_LARGEST_MAGNITUDE:g}: they are too large to compare"
            )
        if np.abs(self.reward_values).max() > _LARGEST_MAGNITUDE:
            raise InputError(
                f"reward_values exceed {_LARGEST_MAGNITUDE:g}: their squares would overflow"
            )

    @classmethod
    def tabular(
        cls,
        context_probs: ArrayLike,
        logits: ArrayLike,
        reward_values: ArrayLike,
        reward_probs: ArrayLike,
    ) -> SoftmaxBandit:
        """The problem with the logits (X, K) as parameters: d = X K."""
        policy = TabularSoftmax(logits)  # type: ignore[arg-type]
        return cls(policy, context_probs, reward_values, reward_probs)  # type: ignore[arg-type]

    @classmethod
    def bernoulli(
        cls, probs: ArrayLike, success: ArrayLike, context_probs: ArrayLike | None = None
    ) -> SoftmaxBandit:
        """The Bernoulli bandit: rewards 0 and 1, and a tabular policy with these probabilities.

        Arguments:
            probs: π(k | x), (K,) for one context or (X, K), all above 0; the parameters are their logarithms.
            success: P(z = 1 | x, k), of the same shape.
            context_probs: ρ(x), (X,) (default: equal).

        >>> SoftmaxBandit.bernoulli([0.7, 0.2, 0.1], [1, 0, 0.5]).moments().value
        array([0.75])
        """
        logits, chance = _by_arm("success", probs, shares("success", success))
        law = np.stack([chance, 1 - chance], axis=-1)
        values = np.broadcast_to([1.0, 0.0], law.shape)
        return cls.tabular(_equal(len(law), context_probs), logits, values, law)

    @classmethod
    def from_probs(
        cls, probs: ArrayLike, rewards: ArrayLike, context_probs: ArrayLike | None = None
    ) -> SoftmaxBandit:
        """The bandit with a sure reward for each arm, and a tabular policy with these probabilities.

        Arguments:
            probs: π(k | x), (K,) for one context or (X, K), all above 0; the parameters are their logarithms.
            rewards: z(x, k), of the same shape.
            context_probs: ρ(x), (X,) (default: equal).

        >>> SoftmaxBandit.from_probs([[0.5, 0.5], [0.75, 0.25]], [[2, -1], [1, 0]]).moments().value
        array([0.5 , 0.75])
        """
        logits, values = _by_arm("rewards", probs, finite_array("rewards", rewards))
        values = values[..., None]
        return cls.tabular(_equal(len(values), context_probs), logits, values, np.ones_like(values))

    @classmethod
    def linear(
        cls,
        context_probs: ArrayLike,
        features: ArrayLike,
        theta: ArrayLike,
        reward_values: ArrayLike,
        reward_probs: ArrayLike,
        offset: ArrayLike | None = None,
    ) -> SoftmaxBandit:
        """Logits ⟨φ(x, k), θ⟩ + o(x, k), features (X, K, d), theta (d,), offset (X, K) or zero."""
        policy = ArmLinearSoftmax(features, theta, offset)  # type: ignore[arg-type]
        return cls(policy, context_probs, reward_values, reward_probs)  # type: ignore[arg-type]

    @classmethod
    def shared_linear(
        cls,
        context_probs: ArrayLike,
        context_features: ArrayLike,
        weights: ArrayLike,
        reward_values: ArrayLike,
        reward_probs: ArrayLike,
    ) -> SoftmaxBandit:
        """Logits ⟨φ(x), W_k⟩ with context features (X, m) and weights (K, m): d = K m."""
        policy = SharedLinearSoftmax(
            finite_array("context_features", context_features, 2),
            finite_array("weights", weights, 2),
        )
        return cls(policy, context_probs, reward_values, reward_probs)  # type: ignore[arg-type]

    @property
    def contexts(self) -> int:
        """X, the number of contexts."""
        return len(self.context_probs)

    @property
    def arms(self) -> int:
        """K, the number of arms."""
        return self.reward_values.shape[1]

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.policy.d

    @property
    def uniform(self) -> bool:
        """Whether every context has the same probability."""
        return bool(np.allclose(self.context_probs, 1 / self.contexts, rtol=GIVEN, atol=0))

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """The least and the greatest reward of positive probability."""
        rewards = self.outcomes.rewards[self.outcomes.probs > 0]
        return float(rewards.min()), float(rewards.max())

    @cached_property
    def score_diameters(self) -> Array:
        """The greatest possible distance of two scores, (X,)."""
        return self.policy.diameters((self.policy.probs > 0) & (self.reward_probs > 0).any(axis=-1))

    @cached_property
    def mean_rewards(self) -> Array:
        """E[z | x, k], (X, K)."""
        return (self.reward_values * self.reward_probs).sum(axis=-1)

    def objective(self, theta: Array | None = None) -> float:
        """J(θ) = E z (default: at the policy's own parameters)."""
        policy = self.policy if theta is None else self.policy.with_theta(theta)
        return float(self.context_probs @ (policy.probs * self.mean_rewards).sum(axis=-1))

    @cached_property
    def _value(self) -> Array:
        """V(x), (X,)."""
        return (self.policy.probs * self.mean_rewards).sum(axis=-1)

    @cached_property
    def _deviations(self) -> Array:
        """a = z - V(x) of every reward value, (X, K, R)."""
        return self.reward_values - self._value[:, None, None]

    @cached_property
    def _advantage_weights(self) -> Array:
        """π(k | x) E[a | x, k], (X, K); since E s = 0, V(x) can be subtracted, which keeps precision."""
        return self.policy.probs * (self.reward_probs * self._deviations).sum(axis=-1)

    @cached_property
    def _gradient(self) -> Array:
        return frozen(self.policy.mean_combination(self._advantage_weights, self.context_probs))

    def gradient(self) -> Array:
        """g = ∇J(θ) = E[s z], (d,)."""
        return self._gradient

    def hessian(self) -> Array:
        """∇²J(θ) = E_X E[a (s sᵀ + ∇² logit) | X], (d, d).

        In general ∇²J = E[z (s sᵀ + ∇² log π)], and ∇² log π = -F(x) + ∇² logit - E[∇² logit | x].
        """
        total = np.diag(self.policy.curvature(self._advantage_weights, self.context_probs))
        for probability, matrices in zip(self.context_probs, self._matrices(), strict=True):
            total += probability * matrices.advantage
        return total

    def moments(self) -> Moments:
        """All moments for predictions, by enumeration over arms and rewards."""
        return self._moments

    @cached_property
    def _moments(self) -> Moments:
        probs, norms = self.policy.probs, self.policy.squared_norms
        squares = probs * (self.reward_probs * self._deviations**2).sum(axis=-1)
        return Moments(
            context_probs=self.context_probs,
            value=self._value,
            reward_variance=squares.sum(axis=-1),
            fisher_trace=(probs * norms).sum(axis=-1),
            norm_advantage=(norms * self._advantage_weights).sum(axis=-1),
            norm_squared_advantage=(norms * squares).sum(axis=-1),
            gradient_sq=self.policy.squared_combinations(self._advantage_weights),
            mean_gradient_sq=float(self.gradient() @ self.gradient()),
            reward_range=self.reward_range,
            matrices=self._matrices,
            weighted_gradient=self._weighted_gradient,
        )

    def length_moments(self, lengths: ArrayLike | None = None) -> LengthMoments:
        """Moments for each length of outputs, by enumeration over arms and rewards.

        Arguments:
            lengths: tokens of every arm, (K,), whole numbers >= 1 (default: lengths of the policy's outputs,
                including the end token).
        """
        if lengths is None and self.policy.space is None:
            raise InputError("the arms of this problem have no lengths: give a length for each arm")
        known = self.policy.space.lengths if lengths is None else lengths  # type: ignore[union-attr]
        tokens = finite_array("lengths", known, 1, minimum=1)
        if len(tokens) != self.arms or (tokens != np.round(tokens)).any():
            raise InputError(f"lengths must be {self.arms} whole numbers, one for each arm")
        distinct, place = np.unique(tokens, return_inverse=True)
        which = np.eye(len(distinct))[place].T
        weights = self.policy.probs, self.policy.probs * self.mean_rewards
        sums = [
            np.stack([self.policy.combine(x, which * row[x]) for x in range(self.contexts)])
            for row in weights
        ]
        probs, rewards = (row @ which.T for row in weights)
        return LengthMoments(self.context_probs, distinct, probs, rewards, *sums)

    def reward_levels(self) -> RewardLevels:
        """Moments of the score for each value of the reward, by enumeration over arms and rewards."""
        values, place = np.unique(self.reward_values, return_inverse=True)
        which = np.eye(len(values))[place.reshape(self.reward_values.shape)]
        arms = self.policy.probs[..., None] * np.einsum("xkr,xkrl->xkl", self.reward_probs, which)
        squares = np.einsum("xk,xkl->xl", self.policy.squared_norms, arms)
        scores = np.stack([self.policy.combine(x, arms[x].T) for x in range(self.contexts)])
        return RewardLevels(self.context_probs, values, arms.sum(axis=1), squares, scores)

    def _weighted_gradient(self, weights: Array) -> Array:
        return self.policy.mean_combination(self._advantage_weights, self.context_probs * weights)

    def _matrices(self) -> Iterator[ContextMatrices]:
        squares = self.policy.probs * (self.reward_probs * self._deviations**2).sum(axis=-1)
        for x in range(self.contexts):
            scores = self.policy.scores(x)

            def weighted(weights: Array, scores: Array = scores) -> Array:
                return (scores * weights[:, None]).T @ scores

            yield ContextMatrices(
                fisher=weighted(self.policy.probs[x]),
                advantage=weighted(self._advantage_weights[x]),
                squared_advantage=weighted(squares[x]),
                gradient=self._advantage_weights[x] @ scores,
            )

    @cached_property
    def binary(self) -> bool:
        """Whether every possible reward is 0 or 1."""
        possible = self.outcomes.rewards[self.outcomes.probs > 0]
        return bool(np.isin(possible, (0.0, 1.0)).all())

    @cached_property
    def outcomes(self) -> Outcomes:
        """The possible (arm, reward) pairs of each context."""
        joint = self.policy.probs[:, :, None] * self.reward_probs
        # Equal rewards of an arm are merged into the first possible one.
        alike = self.reward_values[..., None] == self.reward_values[..., None, :]
        first = (alike & (joint > 0)[..., None, :]).argmax(axis=-1)
        merged = np.zeros_like(joint)
        x, k = np.ix_(range(joint.shape[0]), range(joint.shape[1]))
        np.add.at(merged, (x[..., None], k[..., None], first), joint)
        contexts = len(joint)
        possible = (merged > 0).reshape(contexts, -1)
        counts, place = possible.sum(axis=1), possible.cumsum(axis=1) - 1
        x, outcome = possible.nonzero()
        arms, rewards, probs = (np.zeros((contexts, counts.max())) for _ in range(3))
        at = x, place[x, outcome]
        arms[at] = outcome // joint.shape[2]
        rewards[at] = self.reward_values.reshape(contexts, -1)[x, outcome]
        probs[at] = merged.reshape(contexts, -1)[x, outcome]
        return Outcomes(counts, arms.astype(np.int64), rewards, probs / probs.sum(1, keepdims=True))

    @cached_property
    def _reward_laws(self) -> Array:
        """Probabilities of the distinct rewards of each context, (X, V), padded with 0."""
        laws = []
        for count, rewards, probs in zip(
            self.outcomes.counts, self.outcomes.rewards, self.outcomes.probs, strict=True
        ):
            law: dict[float, float] = {}
            for z, p in zip(rewards[:count].tolist(), probs[:count].tolist(), strict=True):
                law[z] = law.get(z, 0.0) + p
            laws.append(list(law.values()))
        table = np.zeros((self.contexts, max(map(len, laws))))
        for x, row in enumerate(laws):
            table[x, : len(row)] = row
        return frozen(table)

    def sample(
        self,
        rng: np.random.Generator,
        group_size: int,
        batch_size: int = 1,
        estimator: str | Callable[[Array], ArrayLike] = "grpo",
        *,
        constant: float | None = None,
        critic: ArrayLike | None = None,
    ) -> Minibatch:
        """A minibatch drawn from the policy: prompts from ρ, each with a group of independent outputs.

        This is for inspection and teaching; engines draw by address, so each of their draws can be repeated.

        Arguments:
            rng: generator of the draws; its state changes.
            group_size: G >= 1; grpo needs 2.
            batch_size: B >= 1.
            estimator: estimator of the advantages: a name in :data:`ustat_pg.estimators.FUNCTIONS`, or a
                function from rewards (B, G) to advantages of that shape.
            constant: the number subtracted, for the estimator constant only.
            critic: V_φ(x) for every context, (X,), for the estimator critic only.

        >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
        >>> drawn = coin.sample(np.random.default_rng(0), group_size=4)
        >>> drawn.actions, drawn.rewards
        (array([[0, 0, 0, 1]]), array([[1., 1., 1., 0.]]))
        >>> drawn.advantages.round(3), drawn.gradient.round(3)
        (array([[ 0.333,  0.333,  0.333, -1.   ]]), array([ 0.25, -0.25]))
        """
        return draw(self, rng, group_size, batch_size, estimator, constant, critic)

    def frac_reward_zero_std(self, group_size: int) -> Array:
        """P(all G rewards of a group are equal | x) = Σ_v P(z = v | x)^G, (X,).

        Such a group has advantages 0 with the leave-one-out baseline and gives no signal. Only exactly equal
        rewards count as equal.

        >>> bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
        >>> bandit.frac_reward_zero_std(4)
        array([0.125])
        """
        size = integer("group size", group_size)
        # The sum of probabilities may exceed 1 by rounding, which large powers would amplify.
        return np.minimum((np.minimum(self._reward_laws, 1.0) ** size).sum(axis=-1), 1.0)

    def restrict(self, contexts: Sequence[int], uniform: bool = False) -> SoftmaxBandit:
        """The problem on some of its contexts, with rescaled or equal probabilities."""
        chosen = np.array([integer("context", c, 0) for c in contexts], dtype=np.intp)
        if not len(chosen) or len(set(chosen.tolist())) != len(chosen):
            raise InputError(f"contexts are {list(contexts)}: they must be distinct, at least one")
        if chosen.max() >= self.contexts:
            raise InputError(
                f"context {chosen.max()} does not exist: contexts are 0 to {self.contexts - 1}"
            )
        probs = self.context_probs[chosen]
        if uniform or probs.sum() == 0:
            probs = np.ones(len(chosen))
        return changed(self, **self._rows(chosen), context_probs=probs / probs.sum())

    def _rows(self, chosen: NDArray[np.intp]) -> dict[str, Any]:
        """The fields of the problem for some contexts."""
        return {
            "policy": self.policy.restrict(chosen),
            "reward_values": self.reward_values[chosen],
            "reward_probs": self.reward_probs[chosen],
        }

    def with_theta(self, theta: ArrayLike) -> SoftmaxBandit:
        """The problem at other parameters (d,)."""
        vector = finite_array("theta", theta, 1)
        if len(vector) != self.d:
            raise InputError(f"theta has {len(vector)} entries: the policy has {self.d} parameters")
        return changed(self, policy=self.policy.with_theta(vector))

    def arrays(self) -> dict[str, Array]:
        """The arrays that define the problem, by their names in a problem file."""
        return {
            "context_probs": self.context_probs,
            **self.policy.arrays(),
            "reward_values": self.reward_values,
            "reward_probs": self.reward_probs,
        }

    @cached_property
    def digest(self) -> str:
        """The name of the problem at its parameters: a digest of its arrays, used in the address of draws."""
        return digest(self.arrays())

    @cached_property
    def path_digest(self) -> str:
        """The name of the problem at all parameters, used in the address of whole runs' draws."""
        # This is added only if there are bends, so that linear policies keep their draws.
        bends = self.policy.bends
        return self.digest if bends is None else f"{self.digest}/bent{digest(bends)}"

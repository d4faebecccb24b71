"""Policies over token sequences: a softmax at every prefix of an output.

An output is drawn token by token, so its log-probability is a sum over the prefixes that it passes

    log π(y | x) = Σ_t log π(y_t | x, y_{<t}),

and so is its score. With a list of all outputs, the policy is a softmax bandit with outputs as arms.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import log_softmax

from ..validation import Array, InputError, field, finite_array, integer, record
from .outputs import PAD, OutputSpace
from .softmax import SoftmaxPolicy, require_gram_size, require_scores_size

Integers = NDArray[np.int64]


@record()
class PrefixSoftmax(SoftmaxPolicy):
    """One vector of logits per prefix, for each prompt separately or for all prompts together.

    With the unit vector e of a choice and the softmax p_n at prefix n, the score of an output is e - p_n in
    the entries of each prefix n that it passes and 0 elsewhere. So ⟨s, s'⟩ = Σ_n 1{c = c'} - p_n(c) - p_n(c')
    + ‖p_n‖² over the prefixes n that both pass, c and c' their choices there.

    Arguments:
        space: the outputs.
        tables: logits, (X, N, A), or (1, N, A) if prompts share them.
        contexts: X, if prompts share one table; None if each prompt has its own table.

    >>> policy = PrefixSoftmax.zeros(OutputSpace(2, 2, end=True), contexts=1)
    >>> policy.d, policy.probs.round(4)
    (9, array([[0.3333, 0.1111, 0.1111, 0.1111, 0.1111, 0.1111, 0.1111]]))
    """

    space: OutputSpace
    tables: Array = field(finite_array, ndim=3)
    contexts: int | None = field(integer, default=None)

    def __attrs_post_init__(self) -> None:
        wanted = (self.space.prefixes, self.space.symbols)
        if self.tables.shape[1:] != wanted:
            raise InputError(
                f"tables have shape {self.tables.shape}: the last two must be prefixes and "
                f"choices, {wanted}"
            )
        if self.contexts is not None and len(self.tables) != 1:
            raise InputError(f"{len(self.tables)} tables are given: prompts that share have one")

    @classmethod
    def zeros(cls, space: OutputSpace, contexts: int, shared: bool = False) -> PrefixSoftmax:
        """A policy with equally likely choices at every prefix."""
        count = integer("contexts", contexts)
        tables = np.zeros((1 if shared else count, space.prefixes, space.symbols))
        return cls(space, tables, count if shared else None)

    @classmethod
    def random(
        cls,
        space: OutputSpace,
        contexts: int,
        seed: int = 0,
        scale: float = 1.0,
        shared: bool = False,
    ) -> PrefixSoftmax:
        """A policy with independent normal logits; the same seed gives the same policy."""
        like = cls.zeros(space, contexts, shared)
        rng = np.random.default_rng(integer("seed", seed, 0))
        return cls(space, rng.normal(0.0, scale, like.tables.shape), like.contexts)

    def _table(self, context: int) -> int:
        return context if self.contexts is None else 0

    def _contexts(self) -> range:
        return range(len(self.tables) if self.contexts is None else self.contexts)

    @cached_property
    def _log_choices(self) -> Array:
        """log p_n(c), (X or 1, N, A)."""
        return np.asarray(log_softmax(self.tables, axis=-1))

    @cached_property
    def _choices(self) -> Array:
        return np.exp(self._log_choices)

    @cached_property
    def _squares(self) -> Array:
        """‖p_n‖², (X or 1, N)."""
        return (self._choices**2).sum(axis=-1)

    @cached_property
    def logits(self) -> Array:
        rows = np.stack([self.space.along(table) for table in self._log_choices])
        return rows if self.contexts is None else np.repeat(rows, self.contexts, axis=0)

    @property
    def theta(self) -> Array:
        return self.tables.ravel()

    def with_theta(self, theta: Array) -> PrefixSoftmax:
        return PrefixSoftmax(self.space, np.reshape(theta, self.tables.shape), self.contexts)

    def restrict(self, contexts: NDArray[np.intp]) -> PrefixSoftmax:
        if self.contexts is None:
            return PrefixSoftmax(self.space, self.tables[contexts])
        return PrefixSoftmax(self.space, self.tables, len(contexts))

    def arrays(self) -> dict[str, Array]:
        return {**self.space.arrays(), "prefix_tables": self.tables}

    def _in_table(self, context: int, weights: Array) -> Array:
        """Σ_k w_k s(x, k) in the entries of the context's table, (M, K) to (M, N, A)."""
        chosen, passed = ((adds @ weights.T).T for adds in self.space.over_outputs)
        made = chosen.reshape(len(weights), *self.tables.shape[1:])
        return made - passed[..., None] * self._choices[self._table(context)]

    def combine(self, context: int, weights: Array) -> Array:
        rows = weights.reshape(-1, weights.shape[-1])
        out = np.zeros((len(rows), *self.tables.shape))
        out[:, self._table(context)] = self._in_table(context, rows)
        return out.reshape(*weights.shape[:-1], -1)

    def scores(self, context: int) -> Array:
        """s(x, k) of every output, (K, d)."""
        require_scores_size(self.space.count, max(self.d, self.space.count))
        return self.combine(context, np.eye(self.space.count))

    def score_derivative(self, context: int, directions: Array) -> Array:
        """-(diag p_n - p_n p_nᵀ) v at each prefix n that the output passes, and 0 elsewhere."""
        place, out = self._table(context), np.zeros_like(directions)
        choices, passed = self._choices[place], self.space.visits.toarray()[..., None]
        along = directions.reshape(len(directions), *self.tables.shape)[:, place]
        centred = along - (choices * along).sum(axis=-1, keepdims=True)
        out.reshape(len(directions), *self.tables.shape)[:, place] = -passed * choices * centred
        return out

    def inner(self, vector: Array) -> Array:
        along = vector.reshape(self.tables.shape)
        centred = along - (self._choices * along).sum(axis=-1, keepdims=True)
        rows = np.stack([self.space.along(table) for table in centred])
        return rows if self.contexts is None else np.repeat(rows, self.contexts, axis=0)

    def gram(self, first: int, second: int) -> Array:
        count = self.space.count
        require_gram_size(count)
        if self._table(first) != self._table(second):
            return np.zeros((count, count))
        place = self._table(first)
        choices, visits = self.space.choices, self.space.visits
        inside = self.space.nodes != PAD
        here = self._choices[place][self.space.nodes[inside], self.space.outputs[inside]]
        likely = csr_array((here, visits.indices, visits.indptr), shape=visits.shape)
        equal = choices @ choices.T
        one_sided = likely @ visits.T
        both = (visits * self._squares[place]) @ visits.T
        return np.asarray((equal - one_sided - one_sided.T + both).toarray())

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        out = np.zeros(self.tables.shape)
        for x in self._contexts():
            out[self._table(x)] += self._in_table(x, (context_probs[x] * weights[x])[None])[0]
        return out.ravel()

    def squared_combinations(self, weights: Array) -> Array:
        return np.array(
            [(self._in_table(x, weights[x][None]) ** 2).sum() for x in self._contexts()]
        )

    @cached_property
    def squared_norms(self) -> Array:
        per_choice = 1 - 2 * self._choices + self._squares[..., None]
        rows = np.stack([self.space.along(table) for table in per_choice])
        return rows if self.contexts is None else np.repeat(rows, self.contexts, axis=0)

    @property
    def feature_norm(self) -> float:
        """The longest way: √length."""
        return float(np.sqrt(self.space.length))

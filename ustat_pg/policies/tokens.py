"""Policies over token sequences: all outputs of a vocabulary, and a softmax at every prefix.

An output is drawn token by token, so that its log-probability is a sum over the prefixes on its way

    log π(y | x) = Σ_t log π(y_t | x, y_{<t}),

and so is its score. With all outputs listed, the policy is a softmax bandit whose arms are outputs.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, log10

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import log_softmax

from ..validation import InputError, field, finite_array, integer, record
from .softmax import SoftmaxPolicy, largest_distances

__all__ = ["OutputSpace", "PrefixSoftmax"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_OUTPUTS = 100_000
"""Outputs that are still listed."""

GRAM_BYTES = 2**30
"""Inner products of all pairs of outputs are refused above this size."""

PAD = -1
"""Stands after the last token of an output that is shorter than others."""


def require_gram_size(outputs: int) -> None:
    """Refuse a table of all pairs of outputs that would not fit, and say how large it is."""
    if 8 * outputs**2 > GRAM_BYTES:
        raise InputError(
            f"inner products of all pairs of {outputs} outputs need {8 * outputs**2 / 2**30:.1f} "
            f"GiB: at most {GRAM_BYTES / 2**30:g} GiB is allowed; take fewer outputs"
        )


def require_scores_size(outputs: int, parameters: int, limit: int = GRAM_BYTES) -> None:
    """Refuse a table of all scores that would not fit, and say how large it is."""
    if 8 * outputs * parameters > limit:
        raise InputError(
            f"scores of {outputs} outputs in {parameters} parameters need "
            f"{8 * outputs * parameters / 2**30:.1f} GiB: at most {limit / 2**30:.3g} GiB is allowed; "
            "take a smaller policy, or moments alone, which need no table"
        )


def score_diameters(policy: SoftmaxPolicy, possible: NDArray[np.bool_]) -> Array:
    """The greatest distance of two scores of possible outputs (X, K), or a bound: (X,).

    Where all pairs do not fit in memory it is twice the longest score.
    """
    out = np.zeros(len(possible))
    for x, arms in enumerate(possible):
        if 8 * len(arms) ** 2 > GRAM_BYTES:
            longest = np.sqrt(policy.squared_norms[x][arms].max(initial=0.0))
            out[x] = 2 * longest * (arms.sum() > 1)
        else:
            out[x] = largest_distances(policy.gram(x, x), arms)
    return out


@record(eq=True)
class OutputSpace:
    """All outputs of a vocabulary: of one length, or up to a length with an end token.

    With an end token, outputs of fewer than ``length`` tokens are closed by it, and those of
    ``length`` tokens are cut there: Σ_{j <= length} v^j outputs. Without one there are v^length. The
    end token is number v. Outputs are in order of length, then of their digits.

    Arguments:
        vocabulary: v, the number of tokens, without the end token.
        length: the most tokens in an output.
        end: whether there is an end token.

    Raises:
        InputError: a size that is not a positive whole number, or more than 100,000 outputs.

    >>> OutputSpace(2, 2, end=True).outputs
    array([[ 2, -1], [ 0,  2], [ 1,  2], [ 0,  0], [ 0,  1], [ 1,  0], [ 1,  1]])
    """

    vocabulary: int = field(integer)
    length: int = field(integer)
    end: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.end, (bool, np.bool_)):
            raise InputError(f"end is {self.end!r}: it must be True or False")
        if self._needed > MOST_OUTPUTS:
            raise InputError(
                f"vocabulary {self.vocabulary} and length {self.length} make {self._size} "
                f"outputs: at most {MOST_OUTPUTS} are listed; take a smaller vocabulary or length"
            )

    @cached_property
    def _needed(self) -> float:
        """The number of outputs, or infinity where it is beyond any use."""
        if self.length * log10(self.vocabulary) > 12:
            return inf
        if self.vocabulary == 1:
            return self.length + 1.0 if self.end else 1.0
        shortest = 0 if self.end else self.length
        return float(sum(self.vocabulary**j for j in range(shortest, self.length + 1)))

    @property
    def _size(self) -> str:
        if self._needed < inf:
            return f"{int(self._needed):,}"
        return f"about 10^{self.length * log10(self.vocabulary):.0f}"

    @property
    def count(self) -> int:
        """K, the number of outputs."""
        return int(self._needed)

    @property
    def symbols(self) -> int:
        """Choices at each step: v, and one more with an end token."""
        return self.vocabulary + self.end

    @property
    def end_token(self) -> int | None:
        """The end token's number, if there is one."""
        return self.vocabulary if self.end else None

    @cached_property
    def _offsets(self) -> Integers:
        """The number of the first prefix of each length, (l + 1,)."""
        return np.cumsum([0, *(self.vocabulary**t for t in range(self.length))])

    @property
    def prefixes(self) -> int:
        """N, the prefixes at which a token is chosen: Σ_{t < length} v^t."""
        return int(self._offsets[-1])

    @cached_property
    def _tables(self) -> tuple[Integers, Integers]:
        outputs = np.full((self.count, self.length), PAD, dtype=np.int64)
        nodes = np.full_like(outputs, PAD)
        row = 0
        for j in range(0 if self.end else self.length, self.length + 1):
            rows = slice(row, row + self.vocabulary**j)
            numbers = np.arange(self.vocabulary**j, dtype=np.int64)
            for t in range(j):
                outputs[rows, t] = numbers // self.vocabulary ** (j - t - 1) % self.vocabulary
            if j < self.length:
                outputs[rows, j] = self.vocabulary
            for t in range(min(j + 1, self.length)):
                nodes[rows, t] = self._offsets[t] + numbers // self.vocabulary ** (j - t)
            row = rows.stop
        outputs.setflags(write=False)
        nodes.setflags(write=False)
        return outputs, nodes

    @property
    def outputs(self) -> Integers:
        """The tokens of each output, end token included, (K, l), padded with -1."""
        return self._tables[0]

    @property
    def nodes(self) -> Integers:
        """The number of the prefix before each token, (K, l), padded with -1."""
        return self._tables[1]

    @cached_property
    def lengths(self) -> Integers:
        """Tokens in each output, end token included, (K,)."""
        return (self.outputs != PAD).sum(axis=1)

    def content(self, output: int) -> tuple[int, ...]:
        """The tokens of an output without the end token.

        >>> OutputSpace(2, 2, end=True).content(1)
        (0,)
        """
        return tuple(t for t in self.outputs[output].tolist() if 0 <= t < self.vocabulary)

    @cached_property
    def visits(self) -> csr_array:
        """1 where an output passes a prefix, (K, N)."""
        inside = self.nodes != PAD
        ends = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
        return csr_array(
            (np.ones(inside.sum()), self.nodes[inside], ends), shape=(self.count, self.prefixes)
        )

    @cached_property
    def choices(self) -> csr_array:
        """1 where an output makes a choice of token at a prefix, (K, N A), prefixes outermost."""
        inside = self.nodes != PAD
        places = self.nodes[inside] * self.symbols + self.outputs[inside]
        shape = (self.count, self.prefixes * self.symbols)
        return csr_array((np.ones(len(places)), places, self.visits.indptr), shape=shape)

    def along(self, per_choice: Array) -> Array:
        """Σ_t c(prefix_t, token_t) of each output, for a table (N, A): (K,)."""
        return np.asarray(self.choices @ np.ravel(per_choice))

    def arrays(self) -> dict[str, Array]:
        """The numbers that define the space."""
        return {"space": np.array([self.vocabulary, self.length, self.end], dtype=np.float64)}


@record()
class PrefixSoftmax(SoftmaxPolicy):
    """One vector of logits per prefix, for each prompt apart or for all prompts together.

    With e the unit vector of a choice and p_n the softmax at prefix n, the score of an output is
    e - p_n in the block of each prefix n on its way and 0 elsewhere. So
    ⟨s, s'⟩ = Σ_n 1{c = c'} - p_n(c) - p_n(c') + ‖p_n‖² over the prefixes n that both pass, c and c'
    their choices there.

    Arguments:
        space: the outputs.
        tables: logits, (X, N, A), or (1, N, A) where prompts share them.
        contexts: X, given where prompts share one table; None for a table of each prompt's own.

    Raises:
        InputError: shapes that do not match, or entries that are not finite.

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
        """All choices equally likely at every prefix."""
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
        """Independent normal logits; the same seed gives the same policy."""
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
        """The arrays that name this policy."""
        return {**self.space.arrays(), "prefix_tables": self.tables}

    def _own_block(self, context: int, weights: Array) -> Array:
        """Σ_k w_k s(x, k) in the block of the context's table, (M, K) to (M, N, A)."""
        chosen = (self.space.choices.T @ weights.T).T
        passed = (self.space.visits.T @ weights.T).T
        block = chosen.reshape(len(weights), *self.tables.shape[1:])
        return block - passed[..., None] * self._choices[self._table(context)]

    def combine(self, context: int, weights: Array) -> Array:
        rows = weights.reshape(-1, weights.shape[-1])
        out = np.zeros((len(rows), *self.tables.shape))
        out[:, self._table(context)] = self._own_block(context, rows)
        return out.reshape(*weights.shape[:-1], -1)

    def scores(self, context: int) -> Array:
        """s(x, k) of every output, (K, d).

        Raises:
            InputError: the table would be too large.
        """
        require_scores_size(self.space.count, max(self.d, self.space.count))
        return self.combine(context, np.eye(self.space.count))

    def inner(self, vector: Array) -> Array:
        blocks = vector.reshape(self.tables.shape)
        centred = blocks - (self._choices * blocks).sum(axis=-1, keepdims=True)
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
            out[self._table(x)] += self._own_block(x, (context_probs[x] * weights[x])[None])[0]
        return out.ravel()

    def squared_combinations(self, weights: Array) -> Array:
        return np.array(
            [(self._own_block(x, weights[x][None]) ** 2).sum() for x in self._contexts()]
        )

    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        """See :func:`score_diameters`."""
        return score_diameters(self, possible)

    @cached_property
    def squared_norms(self) -> Array:
        per_choice = 1 - 2 * self._choices + self._squares[..., None]
        rows = np.stack([self.space.along(table) for table in per_choice])
        return rows if self.contexts is None else np.repeat(rows, self.contexts, axis=0)

    @property
    def feature_norm(self) -> float:
        """The longest way: √length."""
        return float(np.sqrt(self.space.length))

"""The list of all outputs of a vocabulary, with the prefixes that they pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import log10

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..validation import Array, InputError, field, integer, record

__all__ = ["OutputSpace"]

Integers = NDArray[np.int64]

MOST_OUTPUTS = 100_000
"""The largest number of outputs in a list."""

PAD = -1
"""The padding after the last token of a shorter output."""


def require_prompts(name: str, value: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """At least one prompt, each of tokens that are whole numbers >= 0."""
    rows = tuple(tuple(integer("prompt token", token, 0) for token in prompt) for prompt in value)
    if not rows:
        raise InputError(f"the set of {name} is empty: at least one is needed")
    return rows


@record(eq=True)
class OutputSpace:
    """All outputs of a vocabulary: of one length, or up to a length with an end token.

    With an end token, outputs of fewer than ``length`` tokens end with it, and outputs of ``length`` tokens
    are cut there: Σ_{j <= length} v^j outputs. Without an end token there are v^length. The
    end token is number v. Outputs are in order of length, then of their digits.

    Arguments:
        vocabulary: v, the number of tokens, without the end token.
        length: largest number of tokens in an output.
        end: whether there is an end token.

    Raises:
        InputError: a size is not a positive whole number, or there are more than 100,000 outputs.

    >>> OutputSpace(2, 2, end=True).outputs
    array([[ 2, -1], [ 0,  2], [ 1,  2], [ 0,  0], [ 0,  1], [ 1,  0], [ 1,  1]])
    """

    vocabulary: int = field(integer)
    length: int = field(integer)
    end: bool = False

    def __attrs_post_init__(self) -> None:
        if self.length * log10(self.vocabulary) > 12 or self.count > MOST_OUTPUTS:
            raise InputError(
                f"vocabulary {self.vocabulary} and length {self.length} make more outputs than are "
                f"listed, {MOST_OUTPUTS:,}: take a smaller vocabulary or length"
            )

    @cached_property
    def count(self) -> int:
        """K, the number of outputs."""
        v, length = self.vocabulary, self.length
        if not self.end:
            return v**length
        return length + 1 if v == 1 else (v ** (length + 1) - 1) // (v - 1)

    @property
    def symbols(self) -> int:
        """The number of choices at each step: v, or v + 1 with an end token."""
        return self.vocabulary + self.end

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
    def ways(self) -> Integers:
        """Runs of tokens that pass every prefix, (W, l): all of l - 1 tokens, and a 0 behind each."""
        v, last = self.vocabulary, self.length - 1
        tokens = np.arange(v**last)[:, None] // v ** np.arange(last - 1, -1, -1) % v
        return np.pad(tokens, ((0, 0), (0, 1)))

    @cached_property
    def first_visits(self) -> Integers:
        """Where the ways, one behind another, first pass each prefix, (N,)."""
        v, depths = self.vocabulary, np.arange(self.length)
        numbers = np.arange(len(self.ways))[:, None] // v ** (self.length - 1 - depths)
        return np.unique(self._offsets[:-1] + numbers, return_index=True)[1]

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

    @cached_property
    def over_outputs(self) -> tuple[csr_array, csr_array]:
        """The matrices that add up values of outputs by choice, (N A, K), and by prefix, (N, K)."""
        return csr_array(self.choices.T), csr_array(self.visits.T)

    def along(self, per_choice: Array) -> Array:
        """Σ_t c(prefix_t, token_t) of each output for a table (N, A), (K,); of n tables (N, A, n), (K, n)."""
        return np.asarray(self.choices @ per_choice.reshape(-1, *per_choice.shape[2:]))

    def by_token(self, log_probs: Array, scores: Array | None = None) -> tuple[Array, Array | None]:
        """Log-probabilities and scores token by token, of any policy over the outputs.

        A prefix has the probability of all outputs that pass it, and its score is their mean score; a token
        has the differences of both.

        Arguments:
            log_probs: log π(k), (K,).
            scores: s(k), (K, d), or None.

        Returns:
            log π(token | prefix), (K, l), and its gradient, (K, l, d), both 0 past an output's end.

        >>> logs, _ = OutputSpace(2, 2).by_token(np.log([0.1, 0.2, 0.3, 0.4]))
        >>> np.exp(logs).round(4)
        array([[0.3   , 0.3333],
               [0.3   , 0.6667],
               [0.7   , 0.4286],
               [0.7   , 0.5714]])
        """
        inside = self.nodes != PAD
        probs = np.exp(log_probs - log_probs.max())
        (before, passed), (after, chosen) = self._sums
        masses = (passed @ probs)[before], (chosen @ probs)[after]
        logs = np.where(inside, np.log(masses[1] / masses[0]), 0.0)
        if scores is None:
            return logs, None
        weighted = probs[:, None] * scores
        mean = (passed @ weighted)[before] / masses[0][..., None]
        with_token = (chosen @ weighted)[after] / masses[1][..., None]
        return logs, np.where(inside[..., None], with_token - mean, 0.0)

    @cached_property
    def _sums(self) -> tuple[tuple[Integers, csr_array], tuple[Integers, csr_array]]:
        """What sums over the outputs that pass each prefix, and over those that make each choice there;
        and the numbers of prefix and choice at each token, (K, l), 0 past an output's end.
        """
        inside = self.nodes != PAD
        places = self.nodes * self.symbols + self.outputs
        by_choice, by_prefix = self.over_outputs
        return (
            (np.where(inside, self.nodes, 0), by_prefix),
            (np.where(inside, places, 0), by_choice),
        )

    def arrays(self) -> dict[str, Array]:
        """The numbers that define the space."""
        return {"space": np.array([self.vocabulary, self.length, self.end], dtype=np.float64)}

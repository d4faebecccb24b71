"""A small causal transformer as a policy over token sequences, with exact probabilities and scores.

The network reads a begin token, the prompt and the output so far, and gives log-probabilities of the
next token. Teacher forcing over all prefixes gives the probability of every output; scores are
gradients of each output's log-probability, many at a time under ``vmap``. This module needs torch.

Only :meth:`TransformerPolicy.scores` and the tables made of it hold K d numbers. Gradients, inner
products with a vector, norms and Gram matrices are computed in chunks whose memory is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from threading import local
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from ..memory import in_slices, slices
from ..validation import InputError, changed, field, finite_array, frozen, integer, one_of, record
from .network import PRECISIONS, CausalTransformer, TransformerShape, blank, device_of
from .outputs import PAD, OutputSpace
from .softmax import SoftmaxPolicy
from .tabulated import TabulatedPolicy
from .tokens import GRAM_BYTES, require_gram_size, require_scores_size, score_diameters

__all__ = ["TransformerPolicy"]

Array = NDArray[np.float64]

_TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
"""How far from 1 and 0 the sum of probabilities and the mean score may be, by precision."""

_GRADIENT_COPIES = 3
"""Per-sample gradients that exist at once: what a backward pass returns, and what it still holds."""

_CACHE_BYTES = 2**25
"""Bytes of gradients beyond which a CPU loses more in its caches than it gains by larger chunks."""

_LEAST_CHUNK_OUTPUTS = 16
"""Outputs below which a chunk costs a CPU more in calls than in its caches."""

_MOST_BACKWARD_PASSES = 8
"""Weightings for which a backward pass each is cheaper than all scores."""


_THREAD = local()
"""The blank modules of each thread, by shape."""


@record(frozen=False)
class TransformerPolicy(SoftmaxPolicy):
    """A causal transformer at fixed parameters, over some prompts and all outputs of a space.

    Arguments:
        space: the outputs.
        prompts: sequences of tokens >= 0, read before the output; lengths may differ.
        shape: the network's sizes.
        parameters: θ (d,), its tensors flattened in the order of ``named_parameters``.
        precision: float64 or float32; tables are float64 either way.
        device: cpu, cuda or cuda:N.
        memory: bytes that per-sample gradients may take at once.
        chunk: outputs whose scores are computed at once; None for what ``memory`` allows. It
            halves, with a :class:`ChunkWarning`, where memory runs out.

    Raises:
        InputError: no prompts, sizes that do not match, an unknown precision, a device that is not
            there, or log-probabilities that are not finite.

    >>> policy = TransformerPolicy.initial(OutputSpace(3, 2), [(0,), (1, 2)], width=8, seed=1)
    >>> policy.d, policy.probs.shape, bool((abs(policy.probs.sum(axis=1) - 1) < 1e-12).all())
    (979, (2, 9), True)
    """

    space: OutputSpace
    prompts: tuple[tuple[int, ...], ...]
    shape: TransformerShape
    parameters: Array = field(finite_array, name="theta", ndim=1)
    precision: str = "float64"
    device: str = "cpu"
    memory: int = field(integer, default=2**28)
    chunk: int | None = field(integer, default=None)
    _known: dict[str, Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._known = {}
        self.prompts = tuple(
            tuple(integer("prompt token", token, 0) for token in prompt) for prompt in self.prompts
        )
        if not self.prompts:
            raise InputError("the set of prompts is empty: at least one is needed")
        one_of("precision", self.precision, PRECISIONS)
        device_of(self.device)
        if self.space.symbols != self.shape.choices:
            raise InputError(
                f"the network writes {self.shape.choices} tokens: outputs have {self.space.symbols}"
            )
        if len(self.parameters) != self._ends[-1]:
            raise InputError(
                f"theta has {len(self.parameters)} entries: the network has {self._ends[-1]} "
                "parameters"
            )

    @classmethod
    def initial(
        cls,
        space: OutputSpace,
        prompts: Sequence[Sequence[int]],
        *,
        width: int = 16,
        layers: int = 1,
        heads: int = 2,
        seed: int = 0,
        **options: Any,
    ) -> TransformerPolicy:
        """A network of random parameters: weights normal with variance 1/fan-in, biases 0.

        The seed gives the same parameters on every machine and device.
        """
        rows = tuple(tuple(integer("prompt token", t, 0) for t in prompt) for prompt in prompts)
        largest = max((max(prompt, default=0) for prompt in rows), default=0)
        shape = TransformerShape(
            inputs=max(largest + 1, space.symbols),
            choices=space.symbols,
            positions=max(map(len, rows), default=0) + space.length,
            width=width,
            layers=layers,
            heads=heads,
        )
        rng = np.random.default_rng(integer("seed", seed, 0))
        parts = []
        for name, tensor in blank(shape).named_parameters():
            size = tuple(tensor.shape)
            if len(size) > 1:
                # A row of an embedding is read alone: its entries are of order 1/√2, and two add.
                fan_in = 2 if name in ("tokens.weight", "places.weight") else size[1]
                parts.append(rng.normal(0.0, fan_in**-0.5, size).ravel())
            else:
                parts.append(np.full(size, float("norm" in name and name.endswith("weight"))))
        return cls(space, rows, shape, np.concatenate(parts), **options)

    # What the network is made of.

    @property
    def network(self) -> CausalTransformer:
        """The module, to be called with :attr:`state`: this thread's own, since
        ``functional_call`` puts the parameters into it while it runs.
        """
        if not hasattr(_THREAD, "modules"):
            _THREAD.modules = {}
        modules: dict[TransformerShape, CausalTransformer] = _THREAD.modules
        if self.shape not in modules:
            modules[self.shape] = blank(self.shape)
        return modules[self.shape]

    @cached_property
    def _sizes(self) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self.network.named_parameters()}

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(size.numel() for size in self._sizes.values())])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Parameters (..., d) by name, as ``torch.func.functional_call`` takes them."""
        pieces = flat.split([size.numel() for size in self._sizes.values()], dim=-1)
        return {
            name: piece.reshape(*flat.shape[:-1], *size)
            for (name, size), piece in zip(self._sizes.items(), pieces, strict=True)
        }

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """The parameters by name, on the device."""
        return self.unflatten(self._tensor(self.parameters))

    def _tensor(self, array: ArrayLike) -> Tensor:
        # A copy: torch has no read-only tensors.
        return torch.tensor(np.array(array), dtype=PRECISIONS[self.precision], device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Only what defines the policy: tensors and tables are made anew."""
        return attrs.asdict(self, recurse=False) | {"_known": {}}  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Array]:
        longest = max(map(len, self.prompts))
        table = np.full((len(self.prompts), longest), float(PAD))
        for row, prompt in zip(table, self.prompts, strict=True):
            row[: len(prompt)] = prompt
        return {
            **self.space.arrays(),
            "prompts": table,
            "transformer": self.shape.sizes(),
            "bits": np.array([torch.finfo(PRECISIONS[self.precision]).bits], dtype=np.float64),
            "theta": self.parameters,
        }

    # Sequences.

    def sequences(self, context: int, outputs: Tensor) -> Tensor:
        """What the network reads to write outputs (n, l): begin, prompt, output but its last."""
        head = torch.tensor([self.network.begin, *self.prompts[context]], device=outputs.device)
        body = outputs[:, :-1].clamp(min=0)
        return torch.cat([head.expand(len(outputs), -1), body], dim=1)

    def choice_log_probs(self, state: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
        """log π(· | prompt, prefix) before each token of the outputs, (..., l, A)."""
        logits = functional_call(self.network, dict(state), (sequences,))
        return functional.log_softmax(logits[..., -self.space.length :, :], dim=-1)

    def log_prob(self, state: Mapping[str, Tensor], sequences: Tensor, outputs: Tensor) -> Tensor:
        """log π(y | x) of outputs (..., l) padded with -1, by teacher forcing: (...)."""
        choices = self.choice_log_probs(state, sequences)
        taken = choices.gather(-1, outputs.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return torch.where(outputs >= 0, taken, torch.zeros_like(taken)).sum(-1)

    @cached_property
    def _outputs(self) -> Tensor:
        return torch.tensor(np.array(self.space.outputs), device=self.device)

    def _tables(self, run: Callable[[int, slice], Array]) -> Array:
        """A number of every output of every prompt, (X, K): the sum of those of its choices."""
        rows = []
        for x in range(len(self.prompts)):
            parts = [found for _, found in self._chunks(len(self._ways), partial(run, x), 0)]
            choices = np.concatenate(parts).reshape(-1, self.space.symbols)
            rows.append(self.space.along(choices[self.space.first_visits]))
        return np.stack(rows)

    @cached_property
    def _ways(self) -> Tensor:
        return torch.tensor(np.array(self.space.ways), device=self.device)

    # Chunks.

    def _chunks(
        self, total: int, run: Callable[[slice], Any], width: int | None = None
    ) -> Iterator[tuple[slice, Any]]:
        """``run`` over 0 to total in slices of the chunk, which halves where memory runs out."""

        def keep(smaller: int) -> None:
            self.chunk = smaller

        yield from in_slices(total, self.chunk or self.default_chunk(width), "outputs", run, keep)

    def default_chunk(self, parameters: int | None = None) -> int:
        """Outputs at once that the memory allows, with gradients in so many parameters (all d)."""
        each = torch.finfo(PRECISIONS[self.precision]).bits // 8
        # Some 20 vectors of the width live at each position of each layer, and in a derivative
        # of a gradient twice as many.
        activity = (
            40
            * self.shape.layers
            * self.shape.positions
            * (self.shape.width + self.shape.heads * self.shape.positions // 4)
        )
        moving = self.d if parameters is None else parameters
        per_output = each * (_GRADIENT_COPIES * moving + activity)
        size = max(1, int(self.memory // per_output))
        if torch.device(self.device).type == "cpu":
            size = min(size, max(_LEAST_CHUNK_OUTPUTS, _CACHE_BYTES // (each * max(moving, 1))))
        return size

    def _score_rows(
        self, context: int, rows: NDArray[np.int64] | slice, columns: slice | None = None
    ) -> list[tuple[slice, Tensor]]:
        """Scores of some outputs in the columns asked for, tensor by tensor: (n, their size) each.

        Pieces are not put together here: a copy of them costs as much time as a gradient.
        """
        low, high = (0, self.d) if columns is None else (columns.start, columns.stop)
        ends = dict(zip(self._sizes, zip(self._ends, self._ends[1:], strict=False), strict=True))
        names = [name for name, (begin, end) in ends.items() if end > low and begin < high]
        fixed = {name: value for name, value in self.state.items() if name not in names}
        moving = {name: self.state[name] for name in names}
        outputs = self._outputs[rows]

        def one(chosen: dict[str, Tensor], sequence: Tensor, output: Tensor) -> Tensor:
            return self.log_prob({**fixed, **chosen}, sequence, output)

        slopes = vmap(grad(one), in_dims=(None, 0, 0))(
            moving, self.sequences(context, outputs), outputs
        )
        pieces = []
        for name in names:
            begin, end = (int(place) for place in ends[name])
            part = slice(max(begin, low), min(end, high))
            own = slopes[name].detach().flatten(1)[:, part.start - begin : part.stop - begin]
            if not bool(torch.isfinite(own.sum())):
                raise InputError(
                    f"scores of context {context} are not finite: the network's parameters are "
                    "too large or its training has diverged"
                )
            pieces.append((part, own))
        return pieces

    def _all_rows(self, context: int) -> Iterator[tuple[slice, list[tuple[slice, Tensor]]]]:
        yield from self._chunks(self.space.count, lambda rows: self._score_rows(context, rows))

    # What a policy has to answer.

    @cached_property
    def logits(self) -> Array:
        def run(x: int, part: slice) -> Array:
            with torch.no_grad():
                found = self.choice_log_probs(self.state, self.sequences(x, self._ways[part]))
            return found.double().cpu().numpy()

        out = self._tables(run)
        if not np.isfinite(out).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
            raise InputError(
                f"the network's log-probabilities hold {out[where]} at {list(where)}: its "
                "parameters are too large or its training has diverged"
            )
        return frozen(out)

    @property
    def theta(self) -> Array:
        return self.parameters

    @property
    def d(self) -> int:
        return int(self._ends[-1])

    def with_theta(self, theta: Array) -> TransformerPolicy:
        return changed(self, parameters=theta)

    def restrict(self, contexts: NDArray[np.intp]) -> TransformerPolicy:
        chosen = tuple(self.prompts[int(x)] for x in contexts)
        return changed(self, prompts=chosen)

    def scores(self, context: int) -> Array:
        """s(x, k) of every output, (K, d): the one answer that holds them all."""
        require_scores_size(self.space.count, self.d, max(self.memory, GRAM_BYTES))
        out = np.empty((self.space.count, self.d))
        for rows, pieces in self._all_rows(context):
            for part, found in pieces:
                out[rows, part] = found.cpu().numpy()
        return out

    def _backward(self, context: int, per_choice: Array) -> Array:
        """Σ c(n, a) ∇ log p_n(a) over prefixes and choices, for a table (N, A): (d,)."""
        total, ways = np.zeros(self.d), self._ways
        # Each prefix counts where a way passes it first.
        weights = np.zeros((ways.numel(), self.space.symbols))
        weights[self.space.first_visits] = per_choice
        weights = weights.reshape(*ways.shape, -1)

        def run(part: slice) -> Array:
            flat = self._tensor(self.parameters).requires_grad_()
            sequences = self.sequences(context, ways[part])
            found = self.choice_log_probs(self.unflatten(flat), sequences)
            (slope,) = torch.autograd.grad((found * self._tensor(weights[part])).sum(), flat)
            return slope.double().cpu().numpy()

        for _, slope in self._chunks(len(ways), run, 0):
            total += slope
        return total

    def combine(self, context: int, weights: Array) -> Array:
        rows = weights.reshape(-1, weights.shape[-1])
        if len(rows) <= _MOST_BACKWARD_PASSES:
            tables = (self.space.choices.T @ rows.T).T
            wanted = (self.space.prefixes, self.space.symbols)
            out = np.stack([self._backward(context, row.reshape(wanted)) for row in tables])
        else:
            out = np.zeros((len(rows), self.d))
            for chunk, pieces in self._all_rows(context):
                for part, found in pieces:
                    out[:, part] += rows[:, chunk] @ found.double().cpu().numpy()
        return out.reshape(*weights.shape[:-1], -1)

    def inner(self, vector: Array) -> Array:
        """⟨s(x, k), v⟩, (X, K), without scores: the derivative of log π along v.

        It is taken as the derivative, in u, of ⟨Jᵀu, v⟩, J the log-probabilities' Jacobian.
        """
        along = self._tensor(vector)

        def run(x: int, part: slice) -> Array:
            flat = self._tensor(self.parameters).requires_grad_()
            sequences = self.sequences(x, self._ways[part])
            found = self.choice_log_probs(self.unflatten(flat), sequences)
            dual = torch.zeros_like(found, requires_grad=True)
            (slope,) = torch.autograd.grad(found, flat, dual, create_graph=True)
            (change,) = torch.autograd.grad((slope * along).sum(), dual)
            return change.double().cpu().numpy()

        return self._tables(run)

    def gram_matrix(self, contexts: Sequence[int]) -> Array:
        """⟨s, s'⟩ of all outputs of some prompts, (n K, n K), prompts outermost.

        Scores are never held at once: it is summed over runs of parameters, as many as the
        memory allows.
        """
        total = len(contexts) * self.space.count
        require_gram_size(total)
        out = torch.zeros(total, total, dtype=torch.float64, device=self.device)
        for columns in slices(self.d, self.memory // (8 * total)):
            low, width = columns.start, columns.stop - columns.start
            scores = torch.empty(total, width, dtype=torch.float64, device=self.device)
            for place, x in enumerate(contexts):

                def run(rows: slice, x: int = x, columns: slice = columns) -> Any:
                    return self._score_rows(x, rows, columns)

                own = scores[place * self.space.count : (place + 1) * self.space.count]
                for rows, pieces in self._chunks(self.space.count, run):
                    for part, found in pieces:
                        own[rows, part.start - low : part.stop - low] = found
            out += scores @ scores.T
        return out.cpu().numpy()

    def gram(self, first: int, second: int) -> Array:
        key = f"gram {first} {second}"
        if key not in self._known:
            if first == second:
                matrix = self.gram_matrix([first])
            else:
                matrix = self.gram_matrix([first, second])[: self.space.count, self.space.count :]
            self._known.clear()
            self._known[key] = matrix
        return np.array(self._known[key])

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        return np.asarray(
            sum(context_probs[x] * self.combine(x, weights[x]) for x in range(len(self.prompts)))
        )

    def squared_combinations(self, weights: Array) -> Array:
        sums = [self.combine(x, row) for x, row in enumerate(weights)]
        return np.array([float(total @ total) for total in sums])

    diameters = score_diameters

    @cached_property
    def squared_norms(self) -> Array:
        out = np.zeros((len(self.prompts), self.space.count))
        for x in range(len(self.prompts)):
            for rows, pieces in self._all_rows(x):
                for _, found in pieces:
                    norms = torch.linalg.vector_norm(found, dim=1, dtype=torch.float64)
                    out[x, rows] += norms.square().cpu().numpy()
        return frozen(out)

    @property
    def feature_norm(self) -> float:
        """The longest score: the features of a network are not scores' terms."""
        return float(np.sqrt(self.squared_norms.max())) or 1.0

    def tabulated(self, memory: int | None = None) -> TabulatedPolicy:
        """The policy at these parameters as tables, for engines that read scores one by one.

        Scores themselves where X K d numbers fit in the memory (bytes; the policy's own if None),
        else coordinates from their Gram matrix, where three of (X K, X K) fit.
        """
        limit = self.memory if memory is None else integer("memory", memory)
        total = len(self.prompts) * self.space.count
        dense, paired = 8 * total * self.d, 3 * 8 * total**2
        tolerance = _TOLERANCE[self.precision]
        if dense <= limit:
            scores = np.stack([self.scores(x) for x in range(len(self.prompts))])
            return TabulatedPolicy(
                self.logits, scores, self.parameters, self, self.arrays(), tolerance
            )
        if paired <= limit:
            gram = self.gram_matrix(range(len(self.prompts)))
            origin = {**self.arrays(), "reduced": np.ones(1)}
            return TabulatedPolicy.from_gram(self.logits, gram, origin, tolerance)
        raise InputError(
            f"scores of {total} outputs in {self.d} parameters need {dense / 2**20:.0f} MiB and "
            f"their inner products {paired / 2**20:.0f} MiB: {limit / 2**20:.0f} MiB is allowed; "
            "allow more, or take moments alone, which need no table"
        )

"""A small causal transformer as a policy over token sequences, with exact probabilities and scores.

The network reads a begin token, the prompt and the output so far, and gives log-probabilities of the
next token. Teacher forcing over all prefixes gives the probability of every output; scores are
gradients of each output's log-probability, many at a time under ``vmap``. This module needs torch.

Scores, Gram matrices and their tables have K d numbers. Gradients, inner products with a vector and norms are
computed in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from threading import local
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from ..execution import memory as limits
from ..execution.memory import at_once, slices
from ..validation import Array, InputError, changed, field, finite_array, frozen, integer, record
from .network import CausalTransformer, TransformerShape, blank, device_of
from .outputs import PAD, OutputSpace, require_prompts
from .softmax import SoftmaxPolicy, require_gram_size, require_scores_size
from .tabulated import TabulatedPolicy

__all__ = ["TransformerPolicy"]


_THREAD = local()
"""The modules without parameters of each thread, by shape."""


@record()
class TransformerPolicy(SoftmaxPolicy):
    """A causal transformer at fixed parameters, over some prompts and all outputs of a space.

    Arguments:
        space: the outputs.
        prompts: sequences of tokens >= 0, read before the output; lengths may differ.
        shape: the network's sizes.
        parameters: θ (d,), its tensors flattened in the order of ``named_parameters``.
        device: cpu, cuda or cuda:N.

    Raises:
        InputError: there are no prompts, sizes do not match, the device does not exist, or log-probabilities
            are not finite.

    >>> policy = TransformerPolicy.initial(OutputSpace(3, 2), [(0,), (1, 2)], width=8, seed=1)
    >>> policy.d, policy.probs.shape, bool((abs(policy.probs.sum(axis=1) - 1) < 1e-12).all())
    (979, (2, 9), True)
    """

    space: OutputSpace
    prompts: tuple[tuple[int, ...], ...] = field(require_prompts)
    shape: TransformerShape
    parameters: Array = field(finite_array, name="theta", ndim=1)
    device: str = "cpu"

    def __attrs_post_init__(self) -> None:
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
        """A network with random parameters: normal weights with variance 1/fan-in, and biases 0.

        The seed gives the same parameters on every machine and device.
        """
        rows = require_prompts("prompts", prompts)
        largest = max(max(prompt, default=0) for prompt in rows)
        shape = TransformerShape(
            inputs=max(largest + 1, space.symbols),
            choices=space.symbols,
            positions=max(map(len, rows)) + space.length,
            width=width,
            layers=layers,
            heads=heads,
        )
        rng = np.random.default_rng(integer("seed", seed, 0))
        parts = []
        for name, tensor in blank(shape).named_parameters():
            size = tuple(tensor.shape)
            if len(size) > 1:
                # A row of an embedding is read alone, so its entries are of order 1/√2, and two of them add
                # up.
                fan_in = 2 if name in ("tokens.weight", "places.weight") else size[1]
                parts.append(rng.normal(0.0, fan_in**-0.5, size).ravel())
            else:
                parts.append(np.full(size, float("norm" in name and name.endswith("weight"))))
        return cls(space, rows, shape, np.concatenate(parts), **options)

    # The parts of the network.

    @property
    def network(self) -> CausalTransformer:
        """The module, to be called with :attr:`state`: this thread's own, since
        ``functional_call`` puts the parameters into it while it runs.
        """
        if not hasattr(_THREAD, "modules"):
            _THREAD.modules = {}
        modules: dict[TransformerShape, CausalTransformer] = _THREAD.modules
        if self.shape not in modules:
            # A copy: a thread may ask first under ``vmap``, which lets no new module draw its numbers.
            modules[self.shape] = deepcopy(blank(self.shape))
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
        return torch.tensor(np.array(array), dtype=torch.float64, device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Only the definition of the policy; tensors and tables are made again."""
        return attrs.asdict(self, recurse=False)  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Array]:
        longest = max(map(len, self.prompts))
        table = np.full((len(self.prompts), longest), float(PAD))
        for row, prompt in zip(table, self.prompts, strict=True):
            row[: len(prompt)] = prompt
        return {
            **self.space.arrays(),
            "prompts": table,
            "transformer": self.shape.sizes(),
            # Bits of an entry: part of the name since other numbers than 64 were possible.
            "bits": np.array([64.0]),
            "theta": self.parameters,
        }

    # Sequences.

    def sequences(self, context: int, outputs: Tensor) -> Tensor:
        """The tokens that the network reads to write outputs (n, l): begin, prompt, output without its last
        token.
        """
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
        """A number of every output of every prompt, (X, K): the sum of those of its choices.

        Arguments:
            run: a prompt and a part of the ways to numbers of their choices, (w, l, A) or (w, l, A, n),
                which make (X, K, n).
        """
        rows = []
        for x in range(len(self.prompts)):
            parts = [run(x, part) for part in self._chunks(len(self._ways), 0)]
            choices = np.concatenate(parts)
            choices = choices.reshape(-1, *choices.shape[2:])
            rows.append(self.space.along(choices[self.space.first_visits]))
        return np.stack(rows)

    @cached_property
    def _ways(self) -> Tensor:
        return torch.tensor(np.array(self.space.ways), device=self.device)

    def _chunks(self, total: int, parameters: int, outputs: int = 1) -> Iterator[slice]:
        """0 to total in slices that fit in memory, by the outputs of each and the parameters of gradients."""
        # Some 20 vectors of the width live at each position of each layer, and in a derivative
        # of a gradient twice as many.
        activity = (
            40
            * self.shape.layers
            * self.shape.positions
            * (self.shape.width + self.shape.heads * self.shape.positions // 4)
        )
        device = torch.device(self.device)
        yield from slices(total, at_once(device, activity * outputs, parameters))

    def _score_chunks(self, context: int) -> Iterator[tuple[slice, Tensor]]:
        """Scores of the outputs, (n, d), chunk by chunk."""
        slope = vmap(grad(self.log_prob), in_dims=(None, 0, 0))
        for rows in self._chunks(self.space.count, self.d):
            outputs = self._outputs[rows]
            slopes = slope(self.state, self.sequences(context, outputs), outputs)
            scores = torch.cat([slopes[name].flatten(1) for name in self._sizes], dim=1).detach()
            if not bool(torch.isfinite(scores.sum())):
                raise InputError(
                    f"scores of context {context} are not finite: the network's parameters are "
                    "too large or its training has diverged"
                )
            yield rows, scores

    # What a policy has to answer.

    @cached_property
    def logits(self) -> Array:
        def run(x: int, part: slice) -> Array:
            with torch.no_grad():
                log_probs = self.choice_log_probs(self.state, self.sequences(x, self._ways[part]))
            return log_probs.cpu().numpy()

        return frozen(_finite(self._tables(run)))

    def logits_at(self, theta: Array) -> Array:
        """The logits at parameters (n, d), of many of them in one pass: (n, X, K)."""
        many = vmap(self.choice_log_probs, (0, None), -1)
        parts = []
        for rows in self._chunks(len(theta), self.d, len(self._ways)):
            states = self.unflatten(self._tensor(theta[rows]))

            def run(x: int, part: slice, states: dict[str, Tensor] = states) -> Array:
                with torch.no_grad():
                    return many(states, self.sequences(x, self._ways[part])).cpu().numpy()

            parts.append(np.moveaxis(self._tables(run), -1, 0))
        return _finite(np.concatenate(parts))

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
        """s(x, k) of every output, (K, d)."""
        require_scores_size(self.space.count, self.d)
        return torch.cat([scores for _, scores in self._score_chunks(context)]).cpu().numpy()

    def _backward(self, context: int, per_choice: Array) -> Array:
        """Σ c(n, a) ∇ log p_n(a) over prefixes and choices, for a table (N, A): (d,)."""
        total, ways = np.zeros(self.d), self._ways
        # Each prefix counts where a way passes it first.
        weights = np.zeros((ways.numel(), self.space.symbols))
        weights[self.space.first_visits] = per_choice
        weights = weights.reshape(*ways.shape, -1)

        for part in self._chunks(len(ways), 0):
            flat = self._tensor(self.parameters).requires_grad_()
            sequences = self.sequences(context, ways[part])
            log_probs = self.choice_log_probs(self.unflatten(flat), sequences)
            (slope,) = torch.autograd.grad((log_probs * self._tensor(weights[part])).sum(), flat)
            total += slope.cpu().numpy()
        return total

    def combine(self, context: int, weights: Array) -> Array:
        rows = weights.reshape(-1, weights.shape[-1])
        tables = (self.space.over_outputs[0] @ rows.T).T.reshape(
            -1, self.space.prefixes, self.space.symbols
        )
        out = np.stack([self._backward(context, table) for table in tables])
        return out.reshape(*weights.shape[:-1], -1)

    def inner(self, vector: Array) -> Array:
        """⟨s(x, k), v⟩, (X, K), without scores: the derivative of log π along v.

        It is taken as the derivative, in u, of ⟨Jᵀu, v⟩, J the log-probabilities' Jacobian.
        """
        along = self._tensor(vector)

        def run(x: int, part: slice) -> Array:
            flat = self._tensor(self.parameters).requires_grad_()
            sequences = self.sequences(x, self._ways[part])
            log_probs = self.choice_log_probs(self.unflatten(flat), sequences)
            dual = torch.zeros_like(log_probs, requires_grad=True)
            (slope,) = torch.autograd.grad(log_probs, flat, dual, create_graph=True)
            (change,) = torch.autograd.grad((slope * along).sum(), dual)
            return change.cpu().numpy()

        return self._tables(run)

    def gram(self, first: int, second: int) -> Array:
        require_gram_size(self.space.count)
        scores = self.scores(first)
        return scores @ (scores if first == second else self.scores(second)).T

    @cached_property
    def squared_norms(self) -> Array:
        out = np.zeros((len(self.prompts), self.space.count))
        for x in range(len(self.prompts)):
            for rows, scores in self._score_chunks(x):
                out[x, rows] = scores.square().sum(dim=1).cpu().numpy()
        return frozen(out)

    def tabulated(self, memory: int | None = None) -> TabulatedPolicy:
        """The policy at these parameters as tables, for engines that read scores one by one.

        Arguments:
            memory: bytes that the table of scores may take.
        """
        contexts = len(self.prompts)
        require_scores_size(contexts * self.space.count, self.d, memory or limits.MEMORY)
        scores = np.stack([self.scores(x) for x in range(contexts)])
        return TabulatedPolicy(self.logits, scores, self.parameters, self, self.arrays())


def _finite(log_probs: Array) -> Array:
    """Log-probabilities; those that are not finite are refused."""
    if not np.isfinite(log_probs).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(log_probs))[0])
        raise InputError(
            f"the network's log-probabilities hold {log_probs[where]} at {list(where)}: its "
            "parameters are too large or its training has diverged"
        )
    return log_probs

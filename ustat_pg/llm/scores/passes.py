"""Passes of a prompt's completions through a model, in blocks that fit the memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ...memory import slices
from ...validation import InputError, finite_array, integer
from .layers import COARSE, TOLERANCE, Hooks, Sink, Uses, frozen, layers, refuse_unseen, selected
from .sums import PromptScores, Sketch, Statistics, Sums, dot, firsts, pieces, squares
from .tokens import Batch, Room, forward, of_tokens

__all__ = ["SKETCH", "Scores", "differentiate"]

Array = NDArray[np.float64]

SKETCH = 2**14
"""Numbers of a sketch, unless told otherwise."""

_SUMS = 3
"""Weighted sums that every pool takes of a prompt, at most."""

_NOT_FINITE = "scores are not finite: the model's logits or weights are not"


class Scores:
    """Scores of a causal language model.

    Arguments:
        model: a ``transformers`` causal language model in eval mode. Inputs are padded on the
            right and positions counted from the prompt's first token, so that padding is nothing
            that a completion's tokens attend to.
        parameters: "all", or patterns (``*``, ``?``) of parameter names. Parameters without
            ``requires_grad`` are never included; what it is now counts.
        memory: bytes to hold besides the model; None for four fifths of what the model's device
            has free now, and on a CPU for half of it. Completions that do not fit at once are
            processed in blocks, with the same result to rounding.
        method: "hooks", or "loop" for one backward pass for each completion.
        autocast_bf16: run the forward pass under autocast to bfloat16; inner products are summed
            in float32 and float64 even so.
        sketch: k, numbers of a sketch; fewer where there are fewer parameters, and it is exact then.

    Raises:
        InputError: no such parameters, a model in training mode, a layer that the hooks do not
            know, too little memory for one completion.
    """

    def __init__(
        self,
        model: Any,
        *,
        parameters: str | Sequence[str] = "all",
        memory: int | None = None,
        method: str = "hooks",
        autocast_bf16: bool = False,
        sketch: int = SKETCH,
    ) -> None:
        if method not in ("hooks", "loop"):
            raise InputError(f"method is {method!r}: it must be 'hooks' or 'loop'")
        self.model = model
        self.method = method
        self.autocast_bf16 = bool(autocast_bf16)
        self._refuse_training()
        self.names, self._parameters = selected(model, parameters)
        self.sizes = tuple(p.numel() for p in self._parameters)
        self._first = firsts(self.sizes)
        self.device = self._parameters[0].device
        if len({p.device for p in self._parameters}) > 1:
            raise InputError("the model's parameters lie on several devices: put it on one")
        self.room = Room(self.device, memory)
        wide = any(p.dtype == torch.float64 for p in self._parameters)
        self.dtype = torch.float64 if wide else torch.float32
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        self.sketch = integer("sketch", sketch)
        self._sketch = Sketch(self.d, self.sketch, like)
        self._number = {id(p): k for k, p in enumerate(self._parameters)}
        self._layers = layers(model, self._number, self.names) if method == "hooks" else []
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._accepted = set(inspect.signature(base.forward).parameters)
        self._checked = False

    @property
    def d(self) -> int:
        """How many parameters a score has."""
        return sum(self.sizes)

    def _refuse_training(self) -> None:
        if getattr(self.model, "training", False):
            raise InputError(
                "the model is in training mode, where dropout makes scores random: "
                "call model.eval() first"
            )

    # What is asked.

    def of(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[Sequence[int]],
        weights: ArrayLike | None = None,
        *,
        gram: bool = False,
        token_weights: Sequence[Sequence[float]] | None = None,
    ) -> PromptScores:
        """Norms, and inner products and sketches of weighted sums, of a prompt's completions.

        Arguments:
            prompt_ids: the prompt's tokens, at least one.
            completion_ids: the sampled tokens of each of N completions, at least one each. Equal
                completions are computed once.
            weights: w, (r, N), of the sums Σ_i w_ri s_i.
            gram: make the Gram matrix too, if one block holds all completions; that is n/3T of a
                pass for n completions of T tokens.
            token_weights: v_t of each token of each completion, whose score is then Σ_t v_t ∇ log π_t.

        Raises:
            InputError: no tokens, tokens that the model does not have, weights of another shape,
                a layer whose scores the hooks get wrong, no room for one completion.
        """
        batch = self._batch(prompt_ids, completion_ids, token_weights)
        rows = None
        if weights is not None:
            given = finite_array("weights", weights, 2)
            if given.shape[1] != len(batch.back):
                raise InputError(
                    f"weights have shape {given.shape}: a row has one for each of "
                    f"{len(batch.back)} completions"
                )
            merged = np.stack([np.bincount(batch.back, row, batch.count) for row in given])
            rows = torch.tensor(merged, device=self.device).to(self.dtype)
        found, tokens, passes, table = self.room.within(
            lambda: self._run(batch, rows, gram), self.d
        )
        norms = found.norms.cpu().numpy()
        if not np.isfinite(norms).all():
            raise InputError(_NOT_FINITE)
        back = batch.back
        proxy, surprise, variance = tokens[:, back]
        matrix = None if found.gram is None else found.gram.cpu().numpy()[np.ix_(back, back)]
        sums = found.sums
        return PromptScores(
            squared_norms=norms[back],
            products=None if sums is None else sums.products().cpu().numpy(),
            sketches=None
            if sums is None
            else sums.sketched(self.room.working).double().cpu().numpy(),
            gram=matrix,
            token_proxy=proxy,
            surprise=surprise,
            surprise_variance=variance,
            lengths=np.array([len(c) for c in completion_ids], dtype=np.int64),
            passes=passes,
            whole=table is None,
        )

    def log_probs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]
    ) -> list[Array]:
        """log π of each token of each completion, by a forward pass.

        Raises:
            InputError: as for :meth:`of`.
        """
        batch = self._batch(prompt_ids, completion_ids)
        found = self.room.within(lambda: self._log_probs(batch), self.d)
        rows = [found[k, : len(batch.completions[k])] for k in range(batch.count)]
        if not all(np.isfinite(row).all() for row in rows):
            raise InputError(_NOT_FINITE)
        return [rows[k] for k in batch.back]

    def _log_probs(self, batch: Batch) -> Array:
        found = np.zeros((batch.count, batch.longest))
        for part in slices(batch.count, self._plan(batch, 0)[0]):
            ids, mask = (each.to(self.device) for each in batch.inputs(part))
            targets = batch.targets(part)[0].to(self.device)
            with torch.no_grad(), self._autocast():
                logits = forward(self.model, self._accepted, ids, mask, targets.shape[1])
            # One completion at a time: logits in another precision are as large as those there are.
            for k, (row, own) in enumerate(zip(logits, targets, strict=True), part.start):
                log = torch.log_softmax(row.to(self.dtype), dim=-1)
                found[k, : len(own)] = log.gather(1, own[:, None])[:, 0].double().cpu()
        return found

    def norms(self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]) -> Array:
        """‖s_i‖² of each completion, (N,).

        Raises:
            InputError: as for :meth:`of`.
        """
        return self.of(prompt_ids, completion_ids).squared_norms

    def require(self, prompt: int, completion: int, more: int = 0) -> None:
        """Refuse now what a prompt and a completion of so many tokens would be refused for later.

        Arguments:
            prompt, completion: tokens.
            more: weighted sums beside those that every pool takes.

        Raises:
            InputError: as for :meth:`of`.
        """
        self._refuse_training()
        few = [1 % self._embeddings, 2 % self._embeddings]
        short = Batch.of(few, [few[::-1]])
        if self.method == "hooks":
            self.room.within(lambda: self._check(short), self.d)
        long = Batch.of(few[:1] * prompt, [few[:1] * completion])
        self.room.within(lambda: self._plan(long, _SUMS + more), self.d)

    @property
    def _embeddings(self) -> int:
        return int(getattr(self.model.get_input_embeddings(), "num_embeddings", 3))

    def _batch(
        self,
        prompt: Sequence[int],
        completions: Sequence[Sequence[int]],
        token_weights: Sequence[Sequence[float]] | None = None,
    ) -> Batch:
        self._refuse_training()
        batch = Batch.of(prompt, completions, token_weights)
        batch.known_to(getattr(self.model.get_input_embeddings(), "num_embeddings", None))
        return batch

    def _run(self, batch: Batch, weights: Tensor | None, gram: bool) -> Any:
        hooks, count = self.method == "hooks", batch.count
        if hooks:
            self._check(batch)
        block, table = self._plan(batch, 0 if weights is None else len(weights))
        sums = None if weights is None else Sums(self._sketch, weights, self.d, table)
        found = Statistics(self._doubles(count), sums)
        if gram and hooks and block == count:
            found.gram = self._doubles(count, count)
        # The loop sees one score at a time, and its Gram matrix needs all.
        rows = None
        if gram and not hooks and count * self.d * self._bytes_each <= self.room.memory:
            rows = torch.zeros(count, self.d, dtype=self.dtype, device=self.device)
        tokens = np.zeros((3, count))
        for part in slices(count, block):

            def give(k: int, values: Tensor, entry: int = 0, part: slice = part) -> None:
                start = self._first[k] + entry
                found.add(part, start, values)
                if rows is not None:
                    rows[part, start : start + values.shape[1]] = values

            def take(k: int, uses: Uses) -> None:
                for entry, values in pieces(uses, self.room.working):
                    give(k, values, entry)

            if hooks:
                tokens[:, part] = self._pass(batch, part, take)
            else:
                tokens[:, part] = self._streamed(batch, part.start, give)
        if rows is not None:
            found.gram = dot(rows, rows)
        return found, tokens, -(-count // block), table

    # Memory.

    @property
    def _bytes_each(self) -> int:
        return torch.finfo(self.dtype).bits // 8

    def _plan(self, batch: Batch, sums: int) -> tuple[int, int | None]:
        """How many completions at once, and rows of the tables for sums that cannot be held whole."""
        # Of the loop the graph is autograd's own affair.
        each, most = max(self.sizes) * self._bytes_each, 1
        if self.method == "hooks":
            each, most = self.room.taken(batch, lambda: self._measured(batch)), batch.count
        entry = sums * self._bytes_each
        return self.room.plan(batch, each, entry, self.d, self._sketch.numbers, most)

    def _measured(self, batch: Batch) -> int:
        """Bytes that one completion of the longest length holds until its backward pass is done."""
        number = batch.count - 1
        shared = {t.untyped_storage().data_ptr() for t in self.model.parameters()}
        shared |= {t.untyped_storage().data_ptr() for t in self.model.buffers()}
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in shared:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        hooks = Hooks(self._layers, self._number, 1, lambda k, uses: None)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = self._logits(batch, slice(number, number + 1), hooks)
        written = 0
        for layer_input, output_bytes in hooks.held():
            pack(layer_input)
            written += output_bytes
        return sum(seen.values()) + written + 3 * logits.numel() * logits.element_size()

    # One completion, by the loop.

    def _streamed(self, batch: Batch, number: int, take: Callable[[int, Tensor], None]) -> Array:
        """Hand over one completion's score, parameter by parameter; what its tokens say, (3, 1)."""
        completion = batch.completions[number]
        said: list[Array] = []

        def log_prob() -> Tensor:
            ids = torch.tensor([[*batch.prompt, *completion]], device=self.device)
            with torch.enable_grad(), self._autocast():
                logits = forward(self.model, self._accepted, ids[:, :-1], None, 0)
                kept = logits[:, len(batch.prompt) - 1 :]
            log = torch.log_softmax(kept.to(self.dtype), dim=-1)
            targets = ids[:, len(batch.prompt) :]
            valid = torch.ones_like(targets, dtype=torch.bool)
            part = slice(number, number + 1)
            factors = batch.factors(part).to(log)
            said.append(of_tokens(log.detach().clone(), targets, valid, factors)[0].cpu().numpy())
            return (factors * log.gather(2, targets[..., None])[..., 0]).sum()

        differentiate(log_prob, self._parameters, lambda k, row: take(k, row.to(self.dtype)))
        return said[0]

    # A block of completions, by hooks.

    def _check(self, batch: Batch) -> None:
        """Compare hooks and loop on one completion, parameter by parameter, the first time."""
        if self._checked:
            return
        # Weights may be 0, and then there is nothing to compare.
        batch = replace(batch, weights=None)
        found, right = (np.zeros(len(self._parameters)) for _ in range(2))

        def take(k: int, uses: Uses) -> None:
            found[k] += sum(float(squares(values)) for _, values in pieces(uses, self.room.working))

        def streamed(k: int, row: Tensor) -> None:
            right[k] += float(squares(row))

        # The longest: what takes several tokens to go wrong shows there.
        last = batch.count - 1
        self._pass(batch, slice(last, last + 1), take)
        self._streamed(batch, last, streamed)
        narrow = self.autocast_bf16 or any(p.dtype not in TOLERANCE for p in self._parameters)
        tolerance = COARSE if narrow else TOLERANCE[self.dtype]
        if not np.isfinite(right.sum()):
            raise InputError(_NOT_FINITE)
        refuse_unseen(self.names, found, right, tolerance)
        self._checked = True

    def _pass(self, batch: Batch, part: slice, sink: Sink) -> Array:
        """Give ``sink`` every parameter's uses by some completions; what their tokens say, (3, n)."""
        hooks = Hooks(self._layers, self._number, part.stop - part.start, sink)
        logits = self._logits(batch, part, hooks)
        uncalled = hooks.uncalled(self.names)
        if uncalled:
            raise InputError(
                f"the layer of {uncalled} was not called by the model's forward pass, so hooks "
                "see nothing of it; take method='loop'"
            )
        slope, tokens = self._slopes(batch, part, logits)
        torch.autograd.backward(logits, slope)
        hooks.finish()
        return tokens

    def _logits(self, batch: Batch, part: slice, hooks: Hooks) -> Tensor:
        """Logits at the positions that precede sampled tokens, (n, T, v), with hooks in place."""
        ids, mask = (each.to(self.device) for each in batch.inputs(part))
        longest = max(map(len, batch.completions[part]))
        with frozen(self.model), hooks, torch.enable_grad(), self._autocast():
            return forward(self.model, self._accepted, ids, mask, longest)

    def _slopes(self, batch: Batch, part: slice, logits: Tensor) -> tuple[Tensor, Array]:
        """∂ log π / ∂ logits, and what tokens say, a few completions at a time."""
        count, longest, vocabulary = logits.shape
        targets, valid = (each.to(self.device) for each in batch.targets(part))
        factors = batch.factors(part).to(self.device, self.dtype)
        slope, tokens = torch.empty_like(logits), np.zeros((3, count))
        with torch.no_grad():
            room = self.room.working // (4 * longest * vocabulary * self._bytes_each)
            for rows in slices(count, room):
                log = torch.log_softmax(logits[rows].to(self.dtype), dim=-1)
                said, slope[rows] = of_tokens(log, targets[rows], valid[rows], factors[rows])
                tokens[:, rows] = said.cpu().numpy()
        return slope, tokens

    def _autocast(self) -> Any:
        if not self.autocast_bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _doubles(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)


def differentiate(
    value: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    take: Callable[[int, Tensor], None],
) -> None:
    """Hand over the gradient of a number in each parameter, one at a time in memory.

    Arguments:
        value: makes the number, with its graph.
        parameters: in which to differentiate; what their ``grad`` holds is there again in the end.
        take: is called with a parameter's place and its gradient, (1, size), where there is one.
    """
    before = [p.grad for p in parameters]
    number = {id(p): k for k, p in enumerate(parameters)}

    def pass_on(parameter: Tensor) -> None:
        if parameter.grad is not None:
            slope, parameter.grad = parameter.grad, None
            take(number[id(parameter)], slope.flatten()[None])

    handles = [p.register_post_accumulate_grad_hook(pass_on) for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(value(), inputs=list(parameters))
    finally:
        for handle in handles:
            handle.remove()
        for parameter, slope in zip(parameters, before, strict=True):
            parameter.grad = slope

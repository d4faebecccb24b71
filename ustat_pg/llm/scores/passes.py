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
from torch import Tensor

from ...memory import slices
from ...validation import InputError, integer, one_of
from .layers import COARSE, TOLERANCE, Hooks, Sink, Uses, frozen, layers, selected
from .sums import PromptScores, Sketch, Sums, dot, firsts, pieces, squares
from .tokens import Batch, Room, forward, of_tokens

Array = NDArray[np.float64]

SKETCH = 2**14
"""Numbers of a sketch, unless given."""

_SUMS = 3
"""Weighted sums that every pool takes of a prompt, at most."""

_NOT_FINITE = "scores are not finite: the model's logits or weights are not"


class Scores:
    """Scores of a causal language model.

    Arguments:
        model: a ``transformers`` causal language model in eval mode.
        parameters: "all", or patterns (``*``, ``?``) of parameter names. Parameters that have no
            ``requires_grad`` now are never included.
        memory: bytes to hold besides the model; None for four fifths of what the model's device
            has free now, and on a CPU for half of it.
        method: "hooks", or "loop" for one backward pass for each completion.
        autocast_bf16: run the forward pass under autocast to bfloat16; inner products are summed
            in float32 and float64 even so.
        sketch: k, numbers of a sketch; fewer where there are fewer parameters, and it is exact then.
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
        self.model = model
        self.method = one_of("method", method, ("hooks", "loop"))
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
            prompt_ids: the prompt's tokens.
            completion_ids: those of each of N completions; equal ones are computed once.
            weights: w, (r, N), of the sums Σ_i w_ri s_i.
            gram: make the Gram matrix too, if one block holds all completions; that is n/3T of a
                pass for n completions of T tokens.
            token_weights: v_t of each token of each completion, whose score is then Σ_t v_t ∇ log π_t.
        """
        self._refuse_training()
        batch = Batch.of(prompt_ids, completion_ids, token_weights)
        back, rows = batch.back, None
        if weights is not None:
            given = np.asarray(weights, dtype=np.float64)
            merged = np.stack([np.bincount(back, row, batch.count) for row in given])
            rows = torch.tensor(merged, device=self.device).to(self.dtype)
        scores = self.room.within(lambda: self._run(batch, rows, gram), self.d)
        if not np.isfinite(scores.squared_norms).all():
            raise InputError(_NOT_FINITE)
        return replace(
            scores,
            squared_norms=scores.squared_norms[back],
            gram=None if scores.gram is None else scores.gram[np.ix_(back, back)],
            token_proxy=scores.token_proxy[back],
            surprise=scores.surprise[back],
            surprise_variance=scores.surprise_variance[back],
        )

    def log_probs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]
    ) -> list[Array]:
        """log π of each token of each completion, by a forward pass."""
        self._refuse_training()
        batch = Batch.of(prompt_ids, completion_ids)
        logs = self.room.within(lambda: self._log_probs(batch), self.d)
        rows = [logs[k, : len(batch.completions[k])] for k in range(batch.count)]
        if not all(np.isfinite(row).all() for row in rows):
            raise InputError(_NOT_FINITE)
        return [rows[k] for k in batch.back]

    def _log_probs(self, batch: Batch) -> Array:
        logs = np.zeros((batch.count, batch.longest))
        for part in slices(batch.count, self._plan(batch, 0)[0]):
            ids, mask = (rows.to(self.device) for rows in batch.inputs(part))
            targets = batch.targets(part)[0].to(self.device)
            with torch.no_grad(), self._autocast():
                logits = forward(self.model, self._accepted, ids, mask, targets.shape[1])
            # One completion at a time: logits in another precision are as large as those there are.
            for k, (row, tokens) in enumerate(zip(logits, targets, strict=True), part.start):
                log = torch.log_softmax(row.to(self.dtype), dim=-1)
                logs[k, : len(tokens)] = log.gather(1, tokens[:, None])[:, 0].double().cpu()
        return logs

    def norms(self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]) -> Array:
        """‖s_i‖² of each completion, (N,)."""
        return self.of(prompt_ids, completion_ids).squared_norms

    def require(self, prompt: int, completion: int, more: int = 0) -> None:
        """Refuse now any refusal of :meth:`of` a prompt and a completion of these numbers of tokens.

        ``more`` are weighted sums beside those that every pool takes.
        """
        self._refuse_training()
        most = getattr(self.model.get_input_embeddings(), "num_embeddings", 3)
        few = [1 % most, 2 % most]
        if self.method == "hooks":
            self.room.within(lambda: self._check(Batch.of(few, [few[::-1]])), self.d)
        long = Batch.of(few[:1] * prompt, [few[:1] * completion])
        self.room.within(lambda: self._plan(long, _SUMS + more), self.d)

    def _run(self, batch: Batch, weights: Tensor | None, gram: bool) -> PromptScores:
        hooks, count = self.method == "hooks", batch.count
        if hooks:
            self._check(batch)
        block, table = self._plan(batch, 0 if weights is None else len(weights))
        sums = None if weights is None else Sums(self._sketch, weights, self.d, table)
        norms = torch.zeros(count, dtype=torch.float64, device=self.device)
        matrix = None if not gram or not hooks or block < count else norms.new_zeros(count, count)
        # The loop sees one score at a time, and its Gram matrix needs all.
        rows = None
        if gram and not hooks and count * self.d * self._bytes_each <= self.room.memory:
            rows = torch.zeros(count, self.d, dtype=self.dtype, device=self.device)
        tokens = np.zeros((3, count))
        for part in slices(count, block):

            def give(k: int, values: Tensor, entry: int = 0, part: slice = part) -> None:
                start = self._first[k] + entry
                if matrix is None:
                    norms[part] += squares(values)
                else:
                    matrix.add_(dot(values, values))
                if sums is not None:
                    sums.add(part, start, values)
                if rows is not None:
                    rows[part, start : start + values.shape[1]] = values

            def take(k: int, uses: Uses) -> None:
                for entry, values in pieces(uses, self.room.working):
                    give(k, values, entry)

            if hooks:
                tokens[:, part] = self._pass(batch, part, take)
            else:
                tokens[:, part] = self._streamed(batch, part.start, give)
        if matrix is not None:
            norms = matrix.diagonal()
        if rows is not None:
            matrix = dot(rows, rows)
        made = None if sums is None else sums.sketched(self.room.working).double()
        return PromptScores(
            squared_norms=norms.cpu().numpy(),
            products=None if sums is None else sums.products().cpu().numpy(),
            sketches=None if made is None else made.cpu().numpy(),
            gram=None if matrix is None else matrix.cpu().numpy(),
            token_proxy=tokens[0],
            surprise=tokens[1],
            surprise_variance=tokens[2],
            whole=table is None,
        )

    # Memory.

    @property
    def _bytes_each(self) -> int:
        return torch.finfo(self.dtype).bits // 8

    def _plan(self, batch: Batch, sums: int) -> tuple[int, int | None]:
        """How many completions at once, and rows of the tables for sums that cannot be held whole."""
        # Of the loop the graph is autograd's own affair.
        rows, most = max(self.sizes) * self._bytes_each, 1
        if self.method == "hooks":
            rows, most = self.room.taken(batch, lambda: self._measured(batch)), batch.count
        entry = sums * self._bytes_each
        return self.room.plan(batch, rows, entry, self.d, self._sketch.numbers, most)

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
        """Hand over one completion's score, a parameter at a time in memory; sums over its tokens, (3, 1)."""
        completion = batch.completions[number]

        def pass_on(parameter: Tensor) -> None:
            if parameter.grad is not None:
                slope, parameter.grad = parameter.grad.to_dense(), None
                take(self._number[id(parameter)], slope.flatten()[None].to(self.dtype))

        before = [p.grad for p in self._parameters]
        handles = [p.register_post_accumulate_grad_hook(pass_on) for p in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.grad = None
            ids = torch.tensor([[*batch.prompt, *completion]], device=self.device)
            with torch.enable_grad(), self._autocast():
                logits = forward(self.model, self._accepted, ids[:, :-1], None, 0)
                kept = logits[:, len(batch.prompt) - 1 :]
            log = torch.log_softmax(kept.to(self.dtype), dim=-1)
            targets = ids[:, len(batch.prompt) :]
            valid = torch.ones_like(targets, dtype=torch.bool)
            factors = batch.factors(slice(number, number + 1)).to(log)
            tokens, _ = of_tokens(log.detach().clone(), targets, valid, factors)
            value = (factors * log.gather(2, targets[..., None])[..., 0]).sum()
            torch.autograd.backward(value, inputs=list(self._parameters))
        finally:
            for handle in handles:
                handle.remove()
            for parameter, slope in zip(self._parameters, before, strict=True):
                parameter.grad = slope
        sums: Array = tokens.cpu().numpy()
        return sums

    # A block of completions, by hooks.

    def _check(self, batch: Batch) -> None:
        """Compare hooks and loop on one completion, parameter by parameter, the first time."""
        if self._checked:
            return
        # Weights may be 0, and then there is nothing to compare.
        batch = replace(batch, weights=None)
        ours, theirs = (np.zeros(len(self._parameters)) for _ in range(2))

        def take(k: int, uses: Uses) -> None:
            ours[k] += sum(float(squares(values)) for _, values in pieces(uses, self.room.working))

        def streamed(k: int, row: Tensor) -> None:
            theirs[k] += float(squares(row))

        # The longest: an error that takes several tokens shows there.
        last = batch.count - 1
        self._pass(batch, slice(last, last + 1), take)
        self._streamed(batch, last, streamed)
        if not np.isfinite(theirs.sum()):
            raise InputError(_NOT_FINITE)
        narrow = self.autocast_bf16 or any(p.dtype not in TOLERANCE for p in self._parameters)
        tolerance = COARSE if narrow else TOLERANCE[self.dtype]
        # Some gradients are zero but for rounding: of a key's bias, say.
        slack = tolerance * (np.maximum(ours, theirs) + tolerance * 1e-2 * theirs.sum())
        for k in np.flatnonzero(~(np.abs(ours - theirs) <= slack)):
            raise InputError(
                f"the squared norm of a score in {self.names[k]} is {ours[k]:.6g} through hooks and "
                f"{theirs[k]:.6g} by differentiation: this model uses the parameter in a way that "
                "the hooks do not see; take method='loop'"
            )
        self._checked = True

    def _pass(self, batch: Batch, part: slice, sink: Sink) -> Array:
        """Give ``sink`` every parameter's uses by some completions; sums over their tokens, (3, n)."""
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
        ids, mask = (rows.to(self.device) for rows in batch.inputs(part))
        longest = max(map(len, batch.completions[part]))
        with frozen(self.model), hooks, torch.enable_grad(), self._autocast():
            return forward(self.model, self._accepted, ids, mask, longest)

    def _slopes(self, batch: Batch, part: slice, logits: Tensor) -> tuple[Tensor, Array]:
        """∂ log π / ∂ logits, and sums over tokens, a few completions at a time."""
        count, longest, vocabulary = logits.shape
        targets, valid = (rows.to(self.device) for rows in batch.targets(part))
        factors = batch.factors(part).to(self.device, self.dtype)
        slope, tokens = torch.empty_like(logits), np.zeros((3, count))
        with torch.no_grad():
            room = self.room.working // (4 * longest * vocabulary * self._bytes_each)
            for rows in slices(count, room):
                log = torch.log_softmax(logits[rows].to(self.dtype), dim=-1)
                sums, slope[rows] = of_tokens(log, targets[rows], valid[rows], factors[rows])
                tokens[:, rows] = sums.cpu().numpy()
        return slope, tokens

    def _autocast(self) -> Any:
        if not self.autocast_bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

"""Scores of completions: Gram matrices, norms and gradients, without a table of per-sample gradients.

The score of a completion is s = ∇θ log π(y | x), summed over its sampled tokens. A model of d
parameters has N d numbers in the scores of N completions, too many to hold. What the theory asks is
less: the Gram matrix ⟨s_i, s_j⟩, N² numbers, and one weighted sum of scores. Both come from one
forward and one backward pass of all completions together, in which hooks catch what a layer reads
and the gradient of what it writes. The score in a layer's weight is then

    s_i = Σ_t left_i[t] ⊗ right_i[t]

with gradients on one side and inputs on the other, and inner products follow in one of two ways,
whichever is cheaper for that layer: materialise this layer's scores, a block of rows at a time; or
sum (left_i[t]·left_j[u]) (right_i[t]·right_j[u]) over pairs of tokens. A parameter that is used
twice, such as an embedding tied to the head, has the terms of both uses in one sum, so that its
inner products have the cross terms. No gradient in a parameter is ever computed by autograd.

``method="loop"`` differentiates one completion at a time. It knows nothing of layers, takes any
model and the least memory, and is what the hooks are checked against: the first time they run, on
one completion, parameter by parameter.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..memory import ChunkWarning, out_of_memory
from ..validation import InputError, finite_array, integer

__all__ = ["MEMORY", "PromptScores", "Scores"]

Array = NDArray[np.float64]

MEMORY = 2**31
"""Bytes that may be held besides the model, unless told otherwise."""

_CONTRACTION = 2**14
"""Entries summed in the model's precision before the sum goes on in float64."""

_FEW = 32
"""Rows below which a product is made in float64 altogether."""

_CACHED = 2**25
"""Bytes of one layer's scores at a time on a CPU: more would leave its cache without a gain."""

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_NOT_FINITE = "scores are not finite: the model's logits or weights are not"

_COARSE = 5e-2
"""Relative difference of squared norms, hooks against loop, that is rounding: 16-bit arithmetic."""


@dataclass(frozen=True, eq=False)
class PromptScores:
    """What is known of the scores of N completions of one prompt.

    Attributes:
        gram: ⟨s_i, s_j⟩, (N, N).
        gradient: (1/N) Σ_i w_i s_i, (d,) in the order of ``Scores.names``, on the model's
            device; None where no weights were given.
        token_proxy: Σ_t (1 - 2 π_t + Σ_v π_v²) over the completion's tokens, (N,).
        lengths: sampled tokens, (N,).
        passes: batches that were differentiated; 1 where all completions fit in memory at once.
    """

    gram: Array
    gradient: Tensor | None
    token_proxy: Array
    lengths: NDArray[np.int64]
    passes: int


@dataclass
class _Use:
    """One use of a parameter: scores Σ_t left[t] ⊗ right[t] of n completions.

    ``left`` is (n, t, rows), or (n, t) where it is one-hot and holds the rows' numbers, or None
    where ``right`` (n, size) holds the scores themselves, as for biases and norms.
    """

    left: Tensor | None
    right: Tensor
    rows: int = 1

    @property
    def sparse(self) -> bool:
        return self.left is not None and self.left.ndim == 2

    @property
    def count(self) -> int:
        return len(self.right)


_Uses = list[_Use]
_Sink = Callable[[int, _Uses], None]


class Scores:
    """Scores of a causal language model.

    Arguments:
        model: a ``transformers`` causal language model in eval mode. Inputs are padded on the
            right and positions counted from the prompt's first token, so that padding is nothing
            that a completion's tokens attend to.
        parameters: "all", or patterns (``*``, ``?``) of parameter names. Parameters without
            ``requires_grad`` are never included; what it is now counts.
        memory: bytes to hold besides the model. Completions that do not fit at once are processed
            in blocks: with the scores of all held, where N d numbers fit; else for each pair of
            blocks anew, (k + 1)/2 times the work for k blocks. The result is the same to rounding.
        method: "hooks", or "loop" for one backward pass for each completion.
        autocast_bf16: run the forward pass under autocast to bfloat16; inner products are summed
            in float32 and float64 even so.

    Raises:
        InputError: no such parameters, a model in training mode, a layer that the hooks do not
            know, too little memory for one completion.
    """

    def __init__(
        self,
        model: Any,
        *,
        parameters: str | Sequence[str] = "all",
        memory: int = MEMORY,
        method: str = "hooks",
        autocast_bf16: bool = False,
    ) -> None:
        if method not in ("hooks", "loop"):
            raise InputError(f"method is {method!r}: it must be 'hooks' or 'loop'")
        self.model = model
        self.memory = self._allowed = integer("memory", memory)
        self.method = method
        self.autocast_bf16 = bool(autocast_bf16)
        self._refuse_training()
        self.names, self._parameters = _selected(model, parameters)
        self.sizes = tuple(p.numel() for p in self._parameters)
        self.device = self._parameters[0].device
        if len({p.device for p in self._parameters}) > 1:
            raise InputError("the model's parameters lie on several devices: put it on one")
        wide = any(p.dtype == torch.float64 for p in self._parameters)
        self.dtype = torch.float64 if wide else torch.float32
        self._number = {id(p): k for k, p in enumerate(self._parameters)}
        self._layers: list[tuple[nn.Module, _Layer]] = []
        if method == "hooks":
            self._layers = _layers(model, self._number, self.names)
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._accepted = set(inspect.signature(base.forward).parameters)
        self._largest: dict[tuple[int, int], int] = {}
        self._most: int | None = None
        self._checked = False

    @property
    def d(self) -> int:
        """How many parameters a score has."""
        return sum(self.sizes)

    def allow(self, memory: int, left: int) -> None:
        """Allow ``memory`` bytes, of which ``left`` are for scores; messages name both."""
        self._allowed, self.memory = memory, left

    @property
    def _memory_said(self) -> str:
        """The memory that was asked for, and what its owner took off since."""
        taken = self._allowed - self.memory
        less = f", {taken} of them for sums of gradients" if taken else ""
        return f"memory is {self._allowed} bytes{less}"

    @property
    def _bytes_each(self) -> int:
        return torch.finfo(self.dtype).bits // 8

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
    ) -> PromptScores:
        """The Gram matrix of the scores of all completions of a prompt, and their weighted sum.

        Arguments:
            prompt_ids: the prompt's tokens, at least one.
            completion_ids: the sampled tokens of each of N completions, at least one each. Equal
                completions are computed once.
            weights: w, (N,), of the gradient (1/N) Σ_i w_i s_i.

        Raises:
            InputError: no tokens, tokens that the model does not have, weights of another shape,
                a layer whose scores the hooks get wrong, no room for one completion.
        """
        batch = self._batch(prompt_ids, completion_ids)
        total = None
        if weights is not None:
            given = finite_array("weights", weights, 1)
            if given.shape != (len(batch.back),):
                raise InputError(
                    f"weights have shape {given.shape}: one for each of {len(batch.back)} "
                    "completions is needed"
                )
            total = np.bincount(batch.back, given, batch.count) / len(given)
        run = self._gram_by_loop if self.method == "loop" else self._gram_by_hooks
        gram, gradient, proxy, passes = self._within_memory(lambda: run(batch, total))
        if not np.isfinite(gram).all():
            raise InputError(_NOT_FINITE)
        return PromptScores(
            gram=gram[np.ix_(batch.back, batch.back)],
            gradient=gradient,
            token_proxy=proxy[batch.back],
            lengths=np.array([len(c) for c in completion_ids], dtype=np.int64),
            passes=passes,
        )

    def norms(self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]) -> Array:
        """‖s_i‖² of each completion, (N,): cheaper than the Gram matrix, and in any memory.

        Raises:
            InputError: as for :meth:`of`.
        """
        batch = self._batch(prompt_ids, completion_ids)
        run = self._norms_by_loop if self.method == "loop" else self._norms_by_hooks
        norms = self._within_memory(lambda: run(batch))
        if not np.isfinite(norms).all():
            raise InputError(_NOT_FINITE)
        return norms[batch.back]

    def _batch(self, prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> _Batch:
        self._refuse_training()
        batch = _Batch.of(prompt, completions)
        embedding = self.model.get_input_embeddings()
        known = getattr(embedding, "num_embeddings", None)
        if known is not None:
            ids = {*batch.prompt, *(token for c in batch.completions for token in c)}
            if min(ids) < 0 or max(ids) >= known:
                raise InputError(
                    f"token {min(ids) if min(ids) < 0 else max(ids)} is not one of the model's: "
                    f"they are 0 to {known - 1}"
                )
        return batch

    def _within_memory(self, run: Callable[[], Any]) -> Any:
        """``run``, again in smaller blocks where memory runs out."""
        while True:
            self._block = 1
            try:
                return run()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                tried = self._block
                if tried == 1:
                    raise InputError(
                        f"out of memory with one completion of a model with {self.d} parameters "
                        "scored: take shorter completions, fewer parameters (parameters=, LoRA), "
                        "method='loop', or a larger machine"
                    ) from None
            # Out here the error no longer keeps the arrays alive that it was raised among.
            self._most = max(tried // 2, 1)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with {tried} completions at once: going on with {self._most}",
                ChunkWarning,
                stacklevel=3,
            )

    # The loop: one backward pass for each completion.

    def _log_prob(self, batch: _Batch, number: int) -> tuple[Tensor, float]:
        """log π(y | x) with its graph, and the token proxy."""
        completion = batch.completions[number]
        ids = torch.tensor([[*batch.prompt, *completion]], device=self.device)
        with torch.enable_grad(), self._autocast():
            logits = self._forward(ids[:, :-1], None, 0)
            kept = logits[0, len(batch.prompt) - 1 :]
        log = torch.log_softmax(kept if self.dtype == torch.float64 else kept.float(), dim=-1)
        taken = log.gather(1, ids[0, len(batch.prompt) :, None])[:, 0]
        with torch.no_grad():
            proxy = 1 - 2 * taken.exp() + log.exp().square().sum(dim=-1)
        return taken.sum(), float(proxy.sum(dtype=torch.float64))

    def _gram_by_loop(self, batch: _Batch, weights: Array | None) -> Any:
        count, each = batch.count, self.d * self._bytes_each
        held = (self.memory - each * (1 if weights is None else 2)) // each
        if held < 1:
            raise InputError(
                f"{self._memory_said}: the scores of {self.d} parameters take at least "
                f"{each * (2 if weights is None else 3)}"
            )
        self._block = block = min(held, count, self._most or count)
        gram, proxy, passes = np.zeros((count, count)), np.zeros(count), 0
        gradient = None if weights is None else self._zeros(self.d)
        rows = torch.empty(block, self.d, dtype=self.dtype, device=self.device)
        for start in range(0, count, block):
            stop = min(start + block, count)
            for i in range(start, count):
                log, value = self._log_prob(batch, i)
                slopes = torch.autograd.grad(log, self._parameters, allow_unused=True)
                passes += 1
                row = rows[i - start] if i < stop else self._zeros(self.d)
                for part, slope in zip(row.split(self.sizes), slopes, strict=True):
                    if slope is None:
                        part.zero_()
                    else:
                        part.copy_(slope.flatten())
                del slopes, log
                if i < stop:
                    proxy[i] = value
                    if gradient is not None and weights is not None:
                        gradient.add_(row, alpha=float(weights[i]))
                else:
                    products = _dot(rows, row[None]).cpu().numpy()[: stop - start, 0]
                    gram[start:stop, i] = gram[i, start:stop] = products
            own = rows[: stop - start]
            gram[start:stop, start:stop] = _dot(own, own).cpu().numpy()
        return gram, gradient, proxy, passes

    def _norms_by_loop(self, batch: _Batch) -> Array:
        self._block = 1
        return np.array([sum(self._streamed(batch, i)) for i in range(batch.count)])

    def _streamed(self, batch: _Batch, number: int) -> list[float]:
        """One completion's squared norm in each parameter, one gradient at a time in memory."""
        norms = [0.0] * len(self._parameters)
        before = [p.grad for p in self._parameters]

        def take(parameter: Tensor) -> None:
            if parameter.grad is not None:
                slope = parameter.grad.flatten()[None]
                norms[self._number[id(parameter)]] = float(_squares(slope.to(self.dtype)))
                parameter.grad = None

        handles = [p.register_post_accumulate_grad_hook(take) for p in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.grad = None
            log, _ = self._log_prob(batch, number)
            torch.autograd.backward(log, inputs=self._parameters)
        finally:
            for handle in handles:
                handle.remove()
            for parameter, slope in zip(self._parameters, before, strict=True):
                parameter.grad = slope
        return norms

    # The hooks: one backward pass for all completions.

    def _gram_by_hooks(self, batch: _Batch, weights: Array | None) -> Any:
        self._check(batch)
        count = batch.count
        gradient = None if weights is None else self._zeros(self.d)
        fixed = self._working + (0 if weights is None else self.d * self._bytes_each)
        rows_bytes = count * self.d * self._bytes_each
        block, rows = self._plan(batch, fixed, rows_bytes)
        gram = torch.zeros(count, count, dtype=torch.float64, device=self.device)
        proxy, passes = np.zeros(count), 0
        w = None if weights is None else torch.tensor(weights, device=self.device).to(self.dtype)
        targets = None if gradient is None else gradient.split(self.sizes)
        # Zero where no gradient arrives.
        table = torch.zeros(count, self.d, dtype=self.dtype, device=self.device) if rows else None
        columns = None if table is None else table.split(self.sizes, dim=1)
        kept: dict[int, _Uses] = {}
        parts_of = [slice(k, min(k + block, count)) for k in range(0, count, block)]

        def within(part: slice) -> _Sink:
            def take(k: int, uses: _Uses) -> None:
                if columns is not None:
                    _fill(columns[k][part], uses, self._working)
                else:
                    gram[part, part] += _products(uses, uses, self._working)
                if targets is not None and w is not None:
                    target = targets[k].view(self._parameters[k].shape)
                    _accumulate(target, uses, w[part], self._working)
                if columns is None and part.stop < count:
                    kept[k] = uses

            return take

        def between(first: slice, second: slice) -> _Sink:
            def take(k: int, uses: _Uses) -> None:
                products = _products(kept[k], uses, self._working)
                gram[first, second] += products
                gram[second, first] += products.T

            return take

        for number, first in enumerate(parts_of):
            kept.clear()
            proxy[first] = self._pass(batch, first, within(first))
            passes += 1
            for second in () if columns is not None else parts_of[number + 1 :]:
                self._pass(batch, second, between(first, second))
                passes += 1
        if table is not None:
            gram = _dot(table, table)
        return gram.cpu().numpy(), gradient, proxy, passes

    def _norms_by_hooks(self, batch: _Batch) -> Array:
        self._check(batch)
        block, _ = self._plan(batch, self._working, None)
        norms = torch.zeros(batch.count, dtype=torch.float64, device=self.device)
        for start in range(0, batch.count, block):
            part = slice(start, min(start + block, batch.count))

            def add(k: int, uses: _Uses, part: slice = part) -> None:
                norms[part] += _norms(uses, self._working)

            self._pass(batch, part, add)
        return norms.cpu().numpy()

    @property
    def _working(self) -> int:
        """Bytes for one layer's scores or products of tokens at a time."""
        share = max(self.memory // 8, 2**16)
        return share if self.device.type == "cuda" else min(share, _CACHED)

    def _plan(self, batch: _Batch, fixed: int, rows_bytes: int | None) -> tuple[int, bool]:
        """How many completions at once, and whether the scores of all are held meanwhile.

        ``rows_bytes`` is what these would take; None where blocks need not meet.
        """
        count, most = batch.count, self._most or batch.count
        length, longest = len(batch.prompt), batch.longest
        room = self.memory - fixed
        for (p, t), bound in self._largest.items():
            # What fits at a greater length fits here: no need to measure again.
            if p >= length and t >= longest and count * bound <= room and most >= count:
                self._block = count
                return count, False
        each = self._largest.get((length, longest)) or self._measured(batch)
        self._largest[length, longest] = each
        rows = False
        if count * each <= room or count == 1 or rows_bytes is None:
            fit = room // each
        elif rows_bytes + each <= room:
            fit, rows = (room - rows_bytes) // each, True
        else:
            # Two blocks meet, of which one has its graph.
            fit = room // (2 * each)
        if fit < 1:
            apart = 0 if rows_bytes is None or count == 1 else min(each, rows_bytes)
            least = fixed + each + apart
            raise InputError(
                f"{self._memory_said}: completions of {longest} tokens after a prompt of "
                f"{length} take {least} at least; raise memory=, or take method='loop'"
            )
        self._block = block = min(fit, count, most)
        if block < count and not rows and rows_bytes is not None:
            rows = rows_bytes + block * each <= room
        return block, rows

    def _measured(self, batch: _Batch) -> int:
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

        hooks = _Hooks(self._layers, self._number, 1, lambda k, uses: None)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = self._logits(batch, slice(number, number + 1), hooks)
        written = 0
        for layer_input, output_bytes in hooks.held():
            pack(layer_input)
            written += output_bytes
        return sum(seen.values()) + written + 3 * logits.numel() * logits.element_size()

    def _check(self, batch: _Batch) -> None:
        """Compare hooks and loop on one completion, parameter by parameter, the first time."""
        if self._checked:
            return
        self._block = 1
        found = [0.0] * len(self._parameters)

        def take(k: int, uses: _Uses) -> None:
            found[k] += float(_norms(uses, self._working)[0])

        # The longest: what takes several tokens to go wrong shows there.
        last = batch.count - 1
        self._pass(batch, slice(last, last + 1), take)
        right = self._streamed(batch, last)
        narrow = self.autocast_bf16 or any(p.dtype not in _TOLERANCE for p in self._parameters)
        tolerance = _COARSE if narrow else _TOLERANCE[self.dtype]
        total = sum(right)
        if not np.isfinite(total):
            raise InputError(_NOT_FINITE)
        for name, ours, theirs in zip(self.names, found, right, strict=True):
            # Some gradients are zero but for rounding: of a key's bias, say.
            slack = tolerance * (max(ours, theirs) + tolerance * 1e-2 * total)
            if not abs(ours - theirs) <= slack:
                raise InputError(
                    f"the squared norm of a score in {name} is {ours:.6g} through hooks and "
                    f"{theirs:.6g} by differentiation: this model uses the parameter in a way that "
                    "the hooks do not see; take method='loop'"
                )
        self._checked = True

    def _pass(self, batch: _Batch, part: slice, sink: _Sink) -> Array:
        """Give ``sink`` every parameter's uses by some completions; return their token proxies."""
        hooks = _Hooks(self._layers, self._number, part.stop - part.start, sink)
        logits = self._logits(batch, part, hooks)
        uncalled = hooks.uncalled(self.names)
        if uncalled:
            raise InputError(
                f"the layer of {uncalled} was not called by the model's forward pass, so hooks "
                "see nothing of it; take method='loop'"
            )
        slope, proxy = self._slopes(batch, part, logits)
        torch.autograd.backward(logits, slope)
        hooks.finish()
        return proxy

    def _logits(self, batch: _Batch, part: slice, hooks: _Hooks) -> Tensor:
        """Logits at the positions that precede sampled tokens, (n, T, v), with hooks in place."""
        completions = batch.completions[part]
        longest = max(map(len, completions))
        width = len(batch.prompt) + longest - 1
        ids = torch.zeros(len(completions), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, completion in enumerate(completions):
            tokens = (*batch.prompt, *completion[:-1])
            ids[i, : len(tokens)] = torch.tensor(tokens)
            mask[i, : len(tokens)] = 1
        with _frozen(self.model), hooks, torch.enable_grad(), self._autocast():
            return self._forward(ids.to(self.device), mask.to(self.device), longest)

    def _slopes(self, batch: _Batch, part: slice, logits: Tensor) -> tuple[Tensor, Array]:
        """∂ log π / ∂ logits, one-hot less probabilities, and the token proxies."""
        completions = batch.completions[part]
        count, longest, vocabulary = logits.shape
        targets = torch.zeros(count, longest, dtype=torch.long)
        valid = torch.zeros(count, longest, dtype=torch.bool)
        for i, completion in enumerate(completions):
            targets[i, : len(completion)] = torch.tensor(completion)
            valid[i, : len(completion)] = True
        targets, valid = targets.to(self.device), valid.to(self.device)
        slope, proxy = torch.empty_like(logits), np.zeros(count)
        step = max(1, self._working // (3 * longest * vocabulary * self._bytes_each))
        with torch.no_grad():
            for start in range(0, count, step):
                rows = slice(start, start + step)
                chosen, keep = targets[rows, :, None], valid[rows]
                probability = torch.softmax(logits[rows].to(self.dtype), dim=-1)
                taken = probability.gather(2, chosen)[..., 0]
                each = 1 - 2 * taken + probability.square().sum(dim=-1)
                total = (each * keep).sum(dim=1, dtype=torch.float64)
                proxy[rows] = total.cpu().numpy()
                probability.neg_().scatter_add_(
                    2, chosen, torch.ones_like(chosen, dtype=self.dtype)
                )
                slope[rows] = probability.mul_(keep[..., None]).to(slope.dtype)
        return slope, proxy

    def _forward(self, ids: Tensor, mask: Tensor | None, keep: int) -> Tensor:
        """Logits at the last ``keep`` positions, or at all where it is 0."""
        options: dict[str, Any] = {"use_cache": False}
        if mask is not None:
            options["attention_mask"] = mask
        if "position_ids" in self._accepted:
            # One row for each completion: an embedding of positions shared by all would sum them.
            options["position_ids"] = torch.arange(ids.shape[1], device=self.device).repeat(
                len(ids), 1
            )
        if keep and "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = keep
        logits = self.model(input_ids=ids, **options).logits
        return logits[:, -keep:] if keep else logits

    def _autocast(self) -> Any:
        if not self.autocast_bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class _Batch:
    """The different completions of a prompt, shortest first, and which is whose."""

    prompt: tuple[int, ...]
    completions: list[tuple[int, ...]]
    back: NDArray[np.int64]

    @classmethod
    def of(cls, prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> _Batch:
        head = _tokens("the prompt", prompt)
        rows = [_tokens(f"completion {i}", c) for i, c in enumerate(completions)]
        if not rows:
            raise InputError("there are no completions: at least one is needed")
        different = sorted(set(rows), key=lambda row: (len(row), row))
        number = {row: k for k, row in enumerate(different)}
        return cls(head, different, np.array([number[row] for row in rows]))

    @property
    def count(self) -> int:
        return len(self.completions)

    @property
    def longest(self) -> int:
        return len(self.completions[-1])


def _tokens(what: str, ids: Sequence[int]) -> tuple[int, ...]:
    row = tuple(integer(f"a token of {what}", token, minimum=0) for token in ids)
    if not row:
        raise InputError(f"{what} has no tokens: at least one is needed")
    return row


def _selected(
    model: nn.Module, wanted: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[nn.Parameter, ...]]:
    """Names and parameters asked for; a tied one goes by any of its names, and counts once."""
    patterns = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if patterns == ("all",):
        patterns = ("*",)
    aliases: dict[int, list[str]] = {}
    known = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
        known[id(parameter)] = parameter
    for pattern in patterns:
        if not any(fnmatchcase(n, pattern) for names in aliases.values() for n in names):
            examples = ", ".join(names[0] for names in list(aliases.values())[:3])
            raise InputError(
                f"no parameter is named like {pattern!r}: names are of the form {examples}"
            )
    chosen = {
        names[0]: known[key]
        for key, names in aliases.items()
        if known[key].requires_grad and any(fnmatchcase(n, p) for n in names for p in patterns)
    }
    if not chosen:
        raise InputError(
            f"parameters {list(patterns)} all have requires_grad=False: nothing is left to score"
        )
    return tuple(chosen), tuple(chosen.values())


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Without ``requires_grad`` on any parameter: autograd then keeps and computes activations only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


# Layers: from what a layer reads and the gradient of what it writes to uses of its parameters.

_Maker = Callable[[Tensor, Tensor], _Use]


@dataclass(frozen=True)
class _Layer:
    """A module's parameters that are scored, by number, and how each one's use is made."""

    makers: dict[int, _Maker]
    dtype: torch.dtype


def _layers(
    model: nn.Module, number: dict[int, int], names: Sequence[str]
) -> list[tuple[nn.Module, _Layer]]:
    wide = any(p.dtype == torch.float64 for p in model.parameters() if id(p) in number)
    dtype = torch.float64 if wide else torch.float32
    layers = []
    for module in model.modules():
        own = {n: number[id(p)] for n, p in module._parameters.items() if id(p) in number}
        if not own:
            continue
        known = _known(module, dtype)
        for name, k in own.items():
            if known is None or name not in known:
                raise InputError(
                    f"{names[k]} belongs to a layer of class {type(module).__name__}, which the "
                    "hooks do not know; take method='loop', or parameters= without it"
                )
        if known is not None:
            makers = {k: known[name] for name, k in own.items()}
            layers.append((module, _Layer(makers, dtype)))
    return layers


def _known(module: nn.Module, dtype: torch.dtype) -> dict[str, _Maker] | None:
    """How the uses of a layer's parameters are made, by their names in it; None for other layers."""

    def summed(read: Tensor, slope: Tensor) -> _Use:
        return _Use(None, slope.to(dtype).flatten(1, -2).sum(dim=1))

    forward = type(module).forward
    if forward is nn.Linear.forward:
        return {"weight": lambda read, slope: _outer(slope, read), "bias": summed}
    if _is_conv1d(module):
        return {"weight": lambda read, slope: _outer(read, slope), "bias": summed}
    if forward is nn.Embedding.forward:
        return _embedding(module)
    normalise = _normalisation(module, dtype)
    if normalise is None:
        return None

    def scaled(read: Tensor, slope: Tensor) -> _Use:
        return _Use(None, (slope.to(dtype) * normalise(read)).flatten(1, -2).sum(dim=1))

    return {"weight": scaled, "bias": summed}


def _outer(left: Tensor, right: Tensor) -> _Use:
    return _Use(left.flatten(1, -2), right.flatten(1, -2), left.shape[-1])


def _is_conv1d(module: nn.Module) -> bool:
    try:
        from transformers.pytorch_utils import Conv1D
    except ImportError:
        return False
    return type(module).forward is Conv1D.forward


def _embedding(module: Any) -> dict[str, _Maker] | None:
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return None
    padding, rows = module.padding_idx, module.num_embeddings

    def looked_up(read: Tensor, slope: Tensor) -> _Use:
        # Autograd gives the padding row no gradient, so neither does training.
        slope = slope if padding is None else slope * (read != padding)[..., None]
        return _Use(read.flatten(1), slope.flatten(1, -2), rows)

    return {"weight": looked_up}


def _normalisation(module: Any, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
    """What a norm multiplies by its weight, for LayerNorm and for classes named RMSNorm."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1:
        return None
    if type(module).forward is nn.LayerNorm.forward:
        eps = module.eps

        def centred(read: Tensor) -> Tensor:
            x = read.to(dtype)
            variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
            return (x - mean) * torch.rsqrt(variance + eps)

        return centred
    if not type(module).__name__.endswith("RMSNorm") or set(module._parameters) != {"weight"}:
        return None
    # The class itself is asked, with other weights: it may well compute in another precision.
    one, zero = torch.ones_like(weight, dtype=dtype), torch.zeros_like(weight, dtype=dtype)

    def with_weight(value: Tensor, read: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"weight": value}, (read,)).to(dtype)

    def scaled(read: Tensor) -> Tensor:
        # The second is zero, but for classes that multiply by 1 + weight.
        return with_weight(one, read) - with_weight(zero, read)

    # Classes of that name differ: what they compute is looked at, not what they are called.
    with torch.no_grad():
        probe = torch.linspace(-2, 3, 2 * len(weight), device=weight.device).view(1, 2, -1)
        probe = probe.to(weight.dtype)
        other = torch.linspace(-1, 2, len(weight), device=weight.device).to(dtype)
        written = with_weight(other, probe)
        slack = 1e-4 if weight.dtype in _TOLERANCE else _COARSE
        affine = with_weight(zero, probe) + other * scaled(probe)
    return scaled if torch.allclose(written, affine, rtol=slack, atol=slack) else None


class _Hooks:
    """Hooks on the layers of one pass, in place while the forward pass runs.

    ``sink`` is called with a parameter's number and all its uses as soon as the last is known.
    """

    def __init__(
        self,
        layers: list[tuple[nn.Module, _Layer]],
        number: dict[int, int],
        count: int,
        sink: _Sink,
    ) -> None:
        self._layers, self._count, self._sink = layers, count, sink
        self._all = set(number.values())
        self._open: dict[int, int] = {}
        self._uses: dict[int, _Uses] = {}
        self._reads: dict[int, tuple[_Layer, Tensor, int]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for module, layer in self._layers:

            def after(
                module: nn.Module, args: Any, kwargs: Any, output: Tensor, layer: _Layer = layer
            ) -> Tensor:
                return self._forward(module, layer, (*args, *kwargs.values())[0], output)

            self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _forward(self, module: nn.Module, layer: _Layer, read: Tensor, output: Tensor) -> Tensor:
        if len(read) != self._count or len(output) != self._count or output.ndim < 3:
            raise InputError(
                f"a layer of class {type(module).__name__} reads an array of shape "
                f"{tuple(read.shape)} where {self._count} completions were expected first: hooks "
                "cannot tell completions apart; take method='loop'"
            )
        if not output.requires_grad:
            # The graph begins at the first layer that is scored.
            output = output.detach().requires_grad_(True)
        key = len(self._reads)
        self._reads[key] = (layer, read.detach(), output.numel() * output.element_size())
        for k in layer.makers:
            self._open[k] = self._open.get(k, 0) + 1
        output.register_hook(lambda slope: self._backward(key, slope))
        return output

    def _backward(self, key: int, slope: Tensor) -> None:
        layer, read, _ = self._reads.pop(key)
        for k, make in layer.makers.items():
            self._uses.setdefault(k, []).append(make(read, slope))
            self._open[k] -= 1
            if not self._open[k]:
                self._sink(k, self._uses.pop(k))

    def finish(self) -> None:
        """Hand over what is left: parameters of which some use has no gradient."""
        for k in list(self._uses):
            self._sink(k, self._uses.pop(k))

    def held(self) -> Iterator[tuple[Tensor, int]]:
        """What each layer read, and the bytes that it wrote."""
        for _, read, written in self._reads.values():
            yield read, written

    def uncalled(self, names: Sequence[str]) -> str | None:
        """A parameter whose layers were not called."""
        return next((names[k] for k in sorted(self._all - set(self._open))), None)


# Inner products.


def _dot(first: Tensor, second: Tensor) -> Tensor:
    """first secondᵀ in float64, in the arrays' precision over short stretches only.

    Products with few rows are summed one after the other, and lose digits even in short stretches.
    """
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    exact = min(len(first), len(second)) < _FEW
    for k in range(0, first.shape[1], _CONTRACTION):
        one, other = first[:, k : k + _CONTRACTION], second[:, k : k + _CONTRACTION]
        if exact:
            total += one.double() @ other.double().T
        else:
            total += (one @ other.T).double()
    return total


def _squares(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for k in range(0, rows.shape[1], _CONTRACTION):
        total += rows[:, k : k + _CONTRACTION].square().sum(dim=1).double()
    return total


def _precision(uses: _Uses) -> torch.dtype:
    wide = any(use.right.dtype == torch.float64 for use in uses)
    return torch.float64 if wide else torch.float32


def _prepared(uses: _Uses) -> _Uses:
    """Right sides in the precision of sums; left sides, which may be wide, are turned piecewise."""
    dtype = _precision(uses)
    return [_Use(use.left, use.right.to(dtype), use.rows) for use in uses]


def _vector(uses: _Uses) -> Tensor | None:
    """The scores themselves where every use has them, (n, size)."""
    if any(use.left is not None for use in uses):
        return None
    return torch.stack([use.right for use in uses]).sum(dim=0)


def _compact(*groups: _Uses) -> tuple[_Uses, ...]:
    """Embeddings with only those rows that some completion looks up."""
    if not all(use.sparse for uses in groups for use in uses):
        return groups
    ids = [use.left for uses in groups for use in uses if use.left is not None]
    present = torch.unique(torch.cat([i.flatten() for i in ids]))
    return tuple(
        [
            _Use(torch.searchsorted(present, use.left), use.right, len(present))
            for use in uses
            if use.left is not None
        ]
        for uses in groups
    )


def _rows(uses: _Uses, rows: slice) -> Tensor:
    """Scores of n completions in some rows of a parameter, (n, rows, columns)."""
    total: Tensor | None = None
    for use in uses:
        left, right = use.left, use.right
        assert left is not None
        if use.sparse:
            count, height = len(left), rows.stop - rows.start
            inside = (left >= rows.start) & (left < rows.stop)
            place = torch.arange(count, device=left.device)[:, None] * height + left - rows.start
            part = right.new_zeros(count * height, right.shape[-1])
            part.index_add_(0, place[inside], right[inside])
            part = part.view(count, height, -1)
        else:
            part = torch.bmm(left[..., rows].to(right.dtype).transpose(1, 2), right)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _row_blocks(budget: int, count: int, *uses: _Uses) -> Iterator[slice]:
    """Rows of a parameter, so many at a time that ``count`` completions' scores fit the budget."""
    use = uses[0][0]
    each = count * use.right.shape[-1] * use.right.element_size()
    if any(len(group) > 1 for group in uses):
        each *= 2
    step = max(1, budget // each)
    for start in range(0, use.rows, step):
        yield slice(start, min(start + step, use.rows))


def _width(uses: _Uses) -> int:
    """Multiplications in one product of two tokens' scores; none for looking up."""
    return sum((2 if use.sparse else use.rows) + use.right.shape[-1] for use in uses)


_ELEMENTWISE = 16
"""What it costs to multiply and add up a product of tokens, in multiplications of a matrix product."""


def _products(first: _Uses, second: _Uses, budget: int) -> Tensor:
    """⟨s_i, s_j⟩ in one parameter, (n, m) in float64."""
    one = _vector(first)
    same = first is second
    if one is not None:
        other = one if same else _vector(second)
        assert other is not None
        return _dot(one, other)
    first, second = _prepared(first), _prepared(second)
    first, second = _compact(first, second)
    n, m = first[0].count, second[0].count
    size = first[0].rows * first[0].right.shape[-1]
    tokens = [sum(use.right.shape[1] for use in uses) for uses in (first, second)]
    materialise = (n * tokens[0] + (0 if same else m * tokens[1])) * size + n * m * size
    width = max(_width([use]) for use in (*first, *second))
    pairs = n * m * tokens[0] * tokens[1] * (width + _ELEMENTWISE)
    if pairs < materialise:
        return _token_pairs(first, second, budget)
    total = torch.zeros(n, m, dtype=torch.float64, device=first[0].right.device)
    for rows in _row_blocks(budget, n if same else n + m, first, second):
        mine = _rows(first, rows).flatten(1)
        total += _dot(mine, mine if same else _rows(second, rows).flatten(1))
    return total


def _token_pairs(first: _Uses, second: _Uses, budget: int) -> Tensor:
    """Σ over pairs of tokens of (left·left) (right·right)."""
    n, m = first[0].count, second[0].count
    total = torch.zeros(n, m, dtype=torch.float64, device=first[0].right.device)
    for use in first:
        for other in second:
            t, u = use.right.shape[1], other.right.shape[1]
            right = other.right.flatten(0, 1)
            each = 3 * t * m * u * right.element_size()
            step = max(1, budget // each)
            for start in range(0, n, step):
                part = slice(start, min(start + step, n))
                product = use.right[part].flatten(0, 1) @ right.T
                product *= _left_products(use, part, other, product.dtype)
                blocks = product.view(part.stop - part.start, t, m, u)
                total[part] += blocks.sum(dim=(1, 3), dtype=torch.float64)
    return total


def _left_products(use: _Use, part: slice, other: _Use, dtype: torch.dtype) -> Tensor:
    """left·left of all pairs of tokens, where either may be one-hot."""
    assert use.left is not None
    assert other.left is not None
    left, right = use.left[part].flatten(0, 1), other.left.flatten(0, 1)
    if use.sparse and other.sparse:
        return (left[:, None] == right[None]).to(dtype)
    if use.sparse:
        return right[:, left].T.to(dtype)
    if other.sparse:
        return left[:, right].to(dtype)
    return left.to(dtype) @ right.to(dtype).T


def _own_left_products(use: _Use, other: _Use, part: slice, dtype: torch.dtype) -> Tensor:
    """left·left of pairs of tokens of the same completion, (n, t, u)."""
    assert use.left is not None
    assert other.left is not None
    left, right = use.left[part], other.left[part]
    if use.sparse and other.sparse:
        return (left[:, :, None] == right[:, None]).to(dtype)
    if use.sparse:
        return _own_left_products(other, use, part, dtype).transpose(1, 2)
    if other.sparse:
        return left.gather(2, right[:, None].expand(-1, left.shape[1], -1)).to(dtype)
    return torch.bmm(left.to(dtype), right.to(dtype).transpose(1, 2))


def _norms(uses: _Uses, budget: int) -> Tensor:
    """‖s_i‖² in one parameter, (n,) in float64."""
    vector = _vector(uses)
    if vector is not None:
        return _squares(vector)
    (uses,) = _compact(_prepared(uses))
    n, columns = uses[0].count, uses[0].right.shape[-1]
    tokens = sum(use.right.shape[1] for use in uses)
    width = max(_width([use]) for use in uses)
    total = torch.zeros(n, dtype=torch.float64, device=uses[0].right.device)
    if tokens * (width + _ELEMENTWISE) < (uses[0].rows + 2) * columns:
        each = 3 * tokens**2 * uses[0].right.element_size()
        step = max(1, budget // each)
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            for use in uses:
                for other in uses:
                    product = torch.bmm(use.right[part], other.right[part].transpose(1, 2))
                    product *= _own_left_products(use, other, part, product.dtype)
                    total[part] += product.sum(dim=(1, 2), dtype=torch.float64)
        return total
    for rows in _row_blocks(budget, n, uses):
        total += _squares(_rows(uses, rows).flatten(1))
    return total


def _fill(target: Tensor, uses: _Uses, budget: int) -> None:
    """Write the scores in one parameter into the rows of a table, (n, size)."""
    vector = _vector(uses)
    if vector is not None:
        target.copy_(vector)
        return
    uses = _prepared(uses)
    columns = uses[0].right.shape[-1]
    for rows in _row_blocks(budget, uses[0].count, uses):
        target[:, rows.start * columns : rows.stop * columns] = _rows(uses, rows).flatten(1)


def _accumulate(target: Tensor, uses: _Uses, weights: Tensor, budget: int) -> None:
    """Add Σ_i w_i s_i in one parameter to an array of its shape."""
    for use in _prepared(uses):
        if use.left is None:
            target += weights @ use.right
            continue
        right = (use.right * weights[:, None, None]).flatten(0, 1)
        left = use.left.flatten(0, 1)
        if use.sparse:
            target.index_add_(0, left, right)
            continue
        step = max(1, budget // (len(left) * right.element_size()))
        for start in range(0, use.rows, step):
            part = slice(start, start + step)
            target[part].addmm_(left[:, part].to(right.dtype).T, right)

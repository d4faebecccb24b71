"""Passes of prompts' completions through a model, in blocks that fit the memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...execution.memory import slices
from ...noise.sketch import Sketch
from ...validation import Array, InputError, argument, integer, one_of
from .kept import Kept, PromptScores, Scaled
from .layers import CLOSE, COARSE, TOLERANCE, Hooks, Sink, Uses, frozen, layers, selected
from .metric import adam_metric
from .sums import squares
from .tokens import Batch, Room, forward, of_tokens

SKETCH = 2**12
"""The default size of a sketch, for which the error of an inner product is 2% of the product of both
norms.
"""

_TOKENS = {"cuda": 2**15}
"""The largest number of tokens, with padding, of several prompts in one pass on some devices. On others each
prompt has its own pass, so that the last digits of its scores do not depend on its neighbours.
"""

_NOT_FINITE = "scores are not finite: the model's logits or weights are not"


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt and its completions, the arguments of :meth:`Scores.of`, and a name for error messages."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[Sequence[int]]
    token_weights: Sequence[Sequence[float]] | None = None
    name: str | None = None


class Scores:
    """Scores of a causal language model.

    Arguments:
        model: a ``transformers`` causal language model in eval mode.
        parameters: "all", or patterns (``*``, ``?``) of parameter names. Parameters without ``requires_grad``
            are never included.
        memory: bytes to use in addition to the model; None for four fifths of the free memory of the model's
            device, or half of it on a CPU.
        method: "hooks", or "loop" for one backward pass for each completion.
        autocast_bf16: whether to run the forward pass under autocast to bfloat16; squares are still summed in
            float32 and float64.
        sketch: k, the size of a sketch; if there are fewer parameters it is smaller and exact. None for norms
            only.
        optimizer: file of Adam's state, as for :func:`~ustat_pg.llm.scores.metric.adam_metric`; scores are
            then in the metric of its step.
    """

    def __init__(
        self,
        model: Any,
        *,
        parameters: str | Sequence[str] = "all",
        memory: int | None = None,
        method: str = "hooks",
        autocast_bf16: bool = False,
        sketch: int | None = SKETCH,
        optimizer: str | Path | None = None,
    ) -> None:
        self.model = model
        self.method = one_of("method", method, ("hooks", "loop"))
        self.autocast_bf16 = bool(autocast_bf16)
        self._refuse_training()
        self.names, self._parameters = selected(model, parameters)
        self.sizes = tuple(p.numel() for p in self._parameters)
        self._first = [0, *np.cumsum(self.sizes)[:-1].tolist()]
        self.device = self._parameters[0].device
        if len({p.device for p in self._parameters}) > 1:
            raise InputError("the model's parameters lie on several devices: put it on one")
        wide = any(p.dtype == torch.float64 for p in self._parameters)
        self.dtype = torch.float64 if wide else torch.float32
        self._like = torch.empty(0, dtype=self.dtype, device=self.device)
        self.metric = None
        if optimizer is not None:
            self.metric = adam_metric(optimizer, model, self.names).to(self._like)
        self.room = Room(self.device, memory)
        self.sketch = None if sketch is None else integer("sketch", sketch)
        self._sketch = self._sketched(self.d)
        self._small = None if self.metric is None else self._sketched(len(self.metric.small))
        self._number = {id(p): k for k, p in enumerate(self._parameters)}
        self._layers = layers(model, self._number, self.names) if method == "hooks" else []
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._accepted = set(inspect.signature(base.forward).parameters)
        self._checked = 0

    def _sketched(self, entries: int) -> Sketch | None:
        if self.sketch is None:
            return None
        # A pool's arrays are never empty.
        return Sketch(max(entries, 1), self.sketch, self._like)

    @property
    def d(self) -> int:
        """The number of parameters of a score."""
        return sum(self.sizes)

    def _refuse_training(self) -> None:
        if getattr(self.model, "training", False):
            raise InputError(
                "the model is in training mode, where dropout makes scores random: call model.eval() first"
            )

    def of(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[Sequence[int]],
        token_weights: Sequence[Sequence[float]] | None = None,
    ) -> PromptScores:
        """Norms and sketches of the scores of a prompt's completions.

        Arguments:
            prompt_ids: the prompt's tokens.
            completion_ids: those of each of N completions; equal ones are computed once.
            token_weights: v_t of each token of each completion, whose score is then Σ_t v_t ∇ log π_t.
        """
        return next(self.many([Asked(prompt_ids, completion_ids, token_weights)]))

    def many(self, asked: Iterable[Asked]) -> Iterator[PromptScores]:
        """The results of :meth:`of` for several prompts, some of which go through the model at once.

        On a GPU neighbours share a pass, as far as memory allows and up to 2¹⁵ tokens, if padding costs
        little; on a CPU each prompt has its own pass.

        Raises:
            InputError: a prompt's scores cannot be computed; raised at the prompt's turn, with its name if it
                has one.
        """
        self._refuse_training()
        together: list[tuple[str | None, Batch]] = []
        for one in asked:
            batch = Batch.of(one.prompt_ids, one.completion_ids, one.token_weights)
            if together and not self._fit([*(other for _, other in together), batch]):
                yield from self._scored(together)
                together = []
            together.append((one.name, batch))
        if together:
            yield from self._scored(together)

    def _fit(self, batches: Sequence[Batch]) -> bool:
        """Whether prompts should go through the model together, if memory allows."""
        lengths = [batch.shortest + batch.longest for batch in batches]
        padded = sum(batch.count for batch in batches) * max(lengths)
        needed = sum(batch.count * length for batch, length in zip(batches, lengths, strict=True))
        few = padded <= _TOKENS.get(self.device.type, 0) and 5 * needed >= 4 * padded
        return self.method == "hooks" and few

    def _scored(self, prompts: Sequence[tuple[str | None, Batch]]) -> Iterator[PromptScores]:
        try:
            made = self.room.within(lambda: self._run([batch for _, batch in prompts]), self.d)
            if not all(np.isfinite(scores.squared_norms).all() for scores in made):
                raise InputError(_NOT_FINITE)
        except InputError as error:
            if len(prompts) == 1:
                name = prompts[0][0]
                raise error if name is None else InputError(f"prompt {name!r}: {error}") from None
        else:
            yield from made
            return
        # Each prompt is checked separately, so an error concerns only this prompt and is raised at its turn.
        for prompt in prompts:
            yield from self._scored([prompt])

    def log_probs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]
    ) -> list[Array]:
        """log π of each token of each completion, from a forward pass."""
        self._refuse_training()
        batch = Batch.of(prompt_ids, completion_ids)
        logs = self.room.within(lambda: self._log_probs(batch), self.d)
        rows = [logs[k, : len(batch.completions[k])] for k in range(batch.count)]
        if not all(np.isfinite(row).all() for row in rows):
            raise InputError(_NOT_FINITE)
        return [rows[k] for k in batch.back[0]]

    def _log_probs(self, batch: Batch) -> Array:
        logs = np.zeros((batch.count, batch.longest))
        for part in slices(batch.count, self._plan(batch)):
            ids, mask = (rows.to(self.device) for rows in batch.some(part).inputs())
            targets = batch.some(part).targets()[0].to(self.device)
            with torch.no_grad(), self._autocast():
                logits = forward(self.model, self._accepted, ids, mask, targets.shape[1])
            # One completion at a time, because logits in another precision need as much memory again.
            for k, (row, tokens) in enumerate(zip(logits, targets, strict=True), part.start):
                log = torch.log_softmax(row.to(self.dtype), dim=-1)
                logs[k, : len(tokens)] = log.gather(1, tokens[:, None])[:, 0].double().cpu()
        return logs

    def norms(self, prompt_ids: Sequence[int], completion_ids: Sequence[Sequence[int]]) -> Array:
        """‖s_i‖² of each completion, (N,)."""
        return self.of(prompt_ids, completion_ids).squared_norms

    def require(self, prompt: int, completion: int) -> None:
        """Raise any error now that :meth:`of` would raise for a prompt and a completion of these lengths."""
        self._refuse_training()
        most = getattr(self.model.get_input_embeddings(), "num_embeddings", 3)
        few = [1 % most, 2 % most]
        if self.method == "hooks":
            self.room.within(lambda: self._check(Batch.of(few, [few[:1], few[::-1]])), self.d)
        long = Batch.of(few[:1] * prompt, [few[:1] * completion])
        self.room.within(lambda: self._plan(long), self.d)

    def _run(self, batches: Sequence[Batch]) -> list[PromptScores]:
        hooks, batch = self.method == "hooks", Batch.joined(batches)
        if hooks:
            self._check(batch)
        block = self._plan(batch)
        if block < batch.count and len(batches) > 1:
            half = len(batches) // 2
            return self._run(batches[:half]) + self._run(batches[half:])
        scaled = None
        if self.metric is not None:
            sketches = self._sketch, self._small
            scaled = Scaled(batch.count, self.metric, *sketches, self._like)
        kept = Kept(batch.count, self._sketch, self._like, self.room.working, scaled)
        tokens = torch.zeros(3, batch.count, dtype=torch.float64, device=self.device)
        for part in slices(batch.count, block):

            def give(k: int, values: Tensor, part: slice = part) -> None:
                kept.give(part, (self._first[k], values))

            def take(k: int, uses: Uses, part: slice = part) -> None:
                kept.take(part, self._first[k], uses)

            if hooks:
                tokens[:, part] = self._pass(batch.some(part), take)
                kept.flush(part)
            else:
                tokens[:, part] = self._streamed(batch.some(part), give)
        sums = zip(("token_proxy", "surprise", "surprise_variance"), tokens, strict=True)
        # Results are copied to the host only here, after all work is queued.
        made = {name: each.cpu().numpy() for name, each in (kept.results() | dict(sums)).items()}
        return [
            PromptScores(**{name: rows[group][back] for name, rows in made.items()})
            for group, back in zip(batch.groups, batch.back, strict=True)
        ]

    # Memory.

    @property
    def _bytes_each(self) -> int:
        return self.dtype.itemsize

    def _plan(self, batch: Batch) -> int:
        """The number of completions that are processed at once."""
        # With the loop, autograd manages the graph itself.
        each, most = max(self.sizes) * self._bytes_each, 1
        lengths = batch.shortest, batch.longest
        if self.method == "hooks":
            each = self.room.taken(batch.count, *lengths, lambda: self._measured(*lengths))
            most = batch.count
        numbers = 0 if self._sketch is None else self._sketch.numbers
        if self.metric is not None:
            numbers = 2 * (numbers + (0 if self._small is None else self._small.numbers))
        held = batch.count * numbers * self._bytes_each
        return self.room.plan(lengths, each, held, most)

    def _measured(self, prompt: int, longest: int) -> int:
        """The bytes that a completion of some length needs until its backward pass is finished."""
        batch = Batch.of([1] * prompt, [[1] * longest])
        shared = {t.untyped_storage().data_ptr() for t in self.model.parameters()}
        shared |= {t.untyped_storage().data_ptr() for t in self.model.buffers()}
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in shared:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits, hooks = self._logits(batch, lambda k, uses: None)
        written = 0
        for layer_input, output_bytes in hooks.held():
            pack(layer_input)
            written += output_bytes
        return sum(seen.values()) + written + 3 * logits.numel() * logits.element_size()

    # One completion, by the loop.

    def _streamed(self, batch: Batch, take: Callable[[int, Tensor], None]) -> Tensor:
        """Pass on one completion's score, one parameter at a time; returns sums over its tokens, (3, 1)."""
        (prompt,), (completion,) = batch.prompts, batch.completions

        def pass_on(parameter: Tensor) -> None:
            if parameter.grad is not None:
                slope, parameter.grad = parameter.grad.to_dense(), None
                take(self._number[id(parameter)], slope.flatten()[None].to(self.dtype))

        before = [p.grad for p in self._parameters]
        handles = [p.register_post_accumulate_grad_hook(pass_on) for p in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.grad = None
            ids = torch.tensor([[*prompt, *completion]], device=self.device)
            with torch.enable_grad(), self._autocast():
                logits = forward(self.model, self._accepted, ids[:, :-1], None, 0)
                kept = logits[:, len(prompt) - 1 :]
            log = torch.log_softmax(kept.to(self.dtype), dim=-1)
            targets = ids[:, len(prompt) :]
            valid = torch.ones_like(targets, dtype=torch.bool)
            factors = batch.factors().to(log)
            tokens, _ = of_tokens(log.detach().clone(), targets, valid, factors)
            value = (factors * log.gather(2, targets[..., None])[..., 0]).sum()
            torch.autograd.backward(value, inputs=list(self._parameters))
        finally:
            for handle in handles:
                handle.remove()
            for parameter, slope in zip(self._parameters, before, strict=True):
                parameter.grad = slope
        return tokens

    # A block of completions, by hooks.

    def _check(self, batch: Batch) -> None:
        """Compare hooks and loop on one completion, parameter by parameter, the first time."""
        if self._checked >= min(batch.count, 2):
            return
        # The longest completion is used, because it shows errors that need several tokens. Weights may be 0,
        # and then there is nothing to compare. A second completion is in the batch and must not change the
        # result.
        longest = max(range(batch.count), key=lambda k: (len(batch.completions[k]), k))
        places = [*{0: None, longest: None}]
        pair = replace(
            batch,
            prompts=[batch.prompts[k] for k in places],
            completions=[batch.completions[k] for k in places],
            weights=None,
        )
        ours, theirs = (np.zeros(len(self._parameters)) for _ in range(2))
        both = slice(0, len(places))

        def take(k: int, uses: Uses) -> None:
            kept = Kept(len(places), None, self._like, self.room.working)
            kept.take(both, 0, uses)
            kept.flush(both)
            ours[k] = float(kept.plain.norms[-1])

        def streamed(k: int, row: Tensor) -> None:
            theirs[k] += float(squares(row))

        self._pass(pair, take)
        self._streamed(pair.some(slice(len(places) - 1, None)), streamed)
        if not np.isfinite(theirs.sum()):
            raise InputError(_NOT_FINITE)
        narrow = self.autocast_bf16 or any(p.dtype not in TOLERANCE for p in self._parameters)
        tolerance = COARSE if narrow else TOLERANCE[self.dtype]
        # Some gradients are zero up to rounding, for example of a key's bias.
        slack = tolerance * (np.maximum(ours, theirs) + tolerance * 1e-2 * theirs.sum())
        for k in np.flatnonzero(~(np.abs(ours - theirs) <= slack)):
            raise InputError(
                f"the squared norm of a score in {self.names[k]} is {ours[k]:.6g} through hooks and "
                f"{theirs[k]:.6g} by differentiation: this model uses the parameter in a way that "
                f"the hooks do not see; take {argument('method', repr('loop'))}"
            )
        self._require_causal(pair.prompts[-1], pair.completions[-1], COARSE if narrow else CLOSE)
        # A single completion has no other in the batch.
        self._checked = len(places)

    def _require_causal(
        self, prompt: Sequence[int], completion: Sequence[int], tolerance: float
    ) -> None:
        """Raise an error if a prompt's logits depend on its completion, unlike at sampling."""
        rows = [torch.tensor([[*prompt, *rest]], device=self.device) for rest in ((), completion)]
        with torch.no_grad(), self._autocast():
            alone, followed = (
                forward(self.model, self._accepted, ids, None, 0)[0, len(prompt) - 1].float()
                for ids in rows
            )
        if not (followed - alone).abs().max() <= tolerance * alone.abs().max():
            raise InputError(
                "the logits after a prompt change with the completion that follows: this model is not "
                "causal, and its completions are drawn from other logits; take method='loop' for scores "
                "of these all the same"
            )

    def _pass(self, batch: Batch, sink: Sink) -> Tensor:
        """Pass every parameter's uses by completion to ``sink``; returns sums over their tokens, (3, n)."""
        logits, hooks = self._logits(batch, sink)
        uncalled = hooks.uncalled(self.names)
        if uncalled:
            raise InputError(
                f"the layer of {uncalled} was not called by the model's forward pass, so hooks "
                f"see nothing of it; take {argument('method', repr('loop'))}"
            )
        slope, tokens = self._slopes(batch, logits)
        torch.autograd.backward(logits, slope)
        hooks.finish()
        return tokens

    def _logits(self, batch: Batch, sink: Sink) -> tuple[Tensor, Hooks]:
        """Logits at the positions that precede sampled tokens, (n, T, v), and the hooks of their pass."""
        ids, mask = (rows.to(self.device) for rows in batch.inputs())
        hooks = Hooks(self._layers, self._number, batch.count, sink)
        with frozen(self.model), hooks, torch.enable_grad(), self._autocast():
            return forward(self.model, self._accepted, ids, mask, batch.longest), hooks

    def _slopes(self, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
        """∂ log π / ∂ logits, and sums over tokens, a few completions at a time."""
        count, longest, vocabulary = logits.shape
        targets, valid = (rows.to(self.device) for rows in batch.targets())
        factors = batch.factors().to(self.device, self.dtype)
        slope, tokens = torch.empty_like(logits), logits.new_zeros(3, count, dtype=torch.float64)
        with torch.no_grad():
            room = self.room.working // (4 * longest * vocabulary * self._bytes_each)
            for rows in slices(count, room):
                log = torch.log_softmax(logits[rows].to(self.dtype), dim=-1)
                tokens[:, rows], slope[rows] = of_tokens(
                    log, targets[rows], valid[rows], factors[rows]
                )
        return slope, tokens

    def _autocast(self) -> Any:
        if not self.autocast_bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

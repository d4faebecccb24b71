"""A meter of the noise of a training's own steps, for any loop of torch."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError, integer, one_of, positive
from .estimate import NoiseEstimate, estimate_noise, step_sums
from .sketch import Sketch

__all__ = ["NoiseMeter"]


class NoiseMeter:
    """Signal and noise of the steps of a training, from the gradients that it makes anyway.

    ::

        meter = NoiseMeter(model.parameters(), window=50)
        for rows, prompts in micro_batches(batch):
            with meter.micro_batch(prompts):
                loss(rows).backward()      # as scaled for accumulation: the step is their sum
        meter.step()
        optimizer.step()
        meter.estimate().noise_to_signal

    A hook on each parameter sees the gradient of a backward pass before it is accumulated, and keeps a
    sketch of it; no copy as large as a parameter is made. Parameters sharded along their first axis
    (FSDP2) have their shard sketched at its own place, from what each pass adds to it. Several processes
    each call all methods: what they hold is gathered in :meth:`step`, gradients taken to be averaged over
    them, as DDP and FSDP do.

    Arguments:
        parameters: of the model; those that are not trained are passed over.
        window: steps that an estimate is made of.
        leave_one_out: whether advantages are leave-one-out: c₁, c₂, c₃ and G* exist then.
        phi_over_tau: φ/τ, which parts c₂ from c₃; None for what ``shares`` of :meth:`step` say.
        metric: ``"euclidean"``, or ``"adam"`` for gradients over √v + ε of Adam's own second moments
            of past steps.
        optimizer: torch's, with ``metric="adam"``.
        numbers: that are kept of a micro-batch's gradient.
        seed: of the sketches, the same on every process.

    Raises:
        InputError: no parameter is trained, or arguments out of range.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        window: int = 50,
        *,
        leave_one_out: bool = False,
        phi_over_tau: float | None = 1.0,
        metric: str = "euclidean",
        optimizer: Any = None,
        numbers: int = 4096,
        seed: int = 0,
    ) -> None:
        self.window = integer("window", window, 2)
        self.leave_one_out = leave_one_out
        self.phi_over_tau = None if phi_over_tau is None else positive("phi_over_tau", phi_over_tau)
        self._adam = one_of("metric", metric, ("euclidean", "adam")) == "adam"
        if self._adam and optimizer is None:
            raise InputError("metric is 'adam': give the optimizer, whose second moments it takes")
        self.numbers, self.seed = integer("numbers", numbers, 1), integer("seed", seed, 0)
        self._optimizer = optimizer
        self._parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        if not self._parameters:
            raise InputError("no parameter is trained: give those of the model before it is frozen")
        self._first = [0, *np.cumsum([p.numel() for p in self._parameters]).tolist()]
        self._sharded = [hasattr(p, "to_local") for p in self._parameters]
        self._hooks = [
            p.register_hook(partial(self._see, place))
            for place, p in enumerate(self._parameters)
            if not self._sharded[place]
        ]
        self._steps: deque[NDArray[np.float64]] = deque(maxlen=self.window)
        self._count = 0
        self._table: torch.Tensor | None = None
        self._scale = 1.0
        self.clear()

    def clear(self) -> None:
        """Forget the micro-batches of a step that is not finished."""
        self._sketch: Sketch | None = None
        self._before: torch.Tensor | None = None
        self._sketches: list[torch.Tensor] = []
        self._groups: list[NDArray[np.int64]] = []
        self._table = None

    @contextmanager
    def micro_batch(
        self, prompts: Sequence[Any] | torch.Tensor, scale: float = 1.0
    ) -> Iterator[None]:
        """Measure the backward pass inside.

        Arguments:
            prompts: which prompt each completion is of, a whole number or a text; the same prompt
                has the same one on every process.
            scale: that the loss has beyond what the optimizer sees, as of a GradScaler.

        Raises:
            InputError: prompts are none or not flat, or no gradient came.
        """
        self.begin(prompts, scale)
        try:
            yield
        except BaseException:
            self.clear()
            raise
        self.end()

    def begin(self, prompts: Sequence[Any] | torch.Tensor, scale: float = 1.0) -> None:
        """Open what :meth:`micro_batch` holds, where a loop has no place for a block."""
        if self._table is not None:
            raise InputError("a micro-batch is open already: end it before the next")
        self._groups.append(_numbered(prompts))
        self._scale = positive("scale", scale)
        device = self._parameters[0].device
        if self._sketch is None:
            like = torch.zeros((), device=device)
            self._sketch = Sketch(self._first[-1], self.numbers, like, [self.seed, self._count])
        self._seen = False
        self._table = torch.zeros(1, 1, self._sketch.numbers, device=device)
        if any(self._sharded) and self._before is None:
            self._before = self._shards()

    def end(self) -> None:
        """Close what :meth:`begin` opened.

        Raises:
            InputError: no gradient came.
        """
        assert self._table is not None
        table = self._table[0, 0]
        if any(self._sharded):
            after = self._shards()
            assert self._before is not None
            table = table + (after - self._before) / self._scale
            self._before = after
        self._table = None
        if not self._seen:
            self._groups.pop()
            raise InputError("no gradient came: call loss.backward() inside micro_batch(...)")
        self._sketches.append(table)

    def step(self, shares: ArrayLike = (0.0, 0.0)) -> bool:
        """Take up the step; call it before ``optimizer.step()`` and before gradients are cleared.

        Arguments:
            shares: what completions add to φ and τ, where somebody measured it.

        Returns:
            whether the step counts: one that is not finite, or has no two micro-batches, does not.

        Raises:
            InputError: no micro-batch was measured.
        """
        if not self._sketches:
            raise InputError("a step has no micro-batch: open one with meter.micro_batch(prompts)")
        sketches, groups = torch.stack(self._sketches), self._groups
        own = np.asarray(shares, dtype=float)
        self.clear()
        self._count += 1
        if distributed.is_available() and distributed.is_initialized():
            sketches, groups, own = self._gathered(sketches, groups, own)
        rows = sketches.cpu().numpy().astype(float) * sum(map(len, groups))
        if len(groups) < 2 or not np.isfinite(rows).all():
            return False
        self._steps.append(step_sums(rows @ rows.T, groups, own))
        return True

    def estimate(self) -> NoiseEstimate:
        """Signal, noise and their ratios over the steps in the window.

        Raises:
            InputError: fewer than two steps count.
        """
        steps = np.array(self._steps)
        return estimate_noise(
            steps, leave_one_out=self.leave_one_out, phi_over_tau=self.phi_over_tau
        )

    @property
    def steps(self) -> int:
        """Steps in the window so far."""
        return len(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """The window, in numbers that JSON takes."""
        return {"count": self._count, "steps": [each.tolist() for each in self._steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._count = int(state["count"])
        self._steps.clear()
        self._steps.extend(np.array(each, dtype=float) for each in state["steps"])

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self.clear()

    @torch.no_grad()
    def _see(self, place: int, gradient: torch.Tensor) -> None:
        if self._table is None or self._sketch is None:
            return
        self._seen = True
        values = self._measured(place, gradient.float().reshape(1, -1) / self._scale)
        self._sketch.add(self._table, self._first[place], values)

    def _measured(self, place: int, values: torch.Tensor) -> torch.Tensor:
        """In the optimizer's metric."""
        if not self._adam:
            return values
        parameter = self._parameters[place]
        state = self._optimizer.state.get(parameter, {})
        if "exp_avg_sq" not in state:
            # Before its first step Adam has no metric: the step is left out.
            return torch.full_like(values, math.nan)
        group = next(
            g for g in self._optimizer.param_groups if any(p is parameter for p in g["params"])
        )
        moment, step = state["exp_avg_sq"], float(state["step"])
        if hasattr(moment, "to_local"):
            moment = moment.to_local()
        root = (moment.float().reshape(1, -1) / (1 - group["betas"][1] ** step)).sqrt()
        return values / (root + group["eps"])

    @torch.no_grad()
    def _shards(self) -> torch.Tensor:
        """The sketch of what this process's shards have accumulated."""
        assert self._sketch is not None
        table = torch.zeros(1, 1, self._sketch.numbers, device=self._parameters[0].device)
        for place, parameter in enumerate(self._parameters):
            if not self._sharded[place] or parameter.grad is None:
                continue
            self._seen = True
            gradient: Any = parameter.grad
            mesh, placements = gradient.device_mesh, gradient.placements
            if len(placements) != 1 or not placements[0].is_shard(0):
                raise InputError(
                    f"a gradient is placed as {placements}: only sharding along the first axis is known"
                )
            rows = math.ceil(gradient.shape[0] / mesh.size()) * mesh.get_local_rank()
            start = min(rows, gradient.shape[0]) * (gradient.numel() // gradient.shape[0])
            values = self._measured(place, gradient.to_local().float().reshape(1, -1))
            if values.numel():
                self._sketch.add(table, self._first[place] + start, values)
        return table[0, 0]

    def _gathered(self, sketches: torch.Tensor, groups: Any, shares: Any) -> tuple[Any, Any, Any]:
        """Those of all processes: sharded gradients are summed, whole ones are other micro-batches."""
        everything: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everything, (sketches.cpu(), groups, shares))
        shares = sum(each[2] for each in everything)
        if all(self._sharded):
            # Each pass averaged the gradients of all.
            together = [
                np.concatenate(each) for each in zip(*[e[1] for e in everything], strict=True)
            ]
            return sum(each[0] for each in everything), together, shares
        if any(self._sharded):
            raise InputError("some parameters are sharded and others are not: measure either")
        rows = torch.cat([each[0] for each in everything]) / len(everything)
        return rows, [group for each in everything for group in each[1]], shares


def _numbered(prompts: Any) -> NDArray[np.int64]:
    """Prompts as numbers that are the same on every process."""
    if isinstance(prompts, torch.Tensor):
        prompts = prompts.detach().cpu().numpy()
    values = list(prompts) if not isinstance(prompts, (str, bytes)) else []
    if not values or np.ndim(values[0]) != 0:
        raise InputError(
            f"prompts are {prompts!r}: give one number or text for each completion of the micro-batch"
        )
    if all(isinstance(each, (int, np.integer)) for each in values):
        return np.array(values, dtype=np.int64)
    digests = [hashlib.blake2b(repr(each).encode(), digest_size=7).digest() for each in values]
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.int64)

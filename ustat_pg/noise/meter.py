"""A meter of the noise of a training's own steps, for any loop of torch."""

from __future__ import annotations

import hashlib
import math
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError, finite_array, integer, one_of, positive
from .completions import Alternative, Blocks, alternatives, group_blocks
from .estimate import NoiseEstimate, estimate_noise, step_sums
from .layers import Layers
from .sketch import Sketch


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
    (FSDP2) have their shard sketched at its own place, from what each pass adds to it.

    Given the model itself, the meter knows the gradient of each completion of a micro-batch, by hooks on its
    layers in place of those on parameters: :meth:`compare` takes micro-batches of any number of completions,
    one micro-batch makes a step, and prompts need not be sorted. The forward pass is in the block then, and
    every layer reads one row for each completion, in the order of ``prompts``. Linear layers, embeddings and
    norms are known, and what a fused kernel does with their weights is not seen: the first
    micro-batch with a gradient is compared with what backward accumulates, one warning names what is
    left out, and its share. Sharded gradients are not compared. Several processes
    each call all methods: what they hold is gathered in :meth:`step`, gradients taken to be averaged over
    them, as DDP and FSDP do.

    Arguments:
        parameters: of the model, or the model itself; those that are not trained are passed over.
        window: steps that an estimate is made of.
        leave_one_out: whether advantages are leave-one-out: c₁, c₂, c₃ and G* exist then, where all groups
            of the window have one size.
        phi_over_tau: φ/τ, which parts c₂ from c₃; None for what ``shares`` of :meth:`step` say.
        metric: ``"euclidean"``, or ``"adam"`` for gradients over √v + ε of Adam's own second moments
            of past steps.
        optimizer: torch's, with ``metric="adam"``.
        numbers: that are kept of a micro-batch's gradient.
        seed: of the sketches, the same on every process.
        width: to which a layer's inputs and output gradients are projected where the model is given; sides
            of a matrix that are no longer are kept. Cost and numbers grow with it, errors of products fall.

    Raises:
        InputError: no parameter is trained, or arguments out of range.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | torch.nn.Module,
        window: int = 50,
        *,
        leave_one_out: bool = False,
        phi_over_tau: float | None = 1.0,
        metric: str = "euclidean",
        optimizer: Any = None,
        numbers: int = 4096,
        seed: int = 0,
        width: int = 16,
    ) -> None:
        self.window = integer("window", window, 2)
        self.leave_one_out = leave_one_out
        self.phi_over_tau = None if phi_over_tau is None else positive("phi_over_tau", phi_over_tau)
        self._adam = one_of("metric", metric, ("euclidean", "adam")) == "adam"
        if self._adam and optimizer is None:
            raise InputError("metric is 'adam': give the optimizer, whose second moments it takes")
        self.numbers, self.seed = integer("numbers", numbers, 1), integer("seed", seed, 0)
        self._optimizer = optimizer
        model = parameters if isinstance(parameters, torch.nn.Module) else None
        if model is not None and self._adam:
            raise InputError("metric 'adam' takes whole gradients: give model.parameters()")
        given = parameters.parameters() if isinstance(parameters, torch.nn.Module) else parameters
        self._parameters = [p for p in dict.fromkeys(given) if p.requires_grad]
        if not self._parameters:
            raise InputError("no parameter is trained: give those of the model before it is frozen")
        sizes = [p.numel() for p in self._parameters]
        self._layers: Layers | None = None
        if model is not None:
            self._layers = Layers(model, self._parameters, integer("width", width), self.seed)
            sizes = [self._layers.numbers(place) for place in range(len(sizes))]
        self._first = [0, *np.cumsum(sizes).tolist()]
        self._sharded = [hasattr(p, "to_local") for p in self._parameters]
        self._hooks = [
            p.register_hook(partial(self._see, place))
            for place, p in enumerate(self._parameters)
            if not self._sharded[place]
        ]
        self._steps: deque[NDArray[np.float64]] = deque(maxlen=self.window)
        self._squares: deque[NDArray[np.float64]] = deque(maxlen=self.window)
        self._blocks: deque[Blocks] = deque(maxlen=self.window)
        self._unknown = "no step counts"
        self._count = 0
        self._ever = False
        self._table: torch.Tensor | None = None
        self._scale = 1.0
        self.clear()

    def __reduce__(self) -> Any:
        raise TypeError("a meter hangs on its model and is not copied: keep meter.state_dict()")

    def clear(self) -> None:
        """Forget the micro-batches of a step that is not finished."""
        self._broken = False
        self._sketch: Sketch | None = None
        self._before: torch.Tensor | None = None
        self._sketches: list[torch.Tensor] = []
        self._groups: list[NDArray[np.int64]] = []
        self._advantages: list[NDArray[np.float64] | None] = []
        self._table = None
        if self._layers is not None:
            self._layers.begin(None)

    @contextmanager
    def micro_batch(
        self,
        prompts: Sequence[Any] | torch.Tensor,
        scale: float = 1.0,
        advantages: ArrayLike | None = None,
    ) -> Iterator[None]:
        """Measure the backward pass inside.

        A block without a backward pass, as of groups whose advantages are all 0, counts as a gradient of 0.
        After an error inside a block its step does not count.

        Arguments:
            prompts: which group each completion is of, a whole number or a text, the same on every
                process; two groups of one prompt are two.
            scale: that the loss has beyond what the optimizer sees, as of a GradScaler.
            advantages: of its completions, which their gradients are proportional to; with rewards 0 and 1
                they tell :meth:`compare` what others would have.

        Raises:
            InputError: prompts are none, not flat, or neither whole numbers nor texts; advantages are not one
                for each; a block is open.
        """
        self.begin(prompts, scale, advantages)
        try:
            yield
            self.end()
        except BaseException:
            self.clear()
            self._broken = True
            raise

    def begin(
        self,
        prompts: Sequence[Any] | torch.Tensor,
        scale: float = 1.0,
        advantages: ArrayLike | None = None,
    ) -> None:
        """Open what :meth:`micro_batch` holds, where a loop has no place for a block."""
        if self._table is not None:
            raise InputError("a micro-batch is open already: end it before the next")
        groups, self._scale = _numbered(prompts), positive("scale", scale)
        given = advantages
        if given is not None:
            if isinstance(given, torch.Tensor):
                given = given.detach().cpu().double().numpy()
            given = finite_array("advantages", given, 1)
            if len(given) != len(groups):
                raise InputError(f"there are {len(given)} advantages for {len(groups)} completions")
        device = self._parameters[0].device
        if self._sketch is None:
            like = torch.zeros((), device=device)
            self._sketch = Sketch(self._first[-1], self.numbers, like, [self.seed, self._count])
            if self._layers is not None:
                self._layers.begin_step(self._count)
        sharded = any(self._sharded)
        rows = 1 if self._layers is None else len(groups)
        if self._layers is not None:
            # The gradient of a single completion is the one that is accumulated.
            self._layers.begin(rows if rows > 1 or sharded else None)
        self._groups += np.split(groups, rows)
        self._advantages += [None] * rows if given is None else np.split(given, rows)
        self._table = torch.zeros(rows, 1, self._sketch.numbers, device=device)
        if sharded and self._layers is None and self._before is None:
            self._before = self._shards()

    def end(self) -> torch.Tensor:
        """Close what :meth:`begin` opened.

        Returns:
            squared norms of what the micro-batch adds to the step, (1,), or of what its completions do, (n,).
        """
        if self._table is None:
            raise InputError("no micro-batch is open: begin one first")
        if self._layers is not None and self._sketch is not None:
            for place, values in self._layers.gradients():
                self._ever = True
                values = values.to(self._table.device)
                self._sketch.add(self._table, self._first[place], values)
            self._layers.begin(None)
        table = self._table[:, 0]
        if self._layers is None and any(self._sharded):
            after = self._shards()
            assert self._before is not None
            table = table + (after - self._before)
            self._before = after
        self._table = None
        self._sketches.append(table / self._scale)
        return self._sketches[-1].square().sum(dim=1)

    def step(self, shares: ArrayLike = (0.0, 0.0), counts: bool = True) -> bool:
        """Take up the step; call it before ``optimizer.step()`` and before gradients are cleared.

        Arguments:
            shares: what completions add to φ and τ, where somebody measured it.
            counts: False leaves the step out, for all processes if one says so.

        Returns:
            whether the step counts: one that is not finite, has no two micro-batches or known completions,
            or met an error inside a block does not.

        Raises:
            InputError: no micro-batch was measured, or no gradient ever came.
        """
        if self._table is not None:
            raise InputError("a micro-batch is open: end it before the step")
        groups, advantages = self._groups, self._advantages
        broken = self._broken or not counts
        numbers = min(self.numbers, self._first[-1])
        sketches = torch.cat(self._sketches or [torch.zeros(0, numbers)])
        sizes = np.asarray(shares, dtype=float)
        self.clear()
        self._count += 1
        if distributed.is_available() and distributed.is_initialized():
            sketches, groups, sizes, broken, advantages = self._gathered(
                sketches, groups, sizes, broken, advantages
            )
        if broken:
            return False
        if not groups:
            raise InputError("a step has no micro-batch: open one with meter.micro_batch(prompts)")
        if not self._ever:
            raise InputError("no gradient came: call loss.backward() inside micro_batch(...)")
        rows = sketches.cpu().numpy().astype(float) * sum(map(len, groups))
        if len(groups) < 2 or not np.isfinite(rows).all():
            return False
        self._steps.append(step_sums(rows @ rows.T, groups, sizes))
        self._squares.append(np.square(rows).sum(axis=1))
        if any(advantage is not None for advantage in advantages):
            try:
                self._blocks.append(group_blocks(rows, groups, advantages))
            except InputError as error:
                self._unknown = str(error)
        return True

    def estimate(self) -> NoiseEstimate:
        """Signal, noise and their ratios over the steps in the window.

        Raises:
            InputError: fewer than two steps count.
        """
        return estimate_noise(
            np.array(self._steps), leave_one_out=self.leave_one_out,
            phi_over_tau=self.phi_over_tau,
            squares=np.concatenate([*self._squares, []]),
        )  # fmt: skip

    def compare(
        self, baselines: Sequence[str], group_sizes: Sequence[int] | None = None
    ) -> list[Alternative]:
        """Noise of other estimators and group sizes, from the completions of the window's steps.

        It takes rewards 0 and 1, the model or else micro-batches of one completion, advantages of
        :meth:`micro_batch`, and a loss that is linear in them: no penalty or entropy, no token clipped.

        Arguments:
            baselines: tables by counts, such as rloo, dr-grpo, std, std-ddof1, maxrl or pass-at-k:2.
            group_sizes: up to the groups' own; all from 2 unless given.

        Raises:
            InputError: fewer than two steps had such completions, an unknown name, a size out of range, or a
                table that needs groups which the training multiplies by 0.
        """
        if len(self._blocks) < 2:
            raise InputError(
                f"{len(self._blocks)} steps tell what other estimators do, and 2 are needed: {self._unknown}"
            )
        return alternatives(self._blocks, baselines, group_sizes)

    @property
    def steps(self) -> int:
        """Steps in the window so far."""
        return len(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """The window, in numbers that JSON takes."""
        return {
            "count": self._count,
            "steps": [row.tolist() for row in self._steps],
            "squares": [row.tolist() for row in self._squares],
            "blocks": [[part.tolist() for part in vars(row).values()] for row in self._blocks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._count = int(state["count"])
        for kept, name in ((self._steps, "steps"), (self._squares, "squares")):
            kept.clear()
            kept.extend(np.array(row, dtype=float) for row in state[name])
        self._blocks.clear()
        self._blocks.extend(Blocks(*map(np.array, row)) for row in state.get("blocks", []))

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        if self._layers is not None:
            self._layers.remove()
        self._ever = False
        self.clear()

    @torch.no_grad()
    def _see(self, place: int, gradient: torch.Tensor) -> None:
        if self._table is None or self._sketch is None:
            return
        self._ever = True
        gradient = gradient.to_dense()
        if self._layers is None:
            values = self._measured(place, gradient.float().reshape(1, -1))
        elif self._layers.rows is None:
            values = self._layers.whole(place, gradient)
        else:
            self._layers.accumulated(place, gradient)
            return
        values = values.to(self._table.device)
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
            self._ever = True
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

    def _gathered(self, sketches: torch.Tensor, *others: Any) -> tuple[Any, ...]:
        """Those of all processes: sharded gradients are summed, whole ones are other micro-batches."""
        everything: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everything, (sketches.cpu(), *others, self._ever))
        shares = sum(part[2] for part in everything)
        advantages = [value for part in everything for value in part[4]]
        broken = any(part[3] for part in everything)
        self._ever = any(part[5] for part in everything)
        if all(self._sharded) and self._layers is None:
            # Each pass averaged the gradients of all.
            together = [
                np.concatenate(part) for part in zip(*[e[1] for e in everything], strict=True)
            ]
            return sum(part[0] for part in everything), together, shares, broken, advantages
        if any(self._sharded) and self._layers is None:
            raise InputError("some parameters are sharded and others are not: measure either")
        rows = torch.cat([part[0] for part in everything]) / len(everything)
        return rows, [group for part in everything for group in part[1]], shares, broken, advantages


def _numbered(prompts: Any) -> NDArray[np.int64]:
    """Prompts as numbers that are the same on every process."""
    if isinstance(prompts, torch.Tensor):
        prompts = prompts.detach().cpu().numpy()
    try:
        if isinstance(prompts, (str, bytes)) or not len(prompts):
            raise TypeError
        # A text by its letters, whatever its type; anything else is a whole number.
        names = [
            prompt if isinstance(prompt, str) else operator.index(prompt) for prompt in prompts
        ]
    except TypeError:
        raise InputError(
            f"prompts are {prompts!r}: give one number or text for each completion of the micro-batch"
        ) from None
    digests = [hashlib.blake2b(f"{name}".encode(), digest_size=7).digest() for name in names]
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.int64)

"""A meter of the noise of a training's own steps, for any loop of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError, finite_array, integer, one_of, positive
from .completions import Alternative
from .estimate import NoiseEstimate
from .lags import DRAWN
from .layers import Layers, is_sharded
from .onlooker import Guard
from .sketch import Sketch, pieces
from .window import Window, numbered

_UNKNOWN_SHARDS = (
    "of sharded ones those of FSDP2 are known, and none of DeepSpeed's ZeRO 3 or FSDP1"
)
_SEEN = 22
"""Steps that Adam's second moments are means of before they are a metric.

A mean v of n squares of normal numbers has E[1/v] = n / (n - 2) / σ²: 10% too large at 22, infinite at 2. The
relative deviation of 1/v is √(2 / (n - 4)), a third for each entry. Adam weighs squares by β₂ to their age: a
long memory, of β₂ near 1, makes v better later, and that of β₂ = .9 is full at 22.
"""


class NoiseMeter:
    """Signal and noise of the steps of a training, from the gradients that it makes anyway.

    ::

        meter = NoiseMeter(model.parameters(), window=50)
        for rows, prompts in micro_batches(batch):
            with meter.micro_batch(prompts):
                loss(rows).backward()      # as scaled for accumulation: the step is their sum
        meter.step()
        optimizer.step()
        print(meter.estimate().noise_to_signal)

    A hook on each parameter sees the gradient of a backward pass before it is accumulated, and keeps a
    sketch of it; no copy as large as a parameter is made, but of a sparse gradient. Parameters sharded
    along their first axis (FSDP2) have their shard sketched at its own place, from what each pass adds to it,
    so each pass must reduce gradients: where the last of a step alone does, give it the model.

    Given the model itself, the meter knows the gradient of each completion of a micro-batch, by hooks on its
    layers in place of those on parameters: :meth:`compare` takes micro-batches of any number of completions,
    one micro-batch makes a step, and prompts need not be sorted. The forward pass is in the block then, and
    every layer reads one row for each completion, in the order of ``prompts``. Linear layers, embeddings and
    norms are known, and what a fused kernel does with their weights is not seen: the first
    micro-batch with a gradient is compared with what backward accumulates, one warning names what is
    left out, and its share. Sharded gradients are not compared: parameters without a gradient of a
    completion are named. Several processes each call all methods: what they hold is gathered in :meth:`step`,
    gradients taken to be averaged over them, as DDP and FSDP do.

    Steps of one micro-batch or of one prompt have no pair that parts signal from noise. Two in a row are
    measured as one, by pairs of the one with the other: the signal is that of neighbouring steps then.

    What fails while it measures is one warning, never an error of the loop: it is off then, on all processes
    from the step on, and its hooks are gone. :meth:`estimate` goes on saying what was measured.

    Arguments:
        parameters: of the model, or the model itself; those that are not trained are passed over.
        window: steps that an estimate is made of.
        leave_one_out: whether advantages are leave-one-out: c₁, c₂, c₃ and G* exist then, where all groups
            of the window have one size.
        phi_over_tau: φ/τ, which parts c₂ from c₃; None to measure it from advantages of :meth:`micro_batch`,
            where groups are of 3 or more and lie in three micro-batches, or in two by unequal parts.
        metric: ``"euclidean"``, or ``"adam"`` for gradients over √v + ε of Adam's own second moments
            of past steps, once they are of 22; entries that never had a gradient have no metric, and are
            left out.
        optimizer: torch's, with ``metric="adam"``; Adam, AdamW or SGD with momentum for pairs of neighbouring
            steps too, of which the signal is known two to four times as well (:mod:`ustat_pg.noise.lags`).
        numbers: that are kept of a micro-batch's gradient.
        seed: of the sketches, the same on every process.
        width: to which a layer's inputs and output gradients are projected where the model is given; sides
            of a matrix that are no longer are kept. Cost and numbers grow with it, errors of products fall.
        population: X, of a set of prompts that is passed over in shuffled epochs: two prompts of a step are
            never one then, and pairs of them are below the signal by c₁/(X-1). None where prompts are drawn
            independently. Where no two micro-batches share a prompt c₁ is not known, and intervals are wider.
        guard: under which a loop around it runs too; its own unless given.

    Raises:
        InputError: no parameter is trained or holds numbers here (DeepSpeed's ZeRO 3), the optimizer has no
            betas and eps, or arguments out of range.
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
        population: int | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.window = integer("window", window, 2)
        self.population = None if population is None else integer("population", population, 2)
        self.leave_one_out = leave_one_out
        self.phi_over_tau = None if phi_over_tau is None else positive("phi_over_tau", phi_over_tau)
        self._adam = one_of("metric", metric, ("euclidean", "adam")) == "adam"
        if self._adam and optimizer is None:
            raise InputError("metric is 'adam': give the optimizer, whose second moments it takes")
        model = None
        if isinstance(parameters, torch.nn.Module):
            model, parameters = parameters, parameters.parameters()
        if model is not None and self._adam:
            raise InputError("metric 'adam' takes whole gradients: give model.parameters()")
        for group in optimizer.param_groups if self._adam else ():
            if not {"betas", "eps"} <= group.keys():
                raise InputError(
                    f"metric is 'adam', and {type(optimizer).__name__} has no betas and eps: it takes "
                    "torch's Adam or AdamW"
                )
        self.numbers, self.seed = integer("numbers", numbers, 1), integer("seed", seed, 0)
        self._optimizer = optimizer
        self._parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        if not self._parameters:
            raise InputError("no parameter is trained: give those of the model before it is frozen")
        sizes = [p.numel() for p in self._parameters]
        if not any(sizes):
            raise InputError(f"parameters hold no numbers on this process: {_UNKNOWN_SHARDS}")
        self._guard = guard or Guard()
        self._guard.stops.append(self.remove)
        self._layers: Layers | None = None
        if model is not None:
            self._layers = Layers(
                model, self._parameters, integer("width", width), self.seed, self._guard
            )
            sizes = [self._layers.numbers(place) for place in range(len(sizes))]
        self._first = [0, *np.cumsum(sizes).tolist()]
        self._sharded = [is_sharded(p) for p in self._parameters]
        for place, p in enumerate(self._parameters):
            if not self._sharded[place]:
                self._guard.hang(p.register_hook, self._see, place)
        self.left_out = ""
        """Why the latest step that does not count is left out."""
        self._once, self._reduced = 0, False
        # Sketches of layers are drawn anew at each step, and Adam's metric changes.
        known = None if self._layers is not None or self._adam else optimizer
        self._taken = Window(self.window, known)
        self._count = 0
        self._latest: tuple[tuple[int, bool], NoiseEstimate] | None = None
        self._ever = False
        self._table: torch.Tensor | None = None
        self._scale = 1.0
        self._drawn: tuple[int, Sketch] | None = None
        self.clear()

    def __reduce__(self) -> Any:
        raise TypeError("a meter hangs on its model and is not copied: keep meter.state_dict()")

    def clear(self) -> None:
        """Forget the micro-batches of a step that is not finished."""
        self._broken = ""
        self._sketch: Sketch | None = None
        self._before: torch.Tensor | None = None
        self._moved: list[bool] = []
        self._sketches: list[torch.Tensor] = []
        self._groups: list[NDArray[np.int64]] = []
        self._given: dict[str, list[Any]] = {"advantages": [], "weights": []}
        self._table = None
        if self._layers is not None:
            self._layers.begin(None)

    @contextmanager
    def micro_batch(
        self,
        prompts: Sequence[Any] | torch.Tensor,
        scale: float = 1.0,
        advantages: ArrayLike | None = None,
        groups: Sequence[Any] | torch.Tensor | None = None,
        weights: ArrayLike | None = None,
    ) -> Iterator[None]:
        """Measure the backward pass inside.

        A block without a backward pass, as of groups whose advantages are all 0, counts as a gradient of 0.
        After an error inside a block its step does not count.

        Arguments:
            prompts: which prompt each completion is of, a whole number or a text, the same on every
                process. Where a prompt is drawn for each group, groups may stand here.
            scale: that the loss has beyond what the optimizer sees, as of a GradScaler.
            advantages: of its completions, which their gradients are proportional to: for φ/τ, and with
                rewards 0 and 1 for :meth:`compare`.
            groups: which of its prompt's groups each is of, where a step has several groups of one prompt.
            weights: importance weights, one of each whole completion, that its gradient is multiplied by.

        Raises:
            InputError: prompts or groups are none, not flat, or neither whole numbers nor texts; groups,
                advantages or weights are not one for each; a block is open.
        """
        self.begin(prompts, scale, advantages, groups, weights)
        try:
            yield
            self.end()
        except BaseException:
            self.clear()
            self._broken = "an error inside a block cut it short"
            raise

    def begin(
        self,
        prompts: Sequence[Any] | torch.Tensor,
        scale: float = 1.0,
        advantages: ArrayLike | None = None,
        groups: Sequence[Any] | torch.Tensor | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """Open what :meth:`micro_batch` holds, where a loop has no place for a block."""
        if self._table is not None:
            raise InputError("a micro-batch is open already: end it before the next")
        names, self._scale = numbered(prompts), positive("scale", scale)
        own = names if groups is None else numbered(groups, "groups")
        if len(own) != len(names):
            raise InputError(f"there are {len(own)} groups for {len(names)} completions")
        given = {"advantages": advantages, "weights": weights}
        found = {what: _one_each(what, values, len(names)) for what, values in given.items()}
        self._guard(self._opened, np.stack([own, names], axis=1), found)

    def _opened(self, groups: NDArray[np.int64], given: dict[str, Any]) -> None:
        device = self._parameters[0].device
        if self._sketch is None:
            like = torch.zeros((), device=device)
            # Steps that are measured together are drawn alike.
            count = self._count - self._taken.holds
            draw = count if self._layers is not None else count // DRAWN
            if self._drawn is None or self._drawn[0] != draw:
                made = Sketch(self._first[-1], self.numbers, like, [self.seed, draw])
                self._drawn = draw, made
            self._sketch = self._drawn[1]
            if self._layers is not None:
                self._layers.begin_step(count)
        sharded = any(self._sharded)
        rows = 1 if self._layers is None else len(groups)
        if self._layers is not None:
            # The gradient of a single completion is the one that is accumulated.
            self._layers.begin(rows if rows > 1 or sharded else None)
        self._groups += np.split(groups, rows)
        for what, values in given.items():
            self._given[what] += [None] * rows if values is None else np.split(values, rows)
        self._table = torch.zeros(rows, 1, self._sketch.numbers, device=device)
        if sharded and self._layers is None and self._before is None:
            self._before = self._shards()

    def end(self) -> None:
        """Close what :meth:`begin` opened."""
        if self._table is None and self._guard.reason is None:
            raise InputError("no micro-batch is open: begin one first")
        self._guard(self._closed)

    def _closed(self) -> None:
        assert self._table is not None
        if self._layers is not None:
            assert self._sketch is not None
            for place, values in self._layers.gradients():
                self._ever = True
                values = values.to(self._table.device)
                self._sketch.add(self._table, self._first[place], values)
            self._layers.begin(None)
        table = self._table[:, 0]
        if self._layers is None and any(self._sharded):
            after = self._shards()
            assert self._before is not None
            self._moved.append(not torch.equal(after, self._before))
            table = table + (after - self._before)
            self._before = after
        self._table = None
        self._sketches.append(table / self._scale)

    def step(self, counts: bool = True) -> bool:
        """Take up the step; call it before ``optimizer.step()`` and before gradients are cleared.

        Arguments:
            counts: False leaves the step out, for all processes if one says so.

        Returns:
            whether the step counts: one that is not finite, met an error inside a block, or comes before Adam
            has a metric does not, and ``left_out`` says why.

        Raises:
            InputError: no micro-batch was measured, or no gradient ever came.
        """
        if self._table is not None:
            raise InputError("a micro-batch is open: end it before the step")
        # All processes come here, also those that are off.
        everything = self._guard.gathered(self._guard(self._finished, counts))
        whole = None if everything is None else self._guard(self._merged, everything)
        if whole is None:
            self.left_out = f"the meter is off: {self._guard.reason}"
            return False
        rows, groups, given, broken = whole
        if broken:
            self.left_out = broken
            self._taken.drop_held()
            return False
        if not groups:
            raise InputError("a step has no micro-batch: open one with meter.micro_batch(prompts)")
        if not self._ever:
            raise InputError("no gradient came: call loss.backward() inside micro_batch(...)")
        return bool(self._guard(self._counted, rows, groups, given))

    def _finished(self, counts: bool) -> tuple[Any, ...]:
        """The step as this process knows it."""
        broken = self._broken or ("" if counts else "its loop leaves it out")
        numbers = min(self.numbers, self._first[-1])
        sketches = torch.cat(self._sketches or [torch.zeros(0, numbers)]).cpu()
        groups, given, moved = self._groups, self._given, self._moved
        self.clear()
        self._count += 1
        self._taken.trail.next()
        if broken:
            sketches, groups, given = sketches[:0], [], {what: [] for what in given}
        return sketches, groups, given, broken, moved, self._ever

    def _merged(self, everything: list[Any]) -> tuple[Any, ...]:
        """The parts of all processes: sharded gradients are summed, whole ones are other micro-batches."""
        sketches, groups, given, broken, moved, ever = zip(*everything, strict=True)
        self._ever = any(ever)
        reason = next(filter(None, broken), "")
        if any(any(part[:-1]) for part in moved):
            self._reduced = True
        elif any(any(part) for part in moved):
            self._once += 1
        rows = torch.cat(sketches) / len(everything)
        parts = [group for part in groups for group in part]
        values = {what: [each for own in given for each in own[what]] for what in given[0]}
        if self._layers is None and len(everything) > 1 and any(self._sharded):
            if not all(self._sharded):
                raise InputError("some parameters are sharded and others are not: measure either")
            # Each pass averaged the gradients of all.
            if not reason:
                parts = [np.concatenate(part) for part in zip(*groups, strict=True)]
                for what in values:
                    several = zip(*(own[what] for own in given), strict=True)
                    values[what] = [_joined(part) for part in several]
                rows = sum(sketches[1:], sketches[0])
        return rows, parts, values, reason

    def _counted(self, sketches: Any, groups: Any, given: Any) -> bool:
        rows = sketches.numpy().astype(float) * sum(map(len, groups))
        if not np.isfinite(rows).all():
            self.left_out = "its gradients are not finite"
            self._taken.drop_held()
            return False
        draw = 0 if self._drawn is None else self._drawn[0]
        self._taken.add(rows, groups, draw=draw, leave_one_out=self.leave_one_out, **given)
        return True

    def estimate(self) -> NoiseEstimate:
        """Signal, noise and their ratios over the steps in the window.

        Raises:
            InputError: fewer than two steps count, or of all steps only the last micro-batch changed
                gradients that are sharded.
        """
        if self.steps < 2 and self.left_out:
            few = f"{self.steps} steps count: an estimate takes at least 2"
            raise InputError(f"{few} (a step is left out: {self.left_out})")
        if self._once and not self._reduced:
            raise InputError(
                "gradients are sharded and reduced at the last micro-batch of a step alone, so no other is "
                "seen: give the meter the model itself, or reduce at every pass"
            )
        # A record, an alarm and a sentence ask for the same one.
        asked = self._taken.taken, self.leave_one_out
        if self._latest is None or self._latest[0] != asked:
            made = self._taken.estimate(self.leave_one_out, self.phi_over_tau, self.population)
            self._latest = asked, made
        return self._latest[1]

    def metrics(self) -> dict[str, float]:
        """The numbers of :meth:`estimate` to log; before two steps count, how many do."""
        return {"steps": float(self.steps)} if self.steps < 2 else self.estimate().metrics()

    def compare(
        self, estimators: Sequence[str], group_sizes: Sequence[int] | None = None
    ) -> list[Alternative]:
        """Noise of other estimators and group sizes, from the completions of the window's steps.

        It takes rewards 0 and 1, the model or else micro-batches of one completion, advantages of
        :meth:`micro_batch`, and a loss that is linear in them: no penalty or entropy, no token clipped.

        Arguments:
            estimators: tables by counts, such as rloo, dr-grpo, std, std-ddof1, maxrl or pass-at-k:2.
            group_sizes: up to the groups' own; all from 2 unless given.

        Raises:
            InputError: fewer than two steps had such completions, an unknown name, a size out of range, or a
                table that needs groups which the training multiplies by 0.
        """
        return self._taken.compare(estimators, group_sizes, self.population)

    @property
    def steps(self) -> int:
        """Steps in the window so far."""
        return len(self._taken.steps)

    @property
    def taken(self) -> int:
        """Steps that the window ever took up, pairs as one."""
        return self._taken.taken

    def state_dict(self) -> dict[str, Any]:
        """The window, in numbers that JSON takes."""
        drawn = [self.numbers, self.seed, self._layers is not None]
        return {"count": self._count, "drawn": drawn, **self._taken.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._count, self._latest = int(state["count"]), None
        # Gradients that were sketched otherwise have no products with those to come.
        alike = state["drawn"] == [self.numbers, self.seed, self._layers is not None]
        self._taken.load_state_dict(state, alike)

    def remove(self) -> None:
        """Take the hooks away."""
        self._guard.remove()
        self._ever = False
        self.clear()
        if self._layers is not None:
            self._layers.forget()

    @torch.no_grad()
    def _see(self, place: int, gradient: torch.Tensor) -> None:
        if self._table is None or self._sketch is None:
            return
        self._ever = True
        gradient = gradient.to_dense()
        if gradient.numel() != self._parameters[place].numel():
            raise InputError(
                f"a gradient has {gradient.numel()} numbers and its parameter "
                f"{self._parameters[place].numel()} on this process: {_UNKNOWN_SHARDS}"
            )
        if self._layers is not None and self._layers.rows is not None:
            self._layers.accumulated(place, gradient)
        elif self._layers is not None and self._layers.projects(place):
            values = self._layers.whole(place, gradient).to(self._table.device)
            self._sketch.add(self._table, self._first[place], values)
        else:
            self._add(self._table, place, 0, gradient)

    def _add(self, table: torch.Tensor, place: int, start: int, gradient: torch.Tensor) -> None:
        """Sketch a gradient in the optimizer's metric, from a parameter's entry ``start`` on."""
        assert self._sketch is not None
        metric = self._moments(place) if self._adam else None
        if self._adam and metric is None:
            self._broken = f"Adam's second moments average fewer than {_SEEN} steps"
            return
        for first, values in pieces(gradient):
            if metric is not None:
                moment, correction, eps = metric
                root = next(moment)[1].div(correction).sqrt_()
                # An entry that never had a gradient has no metric.
                values = torch.where(root > 0, values / (root + eps), 0.0)
            at = self._first[place] + start + first
            self._sketch.add(table, at, values.to(table.device))

    def _moments(self, place: int) -> tuple[Iterator[Any], float, float] | None:
        """Adam's second moments in pieces, what they are divided by, and ε; None before they are a metric."""
        parameter = self._parameters[place]
        state = self._optimizer.state.get(parameter, {})
        if "exp_avg_sq" not in state:
            if state or self._count >= _SEEN:
                raise InputError(
                    f"metric is 'adam', and {type(self._optimizer).__name__} keeps no exp_avg_sq of all "
                    "parameters: it takes torch's Adam or AdamW, over the very parameters that are measured"
                )
            return None
        step = float(state["step"])
        if step < _SEEN:
            return None
        group = next(
            g for g in self._optimizer.param_groups if any(p is parameter for p in g["params"])
        )
        moment = state["exp_avg_sq"]
        if hasattr(moment, "to_local"):
            moment = moment.to_local()
        return pieces(moment), 1 - group["betas"][1] ** step, group["eps"]

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
            self._add(table, place, start, gradient.to_local())
        return table[0, 0]


def _one_each(what: str, values: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    if values is None:
        return None
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    found = finite_array(what, values, 1)
    if len(found) != count:
        raise InputError(f"there are {len(found)} {what} for {count} completions")
    return found


def _joined(parts: Any) -> Any:
    """Numbers of one micro-batch on all processes; None where some are not known."""
    return None if any(part is None for part in parts) else np.concatenate(parts)

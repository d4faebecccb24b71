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
from .scaling import scaled
from .sketch import Sketch, pieces
from .window import Window, numbered

_UNKNOWN_SHARDS = (
    "of sharded parameters only FSDP2's are known, not those of DeepSpeed's ZeRO 3 or FSDP1"
)
_SEEN = 22
"""The number of steps that Adam's second moments must cover before they are used as a metric.

A mean v of n squares of normal numbers has E[v^(-1/2)] about 1 + 3/(4n) times 1/σ: 4% too large at 22. The
relative deviation of v^(-1/2) is about 1/√(2n), 16% for each entry. Adam weights squares by β₂ to the power
of their age: a long memory, with β₂ near 1, makes v better later, and the memory of β₂ = .9 is full at 22.
"""
_ADAMS = torch.optim.Adam, torch.optim.AdamW
_ADAM = "noise in Adam's metric"
_OF_BOTH = ("noise_to_signal", "k_crit", "budget_over_critical", "g_star", "steps")
"""How the numbers begin that are logged in Adam's metric too: those that do not change with a common
factor."""


class NoiseMeter:
    """A meter of the signal and noise of a training's steps, from the gradients that it computes anyway.

    ::

        meter = NoiseMeter(model.parameters(), window=50)
        for rows, prompts in micro_batches(batch):
            with meter.micro_batch(prompts):
                loss(rows).backward()      # as scaled for accumulation: the step is their sum
        meter.step()
        optimizer.step()
        print(meter.estimate().noise_to_signal)

    A hook on each parameter sees the gradient of a backward pass before it is accumulated, and keeps a sketch
    of it; it makes no copy as large as a parameter, except of a sparse gradient. If parameters are sharded
    along their first axis (FSDP2), each shard is sketched at its own place from the addition of each pass. So
    each pass must reduce gradients: if only the last pass of a step does, give the meter the model.

    Given the model itself, the meter has hooks on layers instead of parameters and knows the gradient of each
    completion of a micro-batch. Then :meth:`compare` allows micro-batches of any size, one micro-batch can be
    a step, and prompts need not be sorted. The forward pass must be inside the block, and every layer must
    read one row for each completion, in the order of ``prompts``. Linear layers, embeddings and norms are
    supported; the use of their weights in a fused kernel is not seen. The first micro-batch with a gradient
    is compared with the gradient that backward accumulates, and one warning names the missing parts and their
    share. Sharded gradients are not compared; a warning names parameters without a gradient of a completion.
    With several processes each must call all methods: :meth:`step` gathers their data, and gradients are
    averaged over processes, as DDP and FSDP do.

    Steps of one micro-batch or of one prompt have no pair that separates signal from noise. Two such steps in
    a row are measured as one, by pairs between them: the signal is then that of neighbouring steps.

    A failure of the meter gives one warning, never an error in the loop: the meter is then off, on all
        processes from that step on, and its hooks are removed. :meth:`estimate` still returns the results so
        far.

    Arguments:
        parameters: parameters of the model, or the model itself; parameters that are not trained are ignored.
        window: number of steps in an estimate.
        leave_one_out: whether advantages are leave-one-out: then c₁, c₂, c₃ and G* exist, if all groups of
            the window have one size.
        phi_over_tau: φ/τ, which separates c₂ from c₃; None to measure it from advantages of
            :meth:`micro_batch`, for groups of at least 3 that lie in three micro-batches, or in unequal parts
            of two.
        metric: ``"euclidean"``; ``"adam"`` for the norm of Adam's step P ĝ, P = 1/(√v + ε), in which a
            gradient counts as P^(1/2) ĝ (:func:`~ustat_pg.noise.metric.adam_scale`); or ``"both"``, which is
            euclidean and, where the optimizer is torch's Adam or AdamW, has :attr:`adam` beside it. Adam's v
            is that of past steps, once it covers 22 steps; entries that never had a gradient have no metric
            and are left out.
        optimizer: torch's optimizer, needed for Adam's metric. With Adam, AdamW or SGD with momentum,
            pairs of neighbouring steps are used too, and the signal is two to four times as precise
            (:mod:`ustat_pg.noise.lags`).
        numbers: how many numbers are kept of a micro-batch's gradient.
        seed: seed of the sketches, the same on every process.
        width: width of the projections of a layer's inputs and output gradients, if the model is given; sides
            of a matrix that are not longer are kept. Cost and size grow with the width, and errors of
            products fall.
        population: X, if a set of X prompts is used in shuffled epochs: then two prompts of a step are never
            the same, and their pairs are below the signal by c₁/(X-1). None if prompts are drawn
            independently. If no two micro-batches share a prompt, c₁ is not known, and intervals are wider.
        guard: guard shared with the surrounding loop (default: its own).

    Raises:
        InputError: no parameter is trained or has numbers on this process (DeepSpeed's ZeRO 3), the optimizer
            has no betas and eps, or an argument is out of range.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | torch.nn.Module,
        window: int = 50,
        *,
        leave_one_out: bool = False,
        phi_over_tau: float | None = 1.0,
        metric: str = "both",
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
        self._adam = one_of("metric", metric, ("both", "euclidean", "adam")) == "adam"
        if self._adam and optimizer is None:
            raise InputError(
                "metric is 'adam': give the optimizer, because the metric uses its second moments"
            )
        model = None
        if isinstance(parameters, torch.nn.Module):
            model, parameters = parameters, parameters.parameters()
        if model is not None and self._adam:
            raise InputError("metric 'adam' needs whole gradients: give model.parameters()")
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
            raise InputError(
                "no parameter is trained: give the parameters of the model before it is frozen"
            )
        sizes = [p.numel() for p in self._parameters]
        if not any(sizes):
            raise InputError(f"parameters have no numbers on this process: {_UNKNOWN_SHARDS}")
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
        """The reason why the latest step that does not count is left out."""
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
        self._moments: dict[int, tuple[Any, float, float, float] | None] = {}
        self.adam: NoiseMeter | None = None
        """The meter of the same steps in Adam's metric, which is off by itself after an error."""
        if metric == "both" and isinstance(optimizer, _ADAMS) and not any(self._sharded):
            self.adam = NoiseMeter(
                self._parameters, window, leave_one_out=leave_one_out, phi_over_tau=phi_over_tau,
                metric="adam", optimizer=optimizer, numbers=numbers, seed=seed, population=population,
                guard=Guard(what=_ADAM),
            )  # fmt: skip
        self.clear()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a meter is tied to its model and cannot be copied: keep meter.state_dict()"
        )

    def clear(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self._clear()
        if self.adam is not None:
            self.adam.clear()

    def _clear(self) -> None:
        self._broken = ""
        self._sketch: Sketch | None = None
        self._before: torch.Tensor | None = None
        self._moved: list[bool] = []
        self._sketches: list[torch.Tensor] = []
        self._groups: list[NDArray[np.int64]] = []
        self._given: dict[str, list[Any]] = {"advantages": [], "weights": []}
        self._table = None
        # The optimizer's step changes them.
        self._moments = {}
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

        A block without a backward pass, for example if all advantages are 0, counts as a gradient of 0. After
        an error inside a block the step does not count.

        Arguments:
            prompts: prompt of each completion, a whole number or a text, the same on every process. If each
                group has its own prompt, groups can be given.
            scale: extra factor of the loss that the optimizer does not see, such as that of a GradScaler.
            advantages: advantages of its completions, to which their gradients are proportional; used for
                φ/τ, and with rewards 0 and 1 for :meth:`compare`.
            groups: group of each completion within its prompt, if a step has several groups of one prompt.
            weights: importance weights that multiply the gradients, one per completion.

        Raises:
            InputError: prompts or groups are empty, not flat, or neither whole numbers nor texts; groups,
                advantages or weights do not have one entry per completion; or a block is open.
        """
        self.begin(prompts, scale, advantages, groups, weights)
        try:
            yield
            self.end()
        except BaseException:
            self.clear()
            for meter in (self, self.adam):
                if meter is not None:
                    meter._broken = "an error inside a block cut it short"
            raise

    def begin(
        self,
        prompts: Sequence[Any] | torch.Tensor,
        scale: float = 1.0,
        advantages: ArrayLike | None = None,
        groups: Sequence[Any] | torch.Tensor | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """Start a :meth:`micro_batch`, for loops that cannot use a block."""
        if self._table is not None:
            raise InputError("a micro-batch is already open: end it before the next")
        names, self._scale = numbered(prompts), positive("scale", scale)
        own = names if groups is None else numbered(groups, "groups")
        if len(own) != len(names):
            raise InputError(f"there are {len(own)} groups for {len(names)} completions")
        given = {"advantages": advantages, "weights": weights}
        found = {what: _one_each(what, values, len(names)) for what, values in given.items()}
        self._guard(self._opened, np.stack([own, names], axis=1), found)
        if self.adam is not None:
            self.adam.begin(prompts, scale, advantages, groups, weights)

    def _opened(self, groups: NDArray[np.int64], given: dict[str, Any]) -> None:
        device = self._parameters[0].device
        if self._sketch is None:
            like = torch.zeros((), device=device)
            # Steps that are measured together use the same draw.
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
            # For a single completion its gradient is the accumulated one.
            self._layers.begin(rows if rows > 1 or sharded else None)
        self._groups += np.split(groups, rows)
        for what, values in given.items():
            self._given[what] += [None] * rows if values is None else np.split(values, rows)
        self._table = torch.zeros(rows, 1, self._sketch.numbers, device=device)
        if sharded and self._layers is None and self._before is None:
            self._before = self._shards()

    def end(self) -> None:
        """End the micro-batch that :meth:`begin` started."""
        if self._table is None and self._guard.reason is None:
            raise InputError("no micro-batch is open: call begin first")
        self._guard(self._closed)
        if self.adam is not None:
            self.adam.end()

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
        """Finish the step; call this before ``optimizer.step()`` and before gradients are cleared.

        Arguments:
            counts: False leaves the step out, on all processes if one process says so.

        Returns:
            whether the step counts. It does not count if it is not finite, if an error occurred inside a
            block, or if Adam has no metric yet; ``left_out`` gives the reason.

        Raises:
            InputError: no micro-batch was measured, or there was never a gradient.
        """
        if self._table is not None:
            raise InputError("a micro-batch is open: end it before the step")
        # All processes reach this line, even those that are off.
        everything = self._guard.gathered(self._guard(self._finished, counts))
        # All processes agree on whether it is over.
        if self.adam is not None and not self._guard.over:
            self.adam.leave_one_out = self.leave_one_out
            self.adam.step(counts)
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
            raise InputError(
                "the step has no micro-batch: open one with meter.micro_batch(prompts)"
            )
        if not self._ever:
            raise InputError("there was no gradient: call loss.backward() inside micro_batch(...)")
        return bool(self._guard(self._counted, rows, groups, given))

    def _finished(self, counts: bool) -> tuple[Any, ...]:
        """The step's part on this process."""
        broken = self._broken or ("" if counts else "its loop leaves it out")
        numbers = min(self.numbers, self._first[-1])
        sketches = torch.cat(self._sketches or [torch.zeros(0, numbers)]).cpu()
        groups, given, moved = self._groups, self._given, self._moved
        self._clear()
        self._count += 1
        self._taken.trail.next()
        if broken:
            sketches, groups, given = sketches[:0], [], {what: [] for what in given}
        return sketches, groups, given, broken, moved, self._ever

    def _merged(self, everything: list[Any]) -> tuple[Any, ...]:
        """The parts of all processes: sharded gradients are summed, whole ones are separate micro-batches."""
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
                raise InputError(
                    "some parameters are sharded and others are not: measure only one kind"
                )
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
        """The signal, the noise and their ratios over the steps in the window.

        Raises:
            InputError: fewer than two steps count, or gradients are sharded and only the last micro-batch of
                each step changed them.
        """
        if self.steps < 2 and self.left_out:
            few = f"{self.steps} steps count: an estimate needs at least 2"
            raise InputError(f"{few} (a step is left out: {self.left_out})")
        if self._once and not self._reduced:
            raise InputError(
                "gradients are sharded and reduced only at the last micro-batch of a step, so the others are "
                "not seen: give the meter the model itself, or reduce at every pass"
            )
        # The record, the alarm and the sentence use the same estimate.
        asked = self._taken.taken, self.leave_one_out
        if self._latest is None or self._latest[0] != asked:
            made = self._taken.estimate(self.leave_one_out, self.phi_over_tau, self.population)
            self._latest = asked, made
        return self._latest[1]

    def metrics(self) -> dict[str, float]:
        """The numbers of :meth:`estimate` for a log; the number of counted steps while it is below two. Those
        in Adam's metric begin with ``adam/``.
        """
        found = {"steps": float(self.steps)} if self.steps < 2 else self.estimate().metrics()
        if self.adam is not None and self.adam.steps > 1:
            of_adam = self.adam.estimate().metrics().items()
            found |= {f"adam/{name}": value for name, value in of_adam if name.startswith(_OF_BOTH)}
        return found

    def compare(
        self, estimators: Sequence[str], group_sizes: Sequence[int] | None = None
    ) -> list[Alternative]:
        """The noise of other estimators and group sizes, from the completions of the window's steps.

        It needs rewards 0 and 1, the model (or micro-batches of one completion), the advantages in
        :meth:`micro_batch`, and a loss that is linear in them: without penalty, entropy or clipped tokens.

        Arguments:
            estimators: tables by counts, such as rloo, dr-grpo, std, std-ddof1, maxrl or pass-at-k:2.
            group_sizes: at most the groups' own size (default: all from 2).

        Raises:
            InputError: fewer than two steps have such completions, a name is unknown, a size is out of range,
                or a table needs groups that the training multiplies by 0.
        """
        return self._taken.compare(estimators, group_sizes, self.population)

    @property
    def steps(self) -> int:
        """The number of steps in the window so far."""
        return len(self._taken.steps)

    @property
    def taken(self) -> int:
        """The number of steps that the window ever used; pairs count as one."""
        return self._taken.taken

    def state_dict(self) -> dict[str, Any]:
        """The state of the window, for JSON."""
        drawn = [self.numbers, self.seed, self._layers is not None]
        adam = None if self.adam is None else self.adam.state_dict()
        return {"count": self._count, "drawn": drawn, "adam": adam, **self._taken.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._count, self._latest = int(state["count"]), None
        # Gradients with another kind of sketch have no products with later ones.
        alike = state["drawn"] == [self.numbers, self.seed, self._layers is not None]
        self._taken.load_state_dict(state, alike)
        if self.adam is not None and state["adam"] is not None:
            self.adam.load_state_dict(state["adam"])

    def remove(self) -> None:
        """Remove the hooks."""
        self._guard.remove()
        self._ever = False
        # It is drawn again from its address.
        self._drawn = None
        self.clear()
        if self.adam is not None:
            self.adam.remove()
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
        """Sketch a gradient in the optimizer's metric, starting at a parameter's entry ``start``."""
        assert self._sketch is not None
        if not self._adam:
            for first, values in pieces(gradient):
                at = self._first[place] + start + first
                self._sketch.add(table, at, values.to(table.device))
            return
        if place not in self._moments:
            self._moments[place] = self._moment(place)
        if (known := self._moments[place]) is None:
            self._broken = f"Adam's second moments cover fewer than {_SEEN} steps"
            return
        moment, *settings = known
        for (first, values), (_, second) in zip(pieces(gradient), pieces(moment), strict=True):
            part = scaled(values, second.to(values.device), *settings)
            self._sketch.add(table, self._first[place] + start + first, part.to(table.device))

    def _moment(self, place: int) -> tuple[Any, float, float, float] | None:
        """Adam's second moments, their steps, β₂ and ε; None before they can be used as a metric."""
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
        moment = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
        if hasattr(moment, "to_local"):
            moment = moment.to_local()
        return moment, step, group["betas"][1], group["eps"]

    @torch.no_grad()
    def _shards(self) -> torch.Tensor:
        """The sketch of the gradients that this process's shards have accumulated."""
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
                    f"a gradient has placements {placements}: only sharding along the first axis is known"
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
    """The numbers of one micro-batch from all processes; None if some are not known."""
    return None if any(part is None for part in parts) else np.concatenate(parts)

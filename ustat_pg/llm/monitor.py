"""The noise of a training's own gradients: c₁, c₂, c₃, ‖g‖², G* and K_crit while TRL's ``RLOOTrainer`` runs.

    >>> from ustat_pg.llm import NoiseMonitor                                  # doctest: +SKIP
    >>> monitor = NoiseMonitor(window=50)                                      # doctest: +SKIP
    >>> trainer = RLOOTrainer(model, reward, args, callbacks=[monitor], ...)   # doctest: +SKIP
    >>> monitor.watch(trainer)                                                 # doctest: +SKIP
    >>> trainer.train()                                                        # doctest: +SKIP
    >>> monitor.estimate().g_star, monitor.estimate().g_star_interval          # doctest: +SKIP

No completion is drawn and no gradient is computed for it. Hooks on the parameters see the gradient of
each backward pass before it is accumulated, h = Σ Aᵢ sᵢ over the completions of a micro-batch once the
loss's scale is taken off, and keep a sketch of it (:class:`ustat_pg.llm.scores.sums.Sketch`). φ/τ, which
parts one completion's share into c₂ and c₃, comes from the squared norms ‖Aᵢ sᵢ‖² in the input embedding
and in one linear layer, another at each step. What hooks draw they draw anew at each step, from numbers of
their own, so a training is the same with them and without.

With several processes all this is gathered at each step, and every process has the estimate.

**Pairs of one step** (theory/language_models.md). A leave-one-out trainer makes hₖ = Σ Aᵢ sᵢ over the m
completions of micro-batch k. With n_same pairs of different completions of one prompt and n_other of
different prompts,

    E⟨hₖ, hₗ⟩ = β n_same + γ n_other,   E‖hₖ‖² = α m + β n_same + γ n_other,
    γ = ‖g‖²,   β = E‖g(X)‖² (1 + 1/(G-1)²),   α = τ + φ/(G-1),

exactly, at every G. β and γ are regressed on pairs k ≠ l, α is what ‖hₖ‖² has beyond them, and
:func:`ustat_pg.predictions.paired_constants` makes c₁, c₂ and c₃ of the three.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..estimators import grpo
from ..predictions import MseConstants, critical_budget, optimal_group_size, paired_constants
from ..validation import InputError, integer, positive
from .constants import noise_and_signal, ratio_interval
from .models import sharded
from .moments import Means, means
from .scores.sums import Sketch, firsts

__all__ = [
    "LayerNorms",
    "NoiseEstimate",
    "NoiseMonitor",
    "SketchedGradients",
    "estimate_noise",
    "step_sums",
]

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(f"the monitor needs transformers ({error}): install ustat_pg[llm]") from error


_GROUP, _SHARE = "noise_group", "noise_share"
"""Which group a completion is of, and what ‖Aᵢ sᵢ‖² adds to φ: among a generation's tensors, so that TRL
shuffles them with it."""
_TOLERANCE = 1e-3
"""How far an advantage may be from leave-one-out, over the largest: that of half precision."""


class NoiseMonitor(TrainerCallback):
    """Estimates of c₁, c₂, c₃, ‖g‖², G* and K_crit from the micro-batches of the last steps.

    They are logged at each step as ``noise/c1`` and so on, each with ``_se``, ``_low`` and ``_high``
    (95%), by way of TRL's own metrics: in ``trainer.state.log_history`` and wherever TRL reports to.
    What is infinite or not known is left out. The policy moves within a window, so an estimate is the
    mean over its steps.

    Arguments:
        window: steps that an estimate is made of; those with a missing reward are left out.
        phi_over_tau: φ/τ = E[σ² tr F] / E[‖s‖² a²], which parts what one completion adds into c₂ and
            c₃. None to measure it, in linear layers and the input embedding, and in groups of at least 3;
            of groups of 2 it is taken to be 1, its value for rewards of 0 and 1 under Assumption 2.
        blocks: of consecutive steps that the jackknife leaves out.
        sketch: numbers that are kept of each micro-batch's gradient.
        seed: of the sketch.

    Raises:
        InputError: numbers out of range.
    """

    def __init__(
        self,
        window: int = 50,
        *,
        phi_over_tau: float | None = None,
        blocks: int = 10,
        sketch: int = 4096,
        seed: int = 0,
    ) -> None:
        self.blocks = integer("blocks", blocks, 2)
        self.window = integer("window", window, self.blocks)
        self.phi_over_tau = None if phi_over_tau is None else positive("phi_over_tau", phi_over_tau)
        self.sketch = integer("sketch", sketch)
        self.seed = integer("seed", seed, 0)
        self._steps: deque[NDArray[np.float64]] = deque(maxlen=self.window)
        self._trainer: Any = None
        self._sketch: SketchedGradients | None = None
        self._norms: LayerNorms | None = None
        self._generations = 0
        self._clear()

    def watch(self, trainer: Any) -> NoiseMonitor:
        """Look at the micro-batches of this trainer; it becomes its callback if it is not yet.

        Arguments:
            trainer: TRL's ``RLOOTrainer``, or one of :mod:`ustat_pg.llm.trl_trainers` whose
                advantages are leave-one-out; not yet training.

        Returns:
            this monitor.

        Raises:
            InputError: the trainer's step is not made of the sums that the estimates are for.
        """
        if self._trainer is not None:
            raise InputError("this monitor watches a trainer already: make another")
        _refuse(trainer)
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        for name, wrapper in (
            ("_calculate_rewards", self._rewarded),
            ("_generate_and_score_completions", self._generated),
            ("_compute_loss", self._lost),
        ):
            setattr(trainer, name, partial(wrapper, getattr(trainer, name)))
        return self

    def estimate(self) -> NoiseEstimate:
        """What the steps in the window say.

        Raises:
            InputError: there are fewer steps than blocks.
        """
        if len(self._steps) < self.blocks:
            raise InputError(
                f"{len(self._steps)} steps were seen: an estimate takes at least {self.blocks}, one for "
                "each block of the jackknife"
            )
        return estimate_noise(
            np.array(self._steps),
            self._trainer.num_generations,
            phi_over_tau=self.phi_over_tau,
            blocks=self.blocks,
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put a hook on each parameter that is trained."""
        if self._trainer is None:
            raise InputError(
                "the monitor does not know its trainer, and a callback is not told: "
                "call monitor.watch(trainer) before trainer.train()"
            )
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._sketch = SketchedGradients(parameters, self.sketch, self.seed)
        if self.phi_over_tau is None and self._trainer.num_generations > 2:
            self._norms = LayerNorms(model, self.seed)
            if self._norms.empty:
                raise InputError(
                    "no linear layer or embedding is trained: φ/τ is not measured, give phi_over_tau"
                )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the hooks away."""
        for hooks in (self._sketch, self._norms):
            if hooks is not None:
                hooks.remove()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take up the step, and log."""
        for hooks in (self._sketch, self._norms):
            if hooks is not None:
                hooks.end()
        accelerator = self._trainer.accelerator
        scaled = [each * scale for each, scale in zip(self._sketches, self._scales, strict=True)]
        kept = [torch.stack(seen) for seen in (scaled, self._groups, self._shares)]
        missing = self._missing
        self._clear()
        if missing:
            return
        if accelerator.num_processes > 1:
            kept = [accelerator.gather(each) for each in kept]
        sketches, groups, shares = (each.cpu().numpy() for each in kept)
        own = sketches.astype(float)
        self._steps.append(step_sums(own @ own.T, groups, shares.sum(axis=0)))
        if len(self._steps) < self.blocks:
            return
        metrics = self._trainer._metrics["train"]
        for name, value in self.estimate().metrics().items():
            # The latest, where several steps make one record.
            metrics[f"noise/{name}"] = [value]

    def _clear(self) -> None:
        self._sketches: list[torch.Tensor] = []
        self._groups: list[torch.Tensor] = []
        self._shares: list[torch.Tensor] = []
        self._scales: list[torch.Tensor] = []
        self._missing = False

    def _rewarded(self, inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Of all processes, a column for each reward function."""
        self._rewards = inner(*given, **named)
        return self._rewards

    def _generated(self, inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """A generation's tensors, and which group each completion is of."""
        output = inner(*given, **named)
        trainer, size = self._trainer, self._trainer.num_generations
        if not trainer.model.training:
            return output
        self._missing |= bool(torch.isnan(self._rewards).all(dim=1).any())
        rewards = (self._rewards * trainer.reward_weights.to(self._rewards)).nansum(dim=1).double()
        if getattr(trainer, "reward_clip_range", None):
            rewards = rewards.clamp(*trainer.reward_clip_range)
        advantages = grpo(rewards.view(-1, size))
        groups = self._generations + torch.arange(len(advantages), device=rewards.device)
        self._generations += len(advantages)
        own = len(output["advantages"])
        first = own * trainer.accelerator.process_index
        part = slice(first, first + own)
        if not self._missing:
            _refuse_advantages(output["advantages"], advantages.flatten()[part])
        output[_GROUP] = groups.repeat_interleave(size)[part]
        # The others' variance, which is independent of completion i, over Aᵢ².
        squares = (advantages * ((size - 1) / size)).square()
        spread = squares.sum(dim=1, keepdim=True) - squares * (size / (size - 1))
        share = spread.clamp(min=0) / (advantages.square() * max(size - 2, 1))
        output[_SHARE] = share.nan_to_num(0.0, 0.0, 0.0).flatten()[part]
        return output

    def _lost(self, inner: Callable[..., Any], model: Any, inputs: Any) -> Any:
        """A micro-batch's loss; its backward pass begins a sketch."""
        step, sketch, norms = self._trainer.state.global_step, self._sketch, self._norms
        watched = model.training and torch.is_grad_enabled()
        groups, share = inputs.get(_GROUP), inputs.get(_SHARE)
        found = torch.zeros(2, dtype=torch.float64, device=inputs["advantages"].device)

        def see(squared: torch.Tensor) -> None:
            own = (share * squared.double()).sum()
            found[0] += own
            found[1] += squared.double().sum() - own / (self._trainer.num_generations - 1)

        if watched and norms is not None:
            norms.begin(step, see)
        loss = inner(model, inputs)
        if not watched or sketch is None:
            return loss
        # Both losses are means over the micro-batch; luspo's is divided by the accumulation besides.
        factor = float(len(groups))
        if not _is_rloo(self._trainer):
            factor *= self._trainer.current_gradient_accumulation_steps

        def begin(gradient: torch.Tensor) -> None:
            # d(what is differentiated)/d(loss): accumulation, mixed precision and whatever else.
            self._scales.append(-factor / gradient.detach())
            self._sketches.append(sketch.begin(step, gradient.device))
            self._groups.append(groups)
            self._shares.append(found)

        loss.register_hook(begin)
        return loss


def _is_rloo(trainer: Any) -> bool:
    from trl import RLOOTrainer

    return isinstance(trainer, RLOOTrainer)


def _refuse(trainer: Any) -> None:
    """Refuse a trainer whose micro-batches are not sums of leave-one-out terms, by its settings."""
    from trl import GRPOTrainer

    grpo_kind = isinstance(trainer, GRPOTrainer)
    if not grpo_kind and not _is_rloo(trainer):
        raise InputError(
            f"the trainer is a {type(trainer).__name__}: the monitor is for TRL's RLOOTrainer, and for "
            "ustat_pg.llm's with leave-one-out advantages"
        )
    args = trainer.args
    scaled = getattr(args, "normalize_advantages", False) or (
        getattr(args, "scale_rewards", "none") not in ("none", False)
    )
    group_size, accumulation = trainer.num_generations, args.gradient_accumulation_steps
    micro_batches = accumulation * trainer.accelerator.num_processes
    outputs = micro_batches * args.per_device_train_batch_size
    refused = {
        f"num_generations is {group_size}: leave-one-out takes at least 2": group_size < 2,
        "advantages are divided by a standard deviation: set normalize_advantages=False "
        "(scale_rewards='none')": scaled,
        f"the loss is {getattr(args, 'loss_type', None)!r}: take RLOOTrainer, or the "
        "CorrectedGRPOTrainer of ustat_pg.llm with loss_type='luspo'": grpo_kind
        and args.loss_type != "luspo",
        f"beta is {args.beta}: with a KL term the step is not that of the rewards, set beta=0": (
            args.beta != 0
        ),
        f"num_iterations is {args.num_iterations}: importance ratios would not be 1, set it to 1": (
            args.num_iterations != 1
        ),
        f"steps_per_generation is {args.steps_per_generation} at {accumulation} accumulation steps: "
        "completions of an earlier policy would have ratios that are not 1, make it a divisor": (
            accumulation % args.steps_per_generation != 0
        ),
        "mask_truncated_completions leaves terms out of the sum: set it to False": (
            args.mask_truncated_completions
        ),
        "a step is one micro-batch, which has no pair: raise gradient_accumulation_steps, with a "
        "smaller per_device_train_batch_size for the same step": micro_batches < 2,
        f"a step is {outputs} completions of one prompt: ‖g‖² takes at least two prompts": (
            outputs < 2 * group_size
        ),
        "the weights are spread over processes: without FSDP and ZeRO stage 3": sharded(trainer),
    }
    for message, holds in refused.items():
        if holds:
            raise InputError(message)


def _refuse_advantages(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Refuse advantages that are not the rewards' leave-one-out ones."""
    off = float((found.double() - wanted).abs().max())
    if off > _TOLERANCE * float(wanted.abs().max()):
        raise InputError(
            f"an advantage is {off:.3g} off the leave-one-out one of its rewards: the monitor's "
            "identities hold for leave-one-out advantages only"
        )


Array = NDArray[np.float64]
Interval = tuple[float, float]
_NAMES = ("c1", "c2", "c3", "gradient_sq", "phi_over_tau")


@dataclass(frozen=True)
class NoiseEstimate:
    """What the steps of a window say, with standard errors and 95% intervals.

    Errors are those of a jackknife over blocks of steps; intervals of ratios are Fieller's, and their
    standard errors, by the delta method, NaN where the ratio has no value.

    Arguments:
        c1: tr Cov_X g(X); as an unbiased estimate it may be negative.
        c2: E[τ - ‖g(X)‖²].
        c3: E[φ + ‖g(X)‖²].
        gradient_sq: ‖g‖², which may be negative too.
        g_star: 1 + √(c3/c1), infinite where c1 is not positive.
        k_crit: completions a step at which noise equals signal at the best G, infinite where
            gradient_sq is not positive.
        phi_over_tau: φ/τ, as it was given or measured.
        steps: T, of the window so far.
    """

    c1: float
    c1_se: float
    c1_interval: Interval
    c2: float
    c2_se: float
    c2_interval: Interval
    c3: float
    c3_se: float
    c3_interval: Interval
    gradient_sq: float
    gradient_sq_se: float
    gradient_sq_interval: Interval
    g_star: float
    g_star_se: float
    g_star_interval: Interval
    k_crit: float
    k_crit_se: float
    k_crit_interval: Interval
    phi_over_tau: float
    phi_over_tau_se: float
    phi_over_tau_interval: Interval
    steps: int

    def metrics(self) -> dict[str, float]:
        """What is finite, by name; an interval as ``_low`` and ``_high``."""
        found: dict[str, float] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_interval"):
                stem = each.name.removesuffix("_interval")
                found |= {f"{stem}_low": value[0], f"{stem}_high": value[1]}
            else:
                found[each.name] = float(value)
        return {name: value for name, value in found.items() if math.isfinite(value)}


def step_sums(products: Array, groups: NDArray[np.int64], shares: ArrayLike = (0.0, 0.0)) -> Array:
    """All that an estimate takes of one step.

    Arguments:
        products: ⟨hₖ, hₗ⟩ of its micro-batches, (k, k).
        groups: which group a completion is of, (k, m).
        shares: what its completions add to φ and to τ in some layer, in any unit.
    """
    count, size = groups.shape
    same = (groups[:, None, :, None] == groups[None, :, None, :]).sum(axis=(2, 3)).astype(float)
    other = size**2 - same
    own_same, own_other = np.diagonal(same) - size, np.diagonal(other)
    apart = ~np.eye(count, dtype=bool)
    n, o, value = same[apart], other[apart], products[apart]
    squares = np.diagonal(products)
    return np.array(
        [n @ n, n @ o, o @ o, n @ value, o @ value,
         squares.sum(), own_same.sum(), own_other.sum(), groups.size, *np.asarray(shares)]
    )  # fmt: skip


def estimate_noise(
    steps: Array, group_size: int, *, phi_over_tau: float | None = None, blocks: int = 10
) -> NoiseEstimate:
    """Constants from the sums of some steps.

    Arguments:
        steps: of :func:`step_sums`, (T, Q) in the order of the steps.
        group_size: G.
        phi_over_tau: φ/τ; None for that of the shares, 1 where they have none.
        blocks: of consecutive steps, from 2 to T.

    Raises:
        InputError: another number of blocks.
    """
    if not 2 <= integer("blocks", blocks) <= len(steps):
        raise InputError(
            f"blocks are {blocks}: {len(steps)} steps make from 2 to {len(steps)} of them"
        )
    starts = np.arange(blocks) * len(steps) // blocks
    blockwise = means(np.add.reduceat(steps, starts))

    def found(mean: Array) -> Array:
        """c₁, c₂, c₃, ‖g‖² and φ/τ of means (..., Q), (..., 5)."""
        nn, no, oo, nv, ov, square, own_same, own_other, count, phi, tau = np.moveaxis(mean, -1, 0)
        # Singular where n_same is the same for all pairs, as of steps that have one.
        scale = nn * oo - no**2
        scale = np.where(scale > 1e-9 * nn * oo, scale, np.nan)
        beta, gamma = (oo * nv - no * ov) / scale, (nn * ov - no * nv) / scale
        alpha = (square - beta * own_same - gamma * own_other) / count
        ratio = phi_over_tau
        if ratio is None:
            ratio = np.divide(phi, tau, out=np.ones_like(tau), where=(tau > 0) & (phi > 0))
        known = paired_constants(alpha, beta, gamma, group_size, ratio)
        return np.stack([*known, gamma, np.broadcast_to(ratio, gamma.shape)], axis=-1)

    known = blockwise.apply(found)
    values: dict[str, Any] = {}
    for name, *told in zip(_NAMES, known.full, known.se, *known.interval(), strict=True):
        values |= _told(name, *told)
    c1, c2, c3, gradient_sq, _ = np.maximum(np.nan_to_num(known.full), 0.0)
    clipped = MseConstants(c1, c2, c3)
    best = optimal_group_size(clipped)
    budget = critical_budget(clipped, gradient_sq) if gradient_sq > 0 else math.inf
    if not np.isfinite(known.full).all():
        best = budget = math.nan
    ratio = known.apply(lambda each: each[..., [2, 0]])
    # d√r = dr / (2√r), and r = (G* - 1)².
    error = _ratio_se(ratio) / (2 * (best - 1)) if best > 1 else math.nan
    low, high = ratio_interval(ratio)
    values |= _told("g_star", best, error, 1 + math.sqrt(low), 1 + math.sqrt(high))
    noise = known.apply(lambda each: noise_and_signal(each[..., :4]))
    values |= _told("k_crit", budget, _ratio_se(noise), *ratio_interval(noise))
    return NoiseEstimate(steps=len(steps), **values)


def _told(name: str, value: float, error: float, low: float, high: float) -> dict[str, Any]:
    ends = float(low), float(high)
    return {name: float(value), f"{name}_se": float(error), f"{name}_interval": ends}


def _ratio_se(found: Means) -> float:
    """By the delta method; NaN where the ratio has no value."""
    numerator, denominator = found.full
    if not denominator > 0:
        return math.nan
    slope = np.array([1.0, -numerator / denominator]) / denominator
    return float(np.sqrt(slope @ found.covariance @ slope))


class SketchedGradients:
    """A sketch of each backward pass's gradient of all parameters, without ever holding the gradient.

    Arguments:
        parameters: that are trained.
        numbers: of a sketch.
        seed: of the draws, the same on every process.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], numbers: int, seed: int) -> None:
        self.numbers, self.seed = numbers, seed
        self._sizes = [parameter.numel() for parameter in parameters]
        self._hooks = [
            parameter.register_hook(partial(self._add, first))
            for first, parameter in zip(firsts(self._sizes), parameters, strict=True)
        ]
        self._step: int | None = None
        self._table: torch.Tensor | None = None

    def begin(self, step: int, device: torch.device) -> torch.Tensor:
        """The sketch that this backward pass is added to, (numbers,) or fewer."""
        if step != self._step:
            like = torch.zeros((), device=device)
            self._sketch = Sketch(sum(self._sizes), self.numbers, like, [self.seed, step])
            self._step = step
        self._table = torch.zeros(1, 1, self._sketch.numbers, device=device)
        return self._table[0, 0]

    def end(self) -> None:
        """Nothing is added until the next begin."""
        self._table = None

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _add(self, first: int, gradient: torch.Tensor) -> None:
        if self._table is not None:
            self._sketch.add(self._table, first, gradient.float().reshape(1, -1))


class LayerNorms:
    """Squared norms of the gradient of each output of a micro-batch, in the matrices that read and write it.

    With inputs a and output gradients d of a linear layer ‖d loss_i/d W‖² is Σ_{t,u} ⟨aₜ, aᵤ⟩⟨dₜ, dᵤ⟩ over
    the output's positions; of an embedding ⟨aₜ, aᵤ⟩ is 1 for equal tokens. Linear layers take turns, one a
    step, in an order drawn anew for each round, and count as often as there are layers; the input embedding
    is in every step. So the mean over a round is the sum over these matrices.
    Not seen is the output embedding: TRL multiplies by its weight without a call that a hook would see.

    Arguments:
        model: that is trained.
        seed: of the draws.
    """

    def __init__(self, model: Any, seed: int) -> None:
        from transformers.pytorch_utils import Conv1D

        self.seed = seed
        self.layers = [
            layer
            for layer in model.modules()
            if isinstance(layer, (torch.nn.Linear, Conv1D))
            and layer.weight.requires_grad
            and layer is not model.get_output_embeddings()
        ]
        table = model.get_input_embeddings()
        self._table = (
            table.register_forward_hook(self._read) if table.weight.requires_grad else None
        )
        self._turn: Any = None
        self._step: int | None = None
        self._see: Callable[[torch.Tensor], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether no matrix is trained."""
        return not self.layers and self._table is None

    def begin(self, step: int, see: Callable[[torch.Tensor], None]) -> None:
        """Tell ``see`` the norms, (m,), of the pass that comes; call it before the forward pass.

        It is called for the linear layer and for the embedding, whose norms add up.
        """
        self._see = see
        if step == self._step:
            return
        self._step = step
        if self.layers:
            turn, place = divmod(step, len(self.layers))
            order = np.random.default_rng([self.seed, turn]).permutation(len(self.layers))
            if self._turn is not None:
                self._turn.remove()
            self._turn = self.layers[order[place]].register_forward_hook(self._multiplied)

    def end(self) -> None:
        """No pass is looked at until the next begin."""
        self._see = None

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in (self._turn, self._table):
            if hook is not None:
                hook.remove()
        self._turn = self._table = None

    def _multiplied(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        def products() -> torch.Tensor:
            a = inputs.float()
            return (a @ a.mT) * float(len(self.layers))

        inputs = given[0].detach()
        self._tell(output, products)

    def _read(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        ids = given[0]
        self._tell(output, lambda: (ids[:, :, None] == ids[:, None, :]).float())

    def _tell(self, output: Any, products: Callable[[], torch.Tensor]) -> None:
        """Tell the norms, with the ⟨aₜ, aᵤ⟩ of its inputs, once the output's gradient is known."""
        see = self._see
        if see is None or not output.requires_grad or output.ndim != 3:
            return

        @torch.no_grad()
        def norms(gradient: torch.Tensor) -> None:
            d = gradient.float()
            see((products() * (d @ d.mT)).sum(dim=(1, 2)))

        output.register_hook(norms)

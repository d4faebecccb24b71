"""The noise of a training's own gradients: c₁, c₂, c₃, ‖g‖², G* and K_crit while TRL's ``RLOOTrainer`` runs.

    >>> from ustat_pg.llm import NoiseMonitor                                  # doctest: +SKIP
    >>> monitor = NoiseMonitor(window=50)                                      # doctest: +SKIP
    >>> trainer = RLOOTrainer(model, reward, args, callbacks=[monitor], ...)   # doctest: +SKIP
    >>> monitor.watch(trainer)                                                 # doctest: +SKIP
    >>> trainer.train()                                                        # doctest: +SKIP
    >>> monitor.estimate().g_star, monitor.estimate().g_star_interval          # doctest: +SKIP

No completion is drawn and no gradient is computed for it. Hooks on the parameters see the gradient of
each backward pass before it is accumulated, h = Σ Aᵢ sᵢ over the completions of a micro-batch once the
loss's scale is taken off, and keep a sketch of it (:class:`ustat_pg.llm.scores.sums.Sketch`), from which
:mod:`ustat_pg.llm.pairs` estimates. φ/τ, which parts one completion's share into c₂ and c₃, comes from
the squared norms ‖Aᵢ sᵢ‖² in the input embedding and in one linear layer, another at each step.

With several processes all this is gathered at each step, and every process has the estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..estimators import grpo
from ..validation import InputError, integer, positive
from .gradients import LayerNorms, SketchedGradients
from .models import sharded
from .pairs import NoiseEstimate, estimate_noise, step_sums

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(f"the monitor needs transformers ({error}): install ustat_pg[llm]") from error

__all__ = ["NoiseMonitor"]

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

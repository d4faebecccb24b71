"""The noise of a training's own gradients while TRL trains.

    >>> from ustat_pg.llm import NoiseMonitor                                              # doctest: +SKIP
    >>> monitor = NoiseMonitor()                                                           # doctest: +SKIP
    >>> trainer = GRPOTrainer(model, reward, args, data, callbacks=[monitor])              # doctest: +SKIP
    >>> trainer.train()                                                                    # doctest: +SKIP
    >>> monitor.estimate().k_crit, monitor.estimate().k_crit_interval                      # doctest: +SKIP

No completion is drawn and no gradient is computed for it: a :class:`ustat_pg.noise.NoiseMeter` looks at the
backward passes. Prompts of a micro-batch are known by their tokens. What hooks draw they draw anew at each
step, from numbers of their own, so a training has the same gradients with them and without.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..noise import Alarms, Alternative, NoiseEstimate, NoiseMeter
from ..noise.alarms import SENTENCES
from ..validation import InputError, integer

__all__ = ["LayerNorms", "NoiseMonitor"]

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(f"the monitor needs transformers ({error}): install ustat_pg[llm]") from error

_FEWEST = 10
"""Steps before anything is logged, if the window has as many."""
_TOLERANCE = 1e-3
"""How far a group's advantages may be from summing to 0, over the largest: that of half precision."""


class NoiseMonitor(TrainerCallback, ExportableState):
    """Signal, noise and critical budget of the steps that a ``GRPOTrainer`` or ``RLOOTrainer`` makes.

    They are logged at each record as ``noise/signal``, ``noise/noise_to_signal``, ``noise/k_crit`` and
    ``noise/budget_over_critical``, each with ``_se``, ``_low`` and ``_high`` (95%), wherever TRL reports to.
    Any advantage, loss, penalty and clipping is measured as it is, before gradients are clipped by norm. The
    policy moves within a window, so an estimate is the mean over its steps. Of several iterations over the
    same completions the first is measured. An error in here is one warning, and the training goes on.

    Alarms are printed when they begin, and ``alarms`` has the names of those that stand: those of
    :class:`ustat_pg.noise.Alarms`; ``clipped``, 20% of a record's tokens are; ``lost``, a whole window does
    not tell the signal from 0, which 50 steps say of a signal of four standard errors 3 times in 100.

    Arguments:
        window: steps that an estimate is made of.
        detail: whether to log c₁, c₂, c₃ and G* too, where advantages are leave-one-out up to a factor.
        phi_over_tau: φ/τ = E[σ² tr F] / E[‖s‖² a²], which parts what one completion adds into c₂ and
            c₃. None to measure it, in linear layers and the input embedding; in groups of 2 it is taken to
            be 1, its value for rewards of 0 and 1 under Assumption 2.
        metric: ``"euclidean"``, or ``"adam"`` for the noise as AdamW sees it.
        sketch: numbers that are kept of each micro-batch's gradient.
        seed: of the sketch.
        per_completion: whether to keep each completion's gradient for :meth:`compare`, which takes rewards 0
            and 1, ``per_device_train_batch_size=1``, and a loss without a penalty.

    Raises:
        InputError: numbers out of range.
    """

    def __init__(
        self,
        window: int = 50,
        *,
        detail: bool = False,
        phi_over_tau: float | None = None,
        metric: str = "euclidean",
        sketch: int = 4096,
        seed: int = 0,
        per_completion: bool = False,
    ) -> None:
        self.window = integer("window", window, 2)
        self.per_completion = per_completion
        self.detail, self.phi_over_tau, self.metric = detail, phi_over_tau, metric
        self.sketch, self.seed = integer("sketch", sketch), seed
        self.saved: dict[str, Any] | None = None
        self._trainer: Any = None
        self._meter: NoiseMeter | None = None
        self._norms: LayerNorms | None = None
        self._open = self._partial = False
        self._off = self._on = False
        self._sentence = ""
        self.alarms: set[str] = set()
        self._alarms = Alarms(self.window)
        self._inputs: Any = None

    def watch(self, trainer: Any) -> NoiseMonitor:
        """Become this trainer's callback, where it was not given as one.

        Raises:
            InputError: this monitor has another trainer.
        """
        if self._trainer not in (None, trainer):
            raise InputError("this monitor watches a trainer already: make another")
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def estimate(self) -> NoiseEstimate:
        """Signal and noise over the steps in the window.

        Raises:
            InputError: fewer than two steps were measured.
        """
        if self._meter is None:
            raise InputError("0 steps count: an estimate takes at least 2")
        return self._meter.estimate()

    def compare(
        self, baselines: Sequence[str], group_sizes: Sequence[int] | None = None
    ) -> list[Alternative]:
        """Noise of other estimators and group sizes, by ``NoiseMeter.compare``."""
        if self._meter is None or not self.per_completion:
            raise InputError("no completion was kept: NoiseMonitor(per_completion=True) does")
        return self._meter.compare(baselines, group_sizes)

    def state(self) -> dict[str, Any]:
        """Of a checkpoint."""
        names = (
            "window", "detail", "phi_over_tau", "metric", "sketch", "seed", "per_completion",
        )  # fmt: skip
        saved = self._meter.state_dict() if self._meter else self.saved
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {"saved": saved},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put a hook on each parameter that is trained."""
        self._safely(self._begin, args, state, given.get("optimizer"))

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the micro-batch."""
        self._safely(self._close)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take up the step."""
        self._safely(self._step)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Look for what is wrong."""
        if "loss" in (given.get("logs") or {}):
            self._safely(self._alarm, given["logs"])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the hooks away."""
        self._stop()

    def _safely(self, act: Callable[..., Any], *given: Any) -> Any:
        """Act; an error switches the monitor off."""
        if self._off:
            return None
        try:
            return act(*given)
        except Exception as error:
            self._off = True
            self._stop()
            warnings.warn(f"NoiseMonitor is off, the training goes on: {error}", stacklevel=2)
            return None

    def _begin(self, args: Any, state: Any, optimizer: Any) -> None:
        if self._trainer is None:
            self._trainer = _caller()
        trainer = self._trainer
        self._size = trainer.num_generations
        batches = args.gradient_accumulation_steps
        if batches * trainer.accelerator.num_processes < 2:
            raise InputError(
                "a step is one micro-batch, which has no pair: raise gradient_accumulation_steps, with a "
                "smaller per_device_train_batch_size for the same step"
            )
        loss, loo = _kinds(trainer)
        mixing = getattr(args, "top_entropy_quantile", 1.0) < 1 or getattr(
            args, "entropy_coef", 0.0
        )
        # A sum over the completions of a step does not depend on their order.
        self._sorts = batches % args.steps_per_generation == 0 and loss != "bnpo" and not mixing
        self._rolls = self.detail and args.per_device_train_batch_size % self._size == 0
        if self.per_completion and (
            args.per_device_train_batch_size > 1 or mixing or (args.beta and loss != "rloo")
        ):
            raise InputError(
                "per_completion takes per_device_train_batch_size=1, and no penalty or entropy in the loss"
            )
        ratio = self.phi_over_tau
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self.detail and loo and ratio is None:
            self._norms = LayerNorms(model, self.seed) if self._size > 2 else None
            if self._norms is None or self._norms.empty:
                self._norms, ratio = None, 1.0
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self._meter = NoiseMeter(
            trainer.model.parameters(), self.window, leave_one_out=self.detail and loo,
            phi_over_tau=ratio if loo and self.detail else 1.0, metric=self.metric,
            optimizer=optimizer, numbers=self.sketch, seed=self.seed,
        )  # fmt: skip
        stored = (state.stateful_callbacks or {}).get(type(self).__name__)
        if isinstance(stored, dict):
            self.saved = stored["attributes"]["saved"]
        if self.saved:
            self._meter.load_state_dict(self.saved)
        self._shares = np.zeros(2)
        self._own: dict[int, torch.Tensor] = {}
        self._passed: deque[torch.Tensor] = deque(maxlen=args.steps_per_generation)
        # A group may lie on several processes.
        alone = trainer.accelerator.num_processes == 1
        self._alarms.group_size = self._size if alone else None
        seers = {
            "compute_loss": self._computed,
            "log": self._logged,
            "_get_per_token_logps_and_entropies": self._scored,
        }
        self._before = {name: getattr(trainer, name) for name in seers if hasattr(trainer, name)}
        for name in self._before:
            setattr(trainer, name, seers[name])
        self._on = True

    def _stop(self) -> None:
        if self._meter is not None:
            # Another train() goes on.
            self.saved = self._meter.state_dict()
        for hooks in (self._meter, self._norms):
            if hooks is not None:
                hooks.remove()
        if self._on:
            # What the class has is seen again.
            for name, before in self._before.items():
                if getattr(before, "__func__", None) is getattr(type(self._trainer), name, None):
                    vars(self._trainer).pop(name, None)
                else:
                    setattr(self._trainer, name, before)
        self._on = False

    def _computed(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """A micro-batch's loss; its backward pass follows."""
        if model.training and torch.is_grad_enabled():
            self._safely(self._open_micro_batch, inputs)
        return self._before["compute_loss"](model, inputs, *given, **named)

    def _scored(self, *given: Any, **named: Any) -> Any:
        """Log-probabilities and entropies, of which those of a fresh micro-batch tell whose it is."""
        scores = self._before["_get_per_token_logps_and_entropies"](*given, **named)
        if self._inputs is not None and torch.is_grad_enabled():
            self._safely(self._look, scores[0], scores[1])
        return scores

    def _look(self, log_probs: Any, entropies: Any) -> None:
        inputs, self._inputs = self._inputs, None
        mask = inputs["completion_mask"]
        if inputs.get("tool_mask") is not None:
            mask = mask * inputs["tool_mask"]
        recorded = inputs.get("sampling_per_token_logps")
        recorded = inputs.get("old_per_token_logps") if recorded is None else recorded
        arrays = (log_probs, mask, entropies, recorded)
        self._alarms.tokens(*(_array(each) for each in arrays))

    def _logged(self, logs: dict[str, Any], *given: Any, **named: Any) -> Any:
        if "loss" in logs:
            logs = logs | (self._safely(self._metrics) or {})
        return self._before["log"](logs, *given, **named)

    def _open_micro_batch(self, inputs: Any) -> None:
        assert self._meter is not None
        self._close()
        if any(inputs["completion_ids"] is each for each in self._passed):
            # A later iteration: the policy has moved on these very completions.
            self._partial = True
        else:
            batches = getattr(self._trainer, "_buffered_inputs", None)
            if batches and inputs is batches[0]:
                self._generated(batches)
                self._arrange(batches)
                self._drawn = self._trainer.state.global_step
            self._passed.append(inputs["completion_ids"])
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
        advantages = inputs["advantages"] if self.per_completion else None
        self._meter.begin(_prompts(inputs), scale, advantages)
        args = self._trainer.args
        # A stopped output's tokens are chosen by what came later.
        fresh = (
            self._drawn == self._trainer.state.global_step and not args.mask_truncated_completions
        )
        self._inputs = inputs if fresh and not self._partial else None
        share = self._own.get(id(inputs))
        if self._norms is not None and share is not None:

            def see(squared: torch.Tensor) -> None:
                phi = float((share * squared.double()).sum())
                self._shares += phi, float(squared.double().sum()) - phi / (self._size - 1)

            self._norms.begin(self._trainer.state.global_step, see)
        self._open = True

    def _generated(self, batches: list[Any]) -> None:
        """Show the alarms a generation: its rewards, as TRL keeps them, and what is trained on."""
        rewards, sizes = _rewards(self._trainer)
        if len(rewards):
            groups = np.arange(len(rewards)) // self._size
            self._alarms.generation(
                groups, rewards=rewards, lengths=sizes, kept=np.isfinite(rewards)
            )
        masks = [_array(batch["completion_mask"].sum(dim=1)) for batch in batches]
        lengths, full = np.concatenate(masks), batches[0]["completion_ids"].shape[1]
        self._alarms.generation(
            np.concatenate([_prompts(batch) for batch in batches]),
            advantages=np.concatenate([_array(batch["advantages"]) for batch in batches]),
            lengths=np.where(lengths > 0, lengths, full),
            kept=lengths > 0,
        )

    def _arrange(self, batches: list[Any]) -> None:
        """Undo TRL's shuffle where that changes no gradient, and look at whole groups' advantages."""
        prompts = np.concatenate([_prompts(batch) for batch in batches])
        if self._sorts and _movable(batches):
            order = np.argsort(prompts, kind="stable")
            # Halves of groups meet in a micro-batch: pairs of one prompt lie in neighbours.
            order = np.roll(order, self._size // 2) if self._rolls else order
            count = len(prompts) // len(batches)
            for name, first in list(batches[0].items()):
                if isinstance(first, torch.Tensor) and first.ndim:
                    whole = torch.cat([batch[name] for batch in batches])
                    parts = whole[torch.as_tensor(order, device=whole.device)].split(count)
                    for batch, part in zip(batches, parts, strict=True):
                        batch[name] = part
            prompts = prompts[order]
        self._own = {}
        if self._meter is None or not self._meter.leave_one_out:
            return
        advantages = torch.cat([batch["advantages"] for batch in batches]).double()
        shares = torch.zeros_like(advantages)
        for prompt in np.unique(prompts):
            rows = torch.as_tensor(np.flatnonzero(prompts == prompt), device=advantages.device)
            own = advantages[rows]
            if len(own) != self._size:
                continue
            if abs(own.sum()) > _TOLERANCE * len(own) * own.abs().max():
                # They are not leave-one-out: c₁, c₂ and c₃ have no meaning.
                self._meter.leave_one_out = False
                return
            # The others' variance, which is independent of completion i, over Aᵢ².
            squares = (own * ((self._size - 1) / self._size)).square()
            spread = squares.sum() - squares * (self._size / (self._size - 1))
            share = spread.clamp(min=0) / (own.square() * max(self._size - 2, 1))
            shares[rows] = share.nan_to_num(0.0, 0.0, 0.0)
        parts = shares.split([len(batch["advantages"]) for batch in batches])
        self._own = {id(batch): part for batch, part in zip(batches, parts, strict=True)}

    def _close(self) -> None:
        if self._open and self._meter is not None:
            self._open = False
            self._meter.end()
            if self._norms is not None:
                self._norms.end()

    def _step(self) -> None:
        assert self._meter is not None
        self._close()
        if self._partial:
            self._meter.clear()
        else:
            self._meter.step(self._shares)
        self._shares, self._partial = np.zeros(2), False

    def _metrics(self) -> dict[str, float]:
        if self._meter is None or self._meter.steps < min(_FEWEST, self.window):
            return {}
        found = self.estimate()
        sentence = found.sentence()
        if sentence != self._sentence and self._trainer.is_world_process_zero():
            print(sentence, file=sys.stderr)
        self._sentence = sentence
        return {f"noise/{name}": value for name, value in found.metrics(self.detail).items()}

    def _alarm(self, logs: dict[str, Any]) -> None:
        scaled = getattr(self._trainer.args, "scale_rewards", "none") in ("group", True)
        standing = self._alarms.standing() - (set() if scaled else {"spikes"})
        shares = [logs.get(name) or 0.0 for name in ("clip_ratio/region_mean", "cispo_clip_ratio")]
        if max(shares) >= 0.2:
            standing.add("clipped")
        full = self._meter is not None and self._meter.steps == self.window
        if full and self.estimate().signal_interval[0] <= 0:
            standing.add("lost")
        begun, self.alarms = standing - self.alarms, standing
        if self._trainer.is_world_process_zero():
            for name in sorted(begun):
                print(SENTENCES[name], file=sys.stderr)


def _array(values: Any) -> Any:
    return None if values is None else values.detach().cpu().double().numpy()


def _rewards(trainer: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The latest generation's rewards, NaN where there is none, and letters, where TRL keeps them."""
    logs = getattr(trainer, "_logs", {})
    if not logs.get("rewards"):
        return np.zeros(0), np.zeros(0)
    rewards = np.array([list(column) for column in logs["rewards"].values()], dtype=float)
    total = np.nansum(trainer.reward_weights.cpu().numpy()[:, None] * rewards, axis=0)
    total[np.isnan(rewards).all(axis=0)] = np.nan
    return total, np.array([len(str(text)) for text in logs["completion"]], dtype=float)


def _caller() -> Any:
    """The trainer that calls its callbacks: it does not tell them who it is."""
    frame = sys._getframe(1)
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            return trainer
        frame = frame.f_back  # type: ignore[assignment]
    raise InputError("no trainer calls it: call monitor.watch(trainer) before trainer.train()")


def _kinds(trainer: Any) -> tuple[str, bool]:
    """The loss's name, and whether advantages may be leave-one-out, up to a factor, of whole scores."""
    from trl import GRPOTrainer, RLOOTrainer

    args = trainer.args
    whole = not args.mask_truncated_completions and args.num_iterations == 1
    if isinstance(trainer, RLOOTrainer):
        return "rloo", whole and not args.normalize_advantages
    if not isinstance(trainer, GRPOTrainer):
        raise InputError(
            f"the trainer is a {type(trainer).__name__}: GRPOTrainer and RLOOTrainer are known"
        )
    unscaled = args.scale_rewards in ("none", False) and not args.beta
    return args.loss_type, whole and unscaled and args.loss_type in ("luspo", "dr_grpo", "dapo")


def _prompts(inputs: Any) -> Any:
    """A number for the prompt of each completion, from its tokens."""
    ids, masks = inputs["prompt_ids"].cpu().numpy(), inputs["prompt_mask"].cpu().numpy()
    digests = [
        hashlib.blake2b(row[mask.astype(bool)].astype(np.int64).tobytes(), digest_size=7).digest()
        for row, mask in zip(ids, masks, strict=True)
    ]
    return np.array([int.from_bytes(digest, "big") for digest in digests])


def _movable(batches: list[Any]) -> bool:
    """Whether all that a generation holds are rows of completions, and numbers of all."""
    rows = len(batches[0]["completion_ids"])
    return all(
        value is None
        or (isinstance(value, torch.Tensor) and (not value.ndim or len(value) == rows))
        for batch in batches
        for value in batch.values()
    )


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

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..noise import Alarms, Alternative, NoiseEstimate, NoiseMeter
from ..noise.alarms import SENTENCES, TOLERANCE
from ..noise.onlooker import FEWEST, Onlooker
from ..validation import InputError, integer
from . import checkpoints, generations

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(f"the monitor needs transformers ({error}): install ustat_pg[llm]") from error

_LOGITS = 2**24
"""Logits that are made at once where the output embedding is seen again."""
_CLIPPED = 0.2
"""Share of a record's tokens beyond which clipping is an alarm."""
_SAME = 5
"""Windows after which a sentence that still means the same is printed again."""


class NoiseMonitor(Onlooker, TrainerCallback, ExportableState):
    """Signal, noise and critical budget of the steps that a ``GRPOTrainer`` or ``RLOOTrainer`` makes.

    They are logged at each record as ``noise/signal``, ``noise/noise_to_signal``, ``noise/k_crit`` and
    ``noise/budget_over_critical``, each with ``_se``, ``_low`` and ``_high`` (95%), wherever TRL reports to;
    ``noise/g_star`` too where advantages are leave-one-out up to a factor and φ/τ is known: given, or
    measured without further cost (``per_completion``, or micro-batches of one completion).
    Any advantage, loss, penalty and clipping is measured as it is, before gradients are clipped by norm. The
    policy moves within a window, so an estimate is the mean over its steps. Of several iterations over the
    same completions the first is measured. An error in here is one warning, and the training goes on.

    Alarms are printed when they begin, and ``alarms`` has the names of those that stand: those of
    :class:`ustat_pg.noise.Alarms`; ``clipped``, 20% of a record's tokens are, or ``capped`` where CISPO's cap
    below 1 does that to rollouts of this policy itself; ``lost``, for a whole window of steps no full
    window distinguishes the signal from 0. What a step means is printed when the meaning changes, at most
    once a window, and again every five windows. A checkpoint has the window in a file of its own,
    ``noise_monitor.json.gz``.

    Arguments:
        window: steps that an estimate is made of.
        detail: whether to log c₁, c₂, c₃ and φ/τ too, where advantages are leave-one-out up to a factor.
        phi_over_tau: φ/τ = E[σ² tr F] / E[‖s‖² a²], which parts what one completion adds into c₂ and
            c₃. None to measure it from the gradient of each completion; in groups of 2 and in Adam's metric
            it is taken to be 1, its value for rewards of 0 and 1 under Assumption 2.
        metric: ``"euclidean"``, or ``"adam"`` for the noise as AdamW sees it.
        sketch: numbers that are kept of each micro-batch's gradient.
        seed: of the sketch.
        per_completion: whether to tell completions apart, by hooks on layers: for :meth:`compare`, which
            takes rewards 0 and 1 and a loss without a penalty, and for steps of one micro-batch. In Adam's
            metric it takes ``per_device_train_batch_size=1``.
        width: of the projections that tell completions apart.

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
        width: int = 16,
    ) -> None:
        self.window = integer("window", window, 2)
        self.per_completion = per_completion
        self.detail, self.phi_over_tau, self.metric = detail, phi_over_tau, metric
        self.sketch, self.seed, self.width = (
            integer("sketch", sketch),
            seed,
            integer("width", width),
        )
        self.saved: dict[str, Any] | None = None
        self._trainer: Any = None
        self._meter: NoiseMeter | None = None
        self._head: _Head | None = None
        self._open = self._partial = False
        self._on = False
        self._said: tuple[str, int] | None = None
        self._known: int | None = None
        self._packed = b""
        self.checkpoint: dict[str, Any] | None = None
        self.alarms: set[str] = set()
        self._alarms = Alarms(self.window)
        self._inputs: Any = None

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
            "window", "detail", "phi_over_tau", "metric", "sketch", "seed", "per_completion", "width",
        )  # fmt: skip
        saved = self._meter.state_dict() if self._meter else self.saved
        if saved:
            own = {"alarms": self._alarms.state_dict(), "said": self._said, "known": self._known}
            self._packed = checkpoints.packed({"meter": saved, **own})
            digest = checkpoints.digest(self._packed)
            # Sketches are drawn by this count, the same on every process.
            self.checkpoint = {"digest": digest, "count": saved["count"]}
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {"checkpoint": self.checkpoint},
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

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the window beside what the trainer has saved."""
        if args.should_save:
            self._safely(self._save, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the hooks away."""
        self._stop()

    def _begin(self, args: Any, state: Any, optimizer: Any) -> None:
        trainer = self._trainer = _caller()
        self._size = trainer.num_generations
        batches = args.gradient_accumulation_steps
        loss, loo = _kinds(trainer)
        euclidean, single = self.metric == "euclidean", args.per_device_train_batch_size == 1
        self._measures = loo and self.phi_over_tau is None and self._size > 2 and euclidean
        self._measures = self._measures and (self.detail or self.per_completion or single)
        loo = loo and (self.detail or self._measures or self.phi_over_tau is not None)
        apart = euclidean and (self.per_completion or (self._measures and self.detail))
        if batches * trainer.accelerator.num_processes < 2 and not apart:
            raise InputError(
                "a step is one micro-batch, which has no pair: raise gradient_accumulation_steps, with a "
                "smaller per_device_train_batch_size for the same step, or take per_completion=True"
            )
        mixing = getattr(args, "top_entropy_quantile", 1.0) < 1 or getattr(
            args, "entropy_coef", 0.0
        )
        # A sum over the completions of a step does not depend on their order.
        self._sorts = batches % args.steps_per_generation == 0 and loss != "bnpo" and not mixing
        self._sorts = self._sorts and not apart
        self._rolls = loo and args.per_device_train_batch_size % self._size == 0
        if self.per_completion and (mixing or (args.beta and loss != "rloo")):
            raise InputError("per_completion takes no penalty or entropy in the loss")
        if self.per_completion and not apart and args.per_device_train_batch_size > 1:
            raise InputError("per_completion takes per_device_train_batch_size=1 in Adam's metric")
        model = trainer.accelerator.unwrap_model(trainer.model)
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self._meter = NoiseMeter(
            model if apart else model.parameters(), self.window, leave_one_out=loo,
            phi_over_tau=None if self._measures else self.phi_over_tau or 1.0, metric=self.metric,
            optimizer=optimizer, numbers=self.sketch, seed=self.seed, width=self.width,
        )  # fmt: skip
        self._head = _Head(trainer, model) if apart else None
        if (folder := checkpoints.resumed(trainer)) is not None:
            self._resume(folder, (state.stateful_callbacks or {}).get(type(self).__name__))
        elif self.saved:
            self._meter.load_state_dict(self.saved)
        self._shares = np.zeros(2)
        self._parts: dict[int, torch.Tensor] = {}
        self._share: torch.Tensor | None = None
        self._passed: deque[torch.Tensor] = deque(maxlen=args.steps_per_generation)
        self._alarms.group_size = self._size
        self._selects = args.mask_truncated_completions
        seers = {
            "compute_loss": self._computed,
            "log": self._logged,
            "_get_per_token_logps_and_entropies": self._scored,
            "_generate_and_score_completions": self._generating,
        }
        self._before = {name: getattr(trainer, name) for name in seers if hasattr(trainer, name)}
        for name in self._before:
            setattr(trainer, name, seers[name])
        self._on = True

    def _resume(self, folder: Path, stored: Any) -> None:
        """Go on from a checkpoint's window; from an empty one, with a warning, where it has none."""
        assert self._meter is not None
        if stored is None:
            return
        kept = (stored["attributes"].get("checkpoint") or {}) if isinstance(stored, dict) else {}
        try:
            saved = checkpoints.read(folder, kept.get("digest", ""))
        except InputError as error:
            self._meter._count = int(kept.get("count", 0))
            warnings.warn(f"{error}: the window of the noise starts empty", stacklevel=2)
            return
        self._meter.load_state_dict(saved["meter"])
        self._alarms.load_state_dict(saved["alarms"])
        self._said, self._known = saved["said"] and tuple(saved["said"]), saved["known"]

    def _save(self, state: Any) -> None:
        trial = getattr(self._trainer, "_trial", None)
        run = Path(self._trainer._get_output_dir(trial=trial))
        if self._packed:
            checkpoints.write(run / f"checkpoint-{state.global_step}", self._packed)

    def _stop(self) -> None:
        if self._meter is not None:
            # Another train() goes on.
            self.saved = self._meter.state_dict()
        for hooks in (self._meter, self._head):
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

    def _generating(self, *given: Any, **named: Any) -> Any:
        """A generation, before it is shuffled."""
        output = self._before["_generate_and_score_completions"](*given, **named)
        if self._trainer.model.training:
            self._safely(self._generated, output)
        return output

    def _scored(self, *given: Any, **named: Any) -> Any:
        """Log-probabilities and entropies, of which those of a fresh micro-batch tell whose it is."""
        scores = self._before["_get_per_token_logps_and_entropies"](*given, **named)
        if self._open and torch.is_grad_enabled():
            if self._head is not None:
                ids = named["input_ids"] if "input_ids" in named else given[1]
                self._safely(self._head.written, scores[0], ids, self._safely)
            if self._inputs is not None:
                self._safely(self._look, scores[0], scores[1])
        return scores

    def _look(self, log_probs: Any, entropies: Any) -> None:
        inputs, self._inputs = self._inputs, None
        mask = inputs["completion_mask"]
        if inputs.get("tool_mask") is not None:
            mask = mask * inputs["tool_mask"]
        recorded = inputs.get("sampling_per_token_logps")
        recorded = inputs.get("old_per_token_logps") if recorded is None else recorded
        # Tokens of the outputs that are left were chosen by what came later.
        arrays = (log_probs, mask, None if self._selects else entropies, recorded)
        self._alarms.tokens(*(_array(array) for array in arrays))

    def _logged(self, logs: dict[str, Any], *given: Any, **named: Any) -> Any:
        if "loss" in logs:
            logs = logs | (self._safely(self._metrics) or {})
        return self._before["log"](logs, *given, **named)

    def _open_micro_batch(self, inputs: Any) -> None:
        assert self._meter is not None
        self._close()
        if any(inputs["completion_ids"] is seen for seen in self._passed):
            # A later iteration: the policy has moved on these very completions.
            self._partial = True
        else:
            batches = getattr(self._trainer, "_buffered_inputs", None)
            if batches and inputs is batches[0]:
                self._arrange(batches)
                self._drawn = self._trainer.state.global_step
            self._passed.append(inputs["completion_ids"])
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
        advantages = inputs["advantages"] if self.per_completion else None
        self._meter.begin(_prompts(inputs), scale, advantages)
        fresh = self._drawn == self._trainer.state.global_step
        self._inputs = inputs if fresh and not self._partial else None
        self._share = self._parts.get(id(inputs)) if self._measures else None
        self._open = True

    def _generated(self, output: dict[str, Any]) -> None:
        """Show the alarms a generation."""
        rows = generations.rows(self._trainer, output, _prompts(output))
        self._selects |= not output["completion_mask"].any(dim=1).all()
        if rows is not None:
            self._alarms.generation(**rows)

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
        self._parts = {}
        if self._meter is None or not self._meter.leave_one_out:
            return
        advantages = torch.cat([batch["advantages"] for batch in batches]).double()
        shares = torch.zeros_like(advantages)
        for prompt in np.unique(prompts):
            rows = torch.as_tensor(np.flatnonzero(prompts == prompt), device=advantages.device)
            values = advantages[rows]
            if len(values) != self._size:
                continue
            if abs(values.sum()) > TOLERANCE * len(values) * values.abs().max():
                # They are not leave-one-out: c₁, c₂ and c₃ have no meaning.
                self._meter.leave_one_out = False
                return
            # The others' variance, which is independent of completion i, over Aᵢ².
            squares = (values * ((self._size - 1) / self._size)).square()
            spread = squares.sum() - squares * (self._size / (self._size - 1))
            share = spread.clamp(min=0) / (values.square() * max(self._size - 2, 1))
            shares[rows] = share.nan_to_num(0.0, 0.0, 0.0)
        parts = shares.split([len(batch["advantages"]) for batch in batches])
        self._parts = {id(batch): part for batch, part in zip(batches, parts, strict=True)}

    def _close(self) -> None:
        if self._open and self._meter is not None:
            self._open = False
            squared = self._meter.end().double()
            if self._share is not None:
                phi = float(self._share.to(squared) @ squared)
                self._shares += phi, float(squared.sum()) - phi / (self._size - 1)

    def _step(self) -> None:
        assert self._meter is not None
        self._close()
        if self._partial:
            self._meter.clear()
        else:
            self._meter.step(self._shares)
        self._shares, self._partial = np.zeros(2), False

    def _metrics(self) -> dict[str, float]:
        if self._meter is None or self._meter.steps < min(FEWEST, self.window):
            return {}
        estimate = self.estimate()
        meaning, step = estimate.meaning(), self._trainer.state.global_step
        said, since = self._said or ("", -_SAME * self.window)
        if step - since >= self.window * (_SAME if meaning == said else 1):
            self._said = meaning, step
            if self._trainer.is_world_process_zero():
                print(estimate.sentence(), file=sys.stderr)
        return {f"noise/{name}": value for name, value in estimate.metrics(self.detail).items()}

    def _alarm(self, logs: dict[str, Any]) -> None:
        scaled = getattr(self._trainer.args, "scale_rewards", "none") in ("group", True)
        standing = self._alarms.standing() - (set() if scaled else {"spikes"})
        if (logs.get("clip_ratio/region_mean") or 0.0) >= _CLIPPED:
            standing.add("clipped")
        if (logs.get("cispo_clip_ratio") or 0.0) >= _CLIPPED:
            standing.add("capped" if self._trainer.args.epsilon_high < 1 else "clipped")
        if self._meter is not None and self._meter.steps == self.window:
            step = self._trainer.state.global_step
            if self._known is None or self.estimate().signal_interval[0] > 0:
                self._known = step
            if step - self._known >= self.window:
                standing.add("lost")
        begun, self.alarms = standing - self.alarms, standing
        if self._trainer.is_world_process_zero():
            for name in sorted(begun):
                print(SENTENCES[name], file=sys.stderr)


def _array(values: Any) -> Any:
    return None if values is None else values.detach().cpu().double().numpy()


def _caller() -> Any:
    """The trainer that calls its callbacks: it does not tell them who it is."""
    frame = sys._getframe(1)
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            return trainer
        frame = frame.f_back  # type: ignore[assignment]
    raise InputError("no trainer calls it: give it to one as a callback")


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


class _Head:
    """The output embedding as a layer once more, where TRL multiplies by its weight without a call.

    Since 1.16 TRL makes log-probabilities from hidden states by a function of its own, in which no hook sees
    what a completion does. Their gradients come first in the backward pass; logits are made again then, a
    quarter of what this function takes, and the hook of the layer sees their gradients.
    """

    def __init__(self, trainer: Any, model: Any) -> None:
        self._trainer, self._head = trainer, model.get_output_embeddings()
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._hidden: Any = None
        self._hooks: list[Any] = []
        if any(p.requires_grad for p in self._head.parameters()):
            self._hooks = [
                model.base_model.register_forward_hook(self._read),
                self._head.register_forward_hook(self._called),
            ]

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _read(self, layer: Any, given: Any, output: Any) -> None:
        self._hidden = output[0].detach()

    def _called(self, layer: Any, given: Any, output: Any) -> None:
        self._hidden = None

    def written(self, log_probs: torch.Tensor, ids: torch.Tensor, safely: Any) -> None:
        """Show the layer the gradients of these log-probabilities, of the last tokens, once they come."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None and len(hidden) == len(ids):
            kept = log_probs.shape[1]
            parts = hidden[:, -kept - 1 : -1], ids[:, -kept:]
            log_probs.register_hook(lambda slopes: safely(self._again, *parts, slopes))

    def _again(self, *parts: torch.Tensor) -> None:
        step = max(1, _LOGITS // (len(parts[0]) * len(self._head.weight)))
        pieces = zip(*(part.split(step, dim=1) for part in parts), strict=True)
        for hidden, ids, slopes in pieces:
            with torch.enable_grad(), self._trainer.accelerator.autocast():
                logits = self._head(hidden)
                logs = (logits.float() / self._trainer.temperature).log_softmax(dim=-1)
                chosen = logs.gather(-1, ids[..., None])[..., 0]
            torch.autograd.grad(chosen, logits, slopes.to(chosen))

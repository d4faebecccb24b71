"""The noise of a training's own gradients while TRL trains.

    >>> from ustat_pg.llm import NoiseMonitor                                              # doctest: +SKIP
    >>> monitor = NoiseMonitor()                                                           # doctest: +SKIP
    >>> trainer = GRPOTrainer(model, reward, args, data, callbacks=[monitor])              # doctest: +SKIP
    >>> trainer.train()                                                                    # doctest: +SKIP
    >>> print(monitor.estimate().k_crit)                                                   # doctest: +SKIP

It draws no completions and computes no gradients of its own: a :class:`ustat_pg.noise.NoiseMeter` observes
    the backward passes. Prompts of a micro-batch are identified by their tokens. Hooks use their own random
    numbers, new at each step, so a training has the same gradients with and without the monitor.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...noise import Alarms, Alternative, NoiseEstimate, NoiseMeter
from ...noise.alarms import SENTENCES
from ...noise.layers import is_sharded
from ...noise.onlooker import Guard, Onlooker, Replaced
from ...validation import InputError, integer
from . import checkpoints, generations
from .batches import (
    array,
    caller,
    deal,
    leave_one_out,
    movable,
    names_of,
    option,
    own_table,
    prompts_of,
    weights_of,
)
from .head import Head
from .monitor_plan import Plan

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(f"the monitor needs transformers ({error}): install ustat_pg[llm]") from error

_CLIPPED = 0.2
"""The share of a record's tokens above which clipping is an alarm."""
_SPOKEN = 10
"""The number of steps before a sentence is printed."""
_SIZES_TRIED = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
"""The group sizes that are logged in addition to the run's own."""
_SAME = 5
"""The number of windows after which a sentence with the same meaning is printed again."""


class NoiseMonitor(Onlooker, TrainerCallback, ExportableState):
    """A callback that measures signal, noise and critical budget of the steps of a ``GRPOTrainer`` or
    ``RLOOTrainer``.

    They are logged at each record, from the second step on, as ``noise/signal``,
    ``noise/noise_to_signal``, ``noise/k_crit`` and ``noise/budget_over_critical``, each with ``_se``,
    ``_low`` and ``_high`` (95%), wherever TRL reports to. c₁, c₂, c₃ and ``noise/g_star`` are logged if
    advantages are leave-one-out up to a factor and φ/τ is known. φ/τ can be given or measured: for rewards 0
    and 1 with at least six micro-batches per step, for other rewards if completions are separated
    (``detail``, ``per_completion``, sharded parameters, micro-batches of one completion). With
    ``per_completion`` and rewards 0 and 1, ``noise/best_group`` is the best group size of the run's own
    estimator, and ``noise/over_best`` is the run's noise divided by the noise at that size. Advantages, loss,
    penalties and clipping are measured as they are, before gradients are clipped by norm. The policy changes
    within a window, so an estimate is the mean over its steps. With several iterations over the same
    completions only the first is measured. An error in the monitor gives one warning, on all processes, and
    the training continues; ``noise/off`` is then 1, it is 2 if the run cannot be measured in this way, and
    else 0. A training with another trainer has its own window.

    Steps of one micro-batch, or of one prompt, are measured two at a time. If parameters are sharded (FSDP2),
    hooks on layers separate completions, as with ``per_completion``. A line on stderr reports both cases, and
    why the first skipped step is left out.

    Alarms are printed when they start, and ``alarms`` has the names of the current ones: the alarms of
    :class:`ustat_pg.noise.Alarms`; ``clipped`` if 20% of a record's tokens are clipped, or ``capped`` if
    CISPO's cap below 1 does this to rollouts of the current policy; ``lost`` if for a whole window of
    steps no full window distinguishes the signal from 0. The sentence on a step is printed when its
    meaning changes, at most once per window, and again every five windows. A checkpoint has the window in
    the file ``noise_monitor.json.gz``.

    Arguments:
        window: number of steps in an estimate.
        detail: whether to separate completions, by hooks on layers, for a more precise φ/τ, if advantages are
            leave-one-out up to a factor.
        phi_over_tau: φ/τ = E[σ² tr F] / E[‖s‖² a²], which separates c₂ and c₃. None to measure it; in groups
            of 2 it is set to 1, its value for rewards 0 and 1 under Assumption 2.
        metric: ``"both"``: the noise in the gradient's own norm and, where the optimizer is torch's Adam or
            AdamW and parameters are not sharded, in the norm of its step too, once its second moments cover
            22 steps (``noise/adam/k_crit`` and so on, and :attr:`adam`); ``"euclidean"`` or ``"adam"`` for
            one of them.
        sketch: how many numbers are kept of each micro-batch's gradient.
        seed: seed of the sketch.
        per_completion: whether to separate completions, by hooks on layers, for :meth:`compare`. It needs
            rewards 0 and 1 and a loss without penalty, and in Adam's metric
            ``per_device_train_batch_size=1``.
        width: width of the projections that separate completions.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(
        self,
        window: int = 50,
        *,
        detail: bool = False,
        phi_over_tau: float | None = None,
        metric: str = "both",
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
        self._head: Head | None = None
        self._guard = Guard()
        self._open = False
        self._on = False
        self._said: tuple[str, int] | None = None
        self._known: int | None = None
        self._packed = b""
        self.checkpoint: dict[str, Any] | None = None
        self.alarms: set[str] = set()
        self._alarms = Alarms(self.window)
        self._own: list[torch.Tensor] = []
        self._times: list[int] = []
        self._inputs: Any = None
        self._table: str | None = None
        self._lines: set[str] = set()

    def estimate(self) -> NoiseEstimate:
        """Signal and noise over the steps in the window.

        Raises:
            InputError: fewer than two steps were measured.
        """
        if self._meter is None:
            raise InputError("0 steps count: an estimate needs at least 2")
        return self._meter.estimate()

    @property
    def adam(self) -> NoiseMeter | None:
        """The meter in Adam's metric beside the other, if there is one."""
        return None if self._meter is None else self._meter.adam

    def compare(
        self, estimators: Sequence[str], group_sizes: Sequence[int] | None = None
    ) -> list[Alternative]:
        """Noise of other estimators and group sizes, by ``NoiseMeter.compare``."""
        if self._meter is None or not self.per_completion:
            raise InputError("no completion was kept: use NoiseMonitor(per_completion=True)")
        return self._meter.compare(estimators, group_sizes)

    def __reduce__(self) -> Any:
        """A copy has the settings and the window, but no trainer."""
        saved = self.saved if self._meter is None else self._meter.state_dict()
        return _copied, (self._settings(), saved)

    def _settings(self) -> dict[str, Any]:
        names = (
            "window", "detail", "phi_over_tau", "metric", "sketch", "seed", "per_completion", "width",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        saved = self.saved if self._meter is None else self._guard.run(self._meter.state_dict)
        if saved:
            self._guard.run(self._pack, saved)
        return {"args": self._settings(), "attributes": {"checkpoint": self.checkpoint}}

    def _pack(self, saved: dict[str, Any]) -> None:
        own = {"alarms": self._alarms.state_dict(), "said": self._said, "known": self._known}
        self._packed = checkpoints.packed({"meter": saved, **own})
        digest = checkpoints.digest(self._packed)
        # The draw of sketches depends on this count, which is the same on every process.
        self.checkpoint = {"digest": digest, "count": saved["count"]}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Add a hook to each trained parameter."""
        if self._on:
            # An interrupted training has not called the end.
            self._guard.run(self._stop)
        self._guard = Guard(self._stop)
        self._safely(self._begin, args, state, given.get("optimizer"))
        self._guard.gathered()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the micro-batch."""
        self._safely(self._close)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Finish the step."""
        self._safely(self._close)
        # A process that is off takes part too, until all are off.
        self._guard.run(self._step)
        if self._guard.reason is not None:
            self._guard.run(self._mark_off)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check for alarms."""
        if "loss" in (given.get("logs") or {}):
            self._safely(self._alarm, given["logs"])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the window to the trainer's checkpoint."""
        if args.should_save:
            # It is written even if the monitor is off, so the checkpoint has the measurements.
            self._guard.run(self._save, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the hooks."""
        self._guard.run(self._stop)

    def _begin(self, args: Any, state: Any, optimizer: Any) -> None:
        trainer, folder = caller()
        if folder is not None or self._trainer not in (None, trainer):
            # The window of another training must not enter this one.
            self.saved, self.checkpoint, self._packed = None, None, b""
            self._said, self._known, self._lines = None, None, set()
            self.alarms, self._alarms = set(), Alarms(self.window)
        self._trainer = trainer
        self._meter = self._head = None
        self._size = trainer.num_generations
        self._table = own_table(trainer) if self.per_completion else None
        model = trainer.accelerator.unwrap_model(trainer.model)
        sharded = any(is_sharded(p) for p in model.parameters() if p.requires_grad)
        self._plan = plan = Plan.of(
            trainer, sharded, metric=self.metric, per_completion=self.per_completion, detail=self.detail,
            phi_over_tau=self.phi_over_tau,
        )  # fmt: skip
        for line in plan.said:
            self._say(line)
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self._meter = NoiseMeter(
            model if plan.apart else model.parameters(), self.window, leave_one_out=plan.leave_one_out,
            phi_over_tau=None if plan.measures else self.phi_over_tau or 1.0, metric=self.metric,
            optimizer=optimizer, numbers=self.sketch, seed=self.seed, width=self.width,
            population=plan.population, guard=self._guard,
        )  # fmt: skip
        self._head = Head(trainer, model, self._guard) if plan.apart else None
        if folder is not None:
            self._resume(folder, (state.stateful_callbacks or {}).get(type(self).__name__))
        elif self.saved:
            self._meter.load_state_dict(self.saved)
        self._passed: deque[torch.Tensor] = deque(maxlen=args.steps_per_generation)
        self._drawn, self._numbered = -1, 0
        self._begin_step()
        self._alarms.group_size = self._size
        self._selects = option(trainer, "mask_truncated_completions")
        self._replaced = Replaced(
            trainer,
            {
                "compute_loss": self._computed,
                "log": self._logged,
                "_get_per_token_logps_and_entropies": self._scored,
                "_generate_and_score_completions": self._generating,
            },
        )
        self._before = self._replaced.before
        self._on = True

    def _say(self, line: str) -> None:
        """Print a line on stderr, once."""
        if line not in self._lines and self._trainer.is_world_process_zero():
            print(f"noise: {line}", file=sys.stderr)
        self._lines.add(line)

    def _resume(self, folder: Path, stored: Any) -> None:
        """Restore the window of a checkpoint; if it has none, warn and start with an empty one."""
        assert self._meter is not None
        if stored is None:
            return
        kept = (stored["attributes"].get("checkpoint") or {}) if isinstance(stored, dict) else {}
        try:
            saved = checkpoints.read(folder, kept.get("digest", ""))
            self._meter.load_state_dict(saved["meter"])
        except InputError as error:
            self._meter._count = int(kept.get("count", 0))
            warnings.warn(f"{error}: the noise window starts empty", stacklevel=2)
            return
        self._alarms.load_state_dict(saved["alarms"])
        self._said, self._known = saved["said"] and tuple(saved["said"]), saved["known"]

    def _save(self, state: Any) -> None:
        if self._packed:
            trial = getattr(self._trainer, "_trial", None)
            run = Path(self._trainer._get_output_dir(trial=trial))
            checkpoints.write(run / f"checkpoint-{state.global_step}", self._packed)

    def _stop(self) -> None:
        self._guard.remove()
        if self._meter is not None:
            self._meter.remove()
        if self._on:
            self._replaced.restore()
        self._on = self._open = False
        self._head = self._inputs = None
        self._passed = deque()
        self._begin_step()
        if self._meter is not None:
            # A later call of train() continues.
            self.saved = self._meter.state_dict()

    def _computed(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """The loss of a micro-batch; its backward pass follows."""
        if model.training and torch.is_grad_enabled():
            self._safely(self._open_micro_batch, inputs)
        return self._before["compute_loss"](model, inputs, *given, **named)

    def _generating(self, *given: Any, **named: Any) -> Any:
        """A generation before the shuffle."""
        output = self._before["_generate_and_score_completions"](*given, **named)
        if self._trainer.model.training:
            self._safely(self._generated, output)
        return output

    def _scored(self, *given: Any, **named: Any) -> Any:
        """Log-probabilities and entropies; for a new micro-batch these show whether the policy drew it."""
        scores = self._before["_get_per_token_logps_and_entropies"](*given, **named)
        if self._open and torch.is_grad_enabled():
            self._safely(self._have_scores, scores, given, named)
        return scores

    def _have_scores(self, scores: Any, given: Any, named: Any) -> None:
        if self._head is not None:
            self._head.written(scores[0], named["input_ids"] if "input_ids" in named else given[1])
        if self._inputs is not None:
            self._look(scores[0], scores[1])

    def _look(self, log_probs: Any, entropies: Any) -> None:
        inputs, self._inputs = self._inputs, None
        mask = inputs["completion_mask"]
        if inputs.get("tool_mask") is not None:
            mask = mask * inputs["tool_mask"]
        recorded = inputs.get("sampling_per_token_logps")
        recorded = inputs.get("old_per_token_logps") if recorded is None else recorded
        # The remaining outputs' tokens depend on what came later.
        arrays = (log_probs, mask, None if self._selects else entropies, recorded)
        self._alarms.tokens(*(array(values) for values in arrays))

    def _logged(self, logs: dict[str, Any], *given: Any, **named: Any) -> Any:
        if "loss" in logs:
            logs = logs | (self._safely(self._metrics) or {})
        return self._before["log"](logs, *given, **named)

    def _open_micro_batch(self, inputs: Any) -> None:
        assert self._meter is not None
        self._close()
        for place, own in enumerate(self._own):
            if own is inputs["completion_ids"]:
                # This is the same gradient again, because the policy has not changed.
                self._times[place] += 1
                return
        if any(inputs["completion_ids"] is seen for seen in self._passed):
            self._stale = True
        else:
            batches = getattr(self._trainer, "_buffered_inputs", None)
            if batches and inputs is batches[0]:
                self._arrange(batches)
                self._drawn = self._trainer.state.global_step
            self._passed.append(inputs["completion_ids"])
        self._own.append(inputs["completion_ids"])
        self._times.append(1)
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
        prompts, groups = names_of(inputs, self._plan.rows)
        advantages = inputs["advantages"]
        # Custom trainers may have one value per token, or none if there is no reward.
        known = advantages.ndim == 1 and bool(advantages.isfinite().all())
        advantages = advantages if known else None
        weights = weights_of(self._trainer, inputs)
        self._meter.begin(prompts, scale / self._plan.repeats, advantages, groups, weights)
        fresh = self._drawn == self._trainer.state.global_step
        self._inputs = inputs if fresh and not self._stale else None
        self._open = True

    def _generated(self, output: dict[str, Any]) -> None:
        """Pass a generation to the alarms, and number its groups to separate two groups of one prompt."""
        prompts = prompts_of(output)
        rows = generations.rows(self._trainer, output, prompts)
        groups = generations.groups_of(self._trainer, prompts)
        if groups is not None and "group_id" not in output:
            numbers = torch.as_tensor(groups + self._numbered, device=output["prompt_ids"].device)
            output["group_id"] = numbers
            # A step may have several generations.
            self._numbered += len(prompts) * self._trainer.accelerator.num_processes
        self._selects |= not output["completion_mask"].any(dim=1).all()
        if rows is not None:
            self._alarms.generation(**rows)

    def _arrange(self, batches: list[Any]) -> None:
        """Undo TRL's shuffle if the gradient stays the same, and check the advantages of whole groups."""
        names = [names_of(batch, self._plan.rows) for batch in batches]
        groups = np.concatenate([array(own) if own is not None else of for of, own in names])
        if self._plan.sorts and movable(batches):
            groups = deal(batches, groups, self._plan.deals)
        if self._meter is not None and self._plan.leave_one_out:
            # c₁, c₂ and c₃ are not defined for other advantages.
            self._meter.leave_one_out = leave_one_out(batches, groups, self._size)

    def _close(self) -> None:
        if self._open and self._meter is not None:
            self._open = False
            self._meter.end()

    def _step(self) -> None:
        if self._meter is None:
            self._guard.gathered()
            return
        uneven = any(times != self._plan.repeats for times in self._times)
        counts = self._meter.step(not (self._stale or uneven))
        if self._guard.reason is not None:
            return
        if not counts:
            if self._stale:
                self._meter.left_out = "it uses outputs of an earlier step again"
            elif uneven:
                self._meter.left_out = "it uses some outputs more often than others"
            self._say(f"a step is left out, and others may be: {self._meter.left_out}")
        self._begin_step()

    def _begin_step(self) -> None:
        self._stale = False
        self._own, self._times = [], []

    def _metrics(self) -> dict[str, float]:
        if self._meter is None:
            return {}
        metrics = {"off": 0.0} | self._meter.metrics() | self._beside()
        if self._meter.steps < min(_SPOKEN, self.window):
            self._say(
                f"numbers are logged from the second step on, and explained in words from step "
                f"{_SPOKEN} on, because their intervals are wide until then"
            )
        else:
            self._explain(self.estimate())
        return {f"noise/{name}": value for name, value in metrics.items()}

    def _mark_off(self) -> None:
        """Let TRL log that the monitor is off, because nobody may see a warning on a terminal."""
        logged = getattr(self._trainer, "_metrics", None)
        if logged is not None:
            logged["train"]["noise/off"].append(2.0 if self._guard.refused else 1.0)

    def _explain(self, estimate: NoiseEstimate) -> None:
        assert self._meter is not None
        meaning, step = estimate.meaning(), self._meter.taken
        said, since = self._said or ("", -_SAME * self.window)
        if step - since >= self.window * (_SAME if meaning == said else 1):
            self._said = meaning, step
            if self._trainer.is_world_process_zero():
                print(estimate, file=sys.stderr)

    def _beside(self) -> dict[str, float]:
        """The best group size of the run's own estimator, and the run's noise relative to it, if known."""
        if self._table is None or self._meter is None or not self.per_completion:
            return {}
        sizes = sorted({size for size in _SIZES_TRIED if size < self._size} | {self._size})
        try:
            rows = self._meter.compare([self._table], sizes)
        except InputError:
            # Rewards are graded, or there are no results yet.
            return {}
        own, best = rows[-1], min(rows, key=lambda row: row.noise.k_crit.value)
        over = own.over_best
        if not math.isfinite(over.value):
            return {}
        ends = {"over_best_low": over.low, "over_best_high": over.high}
        ends = {name: end for name, end in ends.items() if 0 < end < math.inf}
        return {"best_group": float(best.group_size), "over_best": over.value, **ends}

    def _alarm(self, logs: dict[str, Any]) -> None:
        scaled = option(self._trainer, "scale_rewards", "none") in ("group", True)
        standing = self._alarms.standing() - (set() if scaled else {"spikes"})
        if (logs.get("clip_ratio/region_mean") or 0.0) >= _CLIPPED:
            standing.add("clipped")
        if (logs.get("cispo_clip_ratio") or 0.0) >= _CLIPPED:
            standing.add("capped" if option(self._trainer, "epsilon_high") < 1 else "clipped")
        if self._meter is not None and self._meter.steps == self.window:
            step = self._meter.taken
            if self._known is None or self.estimate().signal.low > 0:
                self._known = step
            if step - self._known >= self.window:
                standing.add("lost")
        begun, self.alarms = standing - self.alarms, standing
        if self._trainer.is_world_process_zero():
            for name in sorted(begun):
                print(SENTENCES[name], file=sys.stderr)


def _copied(settings: dict[str, Any], saved: dict[str, Any] | None) -> NoiseMonitor:
    monitor = NoiseMonitor(**settings)
    monitor.saved = saved
    return monitor

"""A TRL callback: how many groups carry no signal, and what G the moments ask for, while training.

Each step, of the rewards that the step is made of:

========================= ==================================================================
logged                    what
========================= ==================================================================
``signal/zero_share``     share of groups whose rewards are all equal: their gradient is 0
``signal/mean_reward``    mean reward
``signal/solved_never``   share of prompts all of whose rewards are the least possible
``signal/solved_always``  share of prompts all of whose rewards are the greatest possible
========================= ==================================================================

Every so many steps, of a small pool of rollouts that the current policy writes and scores:

===================================== ======================================================
``moments/c1``, ``c2``, ``c3``        the constants of Theorem 7 (group_size)
``moments/g_star``, ``g_star_low``,   the best group size 1 + √(c₃/c₁) with its 95% interval;
``g_star_high``                       left out where it has no value or no end
``moments/mse_vanilla``, ``mse_grpo`` predicted gradient MSE at one prompt at the run's own G
``mse_oracle``
===================================== ======================================================

The monitor never ends a training: what it cannot do, for want of memory or because a verifier or the
model's logits are broken, it says once, as a :class:`MonitorWarning`, and leaves out.

A group without signal is no error, and "loss is 0" no sign of one: grpo's advantages sum to 0.

    >>> signal = GroupSignalCallback()                              # doctest: +SKIP
    >>> trainer = GRPOTrainer(model, signal.watched(reward), args,  # doctest: +SKIP
    ...     train_dataset=data, callbacks=[signal])

The values are in ``trainer.state.log_history`` and go to whatever TRL reports to.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..validation import InputError, integer
from .models import LanguageModel
from .tasks import Task

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"the callback needs transformers ({error}): install ustat_pg[llm]"
    ) from error

__all__ = ["GroupSignalCallback", "MonitorWarning", "group_signal"]


class MonitorWarning(RuntimeWarning):
    """Something could not be monitored; the training goes on without it."""


def group_signal(
    rewards: ArrayLike, group_size: int, bounds: tuple[float, float] = (0.0, 1.0)
) -> dict[str, float]:
    """Shares of groups without signal, never and always solved, and the mean reward.

    Rewards that are NaN were not given; a group with fewer than two others has no signal. Without
    any reward the mean is NaN.

    Arguments:
        rewards: (B G,), group after group.
        group_size: G.
        bounds: the least and the greatest reward possible.

    Raises:
        InputError: the rewards do not fill whole groups.

    >>> found = group_signal([1, 1, 0, 0, 0, 1, 0, 1], 2)
    >>> found["zero_share"], found["mean_reward"]
    (0.5, 0.5)
    >>> found["solved_never"], found["solved_always"]
    (0.25, 0.25)
    """
    values = np.asarray(rewards, dtype=float)
    size = integer("group size", group_size, 1)
    if values.ndim != 1 or not values.size or values.size % size:
        raise InputError(
            f"rewards have shape {values.shape}: they must fill whole groups of {size}"
        )
    groups = values.reshape(-1, size)
    known = np.isfinite(groups)
    least = np.where(known, groups, np.inf).min(axis=1)
    most = np.where(known, groups, -np.inf).max(axis=1)
    some = known.any(axis=1)
    silent = (known.sum(axis=1) < 2) | (least == most)
    return {
        "zero_share": float(silent.mean()),
        "mean_reward": float(groups[known].mean()) if known.any() else math.nan,
        "solved_never": float((some & (most <= bounds[0])).mean()),
        "solved_always": float((some & (least >= bounds[1])).mean()),
    }


class GroupSignalCallback(TrainerCallback):
    """Logs what this module's head lists, for TRL's ``GRPOTrainer`` and ``RLOOTrainer``.

    Without ``every`` only the rewards of training are looked at. A sample is drawn with its own
    random numbers, so that the run is the same with it and without.

    Arguments:
        every: steps between samples that are scored; 0 for none. The first is made before the
            first step.
        task: the prompts to sample from, with their verifier; needed where ``every`` is set.
        prompts: how many of them, the first ones.
        rollouts: completions of each, at least 4.
        seed: of the sample.
        batch: completions drawn at a time.
        bounds: the least and the greatest reward possible, for the shares never and always solved.
        scores: arguments of :func:`ustat_pg.llm.scoring.score_pool`, such as ``parameters``. Unless
            told otherwise ``folds`` is 8, since their sums are held in memory, which is allowed as
            much as that function takes for a model of this size.

    Raises:
        InputError: ``every`` without a task, or numbers out of range.
    """

    def __init__(
        self,
        *,
        every: int = 0,
        task: Task | None = None,
        prompts: int = 16,
        rollouts: int = 16,
        seed: int = 0,
        batch: int = 64,
        bounds: tuple[float, float] = (0.0, 1.0),
        scores: Mapping[str, Any] | None = None,
    ) -> None:
        self.every = integer("every", every, 0)
        if self.every and task is None:
            raise InputError("every is set without a task: name the prompts that are sampled")
        self.rollouts = integer("rollouts", rollouts, 4)
        count = integer("prompts", prompts, 2)
        self.task = (
            None
            if task is None
            else Task(task.name, task.prompts[:count], task.verifier, task.max_new_tokens)
        )
        self.seed = integer("seed", seed, 0)
        self.batch = integer("batch", batch)
        self.bounds = bounds
        self.scores = {"folds": 8, **(scores or {})}
        self.group_size: int | None = None
        self._watching = False
        self._training = False
        self._waiting: dict[str, float] = {}
        self._said: set[str] = set()

    def _warn(self, what: str, why: object) -> None:
        """Say what is left out, once."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"{what}: {why}; the training goes on", MonitorWarning, stacklevel=4)

    def watched(self, reward: Callable[..., Any]) -> Callable[..., Any]:
        """The reward function, its rewards looked at as they come; give this one to the trainer.

        With several reward functions watch the one that matters, or their sum as one function.
        With several processes the groups of all are put together.

        Arguments:
            reward: of TRL's kind, not asynchronous.
        """
        if self._watching:
            raise InputError("this callback watches a reward function already: make another")
        self._watching = True

        @wraps(reward)
        def watching(*args: Any, **kwargs: Any) -> Any:
            found = reward(*args, **kwargs)
            # During evaluation groups have another size and no step is made of them.
            if self.group_size is not None and self._training:
                try:
                    signal = self._signal(self._numbers(found))
                except InputError as error:
                    self._warn("a step's rewards are not counted", error)
                    return found
                for name, value in signal.items():
                    if math.isfinite(value):
                        self._note(f"signal/{name}", value, kwargs.get("log_metric"))
            return found

        return watching

    def _numbers(self, found: Iterable[Any]) -> list[float]:
        """Rewards, NaN where none was given; what is no number is left to the trainer to refuse."""
        values = []
        for value in found:
            try:
                values.append(math.nan if value is None else float(value))
            except (TypeError, ValueError):
                self._warn("a reward is taken as missing", f"it is {value!r:.80}, no number")
                values.append(math.nan)
        return values

    def _signal(self, values: Sequence[float]) -> dict[str, float]:
        from accelerate.utils import gather_object

        assert self.group_size is not None
        # In the order of the processes, which is TRL's own when it makes groups.
        return group_signal(gather_object(list(values)), self.group_size, self.bounds)

    def _note(self, name: str, value: float, log_metric: Callable[..., Any] | None) -> None:
        # TRL's own channel reaches every reporter; where it is not there, on_log adds the value.
        if log_metric is None:
            self._waiting[name] = value
        else:
            log_metric(name, value)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Learn the group size, and see that rewards are watched."""
        size = getattr(args, "num_generations", None)
        if size is None:
            self._warn(
                "nothing is monitored",
                "the trainer's arguments have no num_generations: this callback is for TRL's "
                "GRPOTrainer and RLOOTrainer",
            )
            return
        if not self._watching:
            self._warn(
                "rewards are not counted",
                "no reward function is watched: give the trainer callback.watched(reward) in "
                "place of reward",
            )
        self.group_size = int(size)
        self._training = True
        if self.every and state.global_step == 0:
            self._sample(kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Rewards after training are not of a step."""
        self._training = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score a sample, where it is time."""
        if self._training and self.every and state.global_step % self.every == 0:
            self._sample(kwargs)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add what waits to the record of this step."""
        # The last record of a run is a summary without a loss.
        if logs is None or "loss" not in logs:
            return
        logs.update(self._waiting)
        if state.log_history:
            state.log_history[-1].update(self._waiting)
        self._waiting = {}

    def _sample(self, given: Mapping[str, Any]) -> None:
        from accelerate import PartialState

        # The others wait for the main process at their next common operation.
        if not PartialState().is_main_process:
            return
        assert self.group_size is not None
        try:
            found = self.moments(given["model"], given["processing_class"], self.group_size)
        # Whatever it is: hours of training are worth more than a record of them.
        except Exception as error:
            self._warn(
                "no sample is scored at a step", f"{type(error).__name__}: {error}".rstrip(".")
            )
            return
        for name, value in found.items():
            if math.isfinite(value):
                self._waiting[f"moments/{name}"] = value

    def _room(self) -> dict[str, Any]:
        """What the scores need of memory depends on."""
        needed = ("parameters", "memory", "method", "folds", "out", "disk")
        return {name: self.scores[name] for name in needed if name in self.scores}

    def moments(self, model: Any, tokenizer: Any, group_size: int) -> dict[str, float]:
        """Constants, best group size and predicted MSE of the current policy from a small pool.

        Arguments:
            model: the policy; its mode, training or not, is kept.
            tokenizer: its tokenizer.
            group_size: G of the predicted MSE.

        Raises:
            InputError: no task, too little memory, or what sampling and scoring refuse. Within a
                training it becomes a :class:`MonitorWarning`.
        """
        import torch
        from accelerate.utils import extract_model_from_parallel

        from .estimates import constants, curves
        from .rollouts import sample
        from .scoring import check_memory, score_pool

        if self.task is None:
            raise InputError("there is no task to sample from: give one to the callback")
        inner = extract_model_from_parallel(model)
        training, device = inner.training, next(inner.parameters()).device
        context = getattr(
            inner.config.get_text_config(), "max_position_embeddings", tokenizer.model_max_length
        )
        language_model = LanguageModel(inner, tokenizer, "policy", str(device), int(context))
        devices = [device] if device.type == "cuda" else []
        inner.eval()
        try:
            with torch.random.fork_rng(devices), torch.enable_grad(), warnings.catch_warnings():
                # Of verifiers that raise: their prompts are left out, the run's own log counts them.
                warnings.simplefilter("ignore")
                # Before the sample is paid for.
                check_memory(language_model, len(self.task.prompts), **self._room())
                pools = sample(
                    language_model, self.task, self.rollouts, seed=self.seed, batch=self.batch
                )
                if len(pools) < 2:
                    return {}
                pool = score_pool(language_model, pools, **self.scores)
        finally:
            inner.train(training)
        known = constants(pool)
        low, high = known.g_star_interval()
        best = known.g_star_exact
        found = {
            "c1": known.c1,
            "c2": known.c2,
            "c3": known.c3,
            "g_star": math.nan if best is None else best,
            "g_star_low": low,
            "g_star_high": high,
        }
        table = curves(pool, [group_size], ["vanilla", "grpo", "oracle"])
        return found | {
            f"mse_{name}": float(value)
            for name, value in zip(table["baseline"], table["mse"], strict=True)
        }

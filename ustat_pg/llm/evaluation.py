"""Held-out prompts, evaluated by TRL itself, with draws that are not those of training.

TRL samples an evaluation as it samples training: from ``transformers`` or vLLM, at the training's
temperature, by the global generator. :class:`HeldOut` puts that generator back afterwards, so that a
run's training does not depend on when it is evaluated. With ``transformers`` each batch has a seed of
its own too: runs of one seed, batch and number of processes are evaluated with the same draws. An engine
of vLLM that draws by another generator goes on with it, in training too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from scipy.stats import sem

__all__ = ["HeldOut", "Watched"]


class HeldOut:
    """What a trainer of TRL is mixed with, for evaluations with draws of their own.

    ``greedy`` takes the most probable token each time, with ``transformers`` and with vLLM.
    """

    greedy = False

    def evaluate(self, *arguments: Any, **keywords: Any) -> Any:
        trainer: Any = super()
        self._batches = 0
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices), _most_probable(self, self.greedy):
            return trainer.evaluate(*arguments, **keywords)

    def prediction_step(self, *arguments: Any, **keywords: Any) -> Any:
        trainer: Any = self
        if not trainer.use_vllm:  # whose processes share a generator where they share a model
            place = (trainer.args.seed, trainer.state.global_step, self._batches)
            seed = np.random.SeedSequence([*place, trainer.args.process_index])
            torch.manual_seed(int(seed.generate_state(1)[0]))
        self._batches += 1
        inner: Any = super()
        return inner.prediction_step(*arguments, **keywords)


@contextmanager
def _most_probable(trainer: Any, greedy: bool) -> Iterator[None]:
    """The trainer's generation without sampling, for a while."""
    if not greedy:
        yield
        return
    name = "temperature" if trainer.use_vllm else "generation_config"
    holder = trainer.vllm_generation if trainer.use_vllm else trainer
    sampled = getattr(holder, name)
    plain: Any = 0.0
    if not trainer.use_vllm:
        plain = copy(sampled)
        plain.do_sample = False
    setattr(holder, name, plain)
    try:
        yield
    finally:
        setattr(holder, name, sampled)


class Watched:
    """A reward function of TRL that keeps what a run's records take from its rewards.

    Attributes:
        seen: the least and the greatest reward in training so far, or nothing.

    Arguments:
        reward: the reward function; rows with a true column ``held_out`` are evaluated.
        samples: of each held-out prompt; what else of it comes has filled up a last batch.
        seen: of the steps before.
    """

    __name__ = "verifier"

    def __init__(self, reward: Callable[..., Any], samples: int, seen: list[float]) -> None:
        self.reward, self.samples, self.seen = reward, samples, seen
        self._held: dict[str, list[float | None]] = {}

    def __call__(self, **columns: Any) -> Any:
        found = self.reward(**columns)
        pairs = gather_object(list(zip(columns["prompt_id"], found, strict=True)))
        if columns.get("held_out", [False])[0]:
            for name, value in pairs:
                self._held.setdefault(name, []).append(value)
        elif known := [value for _, value in pairs if value is not None]:
            self.seen[:] = min([*self.seen, *known]), max([*self.seen, *known])
        return found

    def evaluation(self) -> dict[str, Any]:
        """The evaluation that has ended: accuracy, se over prompts, n prompts and failures.

        The accuracy is the mean reward, which for a verifier of 0 and 1 is the share of right
        answers; prompts at which the verifier raised are not counted, but as failures.
        """
        kept = [values[: self.samples] for values in self._held.values()]
        means = [np.mean(values) for values in kept if None not in values]  # type: ignore[arg-type]
        self._held.clear()
        return {
            "accuracy": float(np.mean(means)) if means else math.nan,
            "se": float(sem(means)) if len(means) > 1 else math.nan,
            "n": len(means),
            "failures": len(kept) - len(means),
        }

"""A run that a monitor watches, and the same estimate from what each backward pass accumulated."""

import numpy as np
import torch
from transformers import Trainer, TrainerCallback

from tests.support.models import fresh
from tests.support.trainers import trl_trainer
from ustat_pg.llm import NoiseMonitor
from ustat_pg.noise.estimate import estimate_noise, step_sums

WHOLE = 10**8
"""Numbers of a sketch that keeps all of a small model's gradient."""


class Seen(TrainerCallback):
    """Gradients by differences of what is accumulated, and the prompts of each micro-batch."""

    def __init__(self):
        self.steps, self.rows, self.prompts, self.whole = [], [], [], []
        self.batches = []
        self.leave_one_out = True
        self.total = 0.0

    def on_substep_end(self, args, state, control, model=None, **_):
        grads = [p.grad for p in model.parameters() if p.requires_grad]
        total = torch.cat([g.double().flatten() for g in grads]).numpy().copy()
        self.rows.append(total - self.total)
        self.total = total

    def on_pre_optimizer_step(self, args, state, control, **given):
        self.on_substep_end(args, state, control, **given)
        rows, prompts = np.array(self.rows), self.prompts
        rows = rows * sum(map(len, prompts))
        self.whole.append(rows.sum(0))
        self.steps.append(step_sums(rows @ rows.T, prompts, leave_one_out=self.leave_one_out))
        self.batches += prompts
        self.rows, self.prompts, self.total = [], [], 0.0


def watched(
    small, task, folder, *, name="rloo", monitor=None, callbacks=(), train=Trainer.train, named=None,
    **settings,
):  # fmt: skip
    """The monitor, the trainer, and what was seen by hand; ``named`` makes names of prompts and inputs."""
    plain = {"max_steps": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-12}
    monitor, seen = monitor or NoiseMonitor(3, sketch=WHOLE), Seen()
    seen.population = len(task.prompts)
    trainer = trl_trainer(
        fresh(small),
        task,
        folder,
        name,
        callbacks=[monitor, seen, *callbacks],
        **(plain | settings),
    )
    compute = trainer.compute_loss

    def computing(model, inputs, *given, **others):
        names = np.array([
            hash(tuple(row[mask.bool()].tolist()))
            for row, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)
        ])  # fmt: skip
        if named is not None:
            names = named(names, inputs)
        seen.prompts.append(names)
        return compute(model, inputs, *given, **others)

    trainer.compute_loss = computing
    train(trainer)
    return monitor, trainer, seen


def by_hand(seen, **options):
    """TRL passes over the task's prompts in shuffled epochs."""
    return estimate_noise(np.array(seen.steps), **({"population": seen.population} | options))

"""A run that monitors watch, and the same estimate from gradients by plain autograd."""

from __future__ import annotations

import copy

import numpy as np
from accelerate.utils import gather_object

from tests.support.models import fresh, output_by_hand
from tests.support.trainers import trl_trainer
from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.monitor import estimate_noise, step_sums

BLOCKS = 2


def watched(small, task, folder, *, name="rloo", seeds=1, phi_over_tau=1.0, **settings):
    """Monitors with other sketches that all watch a run, the trainer, and its micro-batches.

    Of each micro-batch: its advantages, and the prompt and completion of each output, as they came to
    the loss.
    """
    plain = {"max_steps": BLOCKS, "per_device_train_batch_size": 4, "learning_rate": 1e-12}
    trainer = trl_trainer(fresh(small), task, folder, name, **(plain | settings))
    monitors = [
        NoiseMonitor(BLOCKS, blocks=BLOCKS, seed=seed, phi_over_tau=phi_over_tau).watch(trainer)
        for seed in range(seeds)
    ]
    seen, loss = [], trainer._compute_loss

    def computing(model, inputs):
        kept = [
            [
                tuple(row[mask.bool()].tolist())
                for row, mask in zip(
                    *(inputs[f"{part}_{kind}"] for kind in ("ids", "mask")), strict=True
                )
            ]
            for part in ("prompt", "completion")
        ]
        seen.append((inputs["advantages"].tolist(), *kept))
        return loss(model, inputs)

    trainer._compute_loss = computing
    trainer.train()
    return monitors, trainer, seen


def by_hand(small, seen, *, steps=BLOCKS, group_size=4):
    """The estimate from all processes' micro-batches, each gradient a sum of scores by autograd."""
    model = copy.deepcopy(small.model).double()
    everything = gather_object([seen])
    sums = []
    for step in range(steps):
        terms, groups = [], []
        for own in everything:
            count = len(own) // steps
            for advantages, prompts, outputs in own[step * count : (step + 1) * count]:
                scores = [
                    output_by_hand(model, *each)[1] for each in zip(prompts, outputs, strict=True)
                ]
                terms.append(np.array(advantages) @ np.array(scores))
                groups.append([hash(prompt) for prompt in prompts])
        h = np.array(terms)
        sums.append(step_sums(h @ h.T, np.array(groups)))
    return estimate_noise(np.array(sums), group_size, blocks=BLOCKS)


NAMES = ("c1", "c2", "c3", "gradient_sq")


def distance(monitors, wanted):
    """How far the mean over sketches is off, in standard errors of that mean, by name."""
    found = np.array([[getattr(m.estimate(), name) for name in NAMES] for m in monitors])
    off = found.mean(0) - [getattr(wanted, name) for name in NAMES]
    errors = found.std(0, ddof=1) / np.sqrt(len(monitors))
    return dict(zip(NAMES, (off / errors).tolist(), strict=True)), errors

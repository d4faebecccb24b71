"""What tests of trainers share: a verifier, copies of a model, and scores by plain autograd."""

from __future__ import annotations

import copy

import numpy as np
import torch
from accelerate.utils import gather_object

from tests.support.models import fresh, output_by_hand
from ustat_pg import estimators
from ustat_pg.llm.trainers import build_trainer
from ustat_pg.llm.training import Training

LONGEST = 6


def letters(*, completions, **columns):
    """Between 0 and 1, and seldom equal within a group."""
    return [sum(c in "0123456" for c in text) / LONGEST + 0.3 for text in completions]


def flat(model):
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def gradient(scores, advantages):
    return (scores * advantages.reshape(-1, 1)).mean(0)


def advantages(name, rewards, weights):
    """The advantages that the trainer of this name computes."""
    if name in weights:
        return estimators.norm_weighted(rewards, squared_norms=weights[name])
    return (estimators.vanilla if name == "vanilla" else estimators.grpo)(rewards)


def one_step(small, task, folder, name, *, group_size=4, micro_batch=16, processes=1):
    """The parameters' change in one step, over the rate; and what the completions' scores say.

    Returns:
        (d,) change, (K, d) scores, (B, G) rewards, weights of each kind (B, G), the trainer.
    """
    trained = fresh(small)
    trained.model.double()
    reference, rate = copy.deepcopy(trained.model), 0.5
    words = {"max_new_tokens": LONGEST, "micro_batch": micro_batch, "processes": processes}
    training = Training(group_size, 16, 1, rate, trainer=name, **words)
    seen = {}
    trainer = build_trainer(training, trained, task, folder)
    inner = trainer._calculate_rewards

    def watch(inputs, prompts, completions, completion_ids):
        seen["rewards"] = inner(inputs, prompts, completions, completion_ids)
        seen["ids"] = gather_object([list(ids) for ids in completion_ids])
        seen["prompts"] = gather_object([small.tokenizer(text)["input_ids"] for text in prompts])
        return seen["rewards"]

    trainer._calculate_rewards = watch
    before = flat(trained.model)
    trainer.train()
    change = (flat(trained.model) - before) / rate
    outputs = zip(seen["prompts"], seen["ids"], strict=True)
    _, scores, proxies = zip(*(output_by_hand(reference, *each) for each in outputs), strict=True)
    scores = torch.tensor(np.array(scores))
    weights = {
        "norm-weighted": scores.square().sum(1),
        "length-weighted": torch.tensor([float(len(ids)) for ids in seen["ids"]]).double(),
        "token-weighted": torch.tensor(proxies).double(),
    }
    shape = (-1, group_size)
    weights = {kind: weight.reshape(shape) for kind, weight in weights.items()}
    return change, scores, seen["rewards"][:, 0].double().reshape(shape), weights, trainer

"""What tests of trainers share: TRL's trainers, a verifier, and scores by plain autograd."""

import copy
import os

import numpy as np
import torch
from accelerate.utils import gather_object
from trl import GRPOConfig

from tests.support.models import fresh, output_by_hand
from ustat_pg import estimators
from ustat_pg.llm import EstimatorTrainer
from ustat_pg.llm.trl.training import PLAIN, dataset, trainer_class

LONGEST = 6

_UNSCALED = {"scale_rewards": "none"}
SETTINGS = {
    "grpo-corrected": {"loss_type": "luspo"} | _UNSCALED,
    "dr-grpo": {"loss_type": "dr_grpo"} | _UNSCALED,
}
"""Settings of trainers by name that are not plain."""


def trl_trainer(model, task, folder, name="rloo", *, budget=16, callbacks=(), **settings):
    """The trainer of a name, of :func:`ustat_pg.llm.trl.training.trainer_class`, ``dr-grpo`` or
    ``grpo-stock``; by default one step of 4 prompts with 4 completions each.

    Arguments:
        model: a LanguageModel, which is trained in place.
        task: prompts and verifier.
        folder: TRL's output folder.
        name: of the trainer.
        budget: completions of one step, over all processes.
        callbacks: of transformers' kind.
        settings: TRL's, before those of ``PLAIN``.
    """
    made, configuration, more = trainer_class(
        "trl-grpo" if name in ("dr-grpo", "grpo-stock") else name
    )
    if "loss_type" in settings and made is EstimatorTrainer:
        configuration, settings = GRPOConfig, {**_UNSCALED, **settings}
    settings = {
        **PLAIN, "eval_strategy": "no", "eval_on_start": False, "use_cpu": True, "max_steps": 1,
        "learning_rate": 0.5, "num_generations": 4, "per_device_train_batch_size": budget,
        "max_completion_length": LONGEST, "seed": 0,
        **SETTINGS.get(name, {}), **settings,
    }  # fmt: skip
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    micro_batch = settings["per_device_train_batch_size"]
    args = configuration(
        str(folder),
        **({"gradient_accumulation_steps": budget // (micro_batch * processes)} | settings),
    )
    return made(
        model=model.model,
        reward_funcs=task.verifier,
        args=args,
        train_dataset=dataset(task),
        processing_class=model.tokenizer,
        callbacks=list(callbacks),
        **more,
    )


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


def one_step(small, task, folder, name, *, num_generations=4, **settings):
    """The parameters' change in one step, over the rate; and what the completions' scores say.

    Returns:
        (d,) change, (K, d) scores, (B, G) rewards, weights of each kind (B, G), the trainer.
    """
    trained = fresh(small)
    trained.model.double()
    reference, rate = copy.deepcopy(trained.model), 0.5
    seen = {}
    trainer = trl_trainer(
        trained, task, folder, name, num_generations=num_generations, learning_rate=rate, **settings
    )
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
    shape = (-1, num_generations)
    weights = {kind: weight.reshape(shape) for kind, weight in weights.items()}
    return change, scores, seen["rewards"][:, 0].double().reshape(shape), weights, trainer

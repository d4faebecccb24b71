"""ART's own advantages, by the functions that make its training data, and its own loss."""

import math
import random
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, Literal

import torch

from .losses import typed
from .record import part

FUNCTION = "art.preprocessing.tokenize.tokenize_trajectory_groups"
LOSS = "art.loss.loss_fn"
TRIED = {
    "max_negative_advantage_importance_sampling_weight": "1.25",
    "truncated_importance_sampling": "1.25",
}

ANNOTATIONS = {
    "Any": Any,
    "Literal": Literal,
    "torch": torch,
    "TrajectoryGroup": list,
    "Generator": dict,
    "BaseImageProcessor": Any,
    "ChatTemplateToolSchemaFormat": str,
    "TokenizedResult": Any,
    "PackedTensors": dict,
    "Verbosity": int,
    "Reduction": str,
    "Loss": SimpleNamespace,
    "dev": SimpleNamespace(TrainConfig=dict),
}
of_tokens = part(
    "art/preprocessing/tokenize.py",
    "tokenize_trajectory_groups",
    **ANNOTATIONS,
    math=math,
    random=random,
    takewhile=takewhile,
    History=SimpleNamespace,
    tokenize_trajectory=lambda *given, **_: tokenized(given[3], 1),
)
of_tinker = part("art/tinker_native/data.py", "compute_advantages", **ANNOTATIONS)
packing = part(
    "art/preprocessing/pack.py",
    "packed_tensors_from_tokenized_results",
    **ANNOTATIONS,
    random=random,
    cast=lambda _, value: value,
)
own = part(
    "art/loss.py",
    *("loss_fn", "shift_tensor"),
    **part("art/utils/group_aggregate.py", "group_aggregate", **ANNOTATIONS),
)
configs = part(
    "art/_backend_training.py", "build_rl_train_configs", **ANNOTATIONS, TrainConfig=SimpleNamespace
)


def tokenized(advantage, length, logprobs=None):
    """A trajectory with a prompt of one token, and no token in common with others."""
    result = SimpleNamespace(
        advantage=advantage,
        token_ids=[0] * (1 + length),
        logprobs=[math.nan, *([-0.5] * length if logprobs is None else logprobs)],
        assistant_mask=[0] + [1] * length,
        input_pos=[*range(1 + length)],
        pixel_values=None,
        image_grid_thw=None,
        prompt_id=0,
        prompt_length=0,
    )
    result.without_prompt = lambda: result
    return result


def advantages(options, batch):
    divides = options["normalize_advantages"] == "true"
    if options["backend"] == "tinker_native":
        return [of_tinker["compute_advantages"](group, divides) for group in batch]
    groups = [
        [
            SimpleNamespace(
                reward=float(each), messages_and_choices=[], tools=None, additional_histories=[]
            )
            for each in group
        ]
        for group in batch
    ]
    results = of_tokens["tokenize_trajectory_groups"](
        None,
        groups,
        False,
        # As by LocalBackend.train.
        options["scale_rewards"] == "true" and divides,
        shuffle_group_trajectories=False,
        drop_zero_advantage_trajectories=False,
    )
    return [[next(results).advantage for _ in group] for group in batch]


CHOSEN = (
    *("epsilon", "epsilon_high", "importance_sampling_level", "mask_prob_ratio", "kimi_k2_tau"),
    *("max_negative_advantage_importance_sampling_weight", "truncated_importance_sampling"),
)


def loss(options, rollouts):
    """As of one packed sequence with all outputs; the factor of the whole call is taken out."""
    lengths = rollouts.lengths
    old = rollouts.apart("old")
    results = [
        tokenized(float(each), length, row.tolist())
        for each, length, row in zip(rollouts.advantages, lengths, old, strict=True)
    ]
    for place, result in enumerate(results):
        result.prompt_id, result.weight = place, 1 / sum(result.assistant_mask)
    width = sum(lengths) + len(lengths)
    inputs = packing["packed_tensors_from_tokenized_results"](results, width)
    inputs["advantages"] *= rollouts.advantages.abs().mean()
    inputs["original_logprobs"] = 0 * inputs["logprobs"]
    mask = inputs["assistant_mask"]
    inputs["original_logprobs"][mask] = torch.cat(rollouts.apart("sampler"))
    # The number at a place is that of the next token.
    new = torch.zeros(1, width)
    new[:, :-1][mask[:, 1:]] = torch.cat(rollouts.apart("own"))
    _, config = configs["build_rl_train_configs"](
        learning_rate=1.0,
        ppo=options["loss_fn"] == "ppo" or options["ppo"] == "true",
        **{name: typed(options[name]) for name in CHOSEN},
    )
    return own["loss_fn"](inputs, new, None, None, config).policy_loss

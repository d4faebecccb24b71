"""PipelineRL's own advantages, by the function that fills its training data, and the lines of its loss."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from .losses import under
from .record import Refused, part, passage

FUNCTION = "pipelinerl.finetune.rl.populate_rl_data"
LOSS = "pipelinerl.finetune.rl.rl_step"
RL = "finetune.rl."
FILE = "pipelinerl/finetune/rl/__init__.py"

filled = part(FILE, "populate_rl_data", Any=Any, RLConfig=Any, np=np, pd=pd)
filters = part("pipelinerl/preprocess.py", "filter_zero_advantage_groups")
known = part(FILE, "linear_decay_coef", torch=torch)
known |= part(
    "pipelinerl/finetune/rl/utils.py",
    *("sum_sum", "mask_sum", "per_segment_sums"),
    torch=torch,
    Optional=list,
)
LINES = passage(
    FILE,
    "# get shifted values and compute ratios",
    "policy_loss_total = -sum_sum(loss, masks_shifted, segments)",
)


def advantages(options, batch):
    if options[f"{RL}use_advantages"] == "false":
        raise Refused("its loss takes the rewards instead")
    rest = iter(data_of(options, batch))
    return [[next(rest)["advantages"][0] for _ in group] for group in batch]


def data_of(options, batch):
    """Its training data of these rewards: an entry for each output, of one step."""
    entries = [
        {
            "group_id": str(place),
            "rollout_index": index,
            "step_index": 0,
            "rewards": [float(reward)] * 2,
            "input_ids": [1, 1],
            "labels": [-100, 1],
            "overflow": [0, 0],
            "advantages": [0.0] * 2,
            "group_tokens": [0] * 2,
        }
        for place, group in enumerate(batch)
        for index, reward in enumerate(group)
    ]
    divides = options[f"{RL}divide_advantage_by_std"] == "true"
    config = SimpleNamespace(divide_advantage_by_std=divides)
    return filled["populate_rl_data"](entries, eos_token_id=1, config=config)


def loss(options, rollouts):
    """The packed rows of one step are summed."""
    values = under(RL, options)
    config = SimpleNamespace(
        **{**values, "relu_log_p_weights": bool(values["relu_log_p_weights"])},
        batch_size=len(rollouts.mask),
        final_kl_coef=values["kl_coef"],
        final_entropy_bonus=values["entropy_bonus"],
        clamp_log_ratio_ref_new_value=5,
    )
    return sum(of_row(config, each) for each in rollouts.micro_batches())


def of_row(config, rollouts):
    """The loss of outputs that are packed into one row, each behind a prompt of one token."""
    ends = np.cumsum([1 + length for length in rollouts.lengths])
    segments = [*zip([0, *ends[:-1]], ends, strict=True)]
    mask = torch.cat([torch.tensor([0.0] + [1.0] * length) for length in rollouts.lengths])[None]

    def row(values):
        packed = torch.zeros_like(mask)
        packed[mask > 0] = torch.cat(values)
        return packed

    each = [
        advantage.expand(n)
        for advantage, n in zip(rollouts.advantages, rollouts.lengths, strict=True)
    ]
    cut = [
        truncated.expand(n)
        for truncated, n in zip(rollouts.truncated, rollouts.lengths, strict=True)
    ]
    batch = SimpleNamespace(
        rewards=row(each),
        advantages=row(each),
        ref_logprobs=row(rollouts.apart("reference")),
        old_logprobs=row(rollouts.apart("old")),
        group_tokens=torch.ones_like(mask),
        num_labels=torch.ones_like(mask),
        overflow=row(cut),
        segment_ids=torch.cat(
            [torch.full((1 + length,), place) for place, length in enumerate(rollouts.lengths)]
        )[None],
        sentinel=False,
    )
    scope = {
        **known,
        "batch": batch,
        "config": config,
        "segments": segments,
        "masks_shifted": mask[:, 1:] > 0,
        "new_logprobs": row(rollouts.apart("own"))[:, 1:],
        "entropy": row(rollouts.apart("entropies"))[:, 1:],
        "use_entropy_loss": config.entropy_bonus != 0,
        "has_value_head": False,
        "seq_parallel_group": None,
        "current_step": 0,
        "max_step": 1,
    }
    exec(LINES, scope)
    return scope["policy_loss_total"]


def kept(options, groups):
    entries = data_of(options, groups)
    if options[f"{RL}filter_zero_advantage_groups"] == "true":
        entries, _ = filters["filter_zero_advantage_groups"](entries)
    return [str(i) in {each["group_id"] for each in entries} for i in range(len(groups))]

"""open-instruct's own advantages, by the lines of its data preparation that work them out."""

from types import SimpleNamespace

import numpy as np
import torch

from .record import part, passage, size_of

FUNCTION = "open_instruct.data_loader.DataPreparationActor._data_preparation_loop"
LOSS = "open_instruct.grpo_utils.compute_grpo_loss, open_instruct.grpo_fast.PolicyTrainerRayProcess.step"
TRIED = {"clip_higher": "0.1"}

LINES = compile(
    passage(
        "open_instruct/data_loader.py",
        "scores_per_prompt = scores.reshape",
        'raise ValueError(f"Invalid advantage',
    ),
    FUNCTION,
    "exec",
)


def advantages(options, batch):
    size = size_of(batch)
    config = SimpleNamespace(
        num_samples_per_prompt_rollout=size,
        advantage_normalization_type=options["advantage_normalization_type"],
    )
    names = {"np": np, "scores": np.concatenate(batch), "self": SimpleNamespace(config=config)}
    exec(LINES, names)
    return names["advantages"].reshape(-1, size).tolist()


REDUCTION = passage(
    "open_instruct/grpo_fast.py", "per_token_loss_BT = pg_loss_BT +", "loss = masked_mean("
)


def loss(options, rollouts):
    """As of one accumulation group on one rank; the engine that sampled is the old policy."""
    known = part("open_instruct/rl_utils.py", "masked_mean", torch=torch)
    known |= part("open_instruct/model_utils.py", "estimate_kl", torch=torch)
    scope = {
        "torch": torch,
        "GRPOLossType": SimpleNamespace(dapo="dapo", cispo="cispo"),
        "model_utils": SimpleNamespace(estimate_kl=known["estimate_kl"]),
    }
    known |= part("open_instruct/grpo_utils.py", "compute_grpo_loss", **scope)
    forms = {"k1": 0, "k2": 1, "k3": 2, "k1×": 3}
    config = SimpleNamespace(
        loss_fn="dapo",
        clip_lower=float(options["clip_lower"]),
        clip_higher=float(options["clip_higher"]),
        kl_estimator=forms[options["kl_estimator"]],
        beta=float(options["beta"]),
    )
    divisor = options["loss_denominator"]
    total = 0.0
    for each in rollouts.micro_batches():
        ratio = torch.exp(each.own - each.old)
        policy, _, kl = known["compute_grpo_loss"](
            each.own,
            ratio,
            each.advantages[:, None] + 0 * each.mask,
            each.reference,
            config,
            torch.ones_like(each.mask),
        )
        names = {
            **known,
            "pg_loss_BT": policy,
            "kl_BT": kl,
            "response_mask_BT": each.mask,
            "loss_denominator": rollouts.mask.sum() if divisor == "token" else float(divisor),
            "self": SimpleNamespace(args=config),
        }
        exec(REDUCTION, names)
        total = total + names["loss"]
    return total

"""EasyR1's own advantages, by the function that its trainer calls."""

from types import SimpleNamespace

import numpy as np
import torch

from .record import Refused, foreign, padded, part, passage

FUNCTION = "verl.trainer.ray_trainer.compute_advantage"
LOSS = "verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy"
TRIED = {"worker.actor.clip_ratio_dual": "1.5"}

trainer = foreign("verl.trainer.ray_trainer", "verl.workers.fsdp_workers")


def advantages(options, batch):
    name = options["algorithm.adv_estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    sizes = [len(group) for group in batch]
    rewards, mask = padded(batch)
    index = np.repeat(np.arange(len(batch)).astype(str), sizes).astype(object)
    data = SimpleNamespace(
        batch={"token_level_rewards": rewards, "response_mask": mask},
        non_tensor_batch={"uid": index},
    )
    if name == "remax":
        data.batch["reward_baselines"] = torch.full((len(rewards),), 0.25)
    try:
        trainer.compute_advantage(data, name)
    except (AssertionError, RuntimeError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    return [part.tolist() for part in data.batch["advantages"][:, 0].split(sizes)]


LINES = passage(
    "verl/workers/actor/dp_actor.py",
    "pg_loss, pg_metrics = compute_policy_loss(",
    "loss = loss * torch.sum(response_mask)",
)
FORMS = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
functions = SimpleNamespace(
    **part("verl/utils/torch_functional.py", "masked_mean", torch=torch, np=np)
)
core = part(
    "verl/trainer/core_algos.py",
    *("average_loss", "compute_policy_loss", "compute_kl"),
    torch=torch,
    np=np,
    VF=functions,
)


def loss(options, rollouts):
    """As of one rank."""
    actor = "worker.actor."
    config = SimpleNamespace(
        **{
            name: float(options[actor + name])
            for name in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_dual")
        },
        tau_positive=1.0,
        tau_negative=1.05,
        loss_type=options[actor + "loss_type"],
        loss_avg_mode=options[actor + "loss_avg_mode"],
        use_kl_loss=options["algorithm.use_kl_loss"] == "true",
        kl_penalty=FORMS[options["algorithm.kl_penalty"]],
        kl_coef=float(options["algorithm.kl_coef"]),
    )
    references = {} if options["algorithm.disable_kl"] == "true" else {"ref_log_probs": None}
    total = 0.0
    for each in rollouts.micro_batches():
        names = {
            **core,
            "self": SimpleNamespace(config=config, world_size=1),
            "model_inputs": dict.fromkeys(references, each.reference),
            "metrics": {},
            "old_log_probs": each.old,
            "log_probs": each.own,
            "advantages": each.advantages[:, None] + 0 * each.mask,
            "response_mask": each.mask,
            "total_response_tokens": rollouts.mask.sum(),
        }
        exec(LINES, names)
        total = total + names["loss"]
    return total


def penalised(options, rollouts):
    flags = [options[f"algorithm.{name}"] == "true" for name in ("disable_kl", "use_kl_loss")]
    if any(flags):
        return 0 * rollouts.mask
    known = part("verl/trainer/ray_trainer.py", "apply_kl_penalty", **core)
    batch = {
        "token_level_scores": 0 * rollouts.mask,
        "response_mask": rollouts.mask,
        "old_log_probs": rollouts.old,
        "ref_log_probs": rollouts.reference,
    }
    shape = {"batch_size": [len(rollouts.mask)]}
    data = SimpleNamespace(batch=type("Batch", (dict,), shape)(batch))
    control = SimpleNamespace(kl_coef=float(options["algorithm.kl_coef"]), update=lambda **_: None)
    known["apply_kl_penalty"](data, control, FORMS[options["algorithm.kl_penalty"]])
    return data.batch["token_level_rewards"]

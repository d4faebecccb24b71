"""ROLL's own advantages: its rewards after normalisation, then its advantages."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from .record import Refused, flat, foreign, part, size_of

FUNCTION = "roll.utils.functionals.compute_advantage"
LOSS = "roll.pipeline.rlvr.actor_worker.ActorWorker.loss_func"

module = foreign("roll.utils.functionals")


def advantages(options, batch):
    name = options["adv_estimator"]
    if name in ("gae", "gigpo", "step_reinforce"):
        raise Refused("a critic's values, or an agent's steps, are wanted")
    norms = [options[key] for key in ("norm_mean_type", "norm_std_type")]
    if "running" in norms:
        raise Refused("statistics of earlier steps are wanted")
    size = size_of(batch)
    mean, std = (None if norm == "none" else norm for norm in norms)
    configuration = SimpleNamespace(
        adv_estimator=name,
        norm_mean_type=mean,
        norm_std_type=std,
        reward_clip=None,
        actor_infer=SimpleNamespace(generating_args=SimpleNamespace(num_return_sequences=size)),
    )
    rewards, tokens, mask = flat(batch)
    data = SimpleNamespace(batch={"response_level_rewards": rewards}, meta_info={})
    try:
        module.reward_postprocess(data, configuration, {})
        spread = torch.zeros_like(mask)
        spread[torch.arange(len(tokens)), tokens - 1] = data.batch["response_level_rewards"]
        data.batch["token_level_rewards"] = spread
        module.compute_advantage(
            data,
            1.0,
            1.0,
            name,
            whiten_advantages=options["whiten_advantages"] == "true",
            response_mask=mask,
        )
    except (RuntimeError, IndexError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    return [part.tolist() for part in data.batch["advantages"][:, 0].split(size)]


def loss(options, rollouts):
    """As of the step's micro-batches on one rank, each divided by what the whole step has."""
    worker = part(
        "roll/pipeline/rlvr/actor_worker.py",
        *("loss_func", "compute_sample_weights"),
        **{**vars(module), "append_to_dict": MagicMock()},
    )
    numbers = ("pg_clip", "pg_clip_low", "pg_clip_high", "kl_loss_coef", "entropy_loss_coef")
    config = SimpleNamespace(
        **{name: float(options[name]) for name in numbers},
        use_pg_clip_range=options["use_pg_clip_range"] == "true",
        use_kl_loss=options["use_kl_loss"] == "true",
        loss_agg_mode=options["loss_agg_mode"],
        importance_sampling="token",
        dual_clip_loss=False,
        rl_loss_coef=1.0,
        enable_old_logprobs_recompute=True,
        train_infer_correction=SimpleNamespace(is_weight=SimpleNamespace(enabled=False)),
        difficulty_loss_weight=False,
        length_loss_weight=False,
    )
    total = 0.0
    for each in rollouts.micro_batches():
        made = MagicMock(pipeline_config=config)
        made.strategy.op_compute_log_probs = lambda each=each, **_: each.own
        made.strategy.op_compute_entropy = lambda each=each, **_: each.entropies
        made.get_old_log_probs_with_cache = lambda *_, each=each: each.old
        made.compute_sample_weights = lambda *given, made=made: worker["compute_sample_weights"](
            made, *given
        )
        data = SimpleNamespace(
            batch={
                "response_mask": torch.nn.functional.pad(each.mask, (1, 0)),
                "ref_log_probs": each.reference,
                "advantages": each.advantages[:, None] * each.mask,
                "input_ids": None,
                "train_infer_is_weight": None,
            },
            non_tensor_batch={},
            meta_info={
                "batch_num_tokens": {"response_mask": rollouts.mask.sum()},
                "global_valid_samples": {"response_mask": len(rollouts.mask)},
            },
        )
        total = total + worker["loss_func"](made, data, each.own)[0]
    return total

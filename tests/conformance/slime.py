"""slime's own advantages: its rewards as they reach the actor, then the actor's advantages."""

import sys
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed

from .losses import MICRO_BATCHES, typed
from .record import Refused, foreign, lengths

FUNCTION = "slime.backends.megatron_utils.loss.compute_advantages_and_returns"
LOSS = "slime.backends.megatron_utils.loss.loss_function"
TRIED = {"eps_clip_c": "1.5"}

# The process is the only one of all groups.
torch.distributed.all_reduce = lambda tensor, **_: None
ALONE = {
    "is_pipeline_last_stage": True,
    "get_context_parallel_world_size": 1,
    "get_context_parallel_rank": 0,
    "get_data_parallel_group": None,
    "get_data_parallel_world_size": 1,
}


@cache
def parts():
    """The module of rewards and that of losses."""
    loss = foreign(
        "slime.backends.megatron_utils.loss", "slime.backends.megatron_utils.megatron_patch"
    )
    for name, value in ALONE.items():
        setattr(loss.mpu, name, lambda value=value, **_: value)
    sys.modules["megatron.core"] = SimpleNamespace(mpu=loss.mpu)
    # A decorator of classes, which a stand-in would swallow.
    ray = sys.modules["ray"] = ModuleType("ray")
    ray.remote, ray.__path__, ray.__spec__ = (
        (lambda decorated: decorated),
        [],
        ModuleSpec("ray", None),
    )
    return foreign("slime.ray.rollout"), loss


def advantages(options, batch):
    rollout, loss = parts()
    args = arguments(options, batch)
    if args.advantage_estimator == "ppo":
        raise Refused("a critic's values are wanted")
    samples = [
        SimpleNamespace(get_reward_value=lambda _, value=float(each): value)
        for group in batch
        for each in group
    ]
    owner = SimpleNamespace(custom_reward_post_process_func=None, args=args)
    _, rewards = rollout.RolloutManager._post_process_rewards(owner, samples)
    return by_actor(loss, args, batch, rewards)


def arguments(options, batch):
    flag = {name: value == "true" for name, value in options.items()}
    return SimpleNamespace(
        advantage_estimator=options["advantage_estimator"],
        rewards_normalization=not flag["disable_rewards_normalization"],
        grpo_std_normalization=not flag["disable_grpo_std_normalization"],
        normalize_advantages=flag["normalize_advantages"],
        n_samples_per_prompt=len(batch[0]),
        rollout_batch_size=len(batch),
        use_rollout_logprobs=False,
        kl_coef=0.0,
        gamma=1.0,
        lambd=1.0,
        use_opd=False,
        opd_kl_coef=0.0,
        custom_advantage_function_path=None,
    )


def by_actor(module, args, batch, rewards):
    tokens = [each for group in lengths(batch) for each in group]
    data = {
        "log_probs": [torch.zeros(each) for each in tokens],
        "rewards": rewards,
        "response_lengths": tokens,
        "loss_masks": [torch.ones(each) for each in tokens],
        "total_lengths": [1 + each for each in tokens],
    }
    module.compute_advantages_and_returns(args, data)
    first = torch.stack([each[0] for each in data["advantages"]])
    return [part.tolist() for part in first.split([len(group) for group in batch])]


def loss(options, rollouts):
    """As Megatron divides it: by the tokens of the step where the loss hands them on, or by micro-batches."""
    module = parts()[1]
    module.get_sum_of_sample_mean.__globals__["mpu"] = module.mpu
    return by_function(module, loss_arguments(options), rollouts)


def loss_arguments(options):
    given = arguments({**options, "advantage_estimator": "grpo"}, [[0.0]])
    flag = {name: value == "true" for name, value in options.items()}
    low, high = options["eps_clip"], options["eps_clip_high"]
    given.__dict__.update(
        loss_type=options["loss_type"],
        calculate_per_token_loss=flag["calculate_per_token_loss"],
        eps_clip=float(low),
        eps_clip_high=float(low if high == "none" else high),
        eps_clip_c=typed(options.get("eps_clip_c", "none")),
        use_opsm=flag.get("use_opsm", False),
        opsm_delta=1e-4,
        use_rollout_logprobs=flag.get("use_rollout_logprobs", False),
        use_tis=flag.get("use_tis", False),
        get_mismatch_metrics=False,
        custom_tis_function_path=None,
        tis_clip_low=0.0,
        tis_clip=2.0,
        entropy_coef=float(options["entropy_coef"]),
        use_kl_loss=flag["use_kl_loss"],
        use_unbiased_kl=flag["use_unbiased_kl"],
        kl_loss_type=options["kl_loss_type"],
        kl_loss_coef=float(options["kl_loss_coef"]),
        recompute_loss_function=False,
        allgather_cp=False,
        rollout_top_p=1.0,
    )
    return given


def by_function(module, args, rollouts):
    total, tokens = 0.0, 0.0
    for made, batch in batches(rollouts):
        module.get_log_probs_and_entropy = lambda *_, made=made, **__: (None, made)
        loss, count, _ = module.loss_function(
            args, batch, MICRO_BATCHES, len(rollouts.own), rollouts.own
        )
        total, tokens = total + loss, tokens + count
    return divided(args, total, tokens)


def batches(rollouts):
    """What the model answers for each micro-batch, and the micro-batch itself."""
    for part in rollouts.micro_batches():
        made = {"log_probs": part.apart("own"), "entropy": part.apart("entropies")}
        yield (
            made,
            {
                "advantages": [
                    each + 0 * old
                    for each, old in zip(part.advantages, part.apart("old"), strict=True)
                ],
                "log_probs": part.apart("old"),
                "ref_log_probs": part.apart("reference"),
                "rollout_log_probs": part.apart("sampler"),
                "loss_masks": part.apart("mask"),
                "rollout_mask_sums": torch.tensor(part.lengths),
                "response_lengths": part.lengths,
                "total_lengths": [1 + each for each in part.lengths],
                "unconcat_tokens": None,
            },
        )


def divided(args, total, tokens):
    """As Megatron divides: by the number of micro-batches, or by the tokens where the loss hands them on."""
    return total / (tokens if args.calculate_per_token_loss else MICRO_BATCHES)

"""AReaL's own advantages, by the function that its actor calls."""

from types import SimpleNamespace

import torch

from .record import foreign, lengths, size_of

FUNCTION = "areal.trainer.ppo.actor.PPOActor._compute_advantages"
LOSS = "areal.utils.functional.functional.ppo_actor_loss_fn"

actor = foreign("areal.trainer.ppo.actor")
arguments = foreign("areal.api.cli_args")


def norm(options, section, size):
    """A section of the options; None where neither level is on, as where the section is absent."""
    levels = [options[f"actor.{section}.{key}"] for key in ("mean_level", "std_level")]
    if levels == ["none", "none"]:
        return None
    mean, std = (None if level == "none" else level for level in levels)
    more = {
        key: options[f"actor.{section}.{key}"] == "true"
        for key in ("mean_leave1out", "std_unbiased")
        if f"actor.{section}.{key}" in options
    }
    configuration = arguments.NormConfig(mean_level=mean, std_level=std, group_size=size, **more)
    return actor.Normalization(configuration)


def advantages(options, batch):
    size = size_of(batch)
    tokens = torch.tensor([each for group in lengths(batch) for each in group])
    rewards = torch.tensor([float(each) for group in batch for each in group])
    zeros = torch.zeros(len(tokens), int(tokens.max()))
    norms = {name: norm(options, name, size) for name in ("reward_norm", "adv_norm")}
    answer = computed(rewards, tokens, zeros, zeros, kl_ctl=0.0, **norms)["advantages"]
    return [part.tolist() for part in answer[:, 0].split(size)]


def computed(rewards, tokens, logprobs, references, estimator="k1", **chosen):
    """What the actor makes of rewards: one token of prompt, and an end that no output reaches."""
    width = int(tokens.max()) + 2
    position = torch.arange(width)
    mask = (position > 0) & (position <= tokens[:, None])
    owner = SimpleNamespace(
        config=SimpleNamespace(
            overlong_reward_penalty=False, use_decoupled_loss=False, recompute_logprob=False
        ),
        reward_bias=0.0,
        reward_scaling=1.0,
        reward_clip=20.0,
        kl_estimator=foreign("areal.utils.data").KLEstimator(estimator),
        mask_no_eos_with_zero=False,
        discount=1.0,
        gae_lambda=1.0,
        **chosen,
    )
    data = {
        "input_ids": torch.zeros(len(tokens), width, dtype=torch.long),
        "rewards": rewards,
        "loss_mask": mask,
        "logprobs": torch.nn.functional.pad(logprobs, (1, 1)),
        "ref_logp": torch.nn.functional.pad(references, (0, 2)),
        "attention_mask": position <= tokens[:, None],
    }
    return actor.PPOActor._compute_advantages(owner, data)


def penalised(options, rollouts):
    tokens = rollouts.mask.sum(-1).long()
    return computed(
        0 * rollouts.advantages,
        tokens,
        rollouts.old,
        rollouts.reference,
        options["actor.kl_estimator"],
        kl_ctl=float(options["actor.kl_ctl"]),
        reward_norm=None,
        adv_norm=None,
    )["kl_rewards"]


def loss(options, rollouts):
    """As of micro-batches on one rank, weighted by tokens; the engine that sampled is the old policy."""
    higher = options["actor.eps_clip_higher"]
    total = 0.0
    for each in rollouts.micro_batches():
        loss, _ = actor.ppo_actor_loss_fn(
            each.own,
            proximal_logprobs=each.old,
            old_logprobs=each.old,
            advantages=each.advantages[:, None] + 0 * each.mask,
            eps_clip=float(options["actor.eps_clip"]),
            eps_clip_higher=None if higher == "none" else float(higher),
            loss_mask=each.mask.bool(),
            importance_sampling_level=options["actor.importance_sampling_level"],
        )
        total = total + loss * each.mask.sum() / rollouts.mask.sum()
    return total

"""prime-rl's own advantages, by the algorithms' scoring of a group."""

import asyncio
from collections import defaultdict
from functools import cache
from types import SimpleNamespace

import torch

from .record import foreign, part

FUNCTION = "prime_rl.orchestrator.algo.grpo.GRPOAlgorithm.score_group"
LOSS = "prime_rl.trainer.rl.loss.compute_loss"


@cache
def module(name):
    return foreign(f"prime_rl.orchestrator.algo.{name}")


def advantages(options, batch):
    known = module(options["orchestrator.algo.type"])
    [algorithm] = [
        each
        for each in vars(known).values()
        if isinstance(each, type)
        and "score_group" in vars(each)
        and each.__module__ == known.__name__
    ]
    owner = SimpleNamespace(
        length_penalty=None, decay=0.9, baselines=defaultdict(float), episode_agents=set()
    )
    answers = []
    for group in batch:
        traces = [trace(float(each)) for each in group]
        episode = SimpleNamespace(traces=traces)
        asyncio.run(algorithm.score_group(owner, [episode]))
        answers.append([each.nodes[0].advantages[0] for each in traces])
    return answers


def trace(reward):
    return SimpleNamespace(
        reward=reward,
        has_error=False,
        agent=SimpleNamespace(trainable=True, name="policy"),
        nodes=[SimpleNamespace(mask=[True], token_ids=[1])],
    )


def loss(options, rollouts):
    """As on one rank, over the step's tokens; the engine that sampled is the old policy."""
    names = ("compute_importance_ratio_and_mismatch_kl", "default_loss_fn", "compute_loss")
    scope = {"torch": torch, "LossInputs": SimpleNamespace, "LossOutputs": SimpleNamespace}
    known = part("prime_rl/trainer/rl/loss.py", *names, "_safe_mean", **scope)
    config = SimpleNamespace(
        adv_tau=1.0,
        **{
            name: float(options[f"trainer.loss.{name}"])
            for name in ("dppo_mask_low", "dppo_mask_high", "kl_tau")
        },
    )
    total = 0.0
    for each in rollouts.micro_batches():
        old = each.apart("old")
        loss, _ = known["compute_loss"](
            trainer_logprobs=each.apart("own"),
            inference_logprobs=old,
            ref_logprobs=None,
            advantages=[a + 0 * row for a, row in zip(each.advantages, old, strict=True)],
            loss_mask=[row.bool() for row in each.apart("mask")],
            rl_weights=None,
            ce_weights=None,
            ref_kl_weights=None,
            rl_loss_fn=lambda inputs: known["default_loss_fn"](inputs, config),
            rl_scale=int(rollouts.mask.sum()),
            ce_scale=1,
            ref_kl_scale=1,
        )
        total = total + loss
    return total


def kept(options, groups):
    """Samples whose advantages are all 0 are pruned: those of its grpo, the mean of the group subtracted."""
    name = "_prune_zero_advantages"
    prune = part("prime_rl/orchestrator/train_sink.py", name)[name]
    if options["filter_zero_advantages"] == "false":
        return [True] * len(groups)
    return [
        any(prune(sample(each - sum(group) / len(group))) for each in group) for group in groups
    ]


def sample(advantage):
    return SimpleNamespace(
        mask=[True],
        advantages=[advantage],
        rl_weights=None,
        ce_weights=None,
        ref_kl_weights=None,
    )

"""verl's own advantages, by the function that its trainer calls."""

from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import torch

from .losses import under
from .record import Refused, foreign, padded, part, summed

FUNCTION = "verl.trainer.ppo.ray_trainer.compute_advantage"
LOSS = "verl.workers.utils.losses.ppo_loss"
TRIED = {"actor_rollout_ref.actor.clip_ratio_c": "1.5"}

trainer = foreign("verl.trainer.ppo.ray_trainer")


def advantages(options, batch):
    return several(options, [[[each] for each in group] for group in batch], (1.0,))


def several(options, batch, weights):
    name = options["algorithm.adv_estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    sizes = [len(group) for group in batch]
    rewards, mask = padded(summed(batch, weights))
    columns = np.array([each for group in batch for each in group], dtype=float).T
    scores = {f"score {k}": column for k, column in enumerate(columns)}
    data = SimpleNamespace(
        batch={
            "response_mask": mask,
            "token_level_rewards": rewards,
            "sum_pi_squared": torch.full_like(mask, 0.5),
            "old_log_probs": torch.full_like(mask, -0.5),
            "prompts": mask[:, :0],
            "attention_mask": mask.long(),
        },
        non_tensor_batch={
            "uid": np.repeat(np.arange(len(batch)).astype(str), sizes).astype(object),
            **scores,
        },
    )
    if name == "remax":
        data.batch["reward_baselines"] = torch.full((len(rewards),), 0.25)
    flag = options["algorithm.norm_adv_by_std_in_grpo"] == "true"
    try:
        trainer.compute_advantage(
            data,
            adv_estimator=trainer.AdvantageEstimator(name),
            norm_adv_by_std_in_grpo=flag,
            config=trainer.AlgoConfig(
                norm_adv_by_std_in_grpo=flag,
                gdpo_reward_keys=[*scores],
                gdpo_reward_weights=[*weights],
            ),
        )
    except (ValueError, AssertionError, KeyError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    first = data.batch["advantages"][:, 0]
    return [part.tolist() for part in first.split(sizes)]


ACTOR = "actor_rollout_ref.actor."


class Batch(dict):
    """As much of a TensorDict as the loss takes."""

    def select(self, *names):
        return Batch({name: self[name] for name in names})

    def to_padded_tensor(self):
        return self


class Config(SimpleNamespace):
    """As much of its config as the loss takes."""

    def get(self, name, default=None):
        return getattr(self, name, default)


def loss(options, rollouts):
    """As by FSDP, of one process: micro-batches are summed."""
    core = trainer.core_algos
    core.ActorConfig = Config
    actor = under(ACTOR, options)
    mode = actor.pop("policy_loss.loss_mode")
    config = Config(
        **actor,
        policy_loss=Config(
            loss_mode=mode,
            clip_cov_ratio=None,
            clip_cov_lb=None,
            clip_cov_ub=None,
            kl_cov_ratio=None,
            ppo_kl_coef=None,
            dro_beta=0.5,
            rollout_correction={},
        ),
        tau_pos=1.0,
        tau_neg=1.05,
        global_batch_info={},
    )
    names = {
        **vars(core),
        "Metric": Logged,
        "AggregationType": SimpleNamespace(SUM=0, MEAN=1),
        "no_padding_2_padding": lambda values, _: values,
    }
    known = part("verl/workers/utils/losses.py", "ppo_loss", **names)
    total = 0.0
    for each in rollouts.micro_batches():
        data = Batch(
            dp_size=1,
            batch_num_tokens=rollouts.mask.sum(),
            global_batch_size=len(rollouts.mask),
            response_mask=each.mask,
            old_log_probs=each.old,
            advantages=each.advantages[:, None] + 0 * each.mask,
            ref_log_prob=each.reference,
        )
        output = {"log_probs": each.own}
        if config.entropy_coeff:
            output["entropy"] = each.entropies
        total = total + known["ppo_loss"](config, output, data)[0]
    return total


class Logged:
    """What is logged is left."""

    def __init__(self, **unused):
        pass

    @staticmethod
    def from_dict(*unused, **more):
        return {}


def penalised(options, rollouts):
    if options["algorithm.use_kl_in_reward"] == "false":
        return 0 * rollouts.mask
    shape = SimpleNamespace(batch_size=[len(rollouts.mask)])
    batch = {
        "response_mask": rollouts.mask,
        "token_level_scores": 0 * rollouts.mask,
        "old_log_probs": rollouts.old,
        "ref_log_prob": rollouts.reference,
    }
    data = SimpleNamespace(batch=type("Batch", (dict,), vars(shape))(batch))
    control = SimpleNamespace(
        value=float(options["algorithm.kl_ctrl.kl_coef"]), update=lambda **_: None
    )
    trainer.apply_kl_penalty(data, control, options["algorithm.kl_penalty"])
    return data.batch["token_level_rewards"]


def kept(options, groups):
    """By the buffer of its newer trainer, whose metric is the reward; without one it filters nothing."""
    keys = [f"{i}_{j}" for i, group in enumerate(groups) for j in range(len(group))]
    rewards = [{"reward_extra_info": {"score": each}} for group in groups for each in group]
    queue = SimpleNamespace(kv_batch_get=lambda **_: {"extra_fields": rewards})
    names = {"tq": queue, "np": np, "Counter": Counter, "defaultdict": defaultdict}
    known = part("verl/trainer/ppo/v1/replay_buffer.py", "_dapo_filtered_keys", **names)
    on = options["algorithm.filter_groups.enable"] == "true"
    buffer = SimpleNamespace(
        filter_groups_metric="score" if on else None,
        finished_keys={"train": {str(i) for i in range(len(groups))}},
        partitions={"train": keys},
        _dapo_classification_cache={"train": {}},
    )
    dropped, _ = known["_dapo_filtered_keys"](buffer, "train")
    return [str(i) not in dropped for i in range(len(groups))]

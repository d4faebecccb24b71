"""SkyRL's own advantages, by the function that its trainer calls."""

from collections import defaultdict
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

import numpy as np
import torch
from sphinx.ext.autodoc.mock import mock

from .losses import MICRO_BATCHES
from .record import Refused, padded, part, passage

FUNCTION = "skyrl.backends.skyrl_train.utils.ppo_utils.compute_advantages_and_returns"
LOSS = "skyrl.backends.skyrl_train.workers.worker.PolicyWorkerBase._forward_backward_micro"

FUNCTIONS = {
    "grpo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "reinforce++": "compute_reinforce_plus_plus_outcome_advantage",
    "maxrl": "compute_maxrl_advantage",
}

WHITENING = passage(
    "skyrl/train/trainer.py",
    "if self.cfg.trainer.algorithm.advantage_batch_normalize",
    'data["advantages"] = (advantages - mean) * rstd',
)

known = part("skyrl/backends/skyrl_train/utils/torch_utils.py", "masked_mean", torch=torch)
utils = part(
    "skyrl/backends/skyrl_train/utils/ppo_utils.py",
    *("compute_advantages_and_returns", "masked_var", "masked_whiten", *FUNCTIONS.values()),
    **known,
    np=np,
    defaultdict=defaultdict,
    AdvantageEstimatorRegistry=SimpleNamespace(get=lambda name: utils[FUNCTIONS[name]]),
)


def advantages(options, batch):
    name = options["trainer.algorithm.advantage_estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    whitens = options["trainer.algorithm.advantage_batch_normalize"] == "true"
    if whitens and name == "maxrl":
        raise Refused("no row has the form of means that are divided by and whitened")
    sizes = [len(group) for group in batch]
    if whitens and len({*sizes}) > 1:
        raise Refused("its generator makes groups of one size")
    rewards, mask = padded(batch)
    with mock(["loguru"]):
        result, _ = utils["compute_advantages_and_returns"](
            rewards,
            mask,
            np.repeat(np.arange(len(batch)), sizes),
            name,
            None,
            grpo_norm_by_std=options["trainer.algorithm.grpo_norm_by_std"] == "true",
        )
    if whitens:
        data = {"advantages": result}
        config = SimpleNamespace(
            trainer=SimpleNamespace(algorithm=SimpleNamespace(advantage_batch_normalize=True))
        )
        this = SimpleNamespace(cfg=config)
        exec(WHITENING, {"self": this, "data": data, "advantages": result, "response_mask": mask})
        result = data["advantages"]
    return [group.tolist() for group in result[:, 0].split(sizes)]


MARK = "trainer.algorithm."
KL_AND_ENTROPY = passage(
    "skyrl/backends/skyrl_train/workers/worker.py",
    "with torch.set_grad_enabled(self.cfg.algorithm.use_entropy_loss)",
    "loss = policy_loss * grad_sum_correction_factor",
)
LOSSES = {
    "regular": "ppo_policy_loss",
    "dual_clip": "ppo_policy_loss",
    "gspo": "gspo_policy_loss",
    "sapo": "sapo_policy_loss",
    "cispo": "compute_policy_loss_cispo",
    "clip_cov": "compute_policy_loss_clip_cov",
    "kl_cov": "compute_policy_loss_kl_cov",
    "rollout_is": "rollout_is_policy_loss",
    "importance_sampling": "importance_sampling_loss",
    "dppo": "dppo_policy_loss",
}
policy = part(
    "skyrl/backends/skyrl_train/utils/ppo_utils.py",
    *("reduce_loss", "apply_loss_reduction_to_advantages_minibatch", "compute_approx_kl"),
    *dict.fromkeys(LOSSES.values()),
    **part("skyrl/backends/skyrl_train/utils/torch_utils.py", "safe_exp_delta", **known),
    # It is off by default.
    apply_off_policy_correction=lambda loss, _old, _rollout, mask, _config: (loss, mask, {}),
)


def loss(options, rollouts):
    """As by one worker of FSDP, whose gradients of micro-batches add up."""
    flag = {name: value == "true" for name, value in options.items()}
    config = SimpleNamespace(
        policy_loss_type=options[MARK + "policy_loss_type"],
        loss_reduction="sequence_mean",
        eps_clip_low=float(options[MARK + "eps_clip_low"]),
        eps_clip_high=float(options[MARK + "eps_clip_high"]),
        clip_ratio_c=3.0,
        off_policy_correction=None,
        sapo=SimpleNamespace(tau_pos=1.0, tau_neg=1.05),
        cispo=SimpleNamespace(cispo_eps_clip_low=0.2, cispo_eps_clip_high=5.0, cispo_anchor="old"),
        clip_cov=SimpleNamespace(clip_ratio=0.0002, clip_cov_lb=1.0, clip_cov_ub=5.0),
        kl_cov=SimpleNamespace(kl_cov_frac=0.2, ppo_kl_coef=1.0),
        dppo=SimpleNamespace(dppo_type="binary_tv", delta_low=0.2, delta_high=0.2),
        use_entropy_loss=flag[MARK + "use_entropy_loss"],
        entropy_loss_coef=0.01,
        use_kl_loss=flag[MARK + "use_kl_loss"],
        kl_estimator_type=options[MARK + "kl_estimator_type"],
        kl_loss_coef=float(options[MARK + "kl_loss_coef"]),
    )
    length = options[MARK + "max_seq_len"]
    scaled = policy["apply_loss_reduction_to_advantages_minibatch"](
        rollouts.advantages[:, None] + 0 * rollouts.mask,
        rollouts.mask,
        options[MARK + "loss_reduction"],
        len(rollouts.mask) // MICRO_BATCHES,
        None if length == "none" else float(length),
        [(start, start + 2) for start in range(0, len(rollouts.mask), 2)],
    )
    total = 0.0
    for each, advantages in zip(rollouts.micro_batches(), scaled.chunk(MICRO_BATCHES), strict=True):
        width = each.mask.shape[1]
        policy_loss, _ = policy[LOSSES[config.policy_loss_type]](
            each.own,
            each.old,
            advantages[:, :width],
            config=config,
            loss_mask=each.mask,
            # The engine that sampled is the old policy.
            rollout_logprobs=each.old,
        )
        names = {
            **policy,
            "self": SimpleNamespace(
                cfg=SimpleNamespace(algorithm=config), mesh_rank=SimpleNamespace(dp_size=1)
            ),
            "output": {"entropy": torch.nn.functional.pad(each.entropies, (0, 1))},
            "num_actions": width,
            "loss_mask": each.mask,
            "action_log_probs": each.own,
            "base_action_log_probs": each.reference,
            "policy_loss": policy_loss,
            "microbatch_weight": 1 / MICRO_BATCHES,
        }
        exec(KL_AND_ENTROPY, names)
        total = total + names["loss"]
    return total


def penalised(options, rollouts):
    config = SimpleNamespace(
        kl_estimator_type=options[MARK + "kl_estimator_type"],
        kl_loss_coef=float(options[MARK + "kl_loss_coef"]),
    )
    data = Data(
        loss_mask=rollouts.mask,
        rewards=0 * rollouts.mask,
        base_action_log_probs=rollouts.reference,
        action_log_probs=rollouts.own,
    )
    trainer = SimpleNamespace(
        cfg=SimpleNamespace(trainer=SimpleNamespace(algorithm=config)),
        reward_kl_controller=None,
        all_metrics={},
    )
    if options[MARK + "use_kl_in_reward"] == "true":
        penalise = part("skyrl/train/trainer.py", "apply_reward_kl_penalty", **policy)
        penalise["apply_reward_kl_penalty"](trainer, data)
    return data["rewards"]


class Data(dict):
    metadata: ClassVar[dict] = {}


def kept(options, groups):
    names = {"np": np, "defaultdict": defaultdict}
    filters = part(
        "skyrl/train/utils/trainer_utils.py",
        *("zero_variance_filter", "handle_filter_sampling"),
        **names,
        filter_generator_output=lambda _, rows: {"rewards": rows, "rows": rows},
        logger=MagicMock(),
    )
    uids = [str(i) for i, group in enumerate(groups) for _ in group]
    rewards = [each for group in groups for each in group]
    rows = range(len(rewards))
    if options[MARK + "zero_variance_filter"] == "true":
        rows = filters["zero_variance_filter"](rewards, uids)
    if options[MARK + "dynamic_sampling.type"] == "filter":
        asked = {"train_batch_size": 1000, "n_samples_per_prompt": 2, "max_sample_batches": 9}
        state = {"sample_batch_count": 1}
        filters["handle_filter_sampling"]({"rewards": rewards}, uids, asked, state)
        rows = state["collected_generator_output"]["rows"]
    return [str(i) in {uids[row] for row in rows} for i in range(len(groups))]

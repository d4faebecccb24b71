"""NeMo-RL's own advantages, by the estimators and the dynamic sampling of its trainer."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from .losses import under
from .record import Refused, flat, part, summed

LOSS = "nemo_rl.algorithms.loss.loss_functions.ClippedPGLossFn"
TRIED = {"loss_fn.ratio_clip_c": "1.5"}
FUNCTION = "nemo_rl.algorithms.grpo.dynamic_sampling, _create_advantage_estimator"


class Batch(dict):
    """As much of its BatchedDataDict as dynamic sampling takes."""

    def select_indices(self, rows):
        return Batch({name: value[rows] for name, value in self.items()})

    @property
    def size(self):
        return len(self["row"])


known = part(
    "nemo_rl/algorithms/utils.py",
    *("calculate_baseline_and_std_per_prompt", "get_gdpo_reward_component_keys"),
    torch=torch,
)
names = ("GRPOAdvantageEstimator", "GDPOAdvantageEstimator", "ReinforcePlusPlusAdvantageEstimator")
known |= part("nemo_rl/algorithms/advantage_estimator.py", *names, **known)
known |= part(
    "nemo_rl/algorithms/grpo.py", "dynamic_sampling", "_create_advantage_estimator", **known
)


def advantages(options, batch):
    return several(options, [[[each] for each in group] for group in batch], (1.0,))


def several(options, batch, weights):
    flags = {
        name: options[f"grpo.adv_estimator.{name}"] == "true"
        for name in ("use_leave_one_out_baseline", "normalize_rewards", "minus_baseline")
    }
    name = options["grpo.adv_estimator.name"]
    if name == "opd":
        raise Refused("a teacher is wanted")
    config = SimpleNamespace(
        adv_estimator=SimpleNamespace(name=name, reward_weights=[*weights], **flags),
        use_dynamic_sampling=options["grpo.use_dynamic_sampling"] == "true",
        num_prompts_per_step=1000,
        num_generations_per_prompt=1000,
        dynamic_sampling_max_gen_batches=1,
    )
    loss = SimpleNamespace(
        use_kl_in_reward=False, reference_policy_kl_penalty=0.0, reference_policy_kl_type="k3"
    )
    master = SimpleNamespace(grpo=config, loss_fn=loss)
    sizes = [len(group) for group in batch]
    rewards, _, mask = flat(summed(batch, weights))
    columns = torch.tensor([each for group in batch for each in group]).float().T
    prompts = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(sizes))[:, None]
    rows = torch.arange(len(rewards))
    repeated = Batch(total_reward=rewards, prompts=prompts, mask=mask, row=rows)
    repeated.update({f"reward/{k}": column for k, column in enumerate(columns)})
    baseline, std = known["calculate_baseline_and_std_per_prompt"](
        prompts, rewards, torch.ones_like(rewards), flags["use_leave_one_out_baseline"]
    )
    kept, *_ = known["dynamic_sampling"](repeated, std, baseline, 1, master, MagicMock())
    rewards = kept.get("filtered_reward", kept["total_reward"])
    result = torch.zeros(len(rows))
    if len(rewards):
        estimator = known["_create_advantage_estimator"](master)
        try:
            values = estimator.compute_advantage(
                kept["prompts"], rewards, kept["mask"], repeated_batch=kept
            )
        except ValueError as error:
            raise Refused(f"{type(error).__name__}: {error}") from None
        result[kept["row"]] = values[:, 0]
    return [group.tolist() for group in result.split(sizes)]


def loss(options, rollouts):
    """As of the step's micro-batches, each divided by what the step has; the old policy sampled."""
    names = ("masked_mean", "calculate_kl", "masked_var")
    scope = part("nemo_rl/algorithms/utils.py", *names, torch=torch)
    kinds = SimpleNamespace(TOKEN_LEVEL=0, SEQUENCE_LEVEL=1)
    scope |= {
        "LossFunction": object,
        "LossType": kinds,
        "LossInputType": MagicMock(),
        "MetricNormalizer": MagicMock(),
    }
    made = part("nemo_rl/algorithms/loss/loss_functions.py", "ClippedPGLossFn", **scope)
    config = SimpleNamespace(
        **under("loss_fn.", options),
        kl_input_clamp_value=20.0,
        kl_output_clamp_value=10.0,
        use_importance_sampling_correction=False,
        truncated_importance_sampling_type=None,
        truncated_importance_sampling_ratio=None,
        truncated_importance_sampling_ratio_min=None,
        use_on_policy_kl_approximation=False,
        force_on_policy_ratio=False,
        positive_example_nll_weight=0.0,
        use_cispo=False,
    )
    try:
        function = made["ClippedPGLossFn"](config)
    except AssertionError as error:
        raise Refused(str(error)) from None
    total = 0.0
    for each in rollouts.micro_batches():

        def shifted(values):
            return torch.nn.functional.pad(values, (1, 0))

        data = {
            "token_mask": shifted(each.mask),
            "sample_mask": each.mask[:, 0],
            "advantages": shifted(each.advantages[:, None] + 0 * each.mask),
            "prev_logprobs": shifted(each.old),
            "generation_logprobs": shifted(each.old),
            "reference_policy_logprobs": shifted(each.reference),
        }
        total = (
            total
            + function(each.own, data, torch.tensor(len(rollouts.mask)), rollouts.mask.sum())[0]
        )
    return total

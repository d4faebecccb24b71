"""Trinity-RFT's own advantages, by the functions that its registry holds, and its own loss."""

import inspect
from types import SimpleNamespace

import numpy as np
import torch
from sphinx.ext.autodoc.mock import mock

from ustat_pg.catalogue import catalogue

from .losses import typed, under
from .record import Refused, foreign, padded, part

FUNCTION = "trinity.algorithm.ADVANTAGE_FN"
LOSS = "trinity.trainer.verl.losses.TrinityPolicyLoss"
MARK, KIND = "algorithm.", "advantage_fn"
TRIED = {f"{MARK}policy_loss_fn_args.clip_ratio_c": "1.5"}

algorithm = foreign("trinity.algorithm")
experience = foreign("trinity.common.experience")
utils = foreign("trinity.algorithm.utils")
OPTIONS = catalogue().frameworks["trinity"].options


def made_of(registry, kind, options):
    """The class that an option names, with its own default arguments, changed by those that are chosen."""
    with mock(["verl"]):
        made = registry.get(options[MARK + kind])
    prefix = f"{MARK}{kind}_args."
    known = {each.removeprefix(prefix): each for each in options if each.startswith(prefix)}
    chosen = {name for name, full in known.items() if options[full] != OPTIONS[full].default}
    if wrong := chosen - {*inspect.signature(made).parameters}:
        raise Refused(f"{made.__name__} takes no {', '.join(sorted(wrong))}")
    return made, {**made.default_args(), **{name: typed(options[known[name]]) for name in chosen}}


def advantages(options, batch):
    name = options[MARK + KIND]
    if name == "ppo":
        raise Refused("a critic's values are wanted")
    if name == "gigpo":
        raise Refused("its groups are states of an environment")
    made, arguments = made_of(algorithm.ADVANTAGE_FN, KIND, options)
    if made.compute_in_trainer():
        rewards, mask = padded(batch)
        data = SimpleNamespace(
            batch={
                "token_level_rewards": rewards,
                "response_mask": mask,
                "rollout_log_probs": torch.full_like(mask, -0.5),
                "entropys": torch.full_like(mask, 0.5),
            },
            non_tensor_batch={"uid": np.repeat(np.arange(len(batch)), [*map(len, batch)])},
        )
        made(**arguments)(data)
        first = data.batch["advantages"][:, 0].tolist()
    else:
        try:
            # They stay in the order of the groups.
            result, _ = made(**arguments).process(outputs(batch))
        except UnboundLocalError as error:
            raise Refused(str(error)) from None
        first = [each.advantages[0].item() for each in result]
    rest = iter(first)
    return [[next(rest) for _ in group] for group in batch]


def outputs(batch):
    """What the explorer sends: an experience for each output, of one step."""
    return [
        experience.Experience(
            eid=experience.EID(batch=0, task=task, run=run),
            tokens=[0, 0],
            logprobs=[-0.5],
            reward=float(reward),
        )
        for task, group in enumerate(batch)
        for run, reward in enumerate(group)
    ]


class Batch(dict):
    """As much of a TensorDict as the loss takes."""

    def select(self, *names):
        return Batch({name: self[name] for name in names})

    def to_padded_tensor(self):
        return self


policy = part(
    "trinity/trainer/verl/losses.py",
    "TrinityPolicyLoss",
    torch=torch,
    AlgorithmConfig=object,
    TensorDict=object,
    POLICY_LOSS_FN=algorithm.POLICY_LOSS_FN,
    KL_FN=algorithm.KL_FN,
    ENTROPY_LOSS_FN=algorithm.ENTROPY_LOSS_FN,
    DummyKLFn=algorithm.KL_FN.get("none"),
    prefix_metrics=utils.prefix_metrics,
    no_padding_2_padding=lambda values, _: values,
)


def kl(options, kind):
    """A KL function's name, and its arguments."""
    form = options[MARK + kind].replace("k3×", "corrected_k3")
    return form, {"kl_coef": float(options[f"{MARK}{kind}_args.kl_coef"])}


def loss(options, rollouts):
    """As by the engine of verl 0.8, of one process: micro-batches are added up."""
    _, arguments = made_of(algorithm.POLICY_LOSS_FN, "policy_loss_fn", options)
    mode = options[f"{MARK}loss_agg_mode"]
    if "loss_agg_mode" in arguments:
        arguments["loss_agg_mode"] = mode
    form, of_kl = kl(options, "kl_loss_fn")
    config = SimpleNamespace(
        policy_loss_fn=options[f"{MARK}policy_loss_fn"],
        policy_loss_fn_args=arguments,
        kl_loss_fn=form,
        kl_loss_fn_args=of_kl,
        entropy_loss_fn="default",
        entropy_loss_fn_args=under(f"{MARK}entropy_loss_fn_args.", options),
        loss_agg_mode=mode,
    )
    made = policy["TrinityPolicyLoss"](config)
    total = 0.0
    for each in rollouts.micro_batches():
        data = Batch(
            response_mask=each.mask,
            old_log_probs=each.old,
            advantages=each.advantages[:, None] + 0 * each.mask,
            ref_log_prob=each.reference,
        )
        output = {"log_probs": each.own, "entropy": each.entropies}
        total = total + made(output, data)[0]
    return total


def penalised(options, rollouts):
    form, of_kl = kl(options, "kl_penalty_fn")
    shape = {"batch_size": [len(rollouts.mask)]}
    batch = {
        "responses": rollouts.mask,
        "response_mask": rollouts.mask,
        "attention_mask": rollouts.mask,
        "token_level_scores": 0 * rollouts.mask,
        "old_log_probs": rollouts.old,
        "ref_log_prob": rollouts.reference,
    }
    data = SimpleNamespace(batch=type("Batch", (dict,), shape)(batch))
    algorithm.KL_FN.get(form)(**of_kl).apply_kl_penalty_to_reward(data)
    return data.batch["token_level_rewards"]


def kept(options, groups):
    chosen = {**options, MARK + KIND: "grpo"}
    made, arguments = made_of(algorithm.ADVANTAGE_FN, KIND, chosen)
    stay, _ = made(**arguments).process(outputs(groups))
    return [task in {each.eid.task for each in stay} for task in range(len(groups))]

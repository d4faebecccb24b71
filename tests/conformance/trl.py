"""The advantages of TRL's GRPOTrainer, by its own step after generation; the installed release."""

from collections import defaultdict, deque
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import trl.trainer.grpo_trainer as module
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from .losses import MICRO_BATCHES, typed
from .record import Refused, lengths, passage, size_of

FUNCTION = "trl.GRPOTrainer._generate_and_score_completions"
LOSS = "trl.GRPOTrainer._compute_loss"
TRIED = {"delta": "1.5", "off_policy_mask_threshold": "0.1", "beta": "0.25"}


def step(trainer, configuration, batch, weights=(1.0,), **options):
    """The advantages that a trainer works out from these rewards, one of an output or a list of them."""
    size = size_of(batch)
    count = size * len(batch)
    try:
        args = configuration(
            output_dir="unused",
            use_cpu=True,
            bf16=False,
            report_to=[],
            num_generations=size,
            per_device_train_batch_size=count,
            beta=0.0,
            **options,
        )
    except ValueError as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    tokens = [[5] * each for group in lengths(batch) for each in group]
    rewards = torch.tensor([each for group in batch for each in group]).float()
    rewards = rewards.reshape(count, len(weights))
    fields = ("num_generations", "scale_rewards", "multi_objective_aggregation", "beta",
              "normalize_advantages", "reward_clip_range", "mask_truncated_completions",
              "num_iterations", "use_vllm")  # fmt: skip
    made = SimpleNamespace(
        **{name: getattr(args, name) for name in fields if hasattr(args, name)},
        args=args,
        model=MagicMock(training=True),
        ref_model=None,
        accelerator=MagicMock(device=torch.device("cpu"), process_index=0, gather=lambda x: x),
        environment_factories=None,
        environments=None,
        tools=None,
        vllm_importance_sampling_correction=False,
        pad_to_multiple_of=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        processing_class=SimpleNamespace(pad_token_id=0),
        pad_token_id=0,
        eos_token_id=1,
        chat_template_kwargs={},
        _calculate_rewards=lambda *_: rewards,
        reward_weights=torch.tensor(weights),
        reward_funcs=[None] * len(weights),
        reward_func_names=[f"reward {k}" for k in range(len(weights))],
        _metrics={"train": defaultdict(list)},
        _logs={
            "prompt": deque(),
            "completion": deque(),
            "rewards": defaultdict(deque),
            "advantages": deque(),
            "extra": defaultdict(deque),
        },
        _pending_extra_logs={},
        _pending_metrics=defaultdict(list),
        log_multimodal=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            torch.zeros(count, max(map(len, tokens))),
            None,
            None,
        ),
    )
    prompts = [f"{i // size}" for i in range(count)]
    made._generate = lambda _: answer(trainer, tokens, count)
    inputs = [{"prompt": each} for each in prompts]
    output = trainer._generate_and_score_completions(made, inputs)
    return [part.tolist() for part in output["advantages"].split(size)]


def answer(trainer, tokens, count):
    """What TRL's own generation returns, each trainer its own number of things."""
    texts = ["text"] * count
    if trainer is RLOOTrainer:
        return [[2]] * count, tokens, texts
    return [[2]] * count, tokens, None, texts, None, {}, None, None


def advantages(options, batch):
    return several(options, batch, (1.0,))


def several(options, batch, weights):
    chosen = {key: options[key] for key in ("scale_rewards", "multi_objective_aggregation")}
    return step(GRPOTrainer, GRPOConfig, batch, weights, **chosen)


def rloo(options, batch):
    flag = options["normalize_advantages"] == "true"
    return step(RLOOTrainer, RLOOConfig, batch, normalize_advantages=flag)


CLIPS = passage("trl/trainer/grpo_trainer.py", "self.epsilon_low = ", "self.epsilon_high = ")
MASKING = passage(
    "trl/trainer/grpo_trainer.py", "if self.mask_truncated_completions:", "num_items_in_batch = "
)


def loss(options, rollouts):
    """As of a trainer whose step has several micro-batches, and generates once."""
    known = GRPOConfig.__dataclass_fields__
    chosen = {name: typed(text) for name, text in options.items() if name in known}
    size = {"num_generations": 2, "per_device_train_batch_size": 4}
    chosen |= {**size, "gradient_accumulation_steps": MICRO_BATCHES}
    args = GRPOConfig(**chosen, output_dir="unused", use_cpu=True, bf16=False, report_to=[])
    made = SimpleNamespace(
        **vars(args),
        args=args,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            device="cpu",
            gather=lambda x: x,
            pad_across_processes=lambda x, **_: x,
            reduce=lambda x, **_: x,
            sync_gradients=False,
        ),
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=MICRO_BATCHES,
        eos_token_ids=[1],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _entropy_bonus_enabled=args.entropy_coef != 0,
        _metrics={"train": defaultdict(list)},
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    made.get_high_entropy_mask = lambda *given: GRPOTrainer.get_high_entropy_mask(made, *given)
    exec(CLIPS, {"self": made, "args": args})
    ends = [5 if each else 1 for each in rollouts.truncated]
    names = {
        **vars(module),
        "self": made,
        "device": "cpu",
        "completion_ids_list": [
            [5] * (n - 1) + [end] for n, end in zip(rollouts.lengths, ends, strict=True)
        ],
        "completion_mask": rollouts.mask.int(),
        "tool_mask": None,
    }
    exec(MASKING, names)
    rollouts.mask = names["completion_mask"].float()
    total = 0.0
    for part, mask in zip(
        rollouts.micro_batches(), rollouts.mask.chunk(MICRO_BATCHES), strict=True
    ):
        made._get_per_token_logps_and_entropies = lambda *_, part=part, **__: (
            part.own,
            part.entropies,
            None,
        )
        width = part.own.shape[1]
        inputs = {
            "prompt_ids": mask[:, :1].long(),
            "prompt_mask": mask[:, :1],
            "completion_ids": part.mask.long(),
            "completion_mask": mask[:, :width],
            "advantages": part.advantages,
            "old_per_token_logps": part.old,
            "ref_per_token_logps": part.reference,
            "num_items_in_batch": names["num_items_in_batch"],
        }
        total = total + GRPOTrainer._compute_loss(made, None, inputs)
    return total

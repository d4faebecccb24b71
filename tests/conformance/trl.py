"""The advantages of TRL's GRPOTrainer, by its own step after generation; the installed release."""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from .record import Refused, lengths, size_of

FUNCTION = "trl.GRPOTrainer._generate_and_score_completions"


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

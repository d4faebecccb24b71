"""No setting of TRL's trainers turns the monitor off, and in none it changes a weight by more than rounding.

Settings here give one option each that is not TRL's default, or those of one part of TRL (a loss, sampling).
"""

import warnings

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.support.models import fresh
from tests.support.trainers import letters
from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.trl.training import dataset

GRPO: list[dict] = [
    {},
    *({"loss_type": loss} for loss in ("grpo", "dr_grpo", "bnpo", "cispo")),
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    *({"loss_type": "cispo", "epsilon_high": high} for high in (0.2, 5.0)),
    *({"scale_rewards": how} for how in ("batch", "none")),
    *({"epsilon": size} for size in (0.0, 0.5)),
    *({"epsilon_high": size} for size in (0.28, 1.0)),
    {"delta": 2.0},
    {"beta": 0.04},
    {"beta": 0.04, "use_bias_correction_kl": True},
    {"beta": 0.04, "sync_ref_model": True, "ref_model_sync_steps": 1},
    *({"num_iterations": times} for times in (2, 3)),
    *({"steps_per_generation": steps} for steps in (2, 8)),
    {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    {"importance_sampling_level": "sequence", "loss_type": "luspo", "epsilon": 3e-4},
    {"mask_truncated_completions": True},
    {"multi_objective_aggregation": "normalize_then_sum"},
    {"top_entropy_quantile": 0.2},
    {"entropy_coef": 0.01},
    {"entropy_coef": 0.01, "use_adaptive_entropy": True},
    {"off_policy_mask_threshold": 0.5},
    {"sapo_temperature_neg": 1.5, "loss_type": "sapo"},
    {"vespo_k_pos": 1.0, "loss_type": "vespo"},
    {"num_generations": 2},
    {"num_generations": 8},
    {"shuffle_dataset": False},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1},
    {"pad_to_multiple_of": 8},
    {"gradient_checkpointing": True},
    {"max_grad_norm": 0.0},
    {"optim": "adamw_torch"},
    {"optim": "adafactor"},
    {"lr_scheduler_type": "cosine"},
    {"weight_decay": 0.1},
    {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
    {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
    {"disable_dropout": True},
]
RLOO: list[dict] = [
    {},
    {"normalize_advantages": True},
    {"reward_clip_range": (-1.0, 0.5)},
    {"beta": 0.0},
    {"epsilon_high": 0.3},
    {"num_iterations": 2},
    {"steps_per_generation": 8},
    {"mask_truncated_completions": True},
    {"num_generations": 2},
]
PLAIN = {
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "max_steps": 2,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_generations": 4,
    "max_completion_length": 4, "optim": "sgd", "learning_rate": 0.1, "logging_steps": 1,
    "save_strategy": "no", "report_to": [],
}  # fmt: skip
SETTINGS = [("grpo", each) for each in GRPO] + [("rloo", each) for each in RLOO]

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def said(case):
    name, given = case
    return " ".join([name, *(f"{key}={value}" for key, value in given.items())])


def apart(first, second):
    return float((first - second.detach()).abs().max())


@pytest.mark.parametrize("case", SETTINGS, ids=said)
def test_the_monitor_measures_and_changes_nothing(small, task, tmp_path, case):
    name, given = case
    trained, config = (GRPOTrainer, GRPOConfig) if name == "grpo" else (RLOOTrainer, RLOOConfig)

    def weights(*callbacks):
        torch.manual_seed(0)
        trainer = trained(
            model=fresh(small).model,
            reward_funcs=letters,
            args=config(str(tmp_path), **(PLAIN | given)),
            train_dataset=dataset(task),
            processing_class=small.tokenizer,
            callbacks=list(callbacks),
        )
        trainer.train()
        kept = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        return kept, trainer.state.log_history

    monitor = NoiseMonitor(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with_it, logs = weights(monitor)
    alone, _ = weights()
    moved = max(map(apart, alone, fresh(small).model.parameters()))
    # Nothing is left of outputs that all are cut off.
    assert moved > 0 or "mask_truncated_completions" in given
    # Where it sorts the outputs of a step by their prompts, their sum is rounded otherwise.
    assert max(map(apart, with_it, alone)) <= 1e-4 * moved
    assert {record["noise/off"] for record in logs if "loss" in record} == {0.0}

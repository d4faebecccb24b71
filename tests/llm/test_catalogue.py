"""The catalogue's rows on TRL against TRL's own code: defaults, caps, configs."""

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import trl

import ustat_pg
from ustat_pg.catalogue import catalogue, resolve


@pytest.mark.parametrize(
    ("name", "configuration"), [("trl", "GRPOConfig"), ("trl-rloo", "RLOOConfig")]
)
def test_the_defaults_are_trls(name, configuration):
    fields = getattr(trl, configuration).__dataclass_fields__
    for option in catalogue().frameworks[name].options.values():
        if option.name == "num_processes":  # The launcher's.
            continue
        assert option.default == option.read(str(fields[option.name].default)), option.name


def slope(loss_type, epsilon_high):
    """The gradient of TRL's own loss by two outputs' log-probabilities, at ratio 1."""
    logps = torch.zeros(2, 3, requires_grad=True)
    args = trl.GRPOConfig(
        output_dir="unused", use_cpu=True, bf16=False, report_to=[], num_generations=2,
        per_device_train_batch_size=2, loss_type=loss_type, epsilon_high=epsilon_high,
    )  # fmt: skip
    made = MagicMock(
        args=args,
        loss_type=loss_type,
        beta=0.0,
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if epsilon_high is None else epsilon_high,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
    )
    made.args.steps_per_generation = 1
    made.accelerator.num_processes = 1
    made.accelerator.gather = lambda tensor: tensor
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logps, torch.zeros(2, 3), None)
    ones = torch.ones(2, 3, dtype=torch.long)
    inputs = {
        "prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": ones,
        "advantages": torch.tensor([1.0, -0.5]), "num_items_in_batch": torch.tensor(6),
    }  # fmt: skip
    trl.GRPOTrainer._compute_loss(made, None, inputs).backward()
    return logps.grad.numpy()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize(("high", "share"), [(None, 0.2), (0.28, 0.28), (5.0, 1.0)])
def test_cispo_steps_as_far_as_its_cap(high, share):
    np.testing.assert_allclose(slope("cispo", high), share * slope("dapo", high), rtol=1e-6)
    cap = resolve(f"trl loss_type=cispo epsilon_high={high}").cap
    assert (1.0 if cap is None else cap[1]) == share
    assert resolve("trl").cap is None


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize(
    ("config", "framework", "name"),
    [("GRPOConfig", "trl", "std-ddof1"), ("RLOOConfig", "trl-rloo", "grpo")],
)
def test_explain_reads_trls_configs(tmp_path, config, framework, name):
    args = getattr(trl, config)(
        output_dir=str(tmp_path),
        num_generations=4,
        num_iterations=3,
        gradient_accumulation_steps=4,
        use_cpu=True,
        bf16=False,
    )
    for spec in (args, args.to_dict()):
        result = ustat_pg.explain(spec)
        assert (result.meaning.framework.name, result.estimator) == (framework, name)
        assert result.group_size == 4
        assert result.meaning.steps == 3

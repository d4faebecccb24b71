"""TRL's trainers with this library's baselines, in a script of one's own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.models import fresh
from tests.support.refusals import refuses
from ustat_pg import estimators

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from trl import GRPOConfig, RLOOConfig, RLOOTrainer  # noqa: E402

from ustat_pg.llm import BaselineTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def odd(*, completions, **columns):
    return [float(ord(text[:1] or "a") % 2) for text in completions]


def script(small, folder, trainer, *, rewards=odd, **changes):
    """What a user's own script has: a model, prompts, a reward function, TRL's settings."""
    keywords = {name: changes.pop(name) for name in ("baseline", "scores") if name in changes}
    own = fresh(small)
    settings = {
        "beta": 0.0, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 1,
        "max_completion_length": 5, "seed": 3, "report_to": "none", "use_cpu": True,
        "bf16": False, "learning_rate": 1e-3, "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    return trainer(
        model=own.model,
        reward_funcs=rewards,
        args=RLOOConfig(str(folder), **(settings | changes)),
        train_dataset=Dataset.from_list([{"prompt": f"{i}+1="} for i in range(4)]),
        processing_class=own.tokenizer,
        **keywords,
    )


def advantages(trainer):
    """Rewards and advantages of the last step, (B, G)."""
    rewards = np.array(next(iter(trainer._logs["rewards"].values()))).reshape(-1, 4)
    return rewards, np.array(trainer._logs["advantages"]).reshape(-1, 4)


KNOWN = {
    "grpo": estimators.grpo,
    "vanilla": estimators.vanilla,
    "bayes:1,1": lambda z: estimators.bayes(z, successes=1, failures=1),
    "running-table": lambda z: estimators.bayes(z, successes=1, failures=1),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_script_takes_another_baseline(small, tmp_path, name):
    trainer = script(small, tmp_path, BaselineTrainer, baseline=name)
    assert isinstance(trainer, RLOOTrainer)
    trainer.train()
    rewards, found = advantages(trainer)
    assert 0 < rewards.mean() < 1
    np.testing.assert_allclose(found, KNOWN[name](rewards), atol=1e-6)


def test_norms_weight_unless_a_baseline_is_named(small, tmp_path):
    """Against norms and lengths that are alike, which would leave the plain mean."""
    found = {}
    for name in ("norm-weighted", "length-weighted", "token-weighted"):
        words = {} if name == "norm-weighted" else {"baseline": name}
        trainer = script(small, tmp_path, BaselineTrainer, **words)
        assert trainer.ustat_pg_baseline == name
        trainer.train()
        rewards, found[name] = advantages(trainer)
        mixed = np.ptp(rewards, axis=1) > 0
        assert mixed.any()
        # Within the range of the others' rewards, 0 to 1, and not the plain mean.
        assert (np.abs(found[name]) <= 1 + 1e-6).all()
    plain = estimators.grpo(rewards)
    assert np.abs(found["norm-weighted"] - plain)[mixed].max() > 1e-3
    assert np.abs(found["norm-weighted"] - found["token-weighted"])[mixed].max() > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.05}, r"beta is 0.05: .*take beta=0.0"),
        ({"normalize_advantages": True}, "take normalize_advantages=False"),
        ({"reward_clip_range": (-1.0, 1.0)}, "take reward_clip_range=None"),
        ({"baseline": "rlooo"}, "baseline 'rlooo' is unknown"),
        ({"baseline": "oracle"}, "oracle"),
        ({"baseline": "best"}, "take running-table"),
        ({"baseline": "loo-table:1,2"}, "a group of 4 needs as many"),
    ],
)
def test_what_would_be_left_out_is_refused(small, tmp_path, changes, message):
    refuses(message, script, small, tmp_path, BaselineTrainer, **changes)


def test_another_trainers_settings_are_refused(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    refuses("args is a GRPOConfig: .* a trl.RLOOConfig", BaselineTrainer, None, odd, args)


def test_trl_s_own_baseline_keeps_its_penalty(small, tmp_path):
    script(small, tmp_path, BaselineTrainer, baseline="grpo", beta=0.05).train()

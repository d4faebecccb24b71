"""The catalogue's rows on TRL against TRL's own code: a step's advantages, and defaults."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.estimators import advantages, standardised

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from tests.support.models import save_tiny  # noqa: E402
from tests.support.trainers import fresh  # noqa: E402
from ustat_pg.llm.models import load_model  # noqa: E402
from ustat_pg.llm.prompts import Prompt, Task  # noqa: E402
from ustat_pg.llm.trainers import build_trainer  # noqa: E402
from ustat_pg.llm.training import Training  # noqa: E402

SIZE = 4


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    torch.set_num_threads(1)
    folder = save_tiny(tmp_path_factory.mktemp("models") / "few", characters="0123456789+=abcd")
    return load_model(str(folder))


def parity(*, completions, **columns):
    """Rewards 0 and 1, about half of each."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize(
    ("spec", "trainer"),
    [
        ("trl", "grpo-stock"),
        ("trl scale_rewards=none loss_type=dr_grpo", "dr-grpo"),
        ("trl-rloo", "rloo"),
    ],
)
def test_a_step_has_the_advantages_of_the_row(small, tmp_path, spec, trainer):
    prompts = tuple(Prompt(f"q{i}", f"{i}+{i + 1}=", {}) for i in range(8))
    task = Task("parity", prompts, parity, 6)
    training = Training(SIZE, 32, 1, 0.1, trainer=trainer, max_new_tokens=6, micro_batch=32)
    made = build_trainer(training, fresh(small), task, tmp_path)
    inner, seen = made._calculate_rewards, []

    def watch(*arguments):
        seen.append(inner(*arguments))
        return seen[-1]

    made._calculate_rewards = watch
    made.train()
    rewards = seen[0][:, 0].double().numpy().reshape(-1, SIZE)
    assert set(rewards.ravel()) == {0.0, 1.0}
    assert len(set(rewards.sum(1))) > 2
    row = resolve(spec).row
    own = advantages(row.estimator, rewards)
    logged = np.array(made._logs["advantages"]).reshape(-1, SIZE)
    np.testing.assert_allclose(logged, own, atol=6 * row.epsilon + 1e-6)
    if row.epsilon:
        exact = standardised(rewards, ddof=row.ddof, epsilon=row.epsilon)
        np.testing.assert_allclose(logged, exact, atol=1e-6)
        assert np.abs(logged - own).max() > 1e-5


@pytest.mark.parametrize(
    ("name", "configuration"), [("trl", "GRPOConfig"), ("trl-rloo", "RLOOConfig")]
)
def test_the_defaults_are_trls(name, configuration):
    fields = getattr(trl, configuration).__dataclass_fields__
    for option in catalogue().frameworks[name].options.values():
        assert option.default == option.read(str(fields[option.name].default)), option.name

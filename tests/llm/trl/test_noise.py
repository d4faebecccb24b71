"""The monitor's estimate is that of what each backward pass of TRL's trainers accumulates."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from tests.support.models import fresh
from tests.support.noise import WHOLE, by_hand, watched
from tests.support.refusals import refuses
from tests.support.trainers import LONGEST, flat, letters, trl_trainer
from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.noise import NoiseMeter

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


GRPO = {"name": "grpo-stock"}
RUNS = {
    "rloo": {},
    "rloo with a penalty": {"beta": 0.05, "normalize_advantages": True},
    "grpo": GRPO | {"loss_type": "dapo", "scale_rewards": "group"},
    "penalty": GRPO | {"loss_type": "grpo", "beta": 0.04},
    "batch deviation": GRPO | {"loss_type": "dr_grpo", "scale_rewards": "batch"},
    "bnpo": GRPO | {"loss_type": "bnpo", "gradient_checkpointing": True},
    "cispo": GRPO | {"loss_type": "cispo"},
    "sapo": GRPO | {"loss_type": "sapo", "mask_truncated_completions": True},
    "stale": GRPO | {"steps_per_generation": 16},
    "luspo": {"name": "grpo-corrected", "per_device_train_batch_size": 4},
    "vanilla": {"name": "vanilla"},
    "two micro-batches": {"name": "vanilla", "per_device_train_batch_size": 8},
}


@pytest.mark.parametrize("run", RUNS)
def test_estimates_are_of_what_backward_accumulates(small, task, tmp_path, run):
    """Tied weights, accumulation and the loss's own scale included."""
    monitor, trainer, seen = watched(small, task, tmp_path, **RUNS[run])
    result, wanted = monitor.estimate(), by_hand(seen)
    assert result.steps == wanted.steps == 3
    for name in ("signal", "noise_to_signal", "k_crit"):
        found, known = getattr(result, name), getattr(wanted, name)
        assert found.value == pytest.approx(known.value, rel=1e-3), name
        assert found.low == pytest.approx(known.low, rel=1e-2, abs=1e-6)
    assert ("noise/c1" in trainer.state.log_history[-2]) == (run in ("rloo", "luspo"))


def test_of_several_iterations_the_first_is_measured(small, task, tmp_path):
    monitor, _, _ = watched(small, task, tmp_path, **GRPO, num_iterations=2, max_steps=4)
    assert monitor.estimate().steps == 2
    # Not measured where advantages are not leave-one-out.
    assert monitor.estimate().phi_over_tau == 1.0


def test_a_missing_reward_stops_nothing(small, task, tmp_path):
    def picky(*, completions, **columns):
        return [None, *letters(completions=completions)[1:]]

    broken = Task("picky", task.prompts, picky, LONGEST)
    monitor, _, seen = watched(small, broken, tmp_path)
    assert monitor.estimate().signal.value == pytest.approx(by_hand(seen).signal.value, rel=1e-3)


def test_constants_of_leave_one_out(small, task, tmp_path):
    monitor = NoiseMonitor(3, detail=True, phi_over_tau=0.9, sketch=WHOLE)
    _, trainer, seen = watched(
        small, task, tmp_path, monitor=monitor, per_device_train_batch_size=4
    )
    result = monitor.estimate()
    wanted = by_hand(seen, leave_one_out=True, phi_over_tau=0.9)
    for name in ("c1", "c2", "c3"):
        found, known = getattr(result, name).value, getattr(wanted, name).value
        assert found == pytest.approx(known, rel=1e-3), name
    # Halves of groups meet, so whole groups a micro-batch have pairs of one prompt.
    assert math.isfinite(result.c1.value)
    assert any("noise/c1" in record for record in trainer.state.log_history)


def test_phi_over_tau_is_measured_in_all_parameters(small, task, tmp_path):
    """From single completions as they are accumulated, and from layers, the output embedding among them."""
    found = []
    for size in (1, 4):
        monitor = NoiseMonitor(3, detail=True, sketch=WHOLE, width=10**3)
        watched(small, task, tmp_path, monitor=monitor, per_device_train_batch_size=size)
        found.append(monitor.estimate().metrics())
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert 0.1 < found[0]["phi_over_tau"] < 10
    assert found[0]["phi_over_tau"] != 1


def test_groups_that_are_not_known_say_nothing_of_phi_over_tau(small, task, tmp_path):
    """A prompt is drawn twice, and its rewards are a hundred times as large."""

    def loud(*, prompts, completions, **columns):
        values = letters(completions=completions)
        loud = [100.0 if "1+1" in str(prompt) else 1.0 for prompt in prompts]
        return [factor * value for factor, value in zip(loud, values, strict=True)]

    texts = ("1+1=", "1+1=", "2+2=", "3+3=")
    prompts = tuple(Prompt(f"q{place}", text) for place, text in enumerate(texts))
    monitor = NoiseMonitor(3, detail=True, sketch=WHOLE, width=10**3)
    watched(small, Task("loud", prompts, loud, LONGEST), tmp_path, monitor=monitor)
    assert 0.1 < monitor.estimate().phi_over_tau < 10
    assert monitor.estimate().phi_over_tau != 1


@pytest.mark.parametrize("shuffled", [True, False])
def test_prompts_that_stand_twice_have_two_groups(small, tmp_path, shuffled):
    """Rows of a shuffled set are drawn one by one; in its own order a prompt is drawn for both."""
    texts = [text for text in ("1+1=", "2+2=", "3+3=", "4+4=") for _ in range(2)]
    twice = Task("twice", tuple(Prompt(f"q{i}", t) for i, t in enumerate(texts)), letters, LONGEST)
    sizes = []

    def named(prompts, inputs):
        groups = inputs["group_id"].numpy()
        sizes.extend(zip(groups.tolist(), prompts.tolist(), strict=True))
        return groups if shuffled else np.stack([groups, prompts], axis=1)

    monitor = NoiseMonitor(3, phi_over_tau=1.0, sketch=WHOLE)
    _, _, seen = watched(
        small, twice, tmp_path, monitor=monitor, named=named, shuffle_dataset=shuffled
    )
    # Each group is of one prompt and has all of its completions.
    times = Counter(sizes)
    assert set(times.values()) == {4}
    assert len(times) == len({group for group, _ in times}) == 12
    assert len({prompt for _, prompt in times}) == 4
    result, wanted = monitor.estimate(), by_hand(seen, leave_one_out=True)
    assert (result.constant_steps, result.steps) == (3, 3)
    for name in ("signal", "c1", "c3"):
        assert getattr(result, name).value == pytest.approx(getattr(wanted, name).value, rel=1e-3)


def test_the_run_is_left_as_it_is(small, task, tmp_path):
    """The same rewards and the same end, up to the order of sums; no hook stays."""
    ends = []
    for monitors in ([], [NoiseMonitor(2, detail=True)]):
        trainer = trl_trainer(
            fresh(small), task, tmp_path, callbacks=monitors, max_steps=3, learning_rate=0.5,
            per_device_train_batch_size=4,
        )  # fmt: skip
        trainer.train()
        ends.append(flat(trainer.model))
        assert not any(p._backward_hooks for p in trainer.model.parameters())
        assert not any(m._forward_hooks for m in trainer.model.modules())
        assert not {"compute_loss", "log"} & set(vars(trainer))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-5)
    assert not torch.equal(ends[0], flat(small.model))


def test_what_is_logged_is_the_estimate(small, task, tmp_path):
    monitor, trainer, _ = watched(small, task, tmp_path, monitor=NoiseMonitor(2))
    logged = [
        {k.removeprefix("noise/"): v for k, v in record.items() if k.startswith("noise/")}
        for record in trainer.state.log_history
        if "loss" in record
    ]
    assert logged[0] == {"off": 0.0, "steps": 1.0}
    assert {"signal", "signal_low", "k_crit"} < logged[1].keys() | {"k_crit"}
    assert logged[-1] == {"off": 0.0} | monitor.estimate().metrics()


def test_equal_and_nearly_equal_rewards_are_alarms(small, task, tmp_path, capsys):
    def equal(*, completions, **columns):
        return [0.1] * len(completions)

    def nearly(*, completions, **columns):
        """Every second group differs by 1e-6 only; one completion has no reward."""
        odd = [i // 4 % 2 for i in range(len(completions))]
        return [(i % 4) * (1e-6 if o else 1.0) for i, o in enumerate(odd)]

    options = GRPO | {"num_generations": 4, "max_steps": 6, "scale_rewards": "group"}
    for reward, name in ((equal, "silent"), (nearly, "spikes")):
        broken = Task(name, task.prompts, reward, LONGEST)
        monitor, _, _ = watched(small, broken, tmp_path, **options)
        assert name in monitor.alarms
        assert capsys.readouterr().err.count("groups") == 1
    monitor, _, _ = watched(small, broken, tmp_path, **options | {"scale_rewards": "none"})
    assert "spikes" not in monitor.alarms


def test_what_other_estimators_would_make_of_the_run(small, task, tmp_path):
    """The same from micro-batches of one, of four and from one for a step, whose layers tell them apart."""

    def binary(*, completions, **columns):
        return [float("a" <= text[:1] <= "m") for text in completions]

    easy = Task("first letter", task.prompts, binary, LONGEST)
    options = GRPO | {"loss_type": "dr_grpo", "scale_rewards": "group"}
    rows, own = [], []
    for size in (1, 4, 16):
        monitor = NoiseMonitor(3, sketch=WHOLE, per_completion=True, width=10**3)
        _, _, seen = watched(
            small, easy, tmp_path, monitor=monitor, per_device_train_batch_size=size,
            gradient_checkpointing=size == 4, **options,
        )  # fmt: skip
        rows.append(monitor.compare(["std-ddof1", "rloo", "maxrl"]))
        own.append(monitor.estimate())
        if size == 1:
            assert own[0].signal.value == pytest.approx(by_hand(seen).signal.value, rel=1e-3)
    group = max(row.group_size for row in rows[0])
    whole = {row.estimator: row.noise for row in rows[0] if row.group_size == group}
    assert whole["std-ddof1"].signal.value == pytest.approx(own[0].signal.value, rel=1e-2)
    assert whole["std-ddof1"].signal.interval == pytest.approx(own[0].signal.interval, rel=1e-2)
    assert whole["maxrl"].signal.value != pytest.approx(own[0].signal.value, rel=1e-2)
    for again, other in zip(rows[1:], own[1:], strict=True):
        assert other.metrics() == pytest.approx(own[0].metrics(), rel=1e-3)
        for row, wanted in zip(again, rows[0], strict=True):
            assert row.noise.metrics() == pytest.approx(wanted.noise.metrics(), rel=1e-3)
    refuses("no completion was kept", NoiseMonitor().compare, ["std"])
    adam = NoiseMonitor(3, per_completion=True, metric="adam")
    with pytest.warns(UserWarning, match="is off.*needs per_device_train_batch_size=1 in Adam"):
        watched(small, task, tmp_path, monitor=adam)


def test_the_best_group_size_stands_beside_the_rest_where_rewards_are_0_and_1(
    small, task, tmp_path
):
    """Without a second call, of the run's own estimator; none where rewards are graded."""
    monitor, trainer, _ = watched(
        small, task, tmp_path, monitor=NoiseMonitor(3, per_completion=True), name="grpo-stock"
    )
    assert not any("best" in key for record in trainer.state.log_history for key in record)
    assert monitor._table == "std-ddof1"
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    prompts = torch.arange(8).repeat_interleave(8)
    monitor._meter, monitor._size = NoiseMeter(net), 8
    for _ in range(30):
        inputs = torch.randn(8, 3)[prompts] + 0.5
        answers = torch.bernoulli(torch.sigmoid(net(inputs).detach()[:, 0]))
        own = answers.view(8, 8) - answers.view(8, 8).mean(1, keepdim=True)
        own = (own / (answers.view(8, 8).std(1, keepdim=True) + 1e-4)).flatten()
        with monitor._meter.micro_batch(prompts, advantages=own):
            law = torch.distributions.Bernoulli(logits=net(inputs)[:, 0])
            (-own * law.log_prob(answers)).mean().backward()
        monitor._meter.step()
        net.zero_grad()
    rows = monitor.compare(["std-ddof1"], [2, 3, 4, 5, 6, 8])
    best, logged = min(rows, key=lambda row: row.noise.k_crit.value), monitor._beside()
    assert best.over_best.value == 1
    assert logged["best_group"] == best.group_size
    assert logged["over_best"] == rows[-1].over_best.value >= 1
    assert logged["over_best_low"] <= logged["over_best"] <= logged["over_best_high"]


def test_faults_of_a_run_raise_their_alarms(small, task, tmp_path):
    """Sampling of few tokens, a verifier that gives up on short outputs."""

    def picky(*, completions, **columns):
        """No reward for outputs that are short."""
        return [None if len(text) < 5 else float(len(text) % 3) for text in completions]

    options = {"num_generations": 4, "max_steps": 8, "per_device_train_batch_size": 4}
    slow = Task("picky", task.prompts, picky, LONGEST)
    sound = {"survivors", "rollouts", "groups"}
    monitor, _, _ = watched(small, task, tmp_path, monitor=NoiseMonitor(8), **options)
    assert not monitor.alarms & sound
    for settings in (options, options | GRPO | {"scale_rewards": "group", "loss_type": "dapo"}):
        monitor, _, _ = watched(small, task, tmp_path, monitor=NoiseMonitor(8), top_k=3, **settings)
        assert monitor.alarms & sound == {"rollouts"}
    monitor, _, _ = watched(
        small,
        slow,
        tmp_path,
        monitor=NoiseMonitor(8),
        budget=32,
        **options | GRPO | {"scale_rewards": "none"},
    )
    assert monitor.alarms & sound == {"survivors"}

"""Alarms of runs of TRL, what is printed of them, and what a checkpoint keeps."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.models import fresh
from tests.support.noise import WHOLE
from tests.support.trainers import LONGEST, letters, trl_trainer
from ustat_pg.inference.estimate import Estimate
from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.trl.checkpoints import FILE, packed
from ustat_pg.noise import NoiseMeter
from ustat_pg.noise.estimate import estimate_noise, step_sums

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

GRPO = {"name": "grpo-stock"}


def tenths(*, completions, **columns):
    """.1 or, seldom, .9: in single precision equal ones are not their mean."""
    return [0.9 if text[:1] in "012" else 0.1 for text in completions]


def thirds(*, completions, **columns):
    return [(0.1, 0.3, 0.9)[len(text) % 3] for text in completions]


def binary(*, completions, **columns):
    return [float(text[:1] in "0123456") for text in completions]


def alarms_of(small, task, folder, reward, spoil=None, window=8, **settings):
    """The alarms of a short run; ``spoil`` changes what TRL generates."""
    monitor = NoiseMonitor(window)
    plain = {"max_steps": 4, "per_device_train_batch_size": 8, "budget": 32, "learning_rate": 1e-9}
    changed = plain | {"num_generations": 8} | settings
    trainer = trl_trainer(
        fresh(small), Task("sums", task.prompts, reward, LONGEST), folder, callbacks=[monitor],
        **changed,
    )  # fmt: skip
    if spoil is not None:
        generate = trainer._generate_and_score_completions
        trainer._generate_and_score_completions = lambda inputs: spoil(generate(inputs))
    trainer.train()
    return monitor.alarms


def rolled(output):
    """Each output has the advantage of the one before it."""
    return output | {"advantages": output["advantages"].roll(1)}


SOUND = {
    ".1 and .9": (tenths, GRPO | {"loss_type": "dapo", "scale_rewards": "group"}),
    ".1, .3 and .9": (thirds, GRPO | {"loss_type": "dapo", "scale_rewards": "group"}),
    "normalised": (tenths, {"normalize_advantages": True}),
    "a penalty": (binary, {"beta": 0.05}),
    "two rewards": (
        [binary, thirds],
        GRPO | {"loss_type": "dapo", "multi_objective_aggregation": "normalize_then_sum"},
    ),
    "norm-weighted": (thirds, {"name": "norm-weighted"}),
    "bayes": (binary, {"name": "bayes:1,1"}),
    "running table": (binary, {"name": "running-table"}),
    "vanilla": (binary, {"name": "vanilla"}),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_advantages_are_not_called_mixed_and_mixed_ones_are(small, task, tmp_path, name):
    reward, settings = SOUND[name]
    assert "groups" not in alarms_of(small, task, tmp_path, reward, **settings)
    if name != "vanilla":
        # Without a baseline none is negative, and nothing can be seen.
        assert "groups" in alarms_of(small, task, tmp_path, reward, rolled, **settings)


def test_outputs_that_are_taken_out_are_seen(small, task, tmp_path):
    """A trainer that removes one output of each group."""

    def cut(output):
        kept = torch.arange(len(output["advantages"])) % 8 > 0
        return {
            name: value[kept] if isinstance(value, torch.Tensor) and value.ndim else value
            for name, value in output.items()
        }

    assert "groups" in alarms_of(small, task, tmp_path, binary, cut)


@pytest.mark.parametrize("way", ["masked", "advantages of 0", "masked at random"])
def test_the_shortest_half_of_each_group(small, task, tmp_path, way):
    """Outputs are of the policy; those that are trained on are chosen by length, or by chance."""
    torch.manual_seed(0)

    def shortest(output):
        lengths = output["completion_mask"].sum(dim=1).view(-1, 8)
        lengths = lengths + 0.5 * torch.rand(lengths.shape)
        if way == "masked at random":
            lengths = torch.rand_like(lengths)
        kept = (lengths.argsort(dim=1).argsort(dim=1) < 4).double()
        own = output["advantages"].view(-1, 8)
        centred = (own - (own * kept).sum(dim=1, keepdim=True) / 4) * kept
        changed = {"advantages": centred.flatten().float()}
        if way.startswith("masked"):
            mask = output["completion_mask"]
            changed["completion_mask"] = mask * kept.view(-1, 1).to(mask.dtype)
        return output | changed

    alarms = alarms_of(small, task, tmp_path, binary, shortest, window=24, max_steps=24)
    assert alarms & {"survivors", "rollouts", "groups"} == (
        set() if way == "masked at random" else {"survivors"}
    )


def watching(sums=None, **args):
    """A monitor in a trainer of which it sees nothing but steps."""
    monitor = NoiseMonitor(50)
    # What a trainer makes of its arguments: one that is not given is None there.
    given = SimpleNamespace(scale_rewards="group", epsilon_high=None, **args)
    monitor._trainer = SimpleNamespace(
        args=given,
        epsilon_high=0.2,
        is_world_process_zero=lambda: True,
        state=SimpleNamespace(global_step=0),
    )
    return monitor


def test_clipping_is_an_alarm_that_says_its_cause():
    def alarmed(epsilon_high=0.2, **logs):
        monitor = watching()
        monitor._trainer.epsilon_high = epsilon_high
        monitor.on_log(None, None, None, logs={"loss": 0.0} | logs)
        return monitor.alarms

    assert not alarmed(**{"clip_ratio/region_mean": 0.19, "cispo_clip_ratio": None})
    assert alarmed(**{"clip_ratio/region_mean": 0.2}) == {"clipped"}
    # All tokens of CISPO with an advantage above 0 have a ratio of 1, which its default cap is below.
    assert alarmed(cispo_clip_ratio=0.5) == {"capped"}
    assert alarmed(cispo_clip_ratio=0.5, epsilon_high=5.0) == {"clipped"}


def test_cispo_by_its_defaults_is_not_said_to_be_off_policy(small, task, tmp_path, capsys):
    settings = GRPO | {"loss_type": "cispo", "max_steps": 2}
    assert alarms_of(small, task, tmp_path, binary, **settings) == {"capped"}
    error = capsys.readouterr().err
    assert "The cap on ratios is below 1" in error
    assert "this policy did not draw" not in error


def test_a_signal_of_four_errors_is_seldom_called_lost_and_none_is():
    """Over 300 steps of the window with a look at every tenth, each made of two steps of the training."""
    rng, lost = np.random.default_rng(0), {0.0: 0, 4.0: 0}
    for errors in lost:
        for _ in range(25):
            products = rng.standard_normal(300) + errors / math.sqrt(50)
            sums = np.array([
                step_sums(np.array([[9.0, p], [p, 9.0]]), [np.array([0]), np.array([1])])
                for p in products
            ])  # fmt: skip
            monitor, ever = watching(), False
            for step in range(10, 301, 10):
                window = sums[max(step - 50, 0) : step]
                monitor._meter = SimpleNamespace(
                    steps=len(window),
                    taken=step,
                    estimate=lambda window=window: estimate_noise(window),
                )
                monitor._trainer.state.global_step = 2 * step
                monitor.on_log(None, None, None, logs={"loss": 0.0})
                ever |= "lost" in monitor.alarms
                assert step >= 100 or not ever
            lost[errors] += ever
    assert lost[4.0] <= 1
    assert lost[0.0] >= 20


def test_a_sentence_is_printed_when_its_meaning_changes(capsys):
    """1,080 steps of a noisy estimate around the same truth: fewer than 20 lines; then it changes."""
    rng, monitor = np.random.default_rng(0), watching()
    sums = [step_sums(np.array([[9.0, 2], [2, 9.0]]), [np.array([0]), np.array([1])])] * 2
    estimate, lines = estimate_noise(np.array(sums)), []
    # Windows of neighbouring steps have most of their steps in common.
    logs = np.convolve(rng.standard_normal(1200), np.full(50, 50**-0.5), mode="valid")
    for step in range(10, 1081):
        low = 0.5 * math.exp(0.7 * logs[step]) if step < 1000 else 3.0
        share = Estimate(low, 0.0, low, low * (2 if step < 1000 else 1.5))
        signal = dataclasses.replace(estimate.signal, reason=None)
        now = dataclasses.replace(estimate, noise_to_signal=share.inverse(), signal=signal)
        monitor._meter = SimpleNamespace(
            steps=50, taken=step, estimate=lambda now=now: now, metrics=dict
        )
        monitor._trainer.state.global_step = 2 * step
        monitor._metrics()
        if text := capsys.readouterr().err:
            lines.append((step, text))
    assert 5 < len(lines) < 20
    assert all(text.startswith("A step of ") for _, text in lines)
    assert [step for step, _ in lines][:1] == [10]
    assert any(1000 <= step < 1050 and "is 3 to 4 times" in text for step, text in lines)


def of_checkpoints(small, task, folder, resume=None, steps=6, each=4, **options):
    """A run that saves after three steps of the first epoch: a resumed TRL shuffles others anew."""
    monitor = NoiseMonitor(8, **options)
    prompts = tuple(Prompt(f"q{i}", f"{i // 8}+{i % 8}=") for i in range(4 * steps))
    trainer = trl_trainer(
        fresh(small), Task("sums", prompts, binary, LONGEST), folder, callbacks=[monitor],
        max_steps=steps, save_strategy="steps", save_steps=3, save_total_limit=None, budget=16,
        per_device_train_batch_size=each, learning_rate=0.05, **GRPO, loss_type="dr_grpo",
        scale_rewards="group",
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return monitor


@pytest.mark.parametrize(
    "options", [{}, {"per_completion": True}, {"each": 16}], ids=["plain", "apart", "two as one"]
)
def test_a_resumed_run_goes_on_to_the_last_digit(small, task, tmp_path, options):
    """Also where a step waits for the next, and pairs of steps before the checkpoint and after."""
    whole = of_checkpoints(small, task, tmp_path / "whole", **options)
    kept = tmp_path / "whole" / "checkpoint-3"
    assert (kept / FILE).stat().st_size < 500_000
    stored = json.loads((kept / "trainer_state.json").read_text())["stateful_callbacks"]
    assert len(json.dumps(stored["NoiseMonitor"])) < 1000
    again = of_checkpoints(small, task, tmp_path / "again", str(kept), **options)
    first, second = (monitor._meter.state_dict() for monitor in (whole, again))
    assert first.keys() == second.keys()
    for name, state in first.items():
        assert second[name] == state, name
    assert first["count"] == 6
    # Completions that are told apart are sketched anew at each step, which has no pairs with others.
    pairs = {"per_completion": [0] * 6, "each": [1, 5, 9]}.get("".join(options), [*range(6)])
    assert [len(each) for _, _, each in first["lagged"]] == pairs
    assert len(first["blocks"]) == 6 * ("per_completion" in options)


def test_a_checkpoint_is_small():
    """50 steps of 128 groups of 8 that are told apart: what tables take is kept, not every product."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    meter = NoiseMeter(net, window=50)
    prompts = torch.arange(128).repeat_interleave(8)
    for _ in range(50):
        inputs = torch.randn(len(prompts), 4)
        answers = torch.bernoulli(torch.sigmoid(net(inputs).detach()[:, 0]))
        rewards = answers.view(-1, 8)
        own = rewards - rewards.mean(1, keepdim=True)
        advantages = (own / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        with meter.micro_batch(prompts, advantages=advantages):
            law = torch.distributions.Bernoulli(logits=net(inputs)[:, 0])
            (-advantages * law.log_prob(answers)).mean().backward()
        meter.step()
        net.zero_grad()
    assert len(packed({"meter": meter.state_dict()})) < 5_000_000


@pytest.mark.parametrize("damage", ["missing", "cut", "another"])
def test_a_checkpoint_without_its_file_starts_an_empty_window(small, task, tmp_path, damage):
    of_checkpoints(small, task, tmp_path / "whole", steps=3)
    kept = tmp_path / "whole" / "checkpoint-3"
    data = (kept / FILE).read_bytes()
    (kept / FILE).unlink()
    if damage == "cut":
        (kept / FILE).write_bytes(data[:-20])
    if damage == "another":
        of_checkpoints(small, task, tmp_path / "other", steps=3)
        (kept / FILE).write_bytes(data + b"\0")
    with pytest.warns(UserWarning, match=f"no usable {FILE}.*starts empty") as caught:
        again = of_checkpoints(small, task, tmp_path / "again", str(kept))
    assert len([one for one in caught if "noise window" in str(one.message)]) == 1
    assert again.estimate().steps == 3


def test_g_star_is_logged_by_default(small, task, tmp_path):
    """Of rewards of two values by any micro-batches; of others by those of one output, or a φ/τ given."""

    def binary(*, completions, **columns):
        return [float("a" <= text[:1] <= "m") for text in completions]

    def logged(monitor, size, reward=letters):
        trainer = trl_trainer(
            fresh(small), Task("mine", task.prompts, reward, LONGEST), tmp_path, callbacks=[monitor],
            max_steps=4, per_device_train_batch_size=size, learning_rate=1e-9,
        )  # fmt: skip
        trainer.train()
        return trainer.state.log_history[-2], monitor

    whole = {"sketch": WHOLE, "width": 10**3}
    single, first = logged(NoiseMonitor(4, **whole), 1)
    detailed, _ = logged(NoiseMonitor(4, detail=True, **whole), 1)
    assert "noise/c1" in detailed
    assert first.estimate().phi_over_tau != 1
    stars = [name for name in detailed if name.startswith("noise/g_star")]
    assert "noise/g_star_low" in stars
    assert [single[name] for name in stars] == pytest.approx(
        [detailed[name] for name in stars], rel=1e-3
    )
    # Whole groups in a micro-batch are dealt, so that pairs of one prompt lie in two.
    given, _ = logged(NoiseMonitor(4, phi_over_tau=0.8), 4)
    assert any(name.startswith("noise/g_star") for name in given)
    graded, _ = logged(NoiseMonitor(4), 2)
    assert "noise/c1" in graded
    assert not {"noise/c3", "noise/g_star", "noise/phi_over_tau"} & graded.keys()
    apart, _ = logged(NoiseMonitor(4, **whole), 1, binary)
    dealt, _ = logged(NoiseMonitor(4, **whole), 2, binary)
    for record in (apart, dealt):
        assert {"noise/c1", "noise/c3", "noise/phi_over_tau"} <= record.keys()
    assert apart["noise/phi_over_tau"] != dealt["noise/phi_over_tau"]

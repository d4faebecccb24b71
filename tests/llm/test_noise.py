"""The monitor's gradients are the micro-batches' own, its estimates those of enumeration."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from tests.support.commands import two_processes
from tests.support.models import fresh, output_by_hand
from tests.support.refusals import refuses
from ustat_pg.llm.prompts import Prompt, Task

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.support.noise import by_hand, distance, watched  # noqa: E402
from tests.support.trainers import LONGEST, flat, letters, trl_trainer  # noqa: E402
from ustat_pg.llm import NoiseMonitor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

SEEDS = 24


@pytest.fixture(scope="module")
def task():
    prompts = tuple(Prompt(f"q{i}", f"{i}+{i + 1}=" * (1 + i % 2), {}) for i in range(8))
    return Task("sums", prompts, letters, LONGEST)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"name": "grpo-corrected", "per_device_train_batch_size": 2},
        {"gradient_checkpointing": True},
        {"steps_per_generation": 2},
    ],
    ids=["rloo", "grpo-corrected", "checkpointing", "two generations"],
)
def test_sketches_are_of_each_micro_batch_s_own_gradient(small, task, tmp_path, words):
    """Tied weights, accumulation and the loss's scale included: the mean over sketches is the estimate
    from scores by plain autograd.
    """
    monitors, _, seen = watched(small, task, tmp_path, seeds=SEEDS, **words)
    off, errors = distance(monitors, wanted := by_hand(small, seen))
    assert max(map(abs, off.values())) < 4, off
    # Half of the scale would be seen.
    assert errors[1] < wanted.c2 / 20


def test_phi_over_tau_is_measured_in_a_layer(small, task, tmp_path):
    """With one layer trained, every score is that layer's."""

    def odd(*, completions, **columns):
        return [float(ord(text[:1] or "a") % 2) for text in completions]

    one, task = fresh(small), Task("odd", task.prompts, odd, LONGEST)
    for name, parameter in one.model.named_parameters():
        parameter.requires_grad_(name == "model.layers.1.mlp.down_proj.weight")
    (monitor,), _, seen = watched(one, task, tmp_path, phi_over_tau=None)
    sums, model = np.zeros(2), copy.deepcopy(one.model).double()
    for step in (seen[:4], seen[4:]):
        outputs = [each for batch in step for each in zip(*batch, strict=True)]
        for prompt in {each[1] for each in outputs}:
            group = [(a, output_by_hand(model, prompt, o)[1]) for a, p, o in outputs if p == prompt]
            for i, (advantage, score) in enumerate(group):
                others = [3 / 4 * a for a, _ in group[:i] + group[i + 1 :]]
                variance, norm = np.var(others, ddof=1), score @ score
                sums += norm * np.array([variance, advantage**2 - variance / 3])
    found = monitor.estimate()
    assert found.phi_over_tau == pytest.approx(sums[0] / sums[1], rel=1e-4)
    assert abs(found.phi_over_tau - 1) > 0.01
    assert (found.c3 - found.c1 - found.gradient_sq) / (
        found.c2 + found.c1 + found.gradient_sq
    ) == pytest.approx(found.phi_over_tau)


def test_the_run_is_left_as_it_is(small, task, tmp_path):
    ends = []
    for seeds in (0, 1):
        _, trainer, _ = watched(
            small, task, tmp_path, seeds=seeds, learning_rate=0.5, phi_over_tau=None
        )
        ends.append(flat(trainer.model))
        assert not any(p._backward_hooks for p in trainer.model.parameters())
        assert not any(m._forward_hooks for m in trainer.model.modules())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], flat(small.model))


def test_what_is_logged_is_the_estimate(small, task, tmp_path):
    (monitor,), trainer, _ = watched(small, task, tmp_path, max_steps=3)
    first, *others = (r for r in trainer.state.log_history if "loss" in r)
    assert not any(name.startswith("noise/") for name in first)
    found = monitor.estimate()
    assert (others[0]["noise/steps"], found.steps) == (2, 2)
    logged = {k.removeprefix("noise/"): v for k, v in others[-1].items() if k.startswith("noise/")}
    assert logged == found.metrics()
    low, high = found.c2_interval
    assert (logged["c2"], logged["c2_low"]) == (found.c2, low)
    assert high - found.c2 == pytest.approx(12.7062 * found.c2_se, rel=1e-5)


REFUSED = {
    "std": ({"normalize_advantages": True}, "divided by a standard deviation"),
    "penalty": ({"beta": 0.05}, r"beta is 0\.05: .* set beta=0"),
    "iterations": ({"num_iterations": 2}, "num_iterations is 2: importance ratios"),
    "stale": ({"steps_per_generation": 8}, "steps_per_generation is 8 at 4 accumulation steps"),
    "masked": ({"mask_truncated_completions": True}, "leaves terms out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_refused(small, task, tmp_path, name):
    options, message = REFUSED[name]
    refuses(message, watched, small, task, tmp_path, **options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"per_device_train_batch_size": 16}, "one micro-batch, which has no pair"),
        ({"num_generations": 16}, "16 completions of one prompt"),
        ({"name": "grpo-stock"}, "divided by a standard deviation"),
        ({"name": "dr-grpo"}, "the loss is 'dr_grpo'"),
        ({"name": "vanilla"}, "off the leave-one-out one of its rewards"),
        ({"name": "length-weighted"}, "off the leave-one-out one of its rewards"),
    ],
)
def test_trainers_that_are_refused(small, task, tmp_path, words, message):
    refuses(message, watched, small, task, tmp_path, **words)


def test_a_monitor_that_knows_no_trainer_says_what_to_call(small, task, tmp_path):
    monitor = NoiseMonitor(10)
    micro = {"per_device_train_batch_size": 4, "callbacks": [monitor]}
    trainer = trl_trainer(fresh(small), task, tmp_path, **micro)
    refuses(r"call monitor\.watch\(trainer\)", trainer.train)
    assert monitor.watch(trainer) is monitor
    assert trainer.callback_handler.callbacks.count(monitor) == 1
    trainer.train()
    refuses("1 steps were seen: an estimate takes at least 10", monitor.estimate)
    refuses("watches a trainer already", monitor.watch, trainer)
    refuses("is a object", NoiseMonitor().watch, object())
    refuses("window is 5: it must be a whole number of at least 10", NoiseMonitor, 5)
    refuses("phi_over_tau is 0", NoiseMonitor, phi_over_tau=0.0)


def test_a_step_with_a_missing_reward_is_left_out(small, task, tmp_path):
    """TRL's advantages are those of a smaller group then."""
    calls = []

    def picky(*, completions, **columns):
        calls.append(1)
        found = letters(completions=completions)
        return [None] * 4 + found[4:] if len(calls) == 2 else found

    broken = Task("picky", task.prompts, picky, LONGEST)
    _, trainer, _ = watched(small, broken, tmp_path, max_steps=4)
    logged = [r.get("noise/steps") for r in trainer.state.log_history if "loss" in r]
    assert logged == [None, None, 2, 2]


TWO_PROCESSES = """
import json, sys
from pathlib import Path

import torch

from tests.support import noise, trainers
from ustat_pg.llm.models import load_model
from ustat_pg.llm.prompts import Prompt, Task

torch.set_num_threads(1)
folder, out = map(Path, sys.argv[1:])
small = load_model(str(folder))
task = Task("sums", tuple(Prompt(f"q{i}", f"{i}+{i}=") for i in range(8)), trainers.letters, 6)
monitors, trainer, seen = noise.watched(
    small, task, out.parent / "run", seeds=24, num_generations=8, budget=32
)
wanted = noise.by_hand(small, seen, group_size=8)
off, errors = noise.distance(monitors, wanted)
out.with_suffix(f".{trainer.accelerator.process_index}").write_text(
    json.dumps({"off": off, "errors": errors.tolist(), "c2": wanted.c2,
                "found": monitors[0].estimate().metrics()})
)
"""


def test_two_processes(small, tmp_path):
    """Micro-batches of both make the pairs, and both processes have the estimate."""
    script, out = tmp_path / "two.py", tmp_path / "found.json"
    script.write_text(TWO_PROCESSES)
    two_processes(script, small.name, out)
    first, second = (json.loads(out.with_suffix(f".{i}").read_text()) for i in range(2))
    assert first["found"] == second["found"]
    assert max(map(abs, first["off"].values())) < 4, first
    assert first["errors"][1] < first["c2"] / 20

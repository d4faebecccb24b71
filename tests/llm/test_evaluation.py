"""TRL's evaluation of held-out prompts: what is counted, and that training does not notice it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.commands import two_processes
from tests.support.models import fresh, save_tiny

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.support.trainers import flat  # noqa: E402
from ustat_pg.llm.evaluation import HeldOut, Watched  # noqa: E402
from ustat_pg.llm.models import load_model  # noqa: E402
from ustat_pg.llm.prompts import Prompt, Task  # noqa: E402
from ustat_pg.llm.runs import Run  # noqa: E402
from ustat_pg.llm.trainers import build_trainer, reward_function  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

# Training and held-out prompts have the same ids.
TRAINED = tuple(Prompt(str(i), f"{i}+{i}=", {}) for i in range(6))
TESTED = tuple(Prompt(str(i), f"{i + 6}+{i + 6}=", {}) for i in range(3))
RUN = Run(
    model="m",
    task="t",
    group_size=2,
    budget=8,
    steps=3,
    learning_rate=0.3,
    micro_batch=4,
    held_out=1,
)


def digit_first(completions, **columns):
    return [float(text[:1].isdigit()) for text in completions]


def never(completions, **columns):
    return [0.0] * len(completions)


TASK, HELD = Task("sums", TRAINED, never, 3), Task("sums", TESTED, digit_first, 3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    save_tiny(folder / "model", characters="0123456789+=")
    return load_model(str(folder / "model"))


def trainer_of(model, folder, run=RUN, held=HELD, task=TASK, at_start=False, **others):
    """A run's trainer, and what watches its rewards."""
    watched = Watched(reward_function(task, held), run.samples, [])
    training = replace(run, max_new_tokens=task.max_new_tokens)
    words = {"held": held, "rewards": watched, "greedy": run.greedy} | others
    # A trainer changes its model's methods.
    trainer = build_trainer(training, fresh(model), task, folder, **words)
    trainer.args.eval_on_start = at_start
    return trainer, watched


def evaluated(model, folder, run=RUN, **others):
    trainer, watched = trainer_of(model, folder, run, **others)
    trainer.evaluate()
    return watched.evaluation()


def test_accuracy_is_the_mean_reward(tiny, tmp_path):
    """Against the model's own probabilities: sampled, the share of digits; greedy, the best token."""
    digits = [tiny.tokenizer(str(digit))["input_ids"][0] for digit in range(10)]
    exact, best = [], []
    for prompt in TESTED:
        ids = torch.tensor([tiny.tokenizer(prompt.text)["input_ids"]])
        with torch.no_grad():
            law = torch.softmax(tiny.model(ids).logits[0, -1].double(), dim=0)
        exact.append(float(law[digits].sum()))
        best.append(float(int(law.argmax()) in digits))
    run = replace(RUN, samples=400, evaluation_batch=600)
    trainer, watched = trainer_of(tiny, tmp_path, run)
    state = torch.random.get_rng_state()
    trainer.evaluate()
    found = watched.evaluation()
    assert torch.equal(state, torch.random.get_rng_state())
    error = math.sqrt(np.mean([p * (1 - p) for p in exact]) / (400 * len(exact)))
    assert found["accuracy"] == pytest.approx(np.mean(exact), abs=4 * error)
    assert found["se"] == pytest.approx(np.std(exact, ddof=1) / math.sqrt(3), abs=4 * error)
    assert (found["n"], found["failures"], watched.seen) == (3, 0, [])
    torch.manual_seed(1)
    trainer.evaluate()
    assert watched.evaluation() == found
    assert evaluated(tiny, tmp_path, replace(run, seed=1))["accuracy"] != found["accuracy"]
    greedy = replace(RUN, greedy=True, evaluation_batch=2)
    trainer, watched = trainer_of(tiny, tmp_path, greedy)
    trainer.evaluate()
    assert watched.evaluation()["accuracy"] == np.mean(best)
    # Training samples afterwards as before.
    assert trainer.generation_config.do_sample


def test_a_verifier_that_raises_is_counted(tiny, tmp_path):
    def picky(prompts, completions, **columns):
        if prompts[0] == "8+8=":
            raise ValueError("eight")
        return [1.0] * len(completions)

    found = evaluated(tiny, tmp_path, replace(RUN, samples=2), held=replace(HELD, verifier=picky))
    assert (found["accuracy"], found["n"], found["failures"]) == (1, 2, 1)

    def broken(completions, **columns):
        raise ValueError("always")

    found = evaluated(tiny, tmp_path, held=replace(HELD, verifier=broken))
    assert math.isnan(found["accuracy"])
    assert math.isnan(found["se"])
    assert (found["n"], found["failures"]) == (0, 3)


@pytest.mark.parametrize(
    "name", ["rloo", "grpo-stock", "grpo-corrected", "norm-weighted", "running-table"]
)
def test_training_does_not_depend_on_when_it_is_evaluated(name, tiny, tmp_path):
    """Weights after three steps, bit by bit, with one sample to a prompt and with several."""
    ends = []
    task = replace(TASK, verifier=digit_first)
    for samples, steps in ((1, ()), (1, (1, 2)), (5, (0, 2))):
        run = replace(RUN, trainer=name, samples=samples)
        trainer, watched = trainer_of(tiny, tmp_path, run, task=task, at_start=0 in steps)
        trainer.add_callback(_At(steps))
        trainer.train()
        ends.append(flat(trainer.model))
        reports = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
        assert [entry["step"] for entry in reports] == list(steps)
        assert watched.seen == [0, 1]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    assert not torch.equal(ends[0], flat(tiny.model))


def _At(steps):
    from transformers import TrainerCallback

    class At(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_evaluate = state.global_step in steps

    return At()


TWO_PROCESSES = """
import json, sys
from pathlib import Path

import torch

from dataclasses import replace
from types import SimpleNamespace
from tests.llm import test_evaluation as shared
from ustat_pg.llm.models import load_model

torch.set_num_threads(1)
folder, out = map(Path, sys.argv[1:])
found = []
for samples in (1, 4):
    run = replace(shared.RUN, processes=2, samples=samples, evaluation_batch=2)
    held = replace(shared.HELD, verifier=shared.only_the_first)
    found.append(shared.evaluated(load_model(str(folder)), out.parent, run, held=held))
out.write_text(json.dumps(found))
"""


def only_the_first(prompts, completions, **columns):
    return [float(prompt == "6+6=") for prompt in prompts]


def test_two_processes_count_each_prompt_once(tiny, tmp_path):
    """The last batch is filled up with prompts that were there before; TRL's own mean counts them."""
    script, out = tmp_path / "two.py", tmp_path / "found.json"
    script.write_text(TWO_PROCESSES)
    two_processes(script, tiny.name, out)
    for found in json.loads(out.read_text()):
        assert found["accuracy"] == pytest.approx(1 / 3)
        assert (found["n"], found["failures"]) == (3, 0)


class Sampled:
    """What of TRL's trainer is looked at where vLLM draws."""

    use_vllm = True

    def __init__(self):
        self.vllm_generation = SimpleNamespace(temperature=0.7)

    def evaluate(self):
        self.prediction_step()
        return self.vllm_generation.temperature, torch.random.initial_seed()

    def prediction_step(self):
        torch.rand(1)


def test_vllm_takes_the_most_probable_tokens_at_temperature_0():
    """And no process has a seed of its own, whose draws could part from those it shares a model with."""
    mixed = type("Mixed", (HeldOut, Sampled), {})()
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    assert mixed.evaluate() == (0.7, 5)
    mixed.greedy = True
    assert mixed.evaluate() == (0, 5)
    assert mixed.vllm_generation.temperature == 0.7
    assert torch.equal(state, torch.random.get_rng_state())

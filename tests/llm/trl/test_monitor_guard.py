"""Nothing that fails in the monitor ends a training, on one process or two, and nothing is wrong quietly."""

import copy
import gc
import pickle
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import TrainerCallback

from tests.support.commands import two_processes
from tests.support.models import fresh, random_model
from tests.support.noise import WHOLE, by_hand, watched
from tests.support.refusals import refuses
from tests.support.trainers import LONGEST, letters, trl_trainer
from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.noise.onlooker import Guard

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

GRPO = {"name": "grpo-stock"}
FROZEN = {"learning_rate": 1e-12}
SUMS = Task("sums", tuple(Prompt(f"q{i}", f"{i}+{i}=") for i in range(8)), letters, LONGEST)
MODES = {
    "parameters": {},
    "layers": {"per_completion": True},
    "adam": {"metric": "adam"},
}
STEPS = 3
"""Enough for a checkpoint and a record of two steps."""
LEAST = 10**4
"""Numbers that a step holds of its micro-batches at least."""


class Hanging(TrainerCallback):
    """All that hangs on a model and a trainer once training has begun."""

    def on_train_begin(self, args, state, control, model=None, **_):
        # Other callbacks come before this one.
        self.hooks = [
            hook
            for module in model.modules()
            for hooks in (
                module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
                module._backward_pre_hooks,
            )
            for hook in hooks.values()
        ]  # fmt: skip
        for parameter in model.parameters():
            self.hooks += (parameter._backward_hooks or {}).values()
            self.hooks += (parameter._post_accumulate_grad_hooks or {}).values()


def run(small, task, folder, monitor, **settings):
    hanging = Hanging()
    plain = {"max_steps": STEPS, "per_device_train_batch_size": 4, "save_strategy": "steps",
             "save_steps": 2, "optim": "adamw_torch", **FROZEN}  # fmt: skip
    trainer = trl_trainer(
        fresh(small), task, folder, callbacks=[monitor, hanging], **(plain | settings)
    )
    trainer.train()
    return trainer, hanging


def held():
    """Numbers in tensors that somebody holds."""
    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if issubclass(type(t), torch.Tensor))


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_anything_that_others_call_is_one_warning(
    small, task, tmp_path, monkeypatch, mode
):
    """All hooks hang under a guard; an error is planted in each act that a guard ran, one after another, and
    in one mode where several run it.
    """
    acts, inner = set(), Guard.run

    def noting(self, act, *given):
        acts.add((type(act.__self__), act.__name__))
        return inner(self, act, *given)

    def hanging_of(mode):
        monitor = NoiseMonitor(2, **MODES[mode])
        with monkeypatch.context() as patch:
            patch.setattr(Guard, "run", noting)
            _, hanging = run(small, task, tmp_path, monitor)
        return hanging

    first = next(iter(MODES))
    elsewhere = set()
    if mode != first:
        hanging_of(first)
        elsewhere = acts.copy()
        acts.clear()
    hanging = hanging_of(mode)
    assert hanging.hooks
    assert all(type(hook) is partial and type(hook.func) is Guard for hook in hanging.hooks)
    names = {name for _, name in acts}
    seen = {"layers": {"_read", "_wrote", "_again", "_called"}}.get(mode, {"_see"})
    common = {"_begin", "_open_micro_batch", "_close", "_step", "_alarm", "_stop", "_metrics"}
    assert names >= seen | common | {"_have_scores", "_opened", "_closed", "_finished", "_merged"}

    def planted(*given, **named):
        raise torch.OutOfMemoryError(f"{name} took all")

    trainer, _ = run(small, task, tmp_path, TrainerCallback())
    without = held()
    for owner, name in sorted(acts - elsewhere, key=str):
        monitor = NoiseMonitor(2, **MODES[mode])
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            patch.setattr(owner, name, planted)
            trainer, _ = run(small, task, tmp_path, monitor)
        off = [str(w.message) for w in told if "noise is off" in str(w.message)]
        assert off == [
            f"noise is off and the training continues: OutOfMemoryError: {name} took all"
        ]
        assert trainer.state.global_step == STEPS
        assert not any(p._backward_hooks for p in trainer.model.parameters())
        assert not any(m._forward_hooks for m in trainer.model.modules()), name
        if name != "_stop":
            assert not {"compute_loss", "log"} & set(vars(trainer)), name
        assert held() < without + LEAST, name


def test_a_loop_of_ones_own_around_the_trainer_stays(small, task, tmp_path):
    """Methods that somebody put around ours are not taken away with it."""
    calls = []

    class Wrapping(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            inner = trainer.compute_loss

            def computing(*given, **named):
                calls.append(state.global_step)
                return inner(*given, **named)

            trainer.compute_loss = computing

        def on_step_end(self, args, state, control, **_):
            if state.global_step == 1:
                monitor._guard.off("memory")

    monitor = NoiseMonitor(2)
    trainer = trl_trainer(
        fresh(small), task, tmp_path, callbacks=[monitor, Wrapping()], max_steps=3,
        per_device_train_batch_size=4, **FROZEN,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="noise is off and the training continues: memory"):
        trainer.train()
    assert calls == [0] * 4 + [1] * 4 + [2] * 4
    off = [record.get("noise/off") for record in trainer.state.log_history if "loss" in record]
    assert off == [None, 1.0, 1.0]


def test_a_training_that_was_interrupted_begins_anew(small, task, tmp_path):
    """Hooks of the first are gone: each gradient is seen once."""

    class Interrupting(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if not self.done:
                self.done = True
                raise KeyboardInterrupt

    def twice(trainer):
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        trainer.train()

    interrupting = Interrupting()
    interrupting.done = False
    monitor, _, seen = watched(
        small, task, tmp_path, callbacks=[interrupting], train=twice,
        monitor=NoiseMonitor(9, sketch=WHOLE),
    )  # fmt: skip
    assert monitor.estimate().steps == 4
    assert monitor.estimate().signal.value == pytest.approx(by_hand(seen).signal.value, rel=1e-3)


PLACES = {
    "at the beginning": "ustat_pg.llm.trl.monitor.NoiseMonitor._begin",
    "in a loop's method": "ustat_pg.llm.trl.monitor.NoiseMonitor._open_micro_batch",
    "in a hook": "ustat_pg.noise.meter.NoiseMeter._see",
    "before the step": "ustat_pg.noise.meter.NoiseMeter._finished",
    "after it": "ustat_pg.noise.meter.NoiseMeter._counted",
    "in a record": "ustat_pg.llm.trl.monitor.NoiseMonitor._metrics",
}


def failing_after(inner, sound):
    """A function that fails after it was called some times."""
    calls = []

    def planted(*given, **named):
        calls.append(0)
        if len(calls) > sound:
            raise torch.OutOfMemoryError("all is taken")
        return inner(*given, **named)

    return planted


def failing(model, folder):
    """What one of two processes warned of and did, where the second fails; by where."""
    import os

    found, second = {}, os.environ["RANK"] == "1"
    for where, place in PLACES.items():
        path, _, name = place.rpartition(".")
        module, _, owner = path.rpartition(".")
        owner = getattr(__import__(module, fromlist=["_"]), owner)
        # At the beginning at once, else the third time.
        sound = 0 if where == "at the beginning" else 2
        planted = failing_after(getattr(owner, name), sound)
        monitor = NoiseMonitor(2)
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if second:
                patch.setattr(owner, name, planted)
            trainer = trl_trainer(
                load_model(model), SUMS, folder, callbacks=[monitor], max_steps=6, budget=32,
                num_generations=8, per_device_train_batch_size=4, ddp_timeout=60, **FROZEN,
            )  # fmt: skip
            trainer.train()
        hooks = any(p._backward_hooks for p in trainer.model.parameters())
        off = [str(w.message) for w in told if "noise is off" in str(w.message)]
        found[where] = trainer.state.global_step, hooks, off
    return found


def test_an_error_on_one_of_two_processes_switches_both_off(small, tmp_path):
    first, second = two_processes(failing, small.name, tmp_path / "run")
    said = "noise is off and the training continues: "
    error = "OutOfMemoryError: all is taken"
    for where in PLACES:
        assert first[where] == (6, False, [f"{said}on process 1: {error}"]), where
        assert second[where] == (6, False, [f"{said}{error}"]), where


def sharded(model, folder):
    """By one of two processes: the monitor of a model on each, told apart, and of one that is sharded."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    found = []
    for parts in (False, True):
        language_model = load_model(model)
        if parts:
            made = AutoModelForCausalLM.from_pretrained(
                model, distributed_config=DistributedConfig(fsdp_size=2)
            )
            language_model = replace(language_model, model=made)
        monitor = NoiseMonitor(4, per_completion=not parts, sketch=WHOLE, width=10**3)
        trainer = trl_trainer(
            language_model, SUMS, folder, "grpo-stock", callbacks=[monitor], max_steps=4, budget=32,
            num_generations=8, per_device_train_batch_size=4, ddp_timeout=60, **FROZEN,
        )  # fmt: skip
        trainer.train()
        found.append(monitor.estimate().metrics())
    adam = NoiseMonitor(4, metric="adam")
    trainer.remove_callback(monitor)
    trainer.add_callback(adam)
    with pytest.warns(UserWarning, match="needs whole gradients, but parameters are sharded"):
        trainer.train()
    return found


def test_sharded_parameters_are_measured_as_whole_ones(small, tmp_path):
    """FSDP2 as transformers has it: gradients are reduced at the last micro-batch of a step alone."""
    (whole, parts), again = two_processes(sharded, small.name, tmp_path / "run")
    assert again == [whole, parts]
    assert whole["signal"] != 0
    assert parts == pytest.approx(whole, rel=1e-3)


def test_steps_of_one_micro_batch_are_measured_two_at_a_time(small, task, tmp_path, capsys):
    """With four prompts, or with the one of TRL's defaults, pairs are those of the steps by hand."""
    for size, groups in ((16, 4), (4, 1)):
        monitor = NoiseMonitor(3, sketch=WHOLE)
        _, _, seen = watched(
            small, task, tmp_path, monitor=monitor, max_steps=6, per_device_train_batch_size=size,
            budget=size,
        )  # fmt: skip
        assert "a step is one micro-batch, so two" in capsys.readouterr().err
        totals = torch.tensor([step[10] for step in seen.steps])
        products = torch.tensor([
            float(a @ b) for a, b in zip(seen.whole[::2], seen.whole[1::2], strict=True)
        ])  # fmt: skip
        result = monitor.estimate()
        assert result.steps == 3
        signal = float(products.mean()) / size**2
        assert result.signal.value == pytest.approx(signal, rel=1e-3)
        noise = float(totals.mean()) / size**2 - signal
        assert result.noise_to_signal.value == pytest.approx(noise / signal, rel=1e-3), groups


def test_iterations_within_a_step_count_once(small, task, tmp_path, capsys):
    """A step that passes twice over its outputs is as one that passes once; others say why not."""
    found = []
    for iterations in (1, 2):
        monitor = NoiseMonitor(3, sketch=WHOLE)
        watched(
            small, task, tmp_path, monitor=monitor, **GRPO, num_iterations=iterations,
            steps_per_generation=2, gradient_accumulation_steps=2 * iterations, loss_type="dr_grpo",
            per_device_train_batch_size=8,
        )  # fmt: skip
        found.append(monitor.estimate().metrics())
        assert "left out" not in capsys.readouterr().err
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    monitor = NoiseMonitor(3)
    watched(
        small, task, tmp_path, monitor=monitor, **GRPO, num_iterations=2, steps_per_generation=2,
        gradient_accumulation_steps=6, per_device_train_batch_size=8, max_steps=4,
    )  # fmt: skip
    lines = capsys.readouterr().err.splitlines()
    assert sum("uses some outputs more often" in line for line in lines) == 1
    refuses("0 steps count: an estimate needs at least 2 .a step is left out", monitor.estimate)


def test_a_monitor_in_a_second_trainer_begins_an_empty_window(small, task, tmp_path):
    def hundred(*, completions, **columns):
        return [100 * value for value in letters(completions=completions)]

    large, monitor = Task("large", task.prompts, hundred, LONGEST), NoiseMonitor(10, sketch=WHOLE)
    _, trainer, _ = watched(small, task, tmp_path, monitor=monitor)
    first = monitor.estimate()
    assert first.steps == 3
    # Another training by the same trainer goes on.
    trainer.train()
    assert monitor.estimate().steps == 6
    watched(small, large, tmp_path, monitor=monitor)
    assert monitor.estimate().steps == 3
    assert monitor.estimate().signal.value == pytest.approx(1e4 * first.signal.value, rel=1e-3)


def test_a_resumed_run_keeps_its_window_in_the_same_monitor_too(small, task, tmp_path):
    monitor = NoiseMonitor(10)
    run(small, task, tmp_path, monitor, max_steps=2)
    resumed = trl_trainer(
        fresh(small), task, tmp_path, callbacks=[monitor], max_steps=3, optim="adamw_torch",
        save_strategy="steps", save_steps=2, per_device_train_batch_size=4, **FROZEN,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert monitor.estimate().steps == 3


def test_a_checkpoint_keeps_what_was_measured_before_it_went_off(
    small, task, tmp_path, monkeypatch
):
    """A run that goes on from it warns of nothing."""

    class Breaking(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            patch.setattr("ustat_pg.llm.trl.monitor.prompts_of", lambda inputs: 1 / 0)

    saving = {"save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    with (
        monkeypatch.context() as patch,
        pytest.warns(
            UserWarning, match="noise is off and the training continues: ZeroDivisionError"
        ),
    ):
        watched(small, task, tmp_path, callbacks=[Breaking()], max_steps=2, **saving)
    monitor = NoiseMonitor(10)
    resumed = trl_trainer(
        fresh(small), task, tmp_path, callbacks=[monitor], max_steps=3,
        per_device_train_batch_size=2, **saving, **FROZEN,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert monitor.estimate().steps == 2


def test_a_copy_of_a_used_monitor_has_its_window(small, task, tmp_path):
    """And goes on with it in another training; the first is as it was."""
    monitor, _, _ = watched(small, task, tmp_path, monitor=NoiseMonitor(9, sketch=WHOLE))
    kept = monitor._meter.state_dict()
    for again in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert again.state()["args"] == monitor.state()["args"]
        watched(small, task, tmp_path, monitor=again)
        assert again.estimate().steps == 6
        assert again._meter.state_dict()["steps"][:3] == kept["steps"]
    assert monitor._meter.state_dict() == kept


def test_what_is_a_mean_over_a_micro_batch_is_not_sorted(small, task, tmp_path):
    """An entropy bonus that adapts from 0, and the balance of a mixture of experts."""
    experts = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "num_key_value_heads": 2,
    }  # fmt: skip
    mixture = random_model(
        "Qwen2Moe", vocab_size=len(small.tokenizer), pad_token_id=0, eos_token_id=1,
        bos_token_id=None, **experts,
    )  # fmt: skip
    cases = (
        (small, {}, True),
        (small, {"use_adaptive_entropy": True, "entropy_coef": 0.0}, False),
        (replace(small, model=mixture), {"router_aux_loss_coef": 0.0}, True),
        (replace(small, model=mixture), {"router_aux_loss_coef": 0.1}, False),
    )
    for model, settings, sorts in cases:
        monitor = NoiseMonitor(2, sketch=WHOLE)
        _, _, seen = watched(
            model, task, tmp_path, monitor=monitor, **GRPO, max_steps=2,
            per_device_train_batch_size=4, **settings,
        )  # fmt: skip
        # Sorted micro-batches of four hold halves of two groups each.
        alike = [len(set(names.tolist())) == 2 for names in seen.batches]
        assert all(alike) is sorts, settings
        assert monitor.estimate().signal.value == pytest.approx(
            by_hand(seen).signal.value, rel=1e-3
        )


def test_what_cannot_be_measured_is_said_at_once(small, task, tmp_path):
    """Hooks on layers of a compiled model were a signal of 0; and processes that share outputs."""
    options = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 1}
    with pytest.warns(UserWarning, match="is off.*a compiled model does not run"):
        watched(small, task, tmp_path, monitor=NoiseMonitor(2, per_completion=True), **options)

    class Split(TrainerCallback):
        """Tensor parallelism while the monitor looks."""

        def __init__(self, size):
            self.size = size

        def on_train_begin(self, args, state, control, **_):
            trainer.get_tp_size = lambda: self.size

    trainer = trl_trainer(
        fresh(small), task, tmp_path, callbacks=[Split(2), NoiseMonitor(2), Split(1)], max_steps=1,
        per_device_train_batch_size=4,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="is off.*share outputs, by tensor parallelism"):
        trainer.train()
    assert trainer.state.log_history[0]["noise/off"] == 2.0


def test_adam_has_a_metric_once_its_moments_are_of_22_steps(small, task, tmp_path, capsys):
    monitor = NoiseMonitor(50, metric="adam")
    _, trainer, _ = watched(
        small, task, tmp_path, monitor=monitor, max_steps=25, optim="adamw_torch"
    )
    # The first step comes before 0 steps of Adam's, the 23rd after 22.
    assert monitor.estimate().steps == 3
    assert "second moments cover fewer than 22 steps" in capsys.readouterr().err
    for optimizer in ("sgd", "adafactor"):
        with pytest.warns(UserWarning, match="is off.*has no betas and eps: it takes torch's Adam"):
            _, trainer, _ = watched(
                small, task, tmp_path, monitor=NoiseMonitor(2, metric="adam"), optim=optimizer
            )
        assert trainer.state.global_step == 3


def test_both_metrics_are_logged_saved_and_resumed(small, task, tmp_path):
    """By default, with torch's AdamW; nothing in its metric before the 23rd step."""
    saving = {"save_strategy": "steps", "save_steps": 24, "optim": "adamw_torch"}
    monitor = NoiseMonitor(50)
    _, trainer, _ = watched(small, task, tmp_path, monitor=monitor, max_steps=24, **saving)
    counts = {log["step"]: log.get("noise/adam/steps") for log in trainer.state.log_history[:-1]}
    assert [step for step, count in counts.items() if count] == [24]
    assert (monitor.estimate().steps, monitor.adam.estimate().steps, counts[24]) == (24, 2, 2)
    logged = {k: v for k, v in trainer.state.log_history[-2].items() if "noise/adam" in k}
    of_adam = monitor.adam.estimate().metrics()
    assert logged == {k: of_adam[k.removeprefix("noise/adam/")] for k in logged}
    resumed = trl_trainer(
        fresh(small), task, tmp_path, callbacks=[again := NoiseMonitor(50)], max_steps=25,
        per_device_train_batch_size=2, **saving, **FROZEN,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-24"))
    assert (again.estimate().steps, again.adam.estimate().steps) == (25, 3)

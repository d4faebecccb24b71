"""Training sweeps over the group size: what users import, and the process that makes one run.

:class:`~ustat_pg.llm.grid.Sweep` plans and starts runs, :mod:`ustat_pg.llm.results` reads what they
leave. ``python -m ustat_pg.llm.sweep OUT/<key>/run.json`` is one run by hand.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..validation import InputError
from ..whole_files import versions
from .grid import BUSY, Outcome, Sweep, dry_run, settle
from .records import append, keep, read_status, write_status
from .results import differences, draw, figure5, results, table2
from .runs import NOT_HERE, Run, different, inputs, weights

if TYPE_CHECKING:
    from .evaluation import Watched

__all__ = [
    "Outcome",
    "Run",
    "Sweep",
    "differences",
    "draw",
    "dry_run",
    "figure5",
    "inputs",
    "make",
    "results",
    "table2",
]


_LIBRARIES = ("ustat_pg", "torch", "transformers", "trl", "accelerate", "datasets", "vllm")


def _last_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """The newest checkpoint that is whole, and its step."""
    found = []
    for path in folder.glob("checkpoint-*"):
        # transformers writes the state last but for the pruning of older ones.
        step = path.name.rpartition("-")[2]
        if step.isdigit() and (path / "trainer_state.json").is_file():
            found.append((int(step), path))
    return (found and (max(found)[1], max(found)[0])) or (None, 0)


def make(path: str | Path) -> None:
    """Make the run that a ``run.json`` describes, in its folder; the body of its process.

    Raises:
        InputError: the configuration, model or task is refused.
        filelock.Timeout: another process is making this run.
    """
    from filelock import FileLock

    run = Run.read(path)
    folder = Path(path).resolve().parent
    main = int(os.environ.get("RANK", "0")) == 0
    with FileLock(folder / "lock", timeout=0) if main else nullcontext():
        _make(run, folder, main)


def _make(run: Run, folder: Path, main: bool) -> None:
    import torch

    from .evaluation import Watched
    from .models import check_lengths, load_model, tokenise
    from .trainers import build_trainer, reward_function

    torch.set_num_threads(run.threads)
    started = time.monotonic()
    task, held, dropped = run.split()
    run = replace(run, max_new_tokens=task.max_new_tokens)
    read = inputs(run, task, held)
    if run.processes == 1:
        settle(folder, read)
    elif different(before := read_status(folder), read) and before:
        # One process must not clear what another reads; Sweep.run clears before any begins.
        raise InputError(
            f"{folder} was begun with other {', '.join(different(before, read))}, or none on "
            "record: remove it, or make the run through the sweep"
        )
    before = read_status(folder)
    checkpoint, step = _last_checkpoint(folder / "checkpoints")
    spent = 0.0 if before.get("status") == "finished" else float(before.get("seconds", 0.0))
    state: dict[str, Any] = {
        "status": "running",
        "continued_from": step if checkpoint is not None else None,
        "attempts": int(before.get("attempts", 0)) + 1,
        "step_factor": run.step_factor(),
        "deviations": {name: str(value) for name, value in run.deviations().items()},
        "versions": versions(*_LIBRARIES),
        "dropped_prompts": dropped,
        "inputs": read,
    }
    seconds = 0.0
    seen: list[float] = []

    def total() -> float:
        return spent + time.monotonic() - started

    if main:
        write_status(folder, state | {"seconds": spent})
        trained = keep(folder / "training.jsonl", lambda record: record["step"] <= step)
        seen.extend(trained[-1].get("rewards_seen", ()) if trained else ())
        done = keep(
            folder / "evaluations.jsonl",
            lambda record: checkpoint is not None and record["step"] <= step,
        )
        seconds = max((record["seconds"] for record in done), default=0.0)
    language_model = load_model(
        run.model,
        # Under a launcher the trainer takes the model to the process's own device.
        device="cpu" if run.processes > 1 else run.device,
        dtype=run.dtype,
        pad_token=run.pad_token,
    )
    if read["weights"] == NOT_HERE:  # a model of the hub has come only now
        state["inputs"] = read | {"weights": weights(run.model)}
    for prompt in (*task.prompts, *held.prompts):
        count = len(tokenise(language_model, prompt))
        check_lengths(language_model, prompt.id, count, task.max_new_tokens)

    def beat() -> None:
        write_status(folder, state | {"seconds": total()})

    rewards = Watched(reward_function(task, held), run.samples, seen)
    trainer = build_trainer(
        run,
        language_model,
        task,
        folder / "checkpoints",
        callbacks=[_recorder(run, rewards, folder, seconds, beat)],
        rewards=rewards,
        held=held,
        greedy=run.greedy,
    )
    trainer.args.eval_on_start = checkpoint is None
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        if main:
            beat()
    if main:
        write_status(folder, state | {"status": "finished", "seconds": total()})
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


_BEAT = 1.0
"""Seconds between two notes of a run's time, the most that is lost of a process that is killed."""


def _recorder(
    run: Run, rewards: Watched, folder: Path, seconds: float, beat: Callable[[], None]
) -> Any:
    """A callback that has TRL evaluate at the checkpoints, and writes down what it logs."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def __init__(self) -> None:
            self.spent = seconds
            self.since = self.beaten = time.monotonic()

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.since = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_evaluate |= state.global_step in run.evaluated_at()
            if state.is_world_process_zero and time.monotonic() - self.beaten >= _BEAT:
                beat()
                self.beaten = time.monotonic()

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
        ) -> None:
            took = metrics["eval_runtime"]
            now = time.monotonic()
            self.spent, self.since = self.spent + now - self.since - took, now
            found = rewards.evaluation()
            if state.is_world_process_zero:
                how = {"samples": run.samples, "greedy": run.greedy, "seconds": self.spent}
                record = {"step": state.global_step} | found | how | {"evaluation_seconds": took}
                append(folder / "evaluations.jsonl", record)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if not state.is_world_process_zero or "loss" not in (logs or {}):
                return
            record = {"step": state.global_step} | {
                name: logs[name]
                for name in ("loss", "grad_norm", "reward", "frac_reward_zero_std")
                if name in logs
            }
            record |= {"length": logs.get("completions/mean_length")}
            append(folder / "training.jsonl", record | {"rewards_seen": list(rewards.seen)})

    return Recorder()


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m ustat_pg.llm.sweep RUN.json``: make one run."""
    from filelock import Timeout

    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1 or given[0].startswith("-"):
        print("usage: python -m ustat_pg.llm.sweep OUT/KEY/run.json", file=sys.stderr)
        return 2
    try:
        make(given[0])
    except Timeout:
        print(f"{given[0]}: another process is making this run", file=sys.stderr)
        return BUSY
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

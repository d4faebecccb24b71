"""Training sweeps over the group size: a grid of TRL runs at a constant budget K = B G.

A sweep is data; a run is one point of its grid, one process, and one folder named by a hash of the
run's configuration::

    OUT/<key>/run.json            the configuration
    OUT/<key>/status.json         running, finished or failed; seconds, versions, what went wrong,
                                  digests of weights, prompts and verifier
    OUT/<key>/evaluations.jsonl   accuracy on the held-out prompts at the checkpoints
    OUT/<key>/training.jsonl      what each step's rewards were
    OUT/<key>/log.txt             what the process said
    OUT/<key>/checkpoints/        where ``save_every`` is set

:meth:`Sweep.run` leaves out finished runs. An interrupted or failed run is taken up again: from its
last checkpoint where ``save_every`` is set, else from the start. A run that fails is reported with
the last lines of its log, and the others go on.

A name stays while what it names changes: a model's folder, a file of prompts, a verifier. So digests
of them stand in ``status.json``. A finished run of other weights, prompts or verifier is neither
skipped nor written over: the sweep is refused, and what differs is named. An unfinished one begins
anew. One folder holds one sweep's settings: runs that differ in more than trainer, budget, group
size and seed are never averaged.

``python -m ustat_pg.llm.sweep OUT/<key>/run.json`` is one run by hand.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial, wraps
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ..validation import InputError, integer
from . import paper_runs
from .models import LanguageModel
from .tasks import Task, VerifierError, load_task
from .trainers import Training, refuse_group_size

__all__ = [
    "DryRun",
    "Evaluation",
    "Memory",
    "Outcome",
    "Run",
    "Sweep",
    "accuracy",
    "dry_run",
    "expected_memory",
    "figure5",
    "inputs",
    "results",
    "table2",
]

_TAIL = 20
"""Lines of a failed run's log that are reported."""

_GRID = ("trainer", "budget", "group_size", "seed")
"""Fields of a run that a sweep's grid runs over."""

_INPUTS = ("weights", "prompts", "verifier")
"""What a run reads besides its configuration."""


def _short_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """One training run with its evaluations, as data; the fields are those of :class:`Sweep`."""

    model: str
    task: str
    group_size: int
    budget: int
    steps: int
    learning_rate: float
    trainer: str = "rloo"
    seed: int = 0
    evaluation: str | None = None
    held_out: int = 0
    checkpoints: tuple[int, ...] = paper_runs.CHECKPOINTS
    samples: int = 1
    greedy: bool = False
    evaluation_batch: int = 64
    verifier: str | None = None
    max_new_tokens: int | None = None
    pad_token: str | None = None
    micro_batch: int = 8
    processes: int = 1
    optimizer: str = "sgd"
    device: str = "cpu"
    dtype: str = "float32"
    bf16: bool = False
    checkpointing: bool = False
    vllm: Mapping[str, Any] | None = None
    save_every: int = 0
    threads: int = 1
    launch: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot run."""
        for name, least in (
            ("samples", 1),
            ("evaluation_batch", 1),
            ("threads", 1),
            ("held_out", 0),
        ):
            integer(name, getattr(self, name), least)
        for step in self.checkpoints:
            integer("a checkpoint's step", step, 0)
        if (self.evaluation is None) == (self.held_out == 0):
            raise InputError(
                f"evaluation is {self.evaluation!r} and held_out {self.held_out}: name a task of "
                "held-out prompts, or how many of the task's own are held out, one of the two"
            )
        if self.max_new_tokens is not None:
            integer("max_new_tokens", self.max_new_tokens, 1)
        # Lmax is the task's where it is not given; everything else is checked here.
        self.training(self.max_new_tokens or 1)

    @property
    def key(self) -> str:
        """The name of the run's folder: a hash of its configuration."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    def text(self) -> str:
        """The configuration as JSON."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """The run that a ``run.json`` describes.

        Raises:
            InputError: the file cannot be read or is none of these.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            for name in ("checkpoints", "launch"):
                found[name] = tuple(found[name])
            return cls(**found)
        except (OSError, ValueError, TypeError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is not the configuration of a run: {error}") from error

    def training(self, max_new_tokens: int) -> Training:
        """The part that TRL gets."""
        names = {entry.name for entry in fields(Training)} - {"max_new_tokens"}
        return Training(
            **{name: getattr(self, name) for name in names}, max_new_tokens=max_new_tokens
        )

    def evaluated_at(self) -> tuple[int, ...]:
        """The steps that are evaluated: before training, the checkpoints it reaches, the last.

        >>> Run("m", "t", 2, 4, 500, 0.1, held_out=1, micro_batch=4).evaluated_at()
        (0, 200, 300, 400, 500)
        """
        return tuple(
            sorted({0, self.steps, *(step for step in self.checkpoints if step < self.steps)})
        )

    def tasks(self) -> tuple[Task, Task]:
        """The prompts to train on, and those held out.

        A prompt to train on whose text is also that of a held-out one is left out.

        Raises:
            InputError: a task cannot be had; too few prompts for a step of this group size; no
                prompt is left to train on; prompts of ``evaluation`` are among those of ``task``.
        """
        task, held, _ = self._split()
        return task, held

    def _split(self) -> tuple[Task, Task, int]:
        """The two tasks, and how many prompts were left out of the first."""
        dropped = 0
        task = load_task(self.task, verifier=self.verifier, max_new_tokens=self.max_new_tokens)
        if self.evaluation is None:
            if not 0 < self.held_out < len(task.prompts):
                raise InputError(
                    f"held_out is {self.held_out} and the task {self.task} has "
                    f"{len(task.prompts)} prompts: some must be left to train on"
                )
            # The same prompts for every seed: the last ones of the task.
            cut = len(task.prompts) - self.held_out
            tested = task.prompts[cut:]
            texts = {repr(prompt.text) for prompt in tested}
            kept = tuple(prompt for prompt in task.prompts[:cut] if repr(prompt.text) not in texts)
            dropped = cut - len(kept)
            if not kept:
                raise InputError(
                    f"held_out is {self.held_out} and all other prompts of {self.task} have the text "
                    "of one of these: some must be left to train on"
                )
            task, held = (
                Task(task.name, part, task.verifier, task.max_new_tokens) for part in (kept, tested)
            )
        else:
            verifier = self.verifier if self.evaluation.endswith(".jsonl") else None
            held = load_task(self.evaluation, verifier=verifier, max_new_tokens=self.max_new_tokens)
            shared = {repr(prompt.text) for prompt in task.prompts} & {
                repr(prompt.text) for prompt in held.prompts
            }
            if shared:
                raise InputError(
                    f"{len(shared)} prompts of {self.evaluation} are among those of {self.task}: "
                    "held-out prompts must not be trained on"
                )
        refuse_group_size(self.group_size, self.budget, len(task.prompts))
        return task, held, dropped

    @property
    def settings(self) -> str:
        """A hash of the configuration without what a sweep's grid runs over.

        >>> run = Run("m", "t", 2, 4, 500, 0.1, held_out=1, micro_batch=4)
        >>> run.settings == replace(run, group_size=4, seed=1, trainer="vanilla").settings
        True
        >>> run.settings == replace(run, learning_rate=0.2).settings
        False
        """
        return _short_hash(self._constants())

    def _constants(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in _GRID}

    def command(self, path: Path) -> list[str]:
        """The process of this run."""
        module = ["-m", "ustat_pg.llm.sweep", str(path)]
        if self.processes == 1 and not self.launch:
            return [sys.executable, *module]
        if self.device == "cpu":
            # accelerate launch starts several processes on CPUs through MPI alone.
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            return [*launcher, "--nproc-per-node", str(self.processes), *self.launch, *module]
        launcher = [sys.executable, "-m", "accelerate.commands.launch"]
        launcher += ["--num_processes", str(self.processes)]
        if "--config_file" not in self.launch:
            launcher += ["--num_machines", "1", "--dynamo_backend", "no"]
            launcher += ["--mixed_precision", "bf16" if self.bf16 else "no"]
            sharing = {"--use_deepspeed", "--use_fsdp"} & set(self.launch)
            launcher += ["--multi_gpu"] if self.processes > 1 and not sharing else []
        return [*launcher, *self.launch, *module]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``finished``, ``skipped`` (it was finished before), ``failed`` or
    ``interrupted``.
    """

    run: Run
    status: str
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: every trainer at every budget, group size and seed.

    Arguments:
        model: hub id, local folder or ``embedded:NAME``.
        task: what is trained on, as :func:`ustat_pg.llm.tasks.load_task` reads it.
        group_sizes: G.
        budgets: K = B G, completions of a step.
        steps: optimizer steps.
        learning_rate: constant.
        trainers: of :data:`ustat_pg.llm.trainers.TRAINERS`, ``running-table``, or tables by counts
            such as ``bayes:1,1``.
        seeds: of training; runs of one seed see the prompts in the same order.
        evaluation: the task of the held-out prompts; or
        held_out: how many of the task's own prompts, the last ones, are held out; others of the
            same text are not trained on.
        checkpoints: steps that are evaluated, besides 0 and the last.
        samples: sampled answers to each held-out prompt, at temperature 1.
        greedy: greedy answers, in place of sampled ones.
        evaluation_batch: answers drawn at a time.
        verifier: ``module:function``, for a ``.jsonl`` task.
        max_new_tokens: the greatest completion length, where it is not the task's own.
        pad_token: for a tokenizer without one.
        micro_batch, processes, optimizer, device, bf16, checkpointing, vllm, save_every, options:
            as for :class:`ustat_pg.llm.trainers.Training`; several processes run under
            ``accelerate launch``.
        dtype: of the weights.
        threads: of torch, in each process.
        launch: further arguments of ``accelerate launch``, such as ("--config_file", "zero3.yaml");
            on CPUs of ``torch.distributed.run``.

    >>> sweep = Sweep("embedded:base", "embedded:base", (4, 8), (32,), 10, 1e-3, held_out=50,
    ...     seeds=(0, 1))
    >>> [(run.group_size, run.seed) for run in sweep.plan()]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """

    model: str
    task: str
    group_sizes: tuple[int, ...]
    budgets: tuple[int, ...]
    steps: int
    learning_rate: float
    trainers: tuple[str, ...] = ("rloo",)
    seeds: tuple[int, ...] = (0,)
    evaluation: str | None = None
    held_out: int = 0
    checkpoints: tuple[int, ...] = paper_runs.CHECKPOINTS
    samples: int = 1
    greedy: bool = False
    evaluation_batch: int = 64
    verifier: str | None = None
    max_new_tokens: int | None = None
    pad_token: str | None = None
    micro_batch: int = 8
    processes: int = 1
    optimizer: str = "sgd"
    device: str = "cpu"
    dtype: str = "float32"
    bf16: bool = False
    checkpointing: bool = False
    vllm: Mapping[str, Any] | None = None
    save_every: int = 0
    threads: int = 1
    launch: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def plan(self) -> tuple[Run, ...]:
        """The runs, in order: trainers, budgets, group sizes, seeds.

        Raises:
            InputError: a group size that its budget cannot hold, with those that it can; anything
                else that a run refuses; an empty or repeated grid.
        """
        grid = {"trainers": "trainer", "budgets": "budget", "group_sizes": "group_size"}
        grid["seeds"] = "seed"
        for name in grid:
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name} are {values!r}: give at least one, and none twice")
        common = {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if entry.name not in grid
        }
        points = product(*(getattr(self, name) for name in grid))
        return tuple(
            Run(**common, **dict(zip(grid.values(), point, strict=True))) for point in points
        )

    def run(
        self,
        out: str | Path,
        workers: int = 1,
        *,
        say: Callable[[str], None] | None = None,
    ) -> tuple[Outcome, ...]:
        """Make the runs that are not finished.

        Arguments:
            out: a folder; that of a former sweep is continued, of the same grid or another, where
                all else is the same.
            workers: how many runs go on at a time.
            say: is told of each run that ends, such as ``print``.

        Returns:
            how each run of the plan ended, in the plan's order.

        Raises:
            InputError: before anything runs: as for :meth:`plan`; a task that cannot be had; fewer
                prompts than a step needs; the folder holds results of other settings, weights,
                prompts or another verifier, and the message names what differs.
        """
        workers = integer("workers", workers)
        plan = self.plan()
        task, held = plan[0].tasks()
        total = len(task.prompts)
        for run in plan:
            # Only group size and budget matter to what a task is checked for.
            refuse_group_size(run.group_size, run.budget, total)
        folder = Path(out)
        read = inputs(plan[0], task, held)
        _refuse_others(folder, plan, read)
        folder.mkdir(parents=True, exist_ok=True)
        tell = say or (lambda line: None)
        processes: set[subprocess.Popen[bytes]] = set()
        stop = threading.Event()

        def one(number: int, run: Run) -> Outcome:
            outcome = _supervised(run, folder / run.key, read, tell, processes, stop)
            tell(f"[{number}/{len(plan)}] {_name(run)}: {outcome.status}, {outcome.seconds:.0f} s")
            if outcome.message:
                tell(outcome.message)
            return outcome

        with ThreadPoolExecutor(workers) as pool:
            waiting = [pool.submit(one, number, run) for number, run in enumerate(plan, 1)]
            try:
                return tuple(each.result() for each in waiting)
            except BaseException:
                stop.set()
                for each in waiting:
                    each.cancel()
                for process in list(processes):
                    process.terminate()
                raise


def inputs(run: Run, task: Task, held: Task) -> dict[str, str]:
    """Digests of what a run reads besides its configuration.

    Of the weights: all files of the model's folder; of a model of the hub its commit in the local
    cache, as far as it is there. Of the prompts: ids, texts, columns and the greatest completion
    length, of both tasks. Of the verifiers: the files of their functions; of one without a file its
    name.

    Arguments:
        run: whose model it is.
        task: what is trained on.
        held: the held-out prompts.
    """
    prompts = [
        [part.max_new_tokens, [[each.id, each.text, each.columns] for each in part.prompts]]
        for part in (task, held)
    ]
    return {
        "weights": _weights(run.model),
        "prompts": _short_hash(prompts),
        "verifier": _short_hash([_source(part.verifier) for part in (task, held)]),
    }


_NOT_HERE = "not here"


def _weights(model: str) -> str:
    """A digest of a model's files; of one of the hub, the commit."""
    if model.startswith("embedded:"):
        from . import embedded

        folder = embedded.folder(model.removeprefix("embedded:"))
    else:
        folder = Path(model).expanduser()
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(model, "config.json")
        except ValueError:
            found = None
        return f"commit {Path(found).parent.name}" if isinstance(found, str) else _NOT_HERE
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            own = hashlib.file_digest(file, "blake2b").hexdigest()
        digest.update(f"{path.name} {own}\n".encode())
    return digest.hexdigest()


def _source(verifier: Any) -> str:
    """The file of a function as it is now, which need not be what was imported; else its name."""
    function = inspect.unwrap(verifier)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    try:
        # A module that was loaded by its file's path is not among Python's modules.
        file = code.co_filename if code else inspect.getfile(type(function))
        return Path(file).read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError):
        return (
            f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
        )


def _different(status: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Which of weights, prompts and verifier are others than a status tells of, or are not told."""
    told = status.get("inputs")
    told = told if isinstance(told, dict) else {}
    return [name for name in _INPUTS if told.get(name) != now[name]]


def _refuse_others(folder: Path, plan: Sequence[Run], now: Mapping[str, str]) -> None:
    """Refuse a folder whose results could not stand in one table with those of a plan."""
    found: dict[str, list[str]] = {}
    mine, keys = plan[0]._constants(), {run.key for run in plan}
    for path in sorted(folder.glob("*/run.json")):
        other, status = Run.read(path), _status(path.parent)
        trained = any(record["step"] > 0 for record in _lines(path.parent / "evaluations.jsonl"))
        theirs = other._constants()
        changed = [
            f"{name} {theirs[name]!r}, not {mine[name]!r}"
            for name in mine
            # As JSON: a tuple is a list once it is written.
            if _short_hash(theirs[name]) != _short_hash(mine[name])
        ]
        finished = status.get("status") == "finished"
        # An unfinished run of the plan begins anew where it must.
        if finished or (trained and path.parent.name not in keys):
            changed += [f"other {name}, or none on record" for name in _different(status, now)]
            if changed:
                found.setdefault("; ".join(changed), []).append(path.parent.name)
    if found:
        told = "\n".join(
            f"  {len(names)} with {what} ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
            for what, names in found.items()
        )
        raise InputError(
            f"{folder} holds runs that are not of this sweep:\n{told}\n"
            "Name another folder, or remove these: one table is of one sweep"
        )


def _settle(folder: Path, now: Mapping[str, str]) -> list[str]:
    """Clear what an earlier attempt left, where its weights, prompts or verifier were others.

    A run that was finished begins anew too: the time of the former is not of this one.
    """
    status = _status(folder)
    changed = _different(status, now) if status else []
    if changed or status.get("status") == "finished":
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / "status.json").unlink()
    return changed


def _name(run: Run) -> str:
    return f"{run.trainer} K={run.budget} G={run.group_size} seed={run.seed} ({run.key})"


def _supervised(
    run: Run,
    folder: Path,
    read: Mapping[str, str],
    tell: Callable[[str], None],
    processes: set[subprocess.Popen[bytes]],
    stop: threading.Event,
) -> Outcome:
    """One run in a process of its own; a failure is an outcome, not an error."""
    folder.mkdir(parents=True, exist_ok=True)
    status = _status(folder)
    if status.get("status") == "finished":
        return Outcome(run, "skipped", float(status.get("seconds", math.nan)))
    changed: list[str] = []
    # A process that makes this run now keeps its checkpoints; the new one will find it busy.
    with suppress(BlockingIOError), _locked(folder / "lock", main=True):
        changed = _settle(folder, read)
    if changed:
        tell(f"{_name(run)}: begun anew, other {', '.join(changed)} than before or none on record")
    _write(folder / "run.json", run.text())
    started = time.monotonic()
    environment = os.environ | {
        "OMP_NUM_THREADS": str(run.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / "log.txt").open("ab") as log:
        if stop.is_set():
            return Outcome(run, "interrupted", 0.0)
        process = subprocess.Popen(
            run.command(folder / "run.json"), stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        processes.add(process)
        code = process.wait()
        processes.discard(process)
    seconds = time.monotonic() - started
    status = _status(folder)
    if stop.is_set():
        return Outcome(run, "interrupted", seconds)
    if code == 0 and status.get("status") == "finished":
        return Outcome(run, "finished", seconds)
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    message = "\n".join([f"exit code {code}; the end of {folder / 'log.txt'}:", *lines[-_TAIL:]])
    if code != _BUSY:
        _write_status(folder, status | {"status": "failed", "code": code, "message": message})
    return Outcome(run, "failed", seconds, message)


_BUSY = 75
"""Exit code of a run that another process is making just now."""


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    other = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    other.write_text(text, encoding="utf-8")
    other.replace(path)


def _write_status(folder: Path, status: Mapping[str, Any]) -> None:
    _write(folder / "status.json", json.dumps(status, indent=1) + "\n")


def _status(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of lines; a torn last one is left out."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _keep(path: Path, kept: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Leave out the records that a run which goes back will write again."""
    found = [record for record in _lines(path) if kept(record)]
    _write(path, "".join(json.dumps(record) + "\n" for record in found))
    return found


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Answers to held-out prompts.

    Attributes:
        accuracy: the mean reward, which for a verifier of 0 and 1 is the share of right answers.
        se: its standard error over prompts.
        prompts: how many were counted.
        failures: prompts at which the verifier raised; they are not counted.
    """

    accuracy: float
    se: float
    prompts: int
    failures: tuple[str, ...] = ()


def accuracy(
    language_model: LanguageModel,
    task: Task,
    *,
    samples: int = 1,
    greedy: bool = False,
    seed: int = 0,
    batch: int = 64,
) -> Evaluation:
    """The mean reward of a model's answers to a task's prompts.

    Arguments:
        language_model: its mode, training or not, is kept.
        task: the prompts.
        samples: answers to each, at temperature 1 from the whole distribution.
        greedy: the most probable token each time, one answer to each prompt, in place of samples.
        seed: of the samples; a draw is a function of it, the prompt, the sample and the position.
        batch: answers drawn at a time.

    Raises:
        InputError: a prompt that with its answer is longer than the context.
    """
    rewards, failures = _answers(
        language_model, task, range(len(task.prompts)), samples, greedy, seed, batch
    )
    return _evaluation(rewards, failures)


def _evaluation(rewards: Mapping[int, float], failures: Sequence[str]) -> Evaluation:
    values = np.array([rewards[index] for index in sorted(rewards)])
    if not values.size:
        return Evaluation(math.nan, math.nan, 0, tuple(failures))
    se = float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
    return Evaluation(float(values.mean()), se, values.size, tuple(failures))


def _answers(
    language_model: LanguageModel,
    task: Task,
    which: Sequence[int],
    samples: int,
    greedy: bool,
    seed: int,
    batch: int,
) -> tuple[dict[int, float], list[str]]:
    """Mean rewards of the prompts whose places are given, and the verifier's failures."""
    import torch

    from .generation import transformers_draw
    from .models import check_lengths, tokenise

    # A trainer may have taken the model to another device than it was loaded on.
    device = next(language_model.model.parameters()).device
    language_model = replace(language_model, device=str(device))
    longest = task.max_new_tokens
    prompts = []
    for index in which:
        prompt = task.prompts[index]
        ids = tokenise(language_model, prompt)
        check_lengths(language_model, prompt.id, len(ids), longest)
        prompts.append((prompt.id, ids))
    rewards, failures = {}, []
    with torch.no_grad():
        if greedy:
            drawn = _greedy(language_model, [ids for _, ids in prompts], longest, batch)
        else:
            count = integer("samples", samples)
            drawn = transformers_draw(
                language_model, prompts, count, longest, seed, integer("batch", batch), {}
            )
        for index, completions in zip(which, drawn, strict=True):
            texts = language_model.tokenizer.batch_decode(completions, skip_special_tokens=True)
            try:
                found = task.rewards(task.prompts[index], texts, completions)
            except VerifierError as error:
                failures.append(str(error))
            else:
                rewards[index] = float(found.mean())
    return rewards, failures


def _greedy(
    language_model: LanguageModel, prompts: Sequence[Sequence[int]], longest: int, batch: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The most probable token each time: one completion of each prompt."""
    import torch
    from transformers import GenerationConfig

    from .generation import _plain_generation, stripped
    from .models import end_tokens

    ends, pad = end_tokens(language_model), language_model.tokenizer.pad_token_id
    settings = GenerationConfig(
        max_new_tokens=longest, do_sample=False, pad_token_id=pad, eos_token_id=list(ends) or None
    )
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        width = max(len(ids) for ids in part)
        padded = [[pad] * (width - len(ids)) + list(ids) for ids in part]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in part]
        with _plain_generation(language_model.model):
            found = language_model.model.generate(
                input_ids=torch.tensor(padded, device=language_model.device),
                attention_mask=torch.tensor(mask, device=language_model.device),
                generation_config=settings,
            )
        for row in found[:, width:].tolist():
            yield (stripped(row, ends),)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("ustat_pg", "torch", "transformers", "trl", "accelerate", "datasets", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
        BlockingIOError: another process is making this run.
    """
    run = Run.read(path)
    folder = Path(path).resolve().parent
    main = int(os.environ.get("RANK", "0")) == 0
    with _locked(folder / "lock", main):
        _make(run, folder, main)


@contextmanager
def _locked(path: Path, main: bool) -> Iterator[None]:
    """Keep a second process from the same run; the lock goes with the process."""
    if not main:
        yield
        return
    with path.open("w") as file:
        try:
            import fcntl
        except ImportError:  # where there is none, the user sees to it
            pass
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _make(run: Run, folder: Path, main: bool) -> None:
    import torch

    from .callback import GroupSignalCallback
    from .models import load_model
    from .trainers import build_trainer, reward_function, sharded

    torch.set_num_threads(run.threads)
    started = time.monotonic()
    task, held, dropped = run._split()
    training = run.training(task.max_new_tokens)
    read = inputs(run, task, held)
    if run.processes == 1:
        _settle(folder, read)
    elif _different(before := _status(folder), read) and before:
        # One process must not clear what another reads; Sweep.run clears before any begins.
        raise InputError(
            f"{folder} was begun with other {', '.join(_different(before, read))}, or none on "
            "record: remove it, or make the run through the sweep"
        )
    before = _status(folder)
    checkpoint, step = _last_checkpoint(folder / "checkpoints")
    spent = 0.0 if before.get("status") == "finished" else float(before.get("seconds", 0.0))
    state: dict[str, Any] = {
        "status": "running",
        "continued_from": step if checkpoint is not None else None,
        "attempts": int(before.get("attempts", 0)) + 1,
        "step_factor": training.step_factor(),
        "deviations": {name: str(value) for name, value in training.deviations().items()},
        "versions": _versions(),
        "dropped_prompts": dropped,
        "inputs": read,
    }
    seconds = 0.0
    seen: list[float] = []

    def total() -> float:
        return spent + time.monotonic() - started

    if main:
        _write_status(folder, state | {"seconds": spent})
        trained = _keep(folder / "training.jsonl", lambda record: record["step"] <= step)
        seen.extend(trained[-1].get("rewards_seen", ()) if trained else ())
        done = _keep(
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
    if read["weights"] == _NOT_HERE:  # a model of the hub has come only now
        state["inputs"] = read | {"weights": _weights(run.model)}

    def beat() -> None:
        _write_status(folder, state | {"seconds": total()})

    signal = GroupSignalCallback(bounds=_bounds(seen))
    recorder = _recorder(
        run, language_model, held, folder, seconds, step, checkpoint is None, seen, beat
    )
    trainer = build_trainer(
        training,
        language_model,
        task,
        folder / "checkpoints",
        callbacks=[signal, recorder],
        rewards=signal.watched(_looking(signal, seen, reward_function(task))),
    )
    if sharded(trainer):
        raise InputError(
            "evaluations draw from the model as it trains, whole on every process: without FSDP and "
            "ZeRO stage 3; stage 2 will do"
        )
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        if main:
            beat()
    if main:
        _write_status(folder, state | {"status": "finished", "seconds": total()})
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


_BEAT = 1.0
"""Seconds between two notes of a run's time, the most that is lost of a process that is killed."""


def _bounds(seen: Sequence[float] = ()) -> tuple[float, float]:
    """The least and the greatest reward, as far as those that were seen tell.

    0 and 1 while none lies beyond; then the least and the greatest that were seen, or 1 for the
    greatest where all were equal. So they are right for rewards of 0 and 1, of -1 and 1, and for
    others once both ends were seen.

    >>> _bounds(), _bounds((0.0, 0.5)), _bounds((-1.0, -1.0)), _bounds((-1.0, 0.0))
    ((0.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (-1.0, 0.0))
    """
    if not seen or (min(seen) >= 0 and max(seen) <= 1):
        return 0.0, 1.0
    if min(seen) == max(seen):
        return min(0.0, *seen), max(1.0, *seen)
    return float(min(seen)), float(max(seen))


def _looking(signal: Any, seen: list[float], reward: Callable[..., Any]) -> Callable[..., Any]:
    """The reward function; the callback's bounds follow the rewards before it looks at any.

    Arguments:
        signal: the callback, whose bounds are set.
        seen: the least and the greatest reward so far, or nothing; kept up.
        reward: a reward function of TRL.
    """

    @wraps(reward)
    def looking(*args: Any, **kwargs: Any) -> Any:
        from accelerate.utils import gather_object

        found = reward(*args, **kwargs)
        known = [value for value in gather_object(list(found)) if value is not None]
        if known:
            seen[:] = min([*seen, *known]), max([*seen, *known])
        signal.bounds = _bounds(seen)
        return found

    return looking


def _recorder(
    run: Run,
    language_model: LanguageModel,
    held: Task,
    folder: Path,
    seconds: float,
    first: int,
    fresh: bool,
    seen: Sequence[float],
    beat: Callable[[], None],
) -> Any:
    """A callback that evaluates at the checkpoints and writes each step's record."""
    from accelerate import PartialState
    from accelerate.utils import gather_object
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def __init__(self) -> None:
            self.spent = seconds
            self.since = self.beaten = time.monotonic()

        def evaluate(self, step: int) -> None:
            self.spent += time.monotonic() - self.since
            state = PartialState()
            places = range(state.process_index, len(held.prompts), state.num_processes)
            # Not of the group size: runs of one seed share draws and are compared in pairs.
            draw = int(np.random.SeedSequence([run.seed, step]).generate_state(1)[0])
            begun = time.monotonic()
            own = _answers(
                language_model, held, places, run.samples, run.greedy, draw, run.evaluation_batch
            )
            parts = gather_object([own])
            rewards = {index: value for part, _ in parts for index, value in part.items()}
            failures = [line for _, part in parts for line in part]
            found = _evaluation(rewards, failures)
            if state.is_main_process:
                _append(
                    folder / "evaluations.jsonl",
                    {
                        "step": step,
                        "accuracy": found.accuracy,
                        "se": found.se,
                        "n": found.prompts,
                        "samples": 1 if run.greedy else run.samples,
                        "greedy": run.greedy,
                        "failures": len(found.failures),
                        "seconds": self.spent,
                        "evaluation_seconds": time.monotonic() - begun,
                    },
                )
            self.since = time.monotonic()

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.since = time.monotonic()
            if fresh:
                self.evaluate(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step = state.global_step
            if step in run.evaluated_at() and step > first:
                self.evaluate(step)
            if state.is_world_process_zero and time.monotonic() - self.beaten >= _BEAT:
                beat()
                self.beaten = time.monotonic()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if not state.is_world_process_zero or "loss" not in (logs or {}):
                return
            record = {
                name: value
                for name, value in (logs or {}).items()
                if name.startswith("signal/") or name in ("loss", "grad_norm", "reward")
            }
            record["length"] = (logs or {}).get("completions/mean_length")
            record["rewards_seen"] = list(seen)
            _append(folder / "training.jsonl", {"step": state.global_step, **record})

    return Recorder()


@dataclass(frozen=True)
class Memory:
    """Expected bytes of one process, by what holds them.

    Attributes:
        parameters: of the weights.
        gradients: one for each parameter.
        optimizer: AdamW's two moments; none for plain SGD.
        casts: bfloat16 copies of float32 weights, which autocast holds through a step.
        activations: what the forward pass of a micro-batch keeps for the backward pass.
        logits: a tile of TRL's fused head, and its gradient.
        generation: the cache of keys and values of all completions of a step on the process, with
            their last logits; with vLLM none, since it takes ``reserved``.
        reserved: the share of the device that vLLM takes for itself.
    """

    parameters: int
    gradients: int
    optimizer: int
    casts: int
    activations: int
    logits: int
    generation: int
    reserved: float = 0.0

    @property
    def peak(self) -> int:
        """The greatest at a time: completions are drawn when nothing is differentiated."""
        fixed = self.parameters + self.gradients + self.optimizer
        return fixed + max(self.casts + self.activations + self.logits, self.generation)

    @property
    def device(self) -> int:
        """The device that it takes, vLLM's share included."""
        return math.ceil(self.peak / (1 - self.reserved))


_TILE = (4096, 32768)
"""Tokens and vocabulary of the tile of logits that TRL's fused head holds at a time."""


def expected_memory(
    run: Run,
    config: Any,
    parameters: int,
    *,
    prompt_tokens: int,
    max_new_tokens: int,
    shards: int = 1,
) -> Memory:
    """Expected memory of one process of a run, for architectures like Qwen2 and Llama.

    With n = micro-batch x (prompt + completion) tokens, h the width, q and kv the widths of queries
    and keys, f that of the feed-forward layer, w the bytes of a weight and b those of an activation
    (2 under bf16), one layer keeps for each token

        2 (4h + b h)  the norms, in float32 and not,     2 b h  the inputs of q, k, v and of gate, up,
        5 b q         q, k, v (k, v repeated for each head), attention and its projection's input,
        4 b f         gate, its silu, up and their product.

    With checkpointing it keeps b h, and one layer at a time all of it. The cache of completions is
    2 kv w for each layer, token and completion of the process. Attention weights are not kept: it
    is for sdpa's fused kernels, not for eager attention.

    Arguments:
        run: the run.
        config: the model's, of transformers.
        parameters: how many, tied ones once.
        prompt_tokens: of the longest prompt.
        max_new_tokens: Lmax.
        shards: processes that share gradients and moments (DeepSpeed's ZeRO stage 2).
    """
    training = run.training(max_new_tokens)
    text = config.get_text_config()
    width, layers = text.hidden_size, text.num_hidden_layers
    head = getattr(text, "head_dim", None) or width // text.num_attention_heads
    queries = head * text.num_attention_heads
    keys = head * getattr(text, "num_key_value_heads", text.num_attention_heads)
    inner = text.intermediate_size
    weight = {"float64": 8, "float32": 4}.get(run.dtype, 2)
    active = 2 if run.bf16 else weight
    length = prompt_tokens + max_new_tokens
    tokens = training.micro_batch * length
    layer = 2 * (4 + active) * width + 2 * active * width + 5 * active * queries
    layer += 4 * active * inner
    kept = layers * active * width + layer if run.checkpointing else layers * layer
    moments = {"sgd": 0, "adamw": 2, "adamw_torch": 2}.get(run.optimizer, 2)
    shared = -(-parameters // shards)
    drawn = run.budget // run.processes
    cache = 2 * layers * keys * weight * length + 3 * 4 * text.vocab_size
    vllm = run.vllm is not None
    reserved = 0.0
    if vllm and (run.vllm or {}).get("mode", "colocate") == "colocate":
        reserved = float((run.vllm or {}).get("gpu_memory_utilization", 0.3))
    return Memory(
        parameters=parameters * weight,
        gradients=shared * weight,
        optimizer=moments * shared * weight,
        casts=2 * parameters if run.bf16 and weight > 2 else 0,
        activations=tokens * kept,
        logits=2 * 4 * min(tokens, _TILE[0]) * min(text.vocab_size, _TILE[1]),
        generation=0 if vllm else drawn * cache,
        reserved=reserved,
    )


@dataclass(frozen=True, eq=False)
class DryRun:
    """What a run would load and hold, found without its weights.

    Attributes:
        run: the run.
        parameters: of the model, tied ones once.
        memory: expected, of one process.
        prompts: to train on, held out, and left out of the first since their text is held out;
            None where the data could not be had.
        prompt_tokens: of the longest prompt; assumed where ``notes`` says so.
        notes: what was assumed or is not plain.
        problems: why the run would not start here.
    """

    run: Run
    parameters: int
    memory: Memory
    prompts: tuple[int, int, int] | None
    prompt_tokens: int
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        """The report as text."""
        run, memory = self.run, self.memory
        training = run.training(run.max_new_tokens or 1)
        factor = training.step_factor()
        rows = [
            ("run", _name(run)),
            ("model", f"{run.model}, {self.parameters:,} parameters, {run.dtype}"),
            (
                "step",
                f"{training.prompts} prompts x {run.group_size} completions = "
                f"{run.processes} process(es) x {training.accumulation} micro-batches x "
                f"{run.micro_batch}",
            ),
            (
                "step / theory's",
                "another direction, for " + ", ".join(training.deviations() or [run.trainer])
                if factor is None
                else f"{factor:.6g}",
            ),
            (
                "data",
                f"{self.prompts[0]:,} prompts, {self.prompts[1]:,} held out"
                + (f", {self.prompts[2]:,} of their texts left out" if self.prompts[2] else "")
                + f"; the longest has {self.prompt_tokens} tokens"
                if self.prompts
                else "not to be had here",
            ),
            ("evaluated at", ", ".join(map(str, run.evaluated_at()))),
            ("memory of a process", f"{memory.device / 1e9:,.1f} GB"),
        ]
        rows += [
            (f"  {entry.name}", f"{getattr(memory, entry.name) / 1e9:,.2f} GB")
            for entry in fields(memory)
            if entry.name != "reserved"
        ]
        if memory.reserved:
            rows.append(("  vLLM's share", f"{memory.reserved:.0%} of the device"))
        rows += [("note", note) for note in self.notes]
        rows += [("problem", problem) for problem in self.problems]
        return "\n".join(f"{name + ':':22}{value}" for name, value in rows)


_ASSUMED_PROMPT = 256


def dry_run(
    run: Run, *, config: Any = None, shards: int | None = None, longest_of: int = 1000
) -> DryRun:
    """Load everything of a run but the weights: configurations, tokenizer, data, and the model empty.

    What cannot be had, for want of a network, is a problem of the report and no error, so that all of
    it can be told at once. The shapes of the paper's models are known without the hub.

    Arguments:
        run: the run, such as one of ``gsm8k_sweep().plan()``.
        config: the model's configuration, of transformers, or a folder that has one; else it is
            looked up by the model's name.
        shards: processes that share gradients and moments; where not given, all that do so by
            ``--use_deepspeed --zero_stage 2`` in the run's launch.
        longest_of: prompts whose lengths are looked at, the first ones.

    Raises:
        InputError: TRL refuses the configuration; the model's configuration cannot be had.
    """
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    from .models import LanguageModel, tokenise

    notes, problems = [], []
    source = run.model if config is None else config
    if isinstance(source, str | Path):
        name = str(source)
        if name.startswith("embedded:"):
            from . import embedded

            name = str(embedded.folder(name.removeprefix("embedded:")))
        try:
            config = AutoConfig.from_pretrained(name)
        except Exception as error:
            if run.model not in paper_runs.SHAPES:
                raise InputError(
                    f"the configuration of {name!r} cannot be had ({_first_line(error)}): give a "
                    "local folder that has a config.json, or config="
                ) from error
            config = Qwen2Config(**paper_runs.SHAPES[run.model])
            problems.append(f"the hub cannot be reached for {run.model}; its known shape is taken")
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(config)
    # Emptying unties: what was one parameter became two.
    empty.tie_weights()
    parameters = sum(parameter.numel() for parameter in empty.parameters())

    tasks: tuple[Task, Task, int] | None = None
    try:
        tasks = run._split()
    except InputError as error:
        problems.append(str(error))
    longest = tasks[0].max_new_tokens if tasks else run.max_new_tokens
    if longest is None:
        longest = _ASSUMED_PROMPT
        notes.append(f"completions of {longest} tokens are assumed: set max_new_tokens")

    prompt_tokens = _ASSUMED_PROMPT
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    try:
        where = str(source) if isinstance(source, str | Path) else run.model
        if where.startswith("embedded:"):
            where = name
        tokenizer = AutoTokenizer.from_pretrained(where)
    except Exception as error:
        problems.append(f"the tokenizer of {run.model} cannot be had ({_first_line(error)})")
        notes.append(f"prompts of {prompt_tokens} tokens are assumed")
    else:
        if tokenizer.pad_token_id is None and run.pad_token is None:
            problems.append(f"the tokenizer of {run.model} has no pad token: set pad_token")
        if tasks:
            known = LanguageModel(empty, tokenizer, run.model, "meta", context or 2**31)
            try:
                prompt_tokens = max(
                    len(tokenise(known, prompt))
                    for task in tasks[:2]
                    for prompt in task.prompts[:longest_of]
                )
            except InputError as error:
                problems.append(str(error))
    if context is not None and prompt_tokens + longest > context:
        problems.append(
            f"prompts of {prompt_tokens} and completions of {longest} tokens are more than the "
            f"context of {context}"
        )

    # TRL's own checks; where it stands in for several processes, one takes all micro-batches.
    replace(
        run.training(longest),
        device="cpu",
        bf16=False,
        micro_batch=run.micro_batch * run.processes,
        processes=1,
    ).configuration("unused")
    if run.device != "cpu":
        count = torch.cuda.device_count()
        if count < run.processes:
            problems.append(f"{run.processes} GPU(s) are asked for and there are {count}")
    if run.vllm is not None:
        try:
            version("vllm")
        except PackageNotFoundError:
            problems.append("vLLM is asked for and not installed")
    memory = expected_memory(
        run,
        config,
        parameters,
        prompt_tokens=prompt_tokens,
        max_new_tokens=longest,
        shards=(run.processes if "--use_deepspeed" in run.launch else 1)
        if shards is None
        else shards,
    )
    return DryRun(
        replace(run, max_new_tokens=longest),
        parameters,
        memory,
        None if tasks is None else (len(tasks[0].prompts), len(tasks[1].prompts), tasks[2]),
        prompt_tokens,
        tuple(notes),
        tuple(problems),
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def results(out: str | Path) -> pd.DataFrame:
    """All runs of a folder as a tidy frame, one row for each evaluation.

    Columns: the grid (model, task, trainer, baseline, K, G, B, seed), step, final (whether it is the
    run's last step), accuracy with se, n, samples and greedy, zero_signal (the mean share of groups
    whose rewards are all equal, over the steps so far), seconds (of training so far), status
    (finished, failed, or incomplete), step_factor (step over the theory's, None where it is no
    multiple), message, key, least and most (of the rewards seen; 0 and 1 where none lies beyond)
    and settings: a hash of all else, that is of the configuration without trainer, K, G and seed,
    and of weights, prompts and verifier. Where a folder holds more than one, what they differ in
    are further columns, and :func:`table2` and :func:`figure5` want the rows of one. A run without
    evaluations has one row without accuracy.

    Raises:
        InputError: the folder holds no run.
    """
    rows: list[dict[str, Any]] = []
    constants: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(out).glob("*/run.json")):
        run, folder = Run.read(path), path.parent
        status = _status(folder)
        read = status.get("inputs")
        # Written as text, for a cell of a table.
        whole = {
            name: json.dumps(value, sort_keys=True) for name, value in run._constants().items()
        }
        whole |= {name: str((read or {}).get(name)) for name in _INPUTS}
        settings = _short_hash(whole)
        told = status.get("status", "incomplete")
        common = {
            "model": run.model,
            "task": run.task,
            "trainer": run.trainer,
            "baseline": run.training(1).kind.baseline,
            "K": run.budget,
            "G": run.group_size,
            "B": run.budget // run.group_size,
            "seed": run.seed,
            "learning_rate": run.learning_rate,
            "status": told if told in ("finished", "failed") else "incomplete",
            "step_factor": status.get("step_factor"),
            "message": status.get("message", ""),
            "key": run.key,
            "settings": settings,
        }
        steps = _lines(folder / "training.jsonl")
        least, most = _bounds(steps[-1].get("rewards_seen", ()) if steps else ())
        common |= {"least": least, "most": most}
        shares = {record["step"]: record.get("signal/zero_share") for record in steps}
        # The last record of a step counts, should a run have been killed between the two files.
        found = {record["step"]: record for record in _lines(folder / "evaluations.jsonl")}
        if found:
            constants[settings] = whole
        for step in sorted(found) or [None]:
            record = found.get(step, {}) if step is not None else {}
            until = [
                share
                for at, share in shares.items()
                if share is not None and (step is None or at <= step)
            ]
            rows.append(
                common
                | {
                    "step": math.nan if step is None else step,
                    "final": step == run.steps,
                    "accuracy": record.get("accuracy", math.nan),
                    "se": record.get("se", math.nan),
                    "n": record.get("n", 0),
                    "samples": record.get("samples", run.samples),
                    "greedy": record.get("greedy", run.greedy),
                    "failures": record.get("failures", 0),
                    "zero_signal": float(np.mean(until)) if until else math.nan,
                    "seconds": record.get("seconds", math.nan),
                }
            )
    if not rows:
        raise InputError(f"{out} holds no runs: it must be a folder that a sweep has written")
    frame = pd.DataFrame(rows)
    for name in next(iter(constants.values()), {}):
        told = {settings: whole[name] for settings, whole in constants.items()}
        if name not in frame and len(set(told.values())) > 1:
            frame[name] = frame["settings"].map(told)
    order = ["trainer", "K", "G", "seed", "step"]
    return frame.sort_values(order, kind="stable").reset_index(drop=True)


def _refuse_mixed(frame: pd.DataFrame) -> None:
    """Refuse runs of more than one setting, whose mean is of nothing; say what they differ in."""
    if frame["settings"].nunique() < 2:
        return
    first = frame.drop_duplicates("settings").set_index("settings")
    known = [entry.name for entry in fields(Run) if entry.name not in _GRID]
    differing = [
        f"{name} ({', '.join(map(str, first[name].unique()))})"
        for name in (*known, *_INPUTS)
        if name in first and first[name].nunique(dropna=False) > 1
    ]
    raise InputError(
        f"the runs have {len(first)} settings ({', '.join(first.index)}), which differ in "
        f"{'; '.join(differing)}: they are no runs of one experiment; give those of one, "
        f'such as frame[frame["settings"] == "{first.index[0]}"], or keep each in its own folder'
    )


def _joined(part: pd.DataFrame) -> dict[str, float]:
    """Mean over runs with its 95% t interval, within the rewards' range; none of one run."""
    found = part["accuracy"].to_numpy(dtype=float)
    found = found[np.isfinite(found)]
    mean = float(found.mean()) if found.size else math.nan
    half = math.nan
    if found.size > 1:
        half = float(student.ppf(0.975, found.size - 1) * found.std(ddof=1) / math.sqrt(found.size))
    low = high = math.nan
    if math.isfinite(half):
        low = max(mean - half, min(part["least"].min(), *found))
        high = min(mean + half, max(part["most"].max(), *found))
    return {"accuracy": mean, "low": low, "high": high, "runs": float(found.size)}


def _by(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    rows = [
        dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True)) | _joined(part)
        for key, part in frame.groupby(names, sort=True)
    ]
    return pd.DataFrame(rows, columns=[*names, "accuracy", "low", "high", "runs"])


def table2(frame: pd.DataFrame) -> pd.DataFrame:
    """Final accuracies in the form of Table 2, the paper's own beside them.

    Arguments:
        frame: of :func:`results`.

    Returns:
        one row for each trainer, budget K and group size G: the mean over finished runs, its 95%
        interval (none of one run; cut at the least and the greatest reward), how many runs, and
        ``paper``. Entries of the paper's table that no run answers stand with the trainer
        ``paper alone``.

    Raises:
        InputError: finished runs of more than one setting; the message names what differs.
    """
    final = frame[frame["final"] & (frame["status"] == "finished")]
    _refuse_mixed(final)
    found = _by(final, ["trainer", "K", "G"])
    paper = paper_runs.table_2().rename(
        columns={"budget": "K", "group_size": "G", "accuracy": "paper"}
    )
    joined = found.merge(paper, on=["K", "G"], how="outer").sort_values(["trainer", "K", "G"])
    joined["trainer"] = joined["trainer"].fillna("paper alone")
    joined["runs"] = joined["runs"].fillna(0).astype(int)
    return joined.reset_index(drop=True)


def figure5(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy against the group size at each checkpoint, in the form of Figure 5.

    Arguments:
        frame: of :func:`results`.

    Returns:
        one row for each trainer, K, step and G: the mean over runs that got there, its 95%
        interval, cut at the least and the greatest reward, how many runs, and whether it is the
        best group size of its step (``best``); and ``paper``, whether Figure 5 has a point there.
        The figure's accuracies are not printed in the paper; what is stated of them is
        :data:`ustat_pg.llm.paper_runs.FIGURE_5`.

    Raises:
        InputError: runs of more than one setting; the message names what differs.
    """
    trained = frame[frame["step"] > 0]
    _refuse_mixed(trained)
    found = _by(trained, ["trainer", "K", "step", "G"])
    best = found.groupby(["trainer", "K", "step"])["accuracy"].transform("max")
    found["best"] = found["accuracy"] == best
    stated = paper_runs.FIGURE_5
    found["paper"] = (
        (found["K"] == stated["budget"])
        & found["G"].isin(stated["group_sizes"])
        & found["step"].isin(stated["checkpoints"])
    )
    found["runs"] = found["runs"].astype(int)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m ustat_pg.llm.sweep RUN.json``: make one run."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1 or given[0].startswith("-"):
        print("usage: python -m ustat_pg.llm.sweep OUT/KEY/run.json", file=sys.stderr)
        return 2
    try:
        make(given[0])
    except BlockingIOError:
        print(f"{given[0]}: another process is making this run", file=sys.stderr)
        return _BUSY
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

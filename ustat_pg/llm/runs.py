"""One training run as data: its settings, its prompts, its process, and digests of what it reads."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from math import gcd
from pathlib import Path
from typing import Any

from ..reading import read_json
from ..validation import InputError, integer, nearest
from .budgets import refuse_group_size
from .prompts import Task
from .tasks import load_task
from .training import OURS, Training
from .verifiers import source_digest

__all__ = [
    "GRID",
    "INPUTS",
    "NEEDED",
    "NOT_HERE",
    "Run",
    "different",
    "inputs",
    "short_hash",
    "weights",
]

GRID = ("trainer", "budget", "group_size", "seed")
"""Fields of a run that a sweep's grid runs over."""

INPUTS = ("weights", "prompts", "verifier")
"""What a run reads besides its configuration."""

NOT_HERE = "not here"
"""In place of a digest, of a model that the hub has and this machine has not."""


def short_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Run(Training):
    """One training run with its evaluations, as data.

    The fields are those of a :class:`~ustat_pg.llm.training.Training`, and these.

    Arguments:
        model: hub id, local folder or ``embedded:NAME``.
        task: what is trained on, as :func:`~ustat_pg.llm.tasks.load_task` reads it; an embedded model
            has its own.
        evaluation: the task of the held-out prompts, where it is another; answers are as long at most
            as in training.
        held_out: how many of the task's own prompts, the last ones, are held out; others of the
            same text are not trained on.
        checkpoints: steps that are evaluated, besides 0 and the last.
        samples: answers to each held-out prompt, sampled as in training.
        greedy: greedy answers, in place of sampled ones.
        evaluation_batch: answers at a time on one device, rounded up to whole prompts; 0 for 64 on a
            CPU and else for the micro-batch, since TRL takes their logits too. Draws depend on it.
        verifier: ``module:function``, for a ``.jsonl`` task.
        pad_token: for a tokenizer without one.
        dtype: of the weights.
        threads: of torch, in each process.
        launch: further arguments of ``accelerate launch``, such as ``--config_file zero3.yaml``; on
            CPUs of ``torch.distributed.run``.
    """

    model: str
    task: str = ""
    evaluation: str | None = None
    held_out: int = 0
    checkpoints: tuple[int, ...] = ()
    samples: int = 1
    greedy: bool = False
    evaluation_batch: int = 0
    verifier: str | None = None
    max_new_tokens: int | None = None
    pad_token: str | None = None
    dtype: str = "float32"
    threads: int = 1
    launch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot run."""
        super().__post_init__()
        if not self.task:
            if not self.model.startswith("embedded:"):
                raise InputError(f"task is missing: {self.model} has no prompts of its own")
            object.__setattr__(self, "task", self.model)
        for name, least in (
            ("samples", 1),
            ("evaluation_batch", 0),
            ("threads", 1),
            ("held_out", 0),
        ):
            integer(name, getattr(self, name), least)
        for step in self.checkpoints:
            integer("a checkpoint's step", step, 0)
        if (self.evaluation is None) == (self.held_out == 0):
            raise InputError(
                f"evaluation is {self.evaluation!r} and held_out is {self.held_out}: name a task of "
                "held-out prompts, or how many of the task's own are held out, one of the two"
            )
        if self.greedy and self.samples != 1:
            raise InputError(
                f"samples is {self.samples}: of greedy answers there is one to a prompt"
            )

    @property
    def key(self) -> str:
        """The name of the run's folder: a hash of its configuration."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    def text(self) -> str:
        """The configuration as JSON."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Run:
        """The run of these settings: fields, TRL's names of them, and further arguments of TRL's.

        >>> run = Run.of({"model": "embedded:base", "held_out": 9, "num_generations": 2, "budget": 8,
        ...     "max_steps": 1, "learning_rate": "1e-3", "beta": 0.05})
        >>> run.group_size, run.learning_rate, run.options
        (2, 0.001, {'beta': 0.05})

        Raises:
            InputError: one that is needed is missing; an unknown one that is nearly a field's name;
                what a run refuses.
        """
        known = {entry.name: entry for entry in fields(cls)}
        rest = dict(settings)
        own: dict[str, Any] = {"options": dict(rest.pop("options", None) or {})}
        for given, value in rest.items():
            name = OURS.get(given, given)
            if name in known:
                kind = str(known[name].type)
                if kind.startswith("tuple"):
                    value = tuple(value) if isinstance(value, list | tuple) else (value,)
                elif kind == "float":
                    with suppress(TypeError, ValueError):  # YAML takes 1e-3 for a text
                        value = float(value)
                elif kind.startswith("str") and not isinstance(value, str | None):
                    raise InputError(f"{given} is {value!r}: it must be a text")
                own[name] = value
            elif near := nearest(given, known, cutoff=0.8):
                raise InputError(f"{given} is no setting of a run: {near[0]} may be meant")
            else:
                own["options"][given] = value
        if missing := [name for name in NEEDED if name not in own]:
            raise InputError(f"a run needs {', '.join(missing)}")
        return cls(**own)

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """The run that a ``run.json`` describes.

        Raises:
            InputError: the file cannot be read or is none of these.
        """
        try:
            return cls.of(read_json(Path(path)))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not the configuration of a run: {error}") from error

    def arguments(self, out: Path | str) -> dict[str, Any]:
        """TRL's arguments, those of evaluations too.

        >>> run = Run(model="m", task="t", group_size=2, budget=8, steps=5, learning_rate=0.1,
        ...     held_out=1, samples=6)
        >>> run.arguments("out")["per_device_eval_batch_size"]
        66
        """
        # A batch over all devices holds all samples of its prompts.
        part = self.samples // gcd(self.samples, self.processes)
        wanted = self.evaluation_batch or (64 if self.device == "cpu" else self.micro_batch)
        own = {"num_generations_eval": self.samples}
        own |= {"per_device_eval_batch_size": part * -(-wanted // part)}
        return super().arguments(out) | own

    def evaluated_at(self) -> tuple[int, ...]:
        """The steps that are evaluated: before training, the checkpoints it reaches, the last.

        >>> Run(model="m", task="t", group_size=2, budget=8, steps=500, learning_rate=0.1,
        ...     held_out=1, checkpoints=(200, 300, 800)).evaluated_at()
        (0, 200, 300, 500)
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
        task, held, _ = self.split()
        return task, held

    def split(self) -> tuple[Task, Task, int]:
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

    def constants(self) -> dict[str, Any]:
        """The configuration without what a sweep's grid runs over."""
        return {name: value for name, value in sorted(asdict(self).items()) if name not in GRID}

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
            launcher += ["--mixed_precision", "bf16" if self.options.get("bf16") else "no"]
            sharing = {"--use_deepspeed", "--use_fsdp"} & set(self.launch)
            launcher += ["--multi_gpu"] if self.processes > 1 and not sharing else []
        return [*launcher, *self.launch, *module]


NEEDED = tuple(
    entry.name for entry in fields(Run) if entry.default is entry.default_factory is MISSING
)
"""Fields of a run that have no default."""


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
        "weights": weights(run.model),
        "prompts": short_hash(prompts),
        "verifier": short_hash([source_digest(part.verifier) for part in (task, held)]),
    }


def weights(model: str) -> str:
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
        return f"commit {Path(found).parent.name}" if isinstance(found, str) else NOT_HERE
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            own = hashlib.file_digest(file, "blake2b").hexdigest()
        digest.update(f"{path.name} {own}\n".encode())
    return digest.hexdigest()


def different(status: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Which of weights, prompts and verifier are others than a status tells of, or are not told."""
    told = status.get("inputs")
    told = told if isinstance(told, dict) else {}
    return [name for name in INPUTS if told.get(name) != now[name]]

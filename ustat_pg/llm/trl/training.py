"""One training run through TRL, on this library's tasks and with its estimators.

``python -m ustat_pg.llm.trl.training --config run.yaml`` starts a run: TRL's own parser reads the file, TRL
trains, and TRL evaluates on held-out prompts. Settings are those of :class:`RunArguments` and all of TRL's
``RLOOConfig``, with TRL's names. Options after the file override it, for example ``--seed 1``.

One step of plain SGD with rate η changes the parameters by η ĝ, ĝ = (1/(BG)) Σᵢ sᵢ Aᵢ with the score s of the
whole completion and the estimator's advantages A, at the settings of :data:`PLAIN`. TRL's ``GRPOTrainer``
(``trainer: trl-grpo``) takes another step:

=================================================== ===========================
settings besides :data:`PLAIN`                      step / (η ĝ)
=================================================== ===========================
none                                                another direction
``loss_type: dr_grpo``, ``scale_rewards: none``     (G-1)/(G Lmax)
``loss_type: luspo``, ``scale_rewards: none``       (G-1)/G
=================================================== ===========================

Lmax is ``max_completion_length``. ``trainer: grpo-corrected`` removes the factor of the last row. A factor
that depends on G confounds the group size with the learning rate. With vLLM these rows also need
``vllm_importance_sampling_correction: false``. The tests measure these steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...files.whole import versions, whole_file
from ...validation import InputError, needed
from ..models.loading import check_lengths, load_model, tokenise
from ..prompts import Task
from ..tasks.named import load_task

FINISHED = "finished.json"
"""The file of a finished run: its settings, TRL's log, and the versions that made it."""

PLAIN: Mapping[str, Any] = MappingProxyType(
    {
        "beta": 0.0,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_dropout": True,
        "disable_tqdm": True,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_on_start": True,
        "num_generations_eval": 1,
        "save_strategy": "no",
        "save_total_limit": 1,
    }
)
"""Defaults of a run that differ from TRL's; with them a step of ``RLOOTrainer`` is η ĝ."""


@dataclass
class RunArguments:
    """The settings of a run in addition to TRL's configuration.

    Arguments:
        model: as for :func:`~ustat_pg.llm.models.loading.model_source`.
        task: prompts for training, as for :func:`~ustat_pg.llm.tasks.named.load_task`.
        evaluation: task of the held-out prompts, if it is another one.
        held_out: number of the task's own prompts that are held out (the last ones).
        verifier: ``module:function``, for a ``.jsonl`` task.
        trainer: ``rloo`` or ``trl-grpo``, TRL's own; ``grpo-corrected``, TRL's
            GRPO with leave-one-out means; ``two-stage:12``, this library's
            :class:`~ustat_pg.llm.trl.two_stage_trainer.TwoStageTrainer` with 12 more outputs for a mixed
            pilot, or ``two-stage-uncorrected:12``; or an estimator of its
            :class:`~ustat_pg.llm.trl.trainers.EstimatorTrainer`.
        dtype: type of the weights.
        pad_token: for a tokenizer without one.
        threads: threads of torch in each process; 0 for torch's own choice.
    """

    model: str
    task: str
    evaluation: str | None = None
    held_out: int = 0
    verifier: str | None = None
    trainer: str = "rloo"
    dtype: str = "float32"
    pad_token: str | None = None
    threads: int = 0


def trainer_class(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """The trainer of this name, its configuration's class, and its further arguments."""
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from .trainers import EstimatorTrainer
    from .two_stage_trainer import TwoStageTrainer

    named: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "rloo": (RLOOTrainer, RLOOConfig, {}),
        "trl-grpo": (GRPOTrainer, GRPOConfig, {}),
        "grpo-corrected": (EstimatorTrainer, GRPOConfig, {"estimator": "grpo"}),
    }
    kind, _, more = name.partition(":")
    if kind in ("two-stage", "two-stage-uncorrected"):
        number = int(more) if more.isdecimal() else more or None
        return TwoStageTrainer, RLOOConfig, {"more": number, "corrected": kind == "two-stage"}
    return named.get(name, (EstimatorTrainer, RLOOConfig, {"estimator": name}))


def dataset(task: Task) -> Any:
    """The task's prompts for TRL: the column ``prompt`` and those of the verifier."""
    from datasets import Dataset

    names = dict.fromkeys(name for prompt in task.prompts for name in prompt.columns)
    columns = {name: [prompt.columns.get(name) for prompt in task.prompts] for name in names}
    return Dataset.from_dict({"prompt": [prompt.text for prompt in task.prompts]} | columns)


def _split(run: RunArguments, longest: int) -> tuple[Task, Task]:
    """The prompts for training and the held-out prompts, without common texts."""
    if (run.evaluation is None) == (run.held_out == 0):
        raise InputError(
            f"evaluation is {run.evaluation!r} and held_out is {run.held_out}: give either a "
            f"task of held-out prompts or the number of the task's own prompts to hold out"
        )
    task = load_task(run.task, verifier=run.verifier, max_new_tokens=longest)
    if run.evaluation is None:
        held = replace(task, prompts=task.prompts[-run.held_out :])
    else:
        verifier = run.verifier if run.evaluation.endswith(".jsonl") else None
        held = load_task(run.evaluation, verifier=verifier, max_new_tokens=longest)
    texts = {repr(prompt.text) for prompt in held.prompts}
    kept = tuple(prompt for prompt in task.prompts if repr(prompt.text) not in texts)
    if not kept:
        raise InputError(
            f"all prompts of {run.task} have the text of a held-out prompt, so none is left for training"
        )
    return replace(task, prompts=kept), held


def _train(run: RunArguments, args: Any) -> None:
    """Run a training in its ``output_dir``, from its last checkpoint if it has one."""
    import torch
    from transformers.trainer_utils import get_last_checkpoint

    if run.threads:
        torch.set_num_threads(run.threads)
    task, held = _split(run, args.max_completion_length)
    step = args.generation_batch_size // args.num_generations
    if step > len(task.prompts):
        # TRL draws the prompts of a step without replacement, and drops an incomplete one.
        raise InputError(
            f"a step needs {step} prompts and there are {len(task.prompts)}: take larger groups, "
            f"a smaller budget or more prompts"
        )
    # TRL averages over batches, which is the mean over answers if all batches are complete.
    batch = args.eval_batch_size * args.world_size
    tested = len(held.prompts) - len(held.prompts) % max(1, batch // args.num_generations_eval)
    if not tested:
        raise InputError(
            f"{len(held.prompts)} prompts are held out and an evaluation takes {batch} answers at a "
            "time: hold out more, or lower per_device_eval_batch_size"
        )
    language_model = load_model(run.model, dtype=run.dtype, pad_token=run.pad_token)
    for prompt in (*task.prompts, *held.prompts):
        count = len(tokenise(language_model, prompt))
        check_lengths(language_model, prompt.id, count, args.max_completion_length)
    trainer_type, _, more = trainer_class(run.trainer)
    trainer = trainer_type(
        model=language_model.model,
        reward_funcs=task.verifier,
        args=args,
        train_dataset=dataset(task),
        eval_dataset=dataset(held).select(range(tested)),
        processing_class=language_model.tokenizer,
        **more,
    )
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    # A checkpoint does not contain the table that is learned during training.
    checkpoint = get_last_checkpoint(str(folder)) if run.trainer != "running-table" else None
    if checkpoint:
        args.eval_on_start = False
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        record = {
            "run": vars(run),
            "trl": args.to_dict(),
            "budget": args.generation_batch_size,
            "tested": tested,
            "log": trainer.state.log_history,
            "versions": versions("ustat_pg", "torch", "transformers", "trl", "accelerate", "vllm"),
        }
        with whole_file(folder / FINISHED) as file:
            file.write(json.dumps(record, indent=1).encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m ustat_pg.llm.trl.training --config run.yaml`` and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with needed("a training run", "llm"):
            from trl import TrlParser
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        kinds: list[Any] = [RunArguments]
        first, *_ = TrlParser(kinds).parse_args_and_config(words, return_remaining_strings=True)
        parser = TrlParser([*kinds, trainer_class(first.trainer)[1]])
        parser.set_defaults_with_config(**PLAIN)
        run, args = parser.parse_args_and_config(words)
    except ValueError as error:
        print(f"TRL does not accept the settings: {error}", file=sys.stderr)
        return 2
    try:
        _train(run, args)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``ustat-pg llm mse``, and the scored pool that every command on language models begins with."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError, integer
from .arguments import refuse_ignored, source
from .check_command import refuse_check, sampled_anew
from .printing import (
    finite,
    noise_table,
    percent,
    plain,
    reading,
    records,
    say_constants,
    say_facts,
)
from .scored import ScoredPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .models import LanguageModel
    from .pipeline import Progress
    from .prompts import Task
    from .store import Rollouts

__all__ = ["mse"]


DOUBTFUL, ANOTHER = 4.0, 8.0
"""Standard errors of the on-policy test beyond which a pool is doubted, and refused."""

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Of tables, unless others are asked for."""


_EVERY = 30.0
"""Seconds between two lines of progress in a log."""


@contextmanager
def _progress() -> Iterator[Progress]:
    """One bar on a terminal's stderr; in a log a line now and then."""
    if not sys.stderr.isatty():
        began = told = time.monotonic()

        def line(what: str, done: int, of: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= _EVERY:
                told = now
                print(f"{what}: {done} of {of} prompts, {now - began:.0f} s", file=sys.stderr)

        yield line
        return
    from tqdm import tqdm

    with tqdm(unit="prompt", leave=False) as bar:

        def show(what: str, done: int, of: int) -> None:
            bar.set_description(what)
            bar.total, bar.n = of, done
            bar.refresh()

        yield show


def _parts(options: argparse.Namespace) -> tuple[LanguageModel, Task | None]:
    """The model and its task, None where a file of rollouts stands for it."""
    from .tasks import drawn, load_task

    if options.model is None:
        raise InputError("which model: --model with a hub id, a local folder or embedded:NAME")
    prompts = options.prompts
    if prompts is None:
        if not options.model.startswith("embedded:"):
            if options.rollouts is not None:
                # A file of rollouts may hold its prompts and rewards itself.
                if options.verifier is not None:
                    raise InputError(
                        "a verifier is of prompts: give --prompts, or leave out --verifier"
                    )
                return _model(options), None
            raise InputError(f"which prompts: --prompts, {options.model} has none of its own")
        prompts = options.model
    # Refused before the model is loaded.
    task = load_task(prompts, verifier=options.verifier, max_new_tokens=options.max_new_tokens)
    if options.rollouts is None:
        task = replace(task, prompts=tuple(drawn(task.prompts, options.limit, _seed(options))))
    model = _model(options)
    if options.max_new_tokens is None and options.rollouts is None:
        task = _fitting(task, model)
    return model, task


def _fitting(task: Task, model: LanguageModel) -> Task:
    """The task with answers no longer than fit the model's context beside the longest prompt."""
    from .models import tokenise

    room = model.context - max(len(tokenise(model, prompt)) for prompt in task.prompts)
    if not 1 <= room < task.max_new_tokens:
        return task
    print(f"answers have at most {room} tokens: more do not fit the context", file=sys.stderr)
    return replace(task, max_new_tokens=room)


def _seed(options: argparse.Namespace) -> int:
    return integer("seed", options.seed or 0, 0)


def _model(options: argparse.Namespace) -> LanguageModel:
    from .models import load_model, machine_device

    # A hub that cannot be reached is told once, by an error, and not at each attempt.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    lora = options.lora
    if lora is not None and lora.isdigit():
        lora = int(lora)
    return load_model(
        options.model,
        device=options.device or machine_device(),
        dtype=options.dtype,
        lora=lora,
        pad_token=options.pad_token,
    )


def _log(options: argparse.Namespace) -> dict[str, Any]:
    """What of a trainer's log is a group, and what its rewards."""
    return {"group_by": options.group_by or (), "reward": options.reward}


def _scored(
    options: argparse.Namespace, progress: Progress | None
) -> tuple[ScoredPool, tuple[LanguageModel, Task | None, list[Rollouts]] | None]:
    """The scored pool that the options name or ask for, and what it was made of."""
    from .models import precision
    from .pipeline import collect, score
    from .stale_command import token_weights
    from .tasks import drawn

    if options.scored is not None:
        return _on_policy(ScoredPool.load(options.scored), options), None
    model, task = _parts(options)
    sampling: dict[str, Any] = {"backend": options.backend or "transformers"}
    if options.batch is not None:
        sampling["batch"] = integer("batch", options.batch)
    scoring: dict[str, Any] = {
        "parameters": options.parameters or "all",
        "method": options.method or "hooks",
        "autocast_bf16": options.autocast,
    }
    if options.memory is not None:
        scoring["memory"] = options.memory
    if getattr(options, "by_length", False):
        scoring["by_length"] = True
    weights = token_weights(options)
    rollouts = collect(
        model,
        task,
        64 if options.samples is None else options.samples,
        seed=_seed(options),
        out=options.out,
        file=options.rollouts,
        log={**_log(options), "stale": weights is not None},
        scoring=scoring,
        progress=progress,
        **sampling,
    )
    if options.rollouts is not None:
        rollouts = drawn(rollouts, options.limit, _seed(options))
    if getattr(options, "by_length", False) or weights is not None:
        _binary(rollouts)
    pool = score(
        model,
        rollouts,
        out=options.out,
        progress=progress,
        config={
            "task": None if task is None else task.name,
            # Of rollouts of one's own it draws the prompts alone.
            "seed": None
            if options.rollouts is not None and options.limit is None
            else _seed(options),
            "dtype": precision(model),
        },
        token_weights=weights,
        **scoring,
    )
    return _on_policy(pool, options), (model, task, rollouts)


def _binary(rollouts: Sequence[Rollouts]) -> None:
    """Refuse, before anything is scored, rewards that tables by counts do not take."""
    for each in rollouts:
        if not np.isin(each.rewards, (0, 1)).all():
            raise InputError(
                f"prompt {each.prompt.id!r} has rewards that are not 0 or 1: --by-length and --ratio take "
                "these alone"
            )


def on_policy_z(pool: ScoredPool) -> float | None:
    """The pool's, as JSON has it."""
    return None if pool.on_policy_z is None else finite(pool.on_policy_z)


def _on_policy(pool: ScoredPool, options: argparse.Namespace) -> ScoredPool:
    """The pool, unless its tokens are too surprising, or too little, to be the scored policy's own.

    What was scored is kept by then: with --off-policy nothing is done anew.
    """
    z = pool.on_policy_z
    # Of a weighted pool another policy is known to have drawn them.
    if z is None or abs(z) <= DOUBTFUL or pool.weighted:
        return pool
    said = (
        f"the rollouts' tokens are {'more' if z > 0 else 'less'} surprising to this model than its own "
        f"would be: z = {z:+.1f}"
    )
    reasons = (
        "another temperature than 1, top-p, template, precision or model, or end tokens dropped"
    )
    if abs(z) > ANOTHER and not options.off_policy:
        raise InputError(
            f"{said}, where {ANOTHER:g} is the most that is taken for chance; {reasons}? Sample from "
            "this model, or go on with --off-policy: the estimates are then of no policy's gradient"
        )
    print(f"warning: {said}; {reasons}?", file=sys.stderr)
    return pool


def mse(options: argparse.Namespace) -> None:
    """Every baseline's gradient MSE at every group size."""
    import pandas as pd

    from .estimates import (
        BASELINES,
        TABLES,
        WEIGHTED,
        constants,
        curves,
        noise_to_signal,
        ordering,
        summary,
        zero_signal,
    )
    from .stale_command import by_length, say_stale
    from .tables import binary

    refuse_check(options)
    if options.ratio is not None and (options.remax or options.check):
        raise InputError(
            "--ratio is of rollouts of an older policy: leave out --remax and --check, which sample anew"
        )
    for size in options.group_sizes or ():
        integer("group size", size, 2)
    refuse_ignored(options, source(options), "out")
    _make_folder(options.out)
    started = time.perf_counter()
    with _progress() as progress:
        pool, made_of = _scored(options, progress)
    seconds = time.perf_counter() - started
    sizes = options.group_sizes or [size for size in GROUP_SIZES if size <= pool.rollouts]
    below = [size for size in sizes if size < pool.rollouts]
    if pool.weighted:
        say_stale(options, pool, below)
        return
    greedy = _greedy(pool, made_of) if options.remax else None
    frame = curves(pool, sizes, [name for name in BASELINES if name not in WEIGHTED])
    if greedy is not None:
        own = curves(pool, sizes, ["constant"], constant=greedy)
        frame = pd.concat([frame, own.replace("constant", "remax")], ignore_index=True)
    inside = [size for size in sizes if size <= pool.rollouts]
    if inside and pool.gram is not None:
        # Groups are drawn from the pool for these: none is larger than it.
        frame = pd.concat([frame, curves(pool, inside, WEIGHTED)], ignore_index=True)
    facts, signal = summary(pool), zero_signal(pool, sizes)
    known = constants(pool) if pool.size > 1 else None
    orders = [ordering(pool, size).assign(group_size=size) for size in sizes]
    noise, mean = None, by_length(pool, below)
    if below and pool.size > 1:
        tables = TABLES if binary(pool) else ()
        names = [name for name in ("grpo", *BASELINES, *tables) if name not in WEIGHTED]
        names += [] if greedy is None else ["constant"]
        noise = noise_to_signal(pool, below, list(dict.fromkeys(names)), constant=greedy)
        noise = noise.replace("constant", "remax")
    if options.out is not None:
        frame.to_csv(options.out / "curves.csv", index=False)
        if noise is not None:
            noise.to_csv(options.out / "noise_to_signal.csv", index=False)
        if mean is not None:
            mean.to_csv(options.out / "noise_to_signal_by_length.csv", index=False)
        facts.to_csv(options.out / "summary.csv", index=False)
    brute = None
    if made_of is not None and options.check is not None:
        brute = sampled_anew(options, pool, made_of, _seed(options))
    if options.json:
        print(
            json.dumps(
                {
                    "prompts": pool.size,
                    "rollouts": pool.rollouts,
                    "config": pool.config,
                    "on_policy_z": on_policy_z(pool),
                    "summary": records(facts),
                    "curves": records(frame),
                    "zero_signal": records(signal),
                    "noise_to_signal": None if noise is None else records(noise),
                    "noise_to_signal_by_length": None if mean is None else records(mean),
                    "ordering": [row for order in orders for row in records(order)],
                    "constants": None if known is None else records(known.frame()),
                    "check": None if brute is None else records(brute),
                },
                allow_nan=False,
            )
        )
        return
    from tabulate import tabulate

    say_facts(pool, facts)
    rows, names = [], list(dict.fromkeys(frame["baseline"]))
    for size, share in zip(sizes, signal["share"], strict=True):
        here = {r["baseline"]: r for r in frame[frame["group_size"] == size].to_dict("records")}
        cells = [
            f"{plain(here[name]['mse'])} ± {plain((here[name]['high'] - here[name]['low']) / 2, 2)}"
            if name in here
            else "-"
            for name in names
        ]
        rows.append([size, *cells, percent(share)])
    # Long names in two lines: the table fits a terminal.
    header = [name.replace("-", "-\n") for name in ("G", *names, "no signal")]
    print(tabulate(rows, header, disable_numparse=True, stralign="right"))
    print("\nMSE of one group's gradient, mean over prompts, ± half a 95% interval over prompts.")
    print(reading(orders))
    if noise is not None:
        print(f"\n{noise_table(noise)}")
    if mean is not None:
        print(f"\nTokens of a completion averaged, 1/|o|:\n\n{noise_table(mean)}")
    if known is not None:
        print()
        say_constants(known)
    if brute is not None:
        print()
        print(tabulate(brute.values.tolist(), list(brute.columns), floatfmt=".4g"))
        print(
            f"Sampled on {min(options.check_prompts, pool.size)} prompts, the oracle with V from the "
            f"pool; the pool's {pool.size} prompts took {seconds:.0f} s in this run."
        )
    if options.out is not None:
        more = "" if noise is None else ", noise_to_signal.csv"
        print(f"\nKept in {options.out}: rollouts.jsonl, scored.npz, curves.csv, summary.csv{more}")


def _greedy(pool: ScoredPool, made_of: Any) -> NDArray[np.float64]:
    """Rewards of greedy completions of the pool's prompts."""
    from .pipeline import greedy_rewards

    model, task, _ = made_of
    if task is None:
        raise InputError("--remax completes prompts anew: it needs the task, --prompts")
    return greedy_rewards(model, task, pool.prompts)


def _make_folder(folder: Path | None) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: {error.strerror}") from None

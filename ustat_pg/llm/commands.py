"""The commands on language models: ``ustat-pg llm mse``, ``llm sweep``, and ``group-size --model``."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError, integer
from .scored import ScoredPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .models import LanguageModel
    from .pipeline import Progress
    from .rollouts import Rollouts
    from .tasks import Task

__all__ = ["group_size_of_pool", "mse", "sweep"]

_SAMPLED = ("vanilla", "grpo", "oracle", "norm-weighted")
"""Whose errors --check samples; the last needs groups no larger than the pool."""

_LARGEST = 1024
"""The largest group of which rewards alone are asked."""

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Of tables, unless others are asked for."""


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """One bar on a terminal's stderr, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
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
    from .tasks import load_task

    if options.model is None:
        raise InputError("which model: --model with a hub id, a local folder or embedded:NAME")
    prompts = options.prompts
    if prompts is None:
        if not options.model.startswith("embedded:"):
            if options.rollouts is not None:
                # A file of rollouts may hold its prompts and rewards itself.
                return _model(options), None
            raise InputError(f"which prompts: --prompts, {options.model} has none of its own")
        prompts = options.model
    # Refused before the model is loaded.
    task = load_task(
        prompts,
        verifier=options.verifier,
        max_new_tokens=options.max_new_tokens,
        limit=options.limit,
    )
    return _model(options), task


def _model(options: argparse.Namespace) -> LanguageModel:
    from .models import load_model

    # A hub that cannot be reached is told once, by an error, and not at each attempt.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    lora = options.lora
    if lora is not None and lora.isdigit():
        lora = int(lora)
    return load_model(
        options.model,
        device=options.device,
        dtype=options.dtype,
        lora=lora,
        pad_token=options.pad_token,
    )


def _scored(
    options: argparse.Namespace, progress: Progress | None
) -> tuple[ScoredPool, tuple[LanguageModel, Task | None, list[Rollouts]] | None]:
    """The scored pool that the options name or ask for, and what it was made of."""
    from .pipeline import collect, score

    if options.scored is not None:
        if options.model is not None or options.rollouts is not None:
            raise InputError("a scored pool serves alone: --scored without --model and --rollouts")
        return ScoredPool.load(options.scored), None
    model, task = _parts(options)
    sampling = {"backend": options.backend}
    if options.batch is not None:
        sampling["batch"] = integer("batch", options.batch)
    scoring: dict[str, Any] = {
        "parameters": options.parameters or "all",
        "method": options.method,
        "autocast_bf16": options.autocast,
    }
    if options.memory is not None:
        scoring["memory"] = options.memory
    rollouts = collect(
        model,
        task,
        64 if options.samples is None else options.samples,
        seed=integer("seed", options.seed, 0),
        out=options.out,
        file=options.rollouts,
        scoring=scoring,
        progress=progress,
        **sampling,
    )
    if options.limit is not None:
        rollouts = rollouts[: options.limit]
    pool = score(
        model,
        rollouts,
        out=options.out,
        progress=progress,
        config={
            "task": None if task is None else task.name,
            "seed": options.seed if options.rollouts is None else None,
        },
        **scoring,
    )
    return pool, (model, task, rollouts)


def mse(options: argparse.Namespace) -> None:
    """Every baseline's gradient MSE at every group size."""
    import pandas as pd

    from .estimates import (
        BASELINES,
        WEIGHTED,
        constants,
        curves,
        ordering,
        summary,
        zero_signal,
    )

    _check_mse(options)
    _make_folder(options.out)
    started = time.perf_counter()
    with _progress() as progress:
        pool, made_of = _scored(options, progress)
    seconds = time.perf_counter() - started
    sizes = options.group_sizes or [size for size in GROUP_SIZES if size <= pool.rollouts]
    frame = curves(pool, sizes, [name for name in BASELINES if name not in WEIGHTED])
    if inside := [size for size in sizes if size <= pool.rollouts]:
        # Groups are drawn from the pool for these: none is larger than it.
        frame = pd.concat([frame, curves(pool, inside, WEIGHTED)], ignore_index=True)
    facts, signal = summary(pool), zero_signal(pool, sizes)
    known = constants(pool) if pool.fold_gram is not None and pool.size > 1 else None
    orders = [ordering(pool, size).assign(group_size=size) for size in sizes]
    if options.out is not None:
        frame.to_csv(options.out / "curves.csv", index=False)
        facts.to_csv(options.out / "summary.csv", index=False)
    brute = None
    if made_of is not None and options.check is not None:
        brute = _checked(options, pool, made_of)
    if options.json:
        print(
            json.dumps(
                {
                    "prompts": pool.size,
                    "rollouts": pool.rollouts,
                    "config": pool.config,
                    "summary": _records(facts),
                    "curves": _records(frame),
                    "zero_signal": _records(signal),
                    "ordering": [row for order in orders for row in _records(order)],
                    "constants": None if known is None else _records(known.frame()),
                    "check": None if brute is None else _records(brute),
                },
                allow_nan=False,
            )
        )
        return
    from tabulate import tabulate

    _say_facts(pool, facts)
    rows, names = [], list(dict.fromkeys(frame["baseline"]))
    for size, share in zip(sizes, signal["share"], strict=True):
        here = {r["baseline"]: r for r in frame[frame["group_size"] == size].to_dict("records")}
        cells = [
            f"{_plain(here[name]['mse'])} ± "
            f"{_plain((here[name]['high'] - here[name]['low']) / 2, 2)}"
            if name in here
            else "-"
            for name in names
        ]
        rows.append([size, *cells, f"{share:.1%}"])
    # Long names in two lines: the table fits a terminal.
    header = [name.replace("-", "-\n") for name in ("G", *names, "no signal")]
    print(tabulate(rows, header, disable_numparse=True, stralign="right"))
    print("\nMSE of one group's gradient, mean over prompts, ± half a 95% interval over prompts.")
    print(_reading(orders))
    if known is not None:
        print()
        _say_constants(known)
    if brute is not None:
        print()
        print(tabulate(brute.values.tolist(), list(brute.columns), floatfmt=".4g"))
        print(
            f"Sampled on {min(options.check_prompts, pool.size)} prompts, the oracle with V from the "
            f"pool; the pool's {pool.size} prompts took {seconds:.0f} s in this run."
        )
    if options.out is not None:
        print(f"\nKept in {options.out}: rollouts.jsonl, scored.npz, curves.csv, summary.csv")


def _check_mse(options: argparse.Namespace) -> None:
    """Refuse before anything is sampled what would be refused after it."""
    if options.check is not None:
        if options.scored is not None:
            raise InputError("--check samples anew: it needs --model, not a scored pool alone")
        if options.parameters:
            raise InputError(
                "--check differentiates all parameters: it does not go with --parameters"
            )
        for size in options.check:
            integer("group size in --check", size, 2)
        integer("check-prompts", options.check_prompts)
        if integer("replications", options.replications, 4) % 2:
            raise InputError(
                f"replications are {options.replications}: they must be even, errors come from pairs"
            )
    if options.group_sizes is not None:
        _check_sizes(options.group_sizes)


def _check_sizes(sizes: Sequence[int]) -> None:
    """Refuse group sizes that leave nothing out."""
    for size in sizes:
        integer("group size", size, 2)


def _make_folder(folder: Path | None) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: {error.strerror}") from None


def _plain(value: float, digits: int = 3) -> str:
    """A number to a few digits, without an exponent where it can be read without one.

    >>> _plain(2014.2), _plain(0.04531), _plain(7.6e-9)
    ('2010', '0.0453', '7.6e-09')
    """
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):.{max(places, 0)}f}"


def _records(frame: Any) -> list[dict[str, Any]]:
    """Rows as JSON's types: what is not finite becomes null."""
    return [{name: _json(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _json(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _say_facts(pool: ScoredPool, facts: Any) -> None:
    known = facts.set_index("name")
    value, low, high = (float(known.loc["pass_rate", name]) for name in ("value", "low", "high"))
    print(
        f"{pool.config.get('model', 'a pool')}: {pool.size} prompts, {pool.rollouts} rollouts of "
        f"each; mean reward {value:.3f} [{low:.3f}, {high:.3f}]"
    )
    print(
        "correlation of ‖s‖² and reward "
        f"{float(known.loc['correlation', 'value']):.2f}; b* - V, weighted by ‖s‖², "
        f"{float(known.loc['best_less_value', 'value']):.3f}; rewards differ on "
        f"{float(known.loc['mixed', 'value']):.0%} of prompts\n"
    )


def _reading(orders: Sequence[Any]) -> str:
    """Whether vanilla > grpo > oracle, the paper's reading of Figure 4, holds here."""
    words = []
    for order in orders:
        size = int(order["group_size"].iloc[0])
        fails = order[order["reading"] == "fails"]
        known = [r for r in order["reading"] if r not in ("none", "fails")]
        if len(fails):
            said = ", ".join(
                f"{r['larger']} above {r['second'] if r['larger'] == r['first'] else r['first']}"
                for r in fails.to_dict("records")
            )
            words.append(f"G={size} fails ({said})")
        else:
            word = next((name for name in ("open", "tie") if name in known), "holds")
            words.append(f"G={size} {word}")
    return "The paper's reading, vanilla above grpo above the oracle: " + "; ".join(words) + "."


def _say_constants(known: Any) -> None:
    for name in ("c1", "c2", "c3"):
        low, high = known.interval(name)
        print(f"{name} {getattr(known, name):10.4g}  [{low:.4g}, {high:.4g}]")
    for text, kind in (("exact, 1 + √(c3/c1)", "exact"), ("the paper's √(c3/c1)", "paper")):
        value = known.g_star_exact if kind == "exact" else known.g_star_paper
        low, high = known.g_star_interval(kind)
        end = "no upper end" if not np.isfinite(high) else f"{high:.3g}"
        print(f"G*, {text:22} {'none' if value is None else f'{value:.3g}':>8}  [{low:.3g}, {end}]")


def _checked(
    options: argparse.Namespace,
    pool: ScoredPool,
    made_of: tuple[LanguageModel, Task | None, list[Rollouts]],
) -> Any:
    """Errors sampled anew beside the pool's, prompt by prompt, and what both cost."""
    import pandas as pd

    from .brute_force import brute_force
    from .estimates import curves
    from .generation import transformers_draw

    model, task, rollouts = made_of
    if task is None:
        raise InputError("--check samples anew: it needs the task, --prompts")
    few = rollouts[: options.check_prompts]

    def draw(prompt: int, count: int, seed: int) -> tuple[Any, Any]:
        one = few[prompt]
        (drawn,) = transformers_draw(
            model, [(one.prompt.id, one.prompt_ids)], count, task.max_new_tokens, seed, 256, {}
        )
        texts = model.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        return drawn, task.rewards(one.prompt, texts, drawn)

    here = pool.select_prompts(range(len(few)))
    found = brute_force(
        model.model,
        [one.prompt_ids for one in few],
        draw,
        group_sizes=options.check,
        baselines=_SAMPLED,
        replications=options.replications,
        values=here.rewards.mean(axis=1),
        seed=options.seed + 1,
    ).frame()
    own = curves(here, options.check, _SAMPLED[:-1])
    if inside := [size for size in options.check if size <= here.rollouts]:
        own = pd.concat([own, curves(here, inside, _SAMPLED[-1:])], ignore_index=True)
    own = own[["baseline", "group_size", "mse"]]
    both = found.merge(
        own.rename(columns={"mse": "pool"}), on=["baseline", "group_size"], how="left"
    )
    both = both.rename(columns={"mse": "sampled", "se": "sampled_se"})
    return both[["baseline", "group_size", "pool", "sampled", "sampled_se", "rollouts", "seconds"]]


def group_size_of_pool(options: argparse.Namespace, say: Callable[..., None]) -> None:
    """Which group size for this model and these prompts, in the form that bandits get it.

    Arguments:
        options: of the command.
        say: prints an advice, as :func:`ustat_pg.cli.say_advice` does.
    """
    from ..predictions import group_size_advice
    from .estimates import constants, oracle_ratio, summary, zero_signal

    if options.rollouts is not None and options.model is None and options.scored is None:
        _rewards_alone(options)
        return
    costly = options.output_cost is not None or options.prompt_cost != 0
    if not costly:
        # Before anything is sampled.
        integer("budget", options.budget, 2)
    _make_folder(options.out)
    with _progress() as progress:
        pool, _ = _scored(options, progress)
    known = constants(pool)
    if not np.ptp(pool.rewards, axis=1).any():
        raise InputError(
            "all rewards of each prompt are equal: no group of this pool has a signal, and nothing "
            "can be said of the group size; take other prompts or more rollouts"
        )
    advice = group_size_advice(
        known.predictions(),
        options.budget,
        prompt_cost=options.prompt_cost,
        output_cost=options.output_cost,
        population=options.population,
        zero_signal=lambda size: float(zero_signal(pool, [size])["share"].iloc[0]),
    )
    ratio = oracle_ratio(pool, [advice.g_best]).iloc[0]
    more = {
        "g_star_interval": [_finite(end) for end in known.g_star_interval()],
        "critic_cost": {
            "group_size": advice.g_best,
            "mse_over_oracle": _finite(ratio["predicted"]),
            "low": _finite(ratio["low"]),
            "high": _finite(ratio["high"]),
        },
        "constants": _records(known.frame()),
        "pool": {
            "prompts": pool.size,
            "rollouts": pool.rollouts,
            "summary": _records(summary(pool)),
        },
        "taken_as_zero": list(known.clipped),
    }
    if options.json:
        say(advice, as_json=True, more=more)
        return
    _say_facts(pool, summary(pool))
    low, high = known.g_star_interval()
    if "c1" in known.clipped:
        print(
            "The estimate of c1, the spread of prompts' gradients, is below 0 and taken as 0: what "
            f"follows is for that case. All that this pool tells is that G* is at least {low:.3g}.\n"
        )
    say(advice)
    if not costly and options.population is None:
        end = f"to {high:.3g}" if np.isfinite(high) else "without an upper end"
        print(f"The best real G is known from {low:.3g} {end} (95%, {pool.size} prompts).")
    if known.unbounded:
        print(
            "The spread of prompts' gradients, c1, is not told from 0 by this pool: a larger group "
            "may be as good; score more prompts to know."
        )
    (batch,) = (row.batch_size for row in advice.table if row.group_size == advice.g_best)
    print(
        f"In TRL: num_generations = {advice.g_best}, {batch * advice.g_best} completions a step "
        "(per-device batch x processes x steps per generation)."
    )
    print(_critic_cost(advice.g_best, ratio))


def _critic_cost(size: int, ratio: Any) -> str:
    """What grpo's error exceeds the oracle's by, in a sentence."""
    cost, low, high = (float(ratio[name]) for name in ("predicted", "low", "high"))
    if not np.isfinite(cost):
        return f"What not knowing the value costs with G = {size} cannot be told from this pool."
    known = np.isfinite(high) and low > 0
    ends = f"95%: {low - 1:.1%} to {high - 1:.1%}" if known else "its error is not known"
    return f"Not knowing the value costs {cost - 1:.1%} of error at one prompt with G = {size} ({ends})."


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rewards_alone(options: argparse.Namespace) -> None:
    """Zero-signal shares and pass rates: all that rewards without a model say."""
    from .estimates import zero_signal
    from .rollouts import load_rewards

    names, rewards = load_rewards(options.rollouts)
    budget = integer("budget", options.budget, 2)
    sizes = [size for size in range(2, min(budget, _LARGEST) + 1) if budget % size == 0]
    if not sizes:
        raise InputError(
            f"budget is {budget}: no group size from 2 to {_LARGEST} divides it; take another budget"
        )
    signal = zero_signal(rewards, sizes)
    rates = rewards.mean(axis=1)
    highest, lowest = rewards.max(), rewards.min()
    never, always = ((rewards == end).all(axis=1).mean() for end in (lowest, highest))
    missing = (
        "no advice on G: that needs the scores of the rollouts, so name the model that wrote them "
        "(--model) or a scored pool (--scored)"
    )
    if options.json:
        print(
            json.dumps(
                {
                    "prompts": len(names),
                    "rollouts": rewards.shape[1],
                    "pass_rate": float(rates.mean()),
                    "all_lowest": float(never),
                    "all_highest": float(always),
                    "pass_rates": dict(zip(names, rates.tolist(), strict=True)),
                    "zero_signal": _records(signal),
                    "missing": missing,
                },
                allow_nan=False,
            )
        )
        return
    from tabulate import tabulate

    print(
        f"{len(names)} prompts, {rewards.shape[1]} rollouts of each; mean reward {rates.mean():.3f}; "
        + (
            f"all rewards are {highest:g}\n"
            if highest == lowest
            else f"all rewards {lowest:g} on {never:.1%} of prompts, all {highest:g} on {always:.1%}\n"
        )
    )
    rows = [
        [
            int(row["group_size"]),
            budget // int(row["group_size"]),
            f"{row['share']:.1%}",
            f"{row['low']:.1%} to {row['high']:.1%}",
            "plug-in: more than the rollouts" if row["biased"] else "",
        ]
        for row in signal.to_dict("records")
    ]
    header = ["G", "prompts", "groups with equal rewards", "95%", "note"]
    print(tabulate(rows, header, disable_numparse=True, colalign=("right",) * 4 + ("left",)))
    print(f"\nMissing: {missing}.")


_SWEEP = (
    "model",
    "task",
    "evaluation",
    "held_out",
    "verifier",
    "group_sizes",
    "budgets",
    "seeds",
    "trainers",
    "steps",
    "learning_rate",
    "optimizer",
    "checkpoints",
    "samples",
    "greedy",
    "max_new_tokens",
    "micro_batch",
    "processes",
    "device",
    "dtype",
    "bf16",
    "save_every",
)
"""Options that are fields of a sweep."""
_NEEDED = ("model", "group_sizes", "budgets", "steps", "learning_rate")


def sweep(options: argparse.Namespace) -> int:
    """Training runs over a grid of group sizes; returns the exit code, 3 where a run failed."""
    from .sweep import dry_run, results

    if options.out is None and not options.dry_run:
        raise InputError("where to: --out names the folder of the runs")
    failed = 0
    if not options.results:
        grid = _grid(options)
        if options.dry_run:
            return _say_dry(dry_run(run) for run in _one_of_each(grid.plan()))
        say = None if options.json else print
        outcomes = grid.run(options.out, options.workers, say=say)
        failed = sum(outcome.status == "failed" for outcome in outcomes)
    _say_sweep(results(options.out), options)
    return 3 if failed else 0


def _grid(options: argparse.Namespace) -> Any:
    """The sweep that the options name."""
    from .paper_runs import gsm8k_sweep, math_sweep
    from .sweep import Sweep

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in _SWEEP
        if (value := getattr(options, name)) is not None
    }
    if options.preset is not None:
        return {"figure5": gsm8k_sweep, "table2": math_sweep}[options.preset](**given)
    missing = [f"--{name.replace('_', '-')}" for name in _NEEDED if name not in given]
    if missing:
        raise InputError(f"a sweep needs {', '.join(missing)} (or --preset)")
    if "task" not in given:
        if not given["model"].startswith("embedded:"):
            raise InputError(f"which prompts: --prompts, {given['model']} has none of its own")
        given["task"] = given["model"]
    return Sweep(**{"checkpoints": (), **given})


def _one_of_each(plan: Sequence[Any]) -> list[Any]:
    """The first run of each group size and budget: seeds load the same."""
    return list(
        {(run.trainer, run.budget, run.group_size): run for run in reversed(plan)}.values()
    )[::-1]


def _say_dry(reports: Any) -> int:
    """Each report; 3 where something is missing."""
    code = 0
    for report in reports:
        print(f"{report}\n")
        code = 3 if report.problems else code
    return code


def _say_sweep(frame: Any, options: argparse.Namespace) -> None:
    from tabulate import tabulate

    from .sweep import figure5, table2

    last, along = table2(frame), figure5(frame)
    for name, table in (("results", frame), ("table2", last), ("figure5", along)):
        table.to_csv(options.out / f"{name}.csv", index=False)
    if options.json:
        print(
            json.dumps(
                {"runs": _records(frame), "table2": _records(last), "figure5": _records(along)},
                allow_nan=False,
            )
        )
        return
    states = frame.drop_duplicates("key")["status"].value_counts()
    print(", ".join(f"{count} runs {status}" for status, count in states.items()))
    rows = [
        [
            row["trainer"],
            int(row["K"]),
            int(row["G"]),
            *(_percent(row[name]) for name in ("accuracy", "low", "high")),
            int(row["runs"]),
            _percent(row["paper"]),
        ]
        for row in last.to_dict("records")
        if row["runs"] or options.preset == "table2"
    ]
    header = ["trainer", "K", "G", "final accuracy", "low", "high", "runs", "the paper's"]
    print(tabulate(rows, header, disable_numparse=True))
    for row in frame[frame["status"] == "failed"].drop_duplicates("key").to_dict("records"):
        print(
            f"failed: {row['trainer']} K={row['K']} G={row['G']} seed={row['seed']}: {row['message']}"
        )
    print(f"Joined in {options.out}: results.csv, table2.csv, figure5.csv")


def _percent(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else "-"

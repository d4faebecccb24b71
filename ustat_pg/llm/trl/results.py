"""Tables in the form of Figure 5 and Table 2 for a training sweep, from TRL's evaluations over seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...files.reading import read_json
from ...validation import InputError
from .training import FINISHED

TABLE_2 = pd.DataFrame(
    {
        1024: [0.7677, 0.7491, 0.7753, 0.7627, 0.7817, 0.7743],
        2048: [0.7703, 0.7679, 0.7697, 0.7793, 0.7819, 0.7665],
        4096: [0.7691, 0.7713, 0.7701, 0.7673, 0.7703, 0.7757],
    },
    index=pd.Index([4, 8, 16, 32, 64, 128], name="G"),
).rename_axis(columns="K")
"""The paper's Table 2 (arXiv 2603.01162, section 5.2): accuracies on MATH after training by G and K, of
Qwen2.5-Math-7B, one run each. The paper does not print Figure 5's accuracies, so they are not here.
"""


def results(out: str | Path) -> pd.DataFrame:
    """The finished runs of a folder as a tidy frame, with a row for each evaluation.

    Columns: run (its folder), model, task, trainer, K, G, B, seed, step, final (whether it is the run's
    last step), accuracy (the mean reward of TRL's evaluation) and n (held-out prompts).
    """
    rows = []
    for path in sorted(Path(out).glob(f"*/{FINISHED}")):
        try:
            rows += _evaluations(path.parent.name, read_json(path))
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise InputError(f"{path} is not a record of a finished run: {error!r}") from None
    if not rows:
        raise InputError(f"{out} has no finished run with an evaluation")
    order = ["trainer", "K", "G", "seed", "step"]
    return pd.DataFrame(rows).sort_values(order, ignore_index=True)


def _evaluations(name: str, record: Any) -> list[dict[str, Any]]:
    """A row for each evaluation of a run, from its folder's name and its record."""
    run, trl, budget = record["run"], record["trl"], record["budget"]
    size = trl["num_generations"]
    common = {"run": name, "model": run["model"], "task": run["task"]}
    common |= {"trainer": run["trainer"], "K": budget, "G": size, "B": budget // size}
    common |= {"seed": trl["seed"]}
    return [
        common
        | {"step": entry["step"], "final": entry["step"] == trl["max_steps"]}
        | {"accuracy": entry["eval_reward"], "n": record["tested"]}
        for entry in record["log"]
        if "eval_reward" in entry
    ]


def _interval(values: Any) -> tuple[float, float, float]:
    """The mean and its 95% t interval; no interval for one value."""
    from statsmodels.stats.weightstats import DescrStatsW

    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) == 0:
        end = mean if len(values) > 1 else math.nan
        return mean, end, end
    low, high = DescrStatsW(values).tconfint_mean()
    return mean, float(low), float(high)


def _over_seeds(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    rows = []
    for key, part in frame.groupby(names, sort=True):
        accuracy, low, high = _interval(part["accuracy"].to_numpy())
        row = dict(zip(names, key, strict=True)) | {"accuracy": accuracy}
        rows.append(row | {"low": low, "high": high, "runs": len(part)})
    return pd.DataFrame(rows, columns=[*names, "accuracy", "low", "high", "runs"])


def table2(frame: pd.DataFrame) -> pd.DataFrame:
    """Final accuracies in the form of Table 2, from :func:`results`: means over runs with 95% t intervals.

    ``paper`` is the paper's accuracy if model and task are the paper's, else NaN.
    """
    final = frame[frame["final"]]
    table = _over_seeds(final, ["trainer", "K", "G"])
    papers = final["model"].str.endswith("Qwen2.5-Math-7B") & final["task"].str.startswith("math")
    printed = TABLE_2.stack().to_dict() if papers.all() else {}
    pairs = zip(table["G"], table["K"], strict=True)
    return table.assign(paper=[printed.get(pair, math.nan) for pair in pairs])


def figure5(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy against the group size at each checkpoint, in the form of Figure 5, from :func:`results`.

    ``best`` says whether a group size is the best of its step.
    """
    table = _over_seeds(frame[frame["step"] > 0], ["trainer", "K", "step", "G"])
    best = table.groupby(["trainer", "K", "step"])["accuracy"].transform("max")
    return table.assign(best=table["accuracy"] == best)


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """The differences of final accuracies from those of the best (trainer, G) of the budget, seed by seed.

    Runs of one seed see the prompts in the same order. The best has the highest mean (the first one if
    several are equal); as a maximum it is too optimistic, more so with fewer seeds. One row of the
    :func:`results` for each other trainer and G at each K has the best's trainer and G, the difference, its
    95% t interval (none for one pair), and the number of pairs.
    """
    rows = []
    for budget, part in frame[frame["final"]].groupby("K"):
        table = part.pivot(index="seed", columns=["trainer", "G"], values="accuracy")
        best: Any = table.mean().idxmax()
        for name in table.columns.drop([best]):
            gaps = (table[name] - table[best]).dropna()
            if len(gaps):
                mean, low, high = _interval(gaps.to_numpy())
                row = {"trainer": name[0], "K": budget, "G": name[1], "best": best[0]}
                row |= {"best_G": best[1], "difference": mean, "low": low, "high": high}
                rows.append(row | {"runs": len(gaps)})
    columns = ["trainer", "K", "G", "best", "best_G", "difference", "low", "high", "runs"]
    return pd.DataFrame(rows, columns=columns)


def say_results(out: Path) -> None:
    """Write the tables of a folder's finished runs into it as CSV, and print Table 2's form."""
    from tabulate import tabulate

    frame = results(out)
    tables = {"results": frame, "table2": table2(frame), "figure5": figure5(frame)}
    tables["differences"] = differences(frame)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    for name in ("table2", "differences"):
        rows = tables[name].to_dict("records")
        print(tabulate(rows, headers="keys", floatfmt=".4g"), end="\n\n")
    print(f"{', '.join(f'{name}.csv' for name in tables)} in {out}")

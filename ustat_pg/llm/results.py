"""What the runs of a folder have found: one tidy frame, and the paper's tables of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..validation import InputError
from .paper_runs import is_papers, table_2
from .records import lines, read_status
from .runs import GRID, INPUTS, Run, short_hash

__all__ = ["differences", "draw", "figure5", "results", "reward_bounds", "table2"]


def results(out: str | Path) -> pd.DataFrame:
    """All runs of a folder as a tidy frame, one row for each evaluation.

    Columns: the grid (model, task, evaluation, trainer, baseline, K, G, B, seed), step, final (whether
    it is the run's last step), accuracy with se, n, samples and greedy, zero_signal (the mean share of groups
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
        status = read_status(folder)
        read = status.get("inputs")
        # Written as text, for a cell of a table.
        whole = {name: json.dumps(value, sort_keys=True) for name, value in run.constants().items()}
        whole |= {name: str((read or {}).get(name)) for name in INPUTS}
        settings = short_hash(whole)
        told = status.get("status", "incomplete")
        common = {
            "model": run.model,
            "task": run.task,
            "evaluation": run.evaluation,
            "trainer": run.trainer,
            "baseline": run.kind.baseline,
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
        steps = lines(folder / "training.jsonl")
        least, most = reward_bounds(steps[-1].get("rewards_seen", ()) if steps else ())
        common |= {"least": least, "most": most}
        shares = {record["step"]: record.get("frac_reward_zero_std") for record in steps}
        # The last record of a step counts, should a run have been killed between the two files.
        found = {record["step"]: record for record in lines(folder / "evaluations.jsonl")}
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
    known = [entry.name for entry in fields(Run) if entry.name not in GRID]
    differing = [
        f"{name} ({', '.join(map(str, first[name].unique()))})"
        for name in (*known, *INPUTS)
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
    low = high = math.nan
    if found.size > 1:
        low, high = _t_interval(found)
        low = max(low, min(part["least"].min(), *found))
        high = min(high, max(part["most"].max(), *found))
    return {"accuracy": mean, "low": low, "high": high, "runs": float(found.size)}


def _t_interval(values: Any) -> tuple[float, float]:
    """The 95% t interval of the mean of two values or more; the mean alone where they are all equal."""
    from statsmodels.stats.weightstats import DescrStatsW

    if np.ptp(values) == 0:
        return float(np.mean(values)), float(np.mean(values))
    low, high = DescrStatsW(values).tconfint_mean()
    return float(low), float(high)


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
        ``paper``, the table's own accuracy where model and task are the paper's, else NaN.

    Raises:
        InputError: finished runs of more than one setting; the message names what differs.
    """
    final = frame[frame["final"] & (frame["status"] == "finished")]
    _refuse_mixed(final)
    found = _by(final, ["trainer", "K", "G"])
    names = final[["model", "task", "evaluation"]].head(1).itertuples(index=False)
    papers = any(is_papers(*row) for row in names)
    known: Any = table_2().set_index(["budget", "group_size"])["accuracy"] if papers else {}
    pairs = zip(found["K"], found["G"], strict=True)
    found["paper"] = [known.get(pair, math.nan) for pair in pairs]
    return found.astype({"runs": int, "paper": float})


def figure5(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy against the group size at each checkpoint, in the form of Figure 5.

    Arguments:
        frame: of :func:`results`.

    Returns:
        one row for each trainer, K, step and G: the mean over runs that got there, its 95%
        interval, cut at the least and the greatest reward, how many runs, and whether it is the
        best group size of its step (``best``). The figure's own accuracies are not printed in the
        paper.

    Raises:
        InputError: runs of more than one setting; the message names what differs.
    """
    trained = frame[frame["step"] > 0]
    _refuse_mixed(trained)
    found = _by(trained, ["trainer", "K", "step", "G"])
    best = found.groupby(["trainer", "K", "step"])["accuracy"].transform("max")
    found["best"] = found["accuracy"] == best
    found["runs"] = found["runs"].astype(int)
    return found


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Final accuracies less those of the best (trainer, G) of the budget, seed by seed.

    Runs of one seed see the prompts in one order and are tested with the same draws, so that much of
    what differs between seeds goes out. The best is the one with the highest mean, of several the
    first; as the highest of several it is flattered, the more the fewer seeds there are.

    Arguments:
        frame: of :func:`results`.

    Returns:
        one row for each other trainer and G at each K: trainer, K, G, best (its trainer), best_G,
        difference, its 95% t interval low to high (none of one pair; cut at the width of the
        rewards' range), and how many pairs.

    Raises:
        InputError: finished runs of more than one setting; the message names what differs.
    """
    final = frame[frame["final"] & (frame["status"] == "finished")].dropna(subset=["accuracy"])
    _refuse_mixed(final)
    rows = []
    for budget, own in final.groupby("K"):
        table = own.pivot(index="seed", columns=["trainer", "G"], values="accuracy")
        best: Any = table.mean().idxmax()
        width = float(own["most"].max() - own["least"].min())
        for name in table.columns.drop([best]):
            gaps = (table[name] - table[best]).dropna()
            ends = _t_interval(gaps.to_numpy()) if len(gaps) > 1 else (math.nan, math.nan)
            # No two accuracies are further apart than rewards are.
            low, high = np.clip(ends, -width, width)
            found = {"trainer": name[0], "K": budget, "G": name[1], "best": best[0]}
            found |= {"best_G": best[1], "difference": gaps.mean(), "low": low, "high": high}
            rows.append(found | {"runs": len(gaps)})
    columns = ["trainer", "K", "G", "best", "best_G", "difference", "low", "high", "runs"]
    return pd.DataFrame(rows, columns=columns)


def draw(along: pd.DataFrame, path: str | Path) -> None:
    """Figure 5's form: accuracy against G, a panel for each trainer and budget, a line for each step.

    Arguments:
        along: of :func:`figure5`.
        path: of the picture, by its ending .svg, .png or .pdf.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a picture needs matplotlib: pip install 'ustat_pg[figures]'") from error
    panels = list(along.groupby(["trainer", "K"]))
    picture = Figure(figsize=(3.2 * max(len(panels), 1), 2.6), layout="constrained")
    axes = picture.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    for axis, ((trainer, budget), own) in zip(axes, panels, strict=False):
        for step, here in own.groupby("step"):
            ends = np.abs(here[["low", "high"]].to_numpy().T - here["accuracy"].to_numpy())
            axis.errorbar(
                here["G"], here["accuracy"], np.nan_to_num(ends), fmt="o-", capsize=2,
                label=f"step {step:g}",
            )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set(title=f"{trainer}, K = {budget:g}", xlabel="group size G", ylabel="accuracy")
        axis.legend()
    picture.savefig(path)


def reward_bounds(seen: Sequence[float] = ()) -> tuple[float, float]:
    """The least and the greatest reward, as far as those that were seen tell.

    0 and 1 while none lies beyond; then the least and the greatest that were seen, or 1 for the
    greatest where all were equal. So they are right for rewards of 0 and 1, of -1 and 1, and for
    others once both ends were seen.

    >>> reward_bounds(), reward_bounds((0.0, 0.5)), reward_bounds((-1.0, -1.0)), reward_bounds((-1.0, 0.0))
    ((0.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (-1.0, 0.0))
    """
    if not seen or (min(seen) >= 0 and max(seen) <= 1):
        return 0.0, 1.0
    if min(seen) == max(seen):
        return min(0.0, *seen), max(1.0, *seen)
    return float(min(seen)), float(max(seen))

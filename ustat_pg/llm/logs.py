"""The logs of trainers, which have a row for each completion.

TRL's ``log_completions`` writes a Parquet file each step with ``prompt``, ``completion``, ``step`` and
a column for each reward function; verl's ``rollout_data_dir`` a JSONL file with ``input``, ``output``,
``score`` and ``step``. A prompt that returns in several steps has a group in each. The text of a completion
that is a list of messages is the last one's. Columns such as ``finish_reason`` or ``truncated`` say which
were cut off.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reading import read_json, read_text, regular
from ..validation import InputError
from .rollouts import MOST_LINES, lines

if TYPE_CHECKING:
    import pandas as pd

PROMPTS = ("prompt", "input")
COMPLETIONS = ("completion", "output", "response")
REWARDS = ("reward", "score")
"""Names of the columns in logs."""

OTHERS = ("step", "advantage", "advantages", "gts")
"""Columns of logs that may hold numbers and are not rewards."""

CUT_OFF: dict[str, tuple[Any, ...]] = {
    "truncated": (True,),
    "is_truncated": (True,),
    "finished": (False,),
    "finish_reason": ("length", "max_tokens"),
    "stop_reason": ("length", "max_tokens"),
    "status": ("truncated",),
}
"""Columns of logs that say whether a completion was cut off, and their values that say so."""


class LogWarning(RuntimeWarning):
    """Groups of a log are left out; the message says how many."""


def is_log(path: Path, named: Sequence[str] = ()) -> bool:
    """Whether a file, or a folder, has a row for each completion and not for each prompt.

    Arguments:
        named: columns that a user says it has.
    """
    if path.is_dir() or path.suffix in (".csv", ".parquet"):
        return True
    if path.suffix == ".json":
        return _is_table(read_json(path))
    _, first = next(iter(lines(path)), ("", {}))
    prompts = {"format", "completions", "completion_ids", "rewards"}
    return not prompts & set(first) and bool({*COMPLETIONS, *REWARDS, *named} & set(first))


def groups_of_log(
    path: Path, group_by: Sequence[str] = (), reward: str | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """The groups of a log with their places, each a row as one's own file has it for a prompt."""
    log = _read(path)
    columns = ", ".join(map(str, log))
    prompt = next((name for name in PROMPTS if name in log), None)
    completion = next((name for name in COMPLETIONS if name in log), None)
    keys = list(group_by)
    if not keys and prompt is not None:
        keys = [prompt, "step"] if "step" in log else [prompt]
    for name in keys:
        if name not in log:
            raise InputError(f"{path} has no column {name!r}: it has {columns}")
    if not keys:
        raise InputError(
            f"{path} has no prompt: name the columns whose values the completions of a group share "
            f"(group_by=COLUMNS), of {columns}"
        )
    rewards, parts = _rewards(path, log, reward, {*keys, prompt, completion})
    if missing := int(rewards.isna().sum()):
        warnings.warn(
            f"{path}: {missing} of {len(log)} completions have no reward, and are left out of their groups",
            LogWarning,
            stacklevel=3,
        )
        log = log[rewards.notna()]
    cut = next((name for name in CUT_OFF if name in log), None)
    # Messages are lists, by which no table groups.
    words = log[keys].map(lambda value: json.dumps(_plain(value), ensure_ascii=False))
    every = [part.index for _, part in words.groupby(keys, sort=False)]
    size = Counter(map(len, every)).most_common(1)[0][0]
    groups = [index for index in every if len(index) == size]
    if len(groups) < len(every):
        warnings.warn(
            f"{path}: {len(every) - len(groups)} of {len(every)} groups do not have {size} completions, as "
            "most have, and are left out",
            LogWarning,
            stacklevel=3,
        )
    rows: list[tuple[str, dict[str, Any]]] = []
    for position, index in enumerate(groups):
        first = log.loc[index[0]]
        row: dict[str, Any] = {"rewards": [_plain(value) for value in rewards[index]]}
        row["id"] = "/".join(str(_plain(first[name])) for name in group_by) or str(position)
        if prompt is not None:
            row["prompt"] = _plain(first[prompt])
        if cut is not None:
            row["finished"] = [_plain(v) not in CUT_OFF[cut] for v in log.loc[index, cut]]
        if parts:
            row["parts"] = {name: part[index].tolist() for name, part in parts.items()}
        if completion is not None:
            row["completions"] = [_text(_plain(value)) for value in log.loc[index, completion]]
        rows.append((f"{path}, group {row['id']}", row))
    return rows


def _read(path: Path) -> pd.DataFrame:
    """A log: one file, or all of a folder in the order of their steps; TRL's folder of a run has its own."""
    import pandas as pd

    kinds: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": lambda file: pd.read_csv(StringIO(read_text(file, MOST_LINES))),
        ".parquet": lambda file: pd.read_parquet(regular(file)),
        ".jsonl": lambda file: pd.DataFrame([row for _, row in lines(file)]),
        ".json": lambda file: _of_table(read_json(file)),
    }
    within = path / "completions"
    files = _files(within if within.is_dir() else path, kinds) if path.is_dir() else [path]
    try:
        parts = [_with_step(kinds[file.suffix](file), file) for file in files]
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pip install pyarrow") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a log: {error}") from error
    log = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if log.empty:
        raise InputError(f"{path} has no rows: a log is one of, or a folder of, {', '.join(kinds)}")
    return log


_STEP = re.compile(r"step_(\d+)")
_DEEP = 3
"""Folders within one another in which logs are looked for."""


def _files(folder: Path, kinds: Iterable[str]) -> list[Path]:
    """The logs of a folder: its own, or those of its folders of steps."""
    found = [file for file in sorted(folder.iterdir()) if file.suffix in kinds and file.is_file()]
    if found:
        return [file for file in found if file.suffix != ".json" or _is_table(read_json(file))]
    steps = [
        (int(match[1]), file)
        for depth in range(1, _DEEP + 1)
        for file in sorted(folder.glob("/".join(["*"] * depth + ["*"])))
        if file.suffix in kinds and file.is_file() and (match := _STEP.search(str(file.parent)))
    ]
    return [file for _, file in sorted(steps)]


def _with_step(log: pd.DataFrame, file: Path) -> pd.DataFrame:
    """A log with the step that its folder is named after, where its rows do not say."""
    match = _STEP.search(file.parent.name)
    return log if match is None or "step" in log else log.assign(step=int(match[1]))


def _is_table(value: Any) -> bool:
    """Whether it is a table as Weights & Biases keeps one (``*.table.json``)."""
    return isinstance(value, dict) and {"columns", "data"} <= set(value)


def _of_table(value: Any) -> pd.DataFrame:
    import pandas as pd

    if not _is_table(value):
        raise ValueError("no table of columns and data")
    return pd.DataFrame(value["data"], columns=value["columns"])


def _rewards(
    path: Path, log: pd.DataFrame, reward: str | None, taken: set[Any]
) -> tuple[pd.Series[Any], dict[str, pd.Series[Any]]]:
    """The column named, or a sum and its parts; else that of the usual name; else the only one of numbers."""
    numbers = log.select_dtypes(["number", "bool"]).columns
    choices = [str(name) for name in numbers if name not in taken and name not in OTHERS]
    usual = [name for name in REWARDS if name in log] or choices
    if reward is None and len(usual) == 1:
        return log[usual[0]], {}
    if reward is not None and reward in log:
        return log[reward], {}
    fault = f"{len(usual)} columns of rewards" if reward is None else f"no column {reward!r}"
    if reward is not None and "+" in reward:
        weights: dict[str, float] = {}
        for name, weight in map(_term, reward.split("+")):
            weights[name] = weights.get(name, 0.0) + weight
        unknown = [name for name in weights if name not in choices]
        if not unknown:
            parts = log[[*weights]] * [*weights.values()]
            # As trainers add them up: a reward that is not given counts nothing.
            filled = parts.astype(float).fillna(0.0)
            return parts.sum(axis=1, min_count=1), {name: filled[name] for name in weights}
        fault = f"no column {unknown[0]!r} of numbers"
    several = f", or a sum, {'+'.join(choices)}" if len(choices) > 1 else ""
    choice = f"name one (reward=NAME), of {', '.join(choices)}" if choices else "none holds numbers"
    raise InputError(f"{path} has {fault}: {choice}{several}")


def _term(text: str) -> tuple[str, float]:
    """A column and its weight, of ``name`` or ``0.5*name``."""
    weight, times, name = text.partition("*")
    try:
        factor = float(weight) if times else 1.0
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise InputError(f"reward has {text!r}: write NAME, or WEIGHT*NAME")
    return (name if times else text).strip(), factor


def _plain(value: Any) -> Any:
    """A value as JSON has it: Parquet gives arrays."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if isinstance(value, bool) else value


def _text(completion: Any) -> Any:
    if isinstance(completion, list) and completion and isinstance(completion[-1], dict):
        return completion[-1].get("content")
    return completion

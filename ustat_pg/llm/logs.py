"""Trainers' logs, which have a row for each completion: TRL's, verl's, and plain ones.

TRL's ``log_completions`` writes a Parquet file each step with ``prompt``, ``completion``, ``step`` and a
column for each reward function; verl's ``rollout_data_dir`` a JSONL file with ``input``, ``output``,
``score`` and ``step``. Messages count as their last one's text where they are a completion.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..reading import read_json, read_text, regular
from ..validation import InputError
from .store import MOST_LINES, lines

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LogWarning", "groups_of_log", "is_log"]

PROMPTS = ("prompt", "input")
COMPLETIONS = ("completion", "output", "response")
REWARDS = ("reward", "score")
"""What logs call them."""

OTHERS = ("step", "advantage", "advantages", "gts")
"""Columns of theirs that may hold numbers and are no rewards."""


_TABLE = ".table.json"
"""How the name of a table of wandb ends."""


class LogWarning(RuntimeWarning):
    """Groups of a log are left out; the message says how many."""


def is_log(path: Path) -> bool:
    """Whether a file, or a folder, has a row for each completion and not for each prompt."""
    if path.is_dir() or path.suffix in (".csv", ".parquet") or path.name.endswith(_TABLE):
        return True
    if path.suffix == ".json":
        return False
    _, first = next(iter(lines(path)), ("", {}))
    prompts = {"format", "completions", "completion_ids", "rewards"}
    return not prompts & set(first) and bool({*COMPLETIONS, *REWARDS} & set(first))


def groups_of_log(
    path: Path, group_by: Sequence[str] = (), reward: str | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """The groups of a log with their places, each a row as one's own file has it for a prompt.

    Arguments:
        path: a .csv, .jsonl or .parquet file, or a folder of them.
        group_by: columns whose values a group's completions share; prompt and step unless given.
        reward: column of rewards; needed where there are several.

    Raises:
        InputError: no such file or column, no prompt to group by, or no column of rewards or several.
    """
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
            f"(--group-by), of {columns}"
        )
    rewards = log[_reward_column(path, log, reward, {*keys, prompt, completion})]
    # Messages are lists, by which no table groups.
    words = log[keys].map(lambda value: json.dumps(_plain(value), ensure_ascii=False))
    groups = [rows.index for _, rows in words.groupby(keys, sort=False)]
    size = Counter(map(len, groups)).most_common(1)[0][0]
    other = sum(len(rows) != size for rows in groups)
    if other:
        warnings.warn(
            f"{path}: {other} of {len(groups)} groups do not have {size} completions, as most have, "
            "and are left out",
            LogWarning,
            stacklevel=3,
        )
    found: list[tuple[str, dict[str, Any]]] = []
    for rows in groups:
        if len(rows) != size:
            continue
        first = log.loc[rows[0]]
        named = "/".join(str(_plain(first[name])) for name in group_by)
        row: dict[str, Any] = {"id": named or str(len(found))}
        row["rewards"] = [_plain(value) for value in rewards[rows]]
        if prompt is not None:
            row["prompt"] = _plain(first[prompt])
        if completion is not None:
            row["completions"] = [_text(_plain(value)) for value in log.loc[rows, completion]]
        found.append((f"{path}, group {row['id']}", row))
    return found


def _read(path: Path) -> pd.DataFrame:
    """A log: one file, or all of a folder in the order of their names."""
    import pandas as pd

    kinds: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": lambda file: pd.read_csv(StringIO(read_text(file, MOST_LINES))),
        ".parquet": lambda file: pd.read_parquet(regular(file)),
        ".jsonl": lambda file: pd.DataFrame([row for _, row in lines(file)]),
        ".json": _table,
    }
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    try:
        parts = [
            kinds[file.suffix](file)
            for file in files
            if file.suffix in kinds and (file.suffix != ".json" or file.name.endswith(_TABLE))
        ]
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pip install pyarrow") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a log: {error}") from error
    log = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if log.empty:
        raise InputError(f"{path} has no rows: a log is one of, or a folder of, {', '.join(kinds)}")
    return log


def _table(path: Path) -> pd.DataFrame:
    """A table as wandb writes it: ``{columns, data}``."""
    import pandas as pd

    held = read_json(path)
    if not (isinstance(held, dict) and {"columns", "data"} <= held.keys()):
        raise InputError(f"{path} must hold columns and data, as a table of wandb does")
    return pd.DataFrame(held["data"], columns=held["columns"])


def _reward_column(path: Path, log: pd.DataFrame, reward: str | None, taken: set[Any]) -> str:
    """The column named; else that of the usual name; else the only one of numbers."""
    numbers = log.select_dtypes(["number", "bool"]).columns
    known = [str(name) for name in numbers if name not in taken and name not in OTHERS]
    usual = [name for name in REWARDS if name in log] or known
    if reward is None and len(usual) == 1:
        return usual[0]
    if reward is not None and reward in log:
        return reward
    said = f"{len(usual)} columns of rewards" if reward is None else f"no column {reward!r}"
    choice = f"name one (--reward), of {', '.join(known)}" if known else "none holds numbers"
    raise InputError(f"{path} has {said}: {choice}")


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

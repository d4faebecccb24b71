"""Reading the logs of trainers, which have a row for each completion.

TRL's ``log_completions`` writes a Parquet file each step with ``prompt``, ``completion``, ``step`` and
a column for each reward function; verl's ``rollout_data_dir`` has a JSONL file with ``input``, ``output``,
``score`` and ``step``; other logs are a JSON list of rows, CSV or TSV, with or without gzip. A prompt that
occurs in several steps has a group in each. If a completion is a list of messages, its text is the last
message. If there is only ``messages``, the last message is the completion and the others are the prompt.
Columns such as ``finish_reason`` or ``truncated`` say which completions were cut off. The log of a running
job is read up to its last whole row.
"""

from __future__ import annotations

import csv
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...files.reading import kind, read_json, read_text, regular
from ...validation import InputError, argument
from ..prompts import short
from .stored import MOST_LINES, LogWarning, lines, warn_torn

if TYPE_CHECKING:
    import pandas as pd

PROMPTS = ("prompt", "input")
COMPLETIONS = ("completion", "output", "response")
REWARDS = ("reward", "score")
MESSAGES = "messages"
"""The names of columns in logs."""

OTHERS = ("step", "advantage", "advantages", "gts")
"""Columns of logs that may contain numbers but are not rewards."""

CUT_OFF: dict[str, tuple[Any, ...]] = {
    "truncated": (True,),
    "is_truncated": (True,),
    "finished": (False,),
    "finish_reason": ("length", "max_tokens"),
    "stop_reason": ("length", "max_tokens"),
    "status": ("truncated",),
}
"""Columns of logs that say whether a completion was cut off, with the values that mean this."""


_TRUTHS = {word: value for value in (True, False) for word in (str(value), str(value).lower())}
"""The texts that mean true and false in a column of rewards."""

_MOSTLY = 0.9
"""The share of numbers above which a column may be rewards, in spite of a wrong cell."""

_NONE = ("", "NA", "N/A", "NaN", "nan", "None", "null")
"""The texts that mean a missing value in a table of text."""


def is_log(path: Path, named: Sequence[str] = ()) -> bool:
    """Whether a file, or a folder, has a row for each completion rather than for each prompt.

    Arguments:
        named: columns that the user named.
    """
    if path.is_dir() or kind(path) in (".csv", ".tsv", ".parquet"):
        return True
    if kind(path) == ".json":
        value = read_json(path)
        return _is_table(value) or _is_list(value)
    try:
        _, first = next(iter(lines(path)), ("", {}))
    except InputError as error:
        if kind(path) in _READERS or not path.exists():
            raise
        raise InputError(f"{error}; {_kinds()}") from None
    prompts = {"format", "completions", "completion_ids", "rewards"}
    known = {MESSAGES, *COMPLETIONS, *REWARDS, *named}
    return not prompts & set(first) and bool(known & set(first))


def groups_of_log(
    path: Path,
    group_by: Sequence[str] = (),
    reward: str | None = None,
    *,
    unequal: bool = False,
) -> list[tuple[str, dict[str, Any]]]:
    """The groups of a log with their places, each as a row in the form of a user's file.

    Arguments:
        unequal: whether to keep groups that do not have the most common size.
    """
    log, places = _read(path)
    log = _parted(log, places)
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
            f"({argument('group_by', 'COLUMNS')}), of {columns}"
        )
    rewards, parts = _rewards(path, log, places, reward, {*keys, prompt, completion})
    if missing := int(rewards.isna().sum()):
        warnings.warn(
            f"{path}: {missing} of {len(log)} completions have no reward, and are left out of their groups",
            LogWarning,
            stacklevel=3,
        )
        log = log[rewards.notna()]
        if log.empty:
            raise InputError(f"{path} has no rewards: all are missing")
    cut = next((name for name in CUT_OFF if name in log), None)
    # Messages are lists, and tables cannot group by lists.
    words = log[keys].map(lambda value: json.dumps(_plain(value), ensure_ascii=False))
    every = [part.index for _, part in words.groupby(keys, sort=False)]
    size = Counter(map(len, every)).most_common(1)[0][0]
    groups = [index for index in every if unequal or len(index) == size]
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
        name = "/".join(str(_plain(first[key])) for key in group_by)
        if name:
            row["id"] = name
        if prompt is not None:
            row["prompt"] = _plain(first[prompt])
        if cut is not None:
            row["finished"] = [_plain(v) not in CUT_OFF[cut] for v in log.loc[index, cut]]
        if parts:
            row["parts"] = {name: part[index].tolist() for name, part in parts.items()}
        if completion is not None:
            row["completions"] = [
                _text(places[row], completion, _plain(value))
                for row, value in log.loc[index, completion].items()
            ]
        rows.append((f"{path}, group {name or position}", row))
    return rows


def _read(path: Path) -> tuple[pd.DataFrame, Sequence[str]]:
    """A log from one file, or from all files of a folder in the order of their steps; TRL's folder of a run
    contains the folder of logs.

    Returns:
        the rows and the place of each.
    """
    import pandas as pd

    within = path / "completions"
    files = _files(within if within.is_dir() else path) if path.is_dir() else [path]
    try:
        parts = [_with_step(_READERS[kind(file)](file), file) for file in files]
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pip install pyarrow") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a log: {error}") from error
    log = pd.concat(parts) if parts else pd.DataFrame()
    places = log.index.tolist()
    if log.empty:
        raise InputError(f"{path} has no rows: {_kinds()}")
    return log.reset_index(drop=True), places


def _kinds() -> str:
    return f"a log is a file, or a folder of files, of these kinds: {', '.join(_READERS)}"


def _placed(log: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A table with the places of its rows as index."""
    return log.set_axis([f"{path}, row {number}" for number in range(1, len(log) + 1)])


def _of_lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    found = list(lines(path))
    return pd.DataFrame([row for _, row in found], index=[place for place, _ in found])


def _of_columns(path: Path, between: str) -> pd.DataFrame:
    """A table of rows with separated cells, without an incomplete last row."""
    import pandas as pd

    text = read_text(path, MOST_LINES)
    if not text.endswith("\n"):
        text, torn = _whole_rows(text, between)
        if torn:
            warn_torn(path, f"{path}, row {torn}")
    # 007 and NA are read as texts.
    words = dict.fromkeys((*PROMPTS, *COMPLETIONS), str)
    first = next(csv.reader(StringIO(text), delimiter=between), [])
    missing: dict[Any, Any] = {name: _NONE for name in first if name not in words}
    table = pd.read_csv(
        StringIO(text), sep=between, dtype=words, na_values=missing, keep_default_na=False
    )
    return _placed(table, path)


def _whole_rows(text: str, between: str) -> tuple[str, int]:
    """A table without an incomplete last row, and the number of that row, or 0."""
    rows = csv.reader(StringIO(text), delimiter=between, strict=True)
    end = whole = cells = 0
    try:
        for row in rows:
            cells = cells or len(row)
            if 0 < len(row) < cells:
                break
            end, whole = rows.line_num, whole + 1
        else:
            return text, 0
    except csv.Error:
        # A quote is open at the end.
        pass
    # The first row has the names.
    return "\n".join([*text.split("\n")[:end], ""]), whole


def _of_json(path: Path) -> pd.DataFrame:
    """Rows of a list, or of a table of Weights & Biases (``*.table.json``)."""
    import pandas as pd

    value = read_json(path)
    if _is_table(value):
        return _placed(pd.DataFrame(value["data"], columns=value["columns"]), path)
    if not _is_list(value):
        raise InputError(f"{path} is neither a list of rows nor a table of columns and data")
    return _placed(pd.DataFrame(value), path)


def _of_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    return _placed(pd.read_parquet(regular(path)), path)


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": partial(_of_columns, between=","),
    ".tsv": partial(_of_columns, between="\t"),
    ".parquet": _of_parquet,
    ".jsonl": _of_lines,
    ".json": _of_json,
}


def _parted(log: pd.DataFrame, places: Sequence[str]) -> pd.DataFrame:
    """A log with conversations as rows; the last message is the completion."""
    if MESSAGES not in log or any(name in log for name in COMPLETIONS):
        return log
    for place, value in zip(places, log[MESSAGES], strict=True):
        messages = _plain(value)
        if not isinstance(messages, list) or not all(
            isinstance(each, dict) and {"role", "content"} <= set(each) for each in messages
        ):
            raise InputError(
                f"{place}: {MESSAGES} is {short(value)}: it must be a list of messages"
            )
        if not messages or messages[-1]["role"] != "assistant":
            raise InputError(f"{place}: {MESSAGES} does not end with a message of the assistant")
    own = log[MESSAGES].map(lambda value: _plain(value)[-1:])
    log = log.assign(completion=own)
    if not any(name in log for name in PROMPTS):
        log = log.assign(prompt=log[MESSAGES].map(lambda value: _plain(value)[:-1]))
    return log.drop(columns=MESSAGES)


_STEP = re.compile(r"step_(\d+)")
_DEEP = 3
"""The depth of nested folders in which logs are searched."""


def _files(folder: Path) -> list[Path]:
    """The logs in a folder, or in its folders of steps."""
    found = [file for file in sorted(folder.iterdir()) if kind(file) in _READERS and file.is_file()]
    if found:
        return [file for file in found if kind(file) != ".json" or is_log(file)]
    steps = [
        (int(match[1]), file)
        for depth in range(1, _DEEP + 1)
        for file in sorted(folder.glob("/".join(["*"] * depth + ["*"])))
        if kind(file) in _READERS and file.is_file() and (match := _STEP.search(str(file.parent)))
    ]
    return [file for _, file in sorted(steps)]


def _with_step(log: pd.DataFrame, file: Path) -> pd.DataFrame:
    """A log with the step from its folder's name, if its rows do not have one."""
    match = _STEP.search(file.parent.name)
    return log if match is None or "step" in log else log.assign(step=int(match[1]))


def _is_table(value: Any) -> bool:
    """Whether it is a table of Weights & Biases (``*.table.json``)."""
    return isinstance(value, dict) and {"columns", "data"} <= set(value)


def _is_list(value: Any) -> bool:
    """Whether it is a list of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _rewards(
    path: Path,
    log: pd.DataFrame,
    places: Sequence[str],
    reward: str | None,
    taken: set[Any],
) -> tuple[pd.Series[Any], dict[str, pd.Series[Any]]]:
    """The named column, or a sum and its parts; else the usual one, or the only one of numbers."""
    import pandas as pd

    if reward is not None and reward in log:
        return _numbers(log, places, reward), {}
    usual = [name for name in REWARDS if name in log]
    if reward is None and len(usual) == 1:
        return _numbers(log, places, usual[0]), {}
    choices = [str(name) for name in log if name not in taken and name not in OTHERS]
    shares = {name: _share_of_numbers(log[name]) for name in choices}
    # A wrong cell in the only column of rewards is an error that names it, below.
    least = next((least for least in (_MOSTLY, 0.5) if max(shares.values(), default=0) > least), 1)
    choices = [name for name, share in shares.items() if share > least]
    usual = usual or choices
    if reward is None and len(usual) == 1:
        return _numbers(log, places, usual[0]), {}
    fault = f"{len(usual)} columns of rewards" if reward is None else f"no column {reward!r}"
    if reward is not None and "+" in reward:
        weights: dict[str, float] = {}
        for name, weight in map(_term, reward.split("+")):
            weights[name] = weights.get(name, 0.0) + weight
        unknown = [name for name in weights if name not in log or name in taken]
        if not unknown:
            columns = {name: _numbers(log, places, name) for name in weights}
            parts = pd.DataFrame(columns) * [*weights.values()]
            # A missing reward counts 0 in the sum, as in trainers.
            filled = parts.astype(float).fillna(0.0)
            return parts.sum(axis=1, min_count=1), {name: filled[name] for name in weights}
        fault = f"no column {unknown[0]!r} of numbers"
    several = f", or a sum, {'+'.join(choices)}" if len(choices) > 1 else ""
    choice = (
        f"name one ({argument('reward', 'NAME')}), of {', '.join(choices)}"
        if choices
        else "none holds numbers"
    )
    raise InputError(f"{path} has {fault}: {choice}{several}")


def _read_numbers(column: pd.Series[Any]) -> tuple[pd.Series[Any], pd.Series[Any]]:
    """A column as numbers, also from texts, and the cells that are not numbers."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column.astype(float), column.notna() & False
    cells = column.map(lambda cell: cell if isinstance(cell, str | float | int) else _plain(cell))
    cells = cells.where(cells.map(lambda cell: isinstance(cell, str | float | int)), None)
    cells = cells.map(lambda cell: _TRUTHS.get(cell, cell) if isinstance(cell, str) else cell)
    found = pd.to_numeric(cells, errors="coerce").astype(float)
    return found, found.isna() & column.map(lambda cell: cell is not None and cell == cell)


def _share_of_numbers(column: pd.Series[Any]) -> float:
    """The share of numbers among the cells of a column that are not missing."""
    found, wrong = _read_numbers(column)
    numbers = int(found.notna().sum())
    return numbers / max(numbers + int(wrong.sum()), 1)


def _numbers(log: pd.DataFrame, places: Sequence[str], name: str) -> pd.Series[Any]:
    """A column of numbers, with NaN for missing values."""
    found, wrong = _read_numbers(log[name])
    for row in np.flatnonzero(wrong | np.isinf(found)).tolist():
        cell = short(_plain(log[name].iloc[row]))
        raise InputError(
            f"{places[row]}, column {name}: {cell} is not a number (it must be finite)"
        )
    return found


def _term(text: str) -> tuple[str, float]:
    """A column and its weight, from ``name`` or ``0.5*name``."""
    weight, times, name = text.partition("*")
    try:
        factor = float(weight) if times else 1.0
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise InputError(f"reward has {text!r}: write NAME, or WEIGHT*NAME")
    return (name if times else text).strip(), factor


def _plain(value: Any) -> Any:
    """A value in JSON's types, because Parquet gives arrays."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if isinstance(value, bool) else value


def words_of(value: Any) -> Any:
    """The text of a prompt or a completion, or of its last message; otherwise the value itself."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return value[-1].get("content")
    return value


def _text(place: Any, column: str, completion: Any) -> Any:
    """The text of a completion, or of its last message."""
    words = words_of(completion)
    if not isinstance(words, str):
        raise InputError(f"{place}: {column} is {short(completion)}: it must be text, or messages")
    return words

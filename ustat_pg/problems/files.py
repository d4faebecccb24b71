"""Problems in files: JSON, or the same arrays as ``.npz``."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..validation import InputError
from .named import PREFIX, named_problem
from .softmax_bandit import SoftmaxBandit

__all__ = ["example_problem", "load_problem", "problem_from_mapping", "save_problem"]

_COMMON = ("context_probs", "reward_values", "reward_probs")
_FORMS: dict[tuple[str, ...], Any] = {
    ("logits",): SoftmaxBandit.tabular,
    ("features", "theta"): SoftmaxBandit.linear,
    ("context_features", "weights"): SoftmaxBandit.shared_linear,
}
_OPTIONAL: dict[tuple[str, ...], set[str]] = {("features", "theta"): {"offset"}}


def problem_from_mapping(data: Mapping[str, Any]) -> SoftmaxBandit:
    """The problem that named arrays describe.

    Arguments:
        data: ``context_probs`` [X], ``reward_values`` and ``reward_probs`` [X][K][R], and one of
            ``logits`` [X][K]; ``features`` [X][K][d] with ``theta`` [d]
            and, if wanted, ``offset`` [X][K];
            ``context_features`` [X][m] with ``weights`` [K][m].

    Raises:
        InputError: a name is missing or unknown, or an array is refused.

    >>> problem_from_mapping(example_problem()).moments().value
    array([0.5  , 0.232])
    """
    forms = [form for form in _FORMS if set(form) & set(data)]
    if len(forms) != 1:
        raise InputError(
            "a problem needs exactly one of: logits; features with theta; "
            f"context_features with weights (the names found are {', '.join(map(str, data))})"
        )
    wanted = {*_COMMON, *forms[0]}
    allowed = wanted | _OPTIONAL.get(forms[0], set())
    missing, unknown = sorted(wanted - set(data)), sorted(map(str, set(data) - allowed))
    if missing:
        raise InputError(f"the problem lacks {', '.join(missing)}")
    if unknown:
        raise InputError(f"the problem has unknown names: {', '.join(unknown)}")
    return _FORMS[forms[0]](**{name: data[name] for name in allowed if name in data})


def load_problem(path: str | Path) -> SoftmaxBandit:
    """Read a problem from a ``.json`` or ``.npz`` file, or one that ships with the library.

    Arguments:
        path: file, or a name of :func:`named_problems` behind ``ustat:``.

    Raises:
        InputError: the file cannot be read, is of another kind, or its problem is refused; the
            message begins with the file's name. Or no problem has the name.

    >>> load_problem("ustat:skewed").moments().value
    array([0.8])
    """
    if str(path).startswith(PREFIX):
        return named_problem(str(path)).problem
    path = Path(path)
    try:
        if path.suffix == ".npz":
            data = _read_archive(path)
        elif path.suffix == ".json":
            data = json.loads(path.read_text(encoding="utf-8"))
        else:
            raise InputError("its name must end in .json or .npz, or begin with ustat:")
        if not isinstance(data, dict):
            raise InputError("it must hold one object of named arrays")
        return problem_from_mapping(data)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or 'not a readable archive'}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable problem: {error}") from None


def _read_archive(path: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file."""
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                if archive.testzip() is not None:
                    raise InputError("a damaged archive")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except InputError:
            raise
        except Exception as error:
            # Damaged archives fail in zipfile, zlib and NumPy in many ways, none of them ours.
            raise InputError(f"not a readable archive: {error}") from None


def save_problem(problem: SoftmaxBandit, path: str | Path) -> None:
    """Write a problem to a ``.json`` or ``.npz`` file, to be read back unchanged.

    Raises:
        InputError: the name ends in neither, or no file holds such a policy.
    """
    path = Path(path)
    if not problem.policy.in_files:
        raise InputError(f"{path}: files do not hold a {type(problem.policy).__name__}")
    if path.suffix == ".npz":
        with path.open("wb") as file:
            np.savez_compressed(file, **problem.arrays())  # type: ignore[arg-type]
    elif path.suffix == ".json":
        data = {name: array.tolist() for name, array in problem.arrays().items()}
        path.write_text(json.dumps(data) + "\n", encoding="utf-8")
    else:
        raise InputError(f"{path}: its name must end in .json or .npz")


def example_problem() -> dict[str, Any]:
    """A small problem as a file would hold it: two prompts, three answers, one kind of reward each.

    The first prompt's answers are right or wrong; the second's are graded and one is noisy.
    """
    return {
        "context_probs": [0.6, 0.4],
        "logits": [[0.6931471805599453, 0.0, 0.0], [0.0, 0.6931471805599453, 0.6931471805599453]],
        "reward_values": [[[1.0, 0.0]] * 3, [[1.0, 0.0], [0.5, -0.5], [0.3, 0.0]]],
        "reward_probs": [
            [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]],
            [[1.0, 0.0], [0.4, 0.6], [0.6, 0.4]],
        ],
    }

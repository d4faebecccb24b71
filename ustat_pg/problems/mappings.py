"""Conversion of named arrays to problems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..validation import InputError, nearest
from .softmax_bandit import SoftmaxBandit

_COMMON = ("context_probs", "reward_values", "reward_probs")
_FORMS: dict[tuple[str, ...], Any] = {
    ("logits",): SoftmaxBandit.tabular,
    ("features", "theta"): SoftmaxBandit.linear,
    ("context_features", "weights"): SoftmaxBandit.shared_linear,
}
_OPTIONAL: dict[tuple[str, ...], set[str]] = {("features", "theta"): {"offset"}}
_NAMES = {*_COMMON, "offset"}.union(*_FORMS)


def problem_from_mapping(data: Mapping[str, Any]) -> SoftmaxBandit:
    """The problem described by named arrays.

    Arguments:
        data: ``context_probs`` [X], ``reward_values`` and ``reward_probs`` [X][K][R], and one of
            ``logits`` [X][K]; ``features`` [X][K][d] with ``theta`` [d]
            and, if wanted, ``offset`` [X][K];
            ``context_features`` [X][m] with ``weights`` [K][m].

    >>> problem_from_mapping(example_problem()).moments().value
    array([0.5  , 0.232])
    """
    forms = [form for form in _FORMS if set(form) & set(data)]
    if len(forms) != 1:
        raise InputError(
            "a problem needs exactly one of: logits; features with theta; "
            f"context_features with weights (the names found are {_meant(data, _NAMES)})"
        )
    wanted = {*_COMMON, *forms[0]}
    allowed = wanted | _OPTIONAL.get(forms[0], set())
    missing, unknown = sorted(wanted - set(data)), sorted(map(str, set(data) - allowed))
    faults = [f"lacks {', '.join(missing)}"] if missing else []
    faults += [f"has unknown names: {_meant(unknown, allowed)}"] if unknown else []
    if faults:
        raise InputError(f"the problem {' and '.join(faults)}")
    return _FORMS[forms[0]](**{name: data[name] for name in allowed if name in data})


def _meant(names: Iterable[str], known: Collection[str]) -> str:
    """Names, each unknown one with the nearest known one."""
    near = {name: nearest(name, known) for name in map(str, names) if name not in known}
    return ", ".join(
        f"{name} (did you mean {near[name][0]}?)" if near.get(name) else str(name) for name in names
    )


def example_problem() -> dict[str, Any]:
    """A small problem in the form of a file: two prompts, three answers, one kind of reward each.

    The first prompt's answers are right or wrong; the second prompt's answers are graded, and one is noisy.
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

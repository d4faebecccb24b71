"""Names of options that no row reads: typing errors, and names that may change the objective."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .options import short_name

OFF = ("none", "false", "null", "")
"""Words that switch an option off, like 0."""

ELSEWHERE = re.compile(
    "val|eval|test|valid|optim|adam|sched|quant|qat|bnb|critic|reward_model|rm$|lora|peft|teacher|distill"
)
"""The sections whose options do not belong to the loss."""


def slip(name: str, options: Iterable[str]) -> str | None:
    """The option of which a name is a typing error, the nearest one; None if there is none.

    The last part of the name may differ from the option's by two letters if that has six or more, and by one
    if it has four or five; so may the part before it, if the option is not clear without that. An added, a
    missing, another letter, and two neighbours that changed places are one difference each.

    >>> slip("trainer.scale_reward", ["scale_rewards", "beta"])
    'scale_rewards'
    >>> slip("top_q", ["rollout.top_k", "lr"]), slip("rollout.m", ["rollout.n"])
    (None, None)
    """
    parts = name.split(".")
    apart = {}
    for option in options:
        own = short_name(option).split(".")
        pairs = list(zip(parts[-len(own) :], own, strict=False))
        if len(pairs) == len(own) and all(_may_be(*pair) for pair in pairs):
            steps = [_differences(*pair) for pair in pairs]
            if all(n <= _allowed(word) for n, word in zip(steps, own, strict=True)):
                apart[option] = sum(steps)
    near = min(apart, key=apart.__getitem__, default=None)
    return near if near and apart[near] else None


def _allowed(word: str) -> int:
    return 2 if len(word) >= 6 else 1 if len(word) >= 4 else 0


def _may_be(one: str, other: str) -> bool:
    """Whether two words have nearly the same letters, which is much faster to know."""
    if one == other:
        return True
    letters = Counter(one), Counter(other)
    return all((x - y).total() <= 2 for x, y in (letters, letters[::-1]))


def _differences(one: str, other: str) -> int:
    """The optimal string alignment distance (Damerau-Levenshtein, each letter changed once)."""
    before: list[int] = []
    row = [*range(len(other) + 1)]
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            step = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], wanted):
                step = min(step, last[j - 2] + 1)
            row.append(step)
    return row[-1]


def may_change(named: Mapping[str, str]) -> list[str]:
    """The names that may change the objective.

    They have a word about the loss, its advantages or the sampled outputs, are not switched off, and do not
    belong to an optimizer, an evaluation or a model.

    Arguments:
        named: values by name.

    >>> may_change({"algo.length_penalty.weight": "0.1", "trainer.save_freq": "5", "eval.kl_coef": "1"})
    ['algo.length_penalty.weight']
    >>> may_change({"filter.enable": "false", "filter.low": "0.1", "use_tis": "none"})
    []
    """
    values = {_plain(name): text.lower() for name, text in named.items()}
    off = {
        name.rpartition(".")[0]
        for name, text in values.items()
        if re.search(r"\.enabled?$", name) and text in OFF
    }
    found = []
    for name in named:
        *sections, last = _plain(name).split(".")
        above = {".".join(sections[:end]) for end in range(1, len(sections) + 1)}
        said = _OBJECTIVE.search(_plain(name)) or _SUBJECT.search(last)
        aside = any(map(_ASIDE.match, sections)) or _PLACE.search(last)
        value = values[_plain(name)]
        acts = not (above & off or is_off(value) or _NEUTRAL.fullmatch(f"{last}={value}"))
        if said and acts and not aside:
            found.append(name)
    return found


def is_off(value: str) -> bool:
    """Whether a value switches an option off, such as 0."""
    return value in OFF or bool(re.fullmatch(r"[+-]?0*\.?0+(e[+-]?\d+)?", value))


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_").lower()


def by_section(names: Sequence[str], least: int = 2, pattern: str = "") -> list[str]:
    """The names, with ``section.*`` in place of several names of one section that has a pattern.

    >>> by_section(["a.b.c", "a.b.d", "a.e", "f"])
    ['a.b.*', 'a.e', 'f']
    """
    parts = [(name.rpartition(".")[0], name) for name in names]
    counts = Counter(section for section, _ in parts)
    whole = {
        section
        for section, count in counts.items()
        if section and count >= least and re.search(pattern, _plain(section))
    }
    return [*dict.fromkeys(f"{place}.*" if place in whole else name for place, name in parts)]


def told(names: Sequence[str]) -> list[str]:
    """Names that may change the objective; those of a section that says so itself as ``section.*``.

    >>> told(["a.filtering.x", "a.filtering.y", "a.kl_coef", "a.clip"])
    ['a.filtering.*', 'a.kl_coef', 'a.clip']
    """
    return by_section(names, pattern=_OBJECTIVE.pattern)


_OBJECTIVE = re.compile(
    r"(?<![a-z0-9])(penalt|(?<!grad_)clip(?!_grad)|loss|advantage|filter|reject|mask|whiten|importance|imp_ratio|correction|overlong"
    r"|temperature|min_p(?![a-z])|top_[kp](?![a-z])|baseline|bonus|shaping|off_?policy|stale"
    r"|rewards?[._](\w+_)?(scal|coef|weight|bias)"
    r"|(?<!calculate_)entropy(?!_from|_check)|normali[sz]|(?<!grad_)(?<!layer_)(?<!rms_)(?<!qk_)norm(?!_eps)"
    r"|(kl|adv|tis|opd|beta|gamma|estimator|(rollout|sampler)_is)(?![a-z0-9]))"
)
"""Words of names, or of their sections, that may change the objective."""

_SUBJECT = re.compile("(?<![a-z])(reward|teacher|distill)")
"""Words of the last part of a name that may change the objective; a section says where rewards come from."""

_PLACE = re.compile(
    r"(^|_)(path|name|cls|fn|func|funcs|function|functions|manager|key|url|model|server|file|plugin|workers"
    r"|pretrain|fusion|nan\w*|chunk\w*|log\w*|metrics?|gpus?|device\w*|dtype|split"
    r"|target_)$|^(log|fuse|check|val|eval|value|vf)_"
)
"""Last parts of names that say where something is, or how it is computed or logged, or act elsewhere."""

_NEUTRAL = re.compile(r"(temperature|top_[kp]|gamma)=(-?1(\.0*)?)")
"""Options of sampling and discounting with a value that changes nothing."""

_ASIDE = re.compile(
    "val|eval|test|valid|optim|adam|sched|quant|qat|bnb|critic|lora|peft|data|model$|checkpoint|ckpt|env_vars"
    "|cluster|rope|hf_"
)
"""The sections whose options do not change the objective of the policy."""

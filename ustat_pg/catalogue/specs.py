"""Options as they are written: typed, in a file, in a launch script, or in a trainer's own config."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..reading import read_json, read_pickle, read_text, read_yaml
from ..validation import InputError, integer, nearest
from .meaning import Meaning
from .records import Framework, Option, as_text, catalogue, flat

Named = list[tuple[str, str]]
"""Options by the names that are written, the later before the earlier; "" where no value is."""


def resolve(spec: Any, group_size: int | None = None) -> Meaning:
    """Resolve the options of a framework: ``"framework option=value ..."``, with its own defaults.

    A YAML or JSON file of options, a launch script, or ``training_args.bin``, of which nothing is
    imported or run, may stand behind the framework, or alone; options that follow it hold before those in
    it. What is no option of the catalogue is passed over, and named in the result's ``passed_over``.

    Arguments:
        spec: ``"verl adv_estimator=rloo rollout.n=4"``, ``"trl run.yaml"``, ``"run.sh"``, or the command
            that starts a run, ``"python -m verl.trainer.main_ppo algorithm.adv_estimator=rloo ..."``;
            or a mapping of options, or a config that has them as attributes: ``trainer.args``.
        group_size: G, in place of what the options say.

    Raises:
        InputError: an unknown framework or value, or an option by a name that is nearly right, which is
            named with the nearest; or a file that is not as said.

    >>> meaning = resolve("verl adv_estimator=rloo rollout.n=4")
    >>> meaning.estimator, meaning.group_size, meaning.aggregation.name
    ('grpo', 4, 'token-mean')
    >>> resolve({"scale_rewards": False, "num_generations": 16, "seed": 3}).estimator
    'group-mean'
    """
    if not isinstance(spec, str):
        named = _of_config(spec)
        framework = _recognised(f"this {type(spec).__name__}", named)
        return _meaning(framework, group_size, named)
    words = spec.split()
    if not words:
        raise InputError("SPEC is empty: write a framework and its options, or a file of them")
    if _is_command(words):
        named = _of_commands(spec)
        return _meaning(_recognised("SPEC", named), group_size, named)
    held: Named = []
    if _is_file(words[0]):
        held = _of_file(words[0])
        framework = _recognised(words[0], held)
    else:
        framework = catalogue().framework(words[0])
    typed = []
    for word in words[1:]:
        if _is_file(word):
            held = _of_file(word)
        else:
            typed.append(word)
    passed, given = [], {}
    for name, text in _options(typed, partial(_is_switch, framework)):
        option = _typed(framework, name)
        if option is None:
            passed.append(name)
            continue
        if not text and not option.switch:
            raise InputError(f"{name!r} has no value: write {name}=VALUE")
        given[option.name] = option.read(text or "true")
    return _meaning(framework, group_size, held, given, passed)


def _typed(framework: Framework, name: str) -> Option | None:
    """The option of a typed name; None where the name is like none of the framework's."""
    known = {option_name.rpartition(".")[2] for option_name in _names(framework)}
    last = _plain(name).rpartition(".")[2]
    slip = last not in known and nearest(last, known, cutoff=NEAR)
    return framework.option(name) if framework.matching(name) or slip else None


def _is_switch(framework: Framework, name: str) -> bool:
    matches = framework.matching(name)
    return len(matches) == 1 and matches[0].switch


def _meaning(
    framework: Framework,
    group_size: int | None,
    held: Named,
    typed: Mapping[str, str] | None = None,
    passed: Iterable[str] = (),
) -> Meaning:
    known, foreign = _known(framework, held)
    given = {**known, **(typed or {})}
    defaults = {option.name: option.unsaid(given) for option in framework.options.values()}
    values = {**defaults, **given}
    (grouping,) = framework.of_kind("group size")
    if group_size is not None:
        values[grouping.name] = str(integer("group size", group_size))
    size = values[grouping.name]
    aggregation = framework.aggregation
    for option in framework.of_kind("aggregation"):
        aggregation = (option.means or {}).get(values[option.name], option.otherwise or aggregation)
    return Meaning(
        framework=framework,
        row=framework.row(values),
        values=values,
        # A config has every option, most of them as they are by default.
        given=tuple(
            name
            for name in given
            if name in (typed or ()) or given[name] != framework.options[name].default
        ),
        group_size=None if size == "none" else int(size),
        aggregation=catalogue().aggregations[aggregation],
        passed_over=tuple(dict.fromkeys((*passed, *foreign))),
    )


def _known(framework: Framework, named: Named) -> tuple[dict[str, str], list[str]]:
    """The framework's options among what is named, and the names of the rest."""
    values, foreign = {}, []
    for name, text in named:
        option = _names(framework).get(_plain(name))
        if option is None:
            foreign.append(name)
            continue
        if option.kind == "group size" and text in ("none", "null"):
            continue
        if "$" in text and any(
            text.strip("${}").endswith(alias) for alias in (option.name, *option.aliases)
        ):
            continue  # A file that refers to another name of the same option, which it holds too.
        if "$" in text:
            raise InputError(
                f"{name} is {text!r}, which only the shell knows: write {name}=VALUE behind the file"
            )
        if not text and not option.switch and name.startswith("-"):
            raise InputError(f"{name!r} has no value: write {name}=VALUE")
        values[option.name] = option.read(text or ("true" if option.switch else "none"))
    return values, foreign


def _names(framework: Framework) -> dict[str, Option]:
    return {
        name: option
        for option in framework.options.values()
        for name in (option.name, *option.aliases)
    }


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_")


def _recognised(source: str, named: Named) -> Framework:
    """The framework with the most options among what is named, those of the advantage first; of
    two with the same names, whose names they are.
    """
    written = {_plain(name) for name, _ in named}
    matches = {}
    for framework in catalogue().frameworks.values():
        options = [option for name, option in _names(framework).items() if name in written]
        matches[framework.name] = (
            sum(option.kind == "advantage" for option in options),
            len(options),
        )
    most = max(matches.values())
    best = {name for name, count in matches.items() if count == most}
    bests = [name for name in best if catalogue().frameworks[name].names_of not in best]
    if most == (0, 0) or len(bests) > 1:
        raise InputError(
            f"{source}: whose options are these? Write the framework before the file: 'trl run.yaml'"
        )
    return catalogue().frameworks[bests[0]]


def _options(words: Iterable[str], switch: Callable[[str], bool]) -> Named:
    """Options as a shell has them: ``a=b``, ``--a=b``, ``--a b``; one alone has no value."""
    named: Named = []
    rest = list(words)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        follows = rest[0] if rest else "--"
        apart = name.startswith("--") and not equals and not re.match("--|.*=", follows)
        if apart and (not switch(name) or follows.lower() in ("true", "false")):
            text = rest.pop(0)
        named.append((name, text))
    return named


# ------------------------------------------------------------------------------------------ sources


def _is_file(word: str) -> bool:
    return "=" not in word and word.endswith(tuple(_READERS))


def _is_command(words: list[str]) -> bool:
    """Whether they start a run, or are options alone, so that no framework stands first."""
    return (
        bool(re.search("^--|=", words[0]))
        or "-m" in words
        or any(word.endswith(".py") for word in words)
    )


def _of_file(path: str) -> Named:
    return _READERS[Path(path).suffix](Path(path))


def _of_commands(text: str) -> Named:
    variables: dict[str, str] = {}
    named: Named = []
    switches = {
        _plain(name)
        for framework in catalogue().frameworks.values()
        for name, option in _names(framework).items()
        if option.switch
    }
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            # A quote that goes on over lines holds no options.
            words = line.split()
        words = [_VARIABLE.sub(lambda match: _value(match, variables), word) for word in words]
        while words and (words[0] == "export" or _ASSIGNMENT.match(words[0])):
            name, equals, value = words.pop(0).partition("=")
            if equals:
                variables[name] = value
        named += _options(words, lambda name: _plain(name) in switches)
    return [(name, value) for name, value in named if value or name.startswith("--")]


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """The value that the shell puts for a variable; the variable where the script does not say."""
    name = match["plain"] or match["name"]
    return variables.get(name) or match["default"] or match[0]


def _of_sections(source: Any, data: Any) -> Named:
    if not isinstance(data, Mapping):
        raise InputError(f"{source}: it must hold options by name")
    return [(str(name), as_text(value)) for name, value in flat(data)]


def _of_config(config: Any) -> Named:
    if not isinstance(config, Mapping):
        try:
            config = vars(config)
        except TypeError:
            raise InputError(
                f"SPEC is {config!r}: it must be a text, a mapping of options, or a config"
            ) from None
    return _of_sections("SPEC", config)


_READERS: dict[str, Callable[[Path], Named]] = {
    ".yaml": lambda path: _of_sections(path, read_yaml(path)),
    ".yml": lambda path: _of_sections(path, read_yaml(path)),
    ".json": lambda path: _of_sections(path, read_json(path)),
    ".sh": lambda path: _of_commands(read_text(path)),
    **dict.fromkeys((".bin", ".pt", ".pkl"), lambda path: _of_sections(path, read_pickle(path))),
}

NEAR = 0.9
"""Likeness of two names from which one is taken for a slip of the other."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?::?-(?P<default>[^}]*))?\})")

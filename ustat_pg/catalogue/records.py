"""The catalogue's records, and what the options of a framework mean."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import product
from math import isnan, sqrt
from pathlib import Path
from typing import Any

from ..validation import InputError, integer, positive

__all__ = [
    "Aggregation",
    "Catalogue",
    "Family",
    "Framework",
    "Meaning",
    "Option",
    "Row",
    "catalogue",
    "resolve",
    "short_name",
]

_FACTORS: dict[str, Callable[[int], float]] = {
    "1": lambda size: 1.0,
    "1/G": lambda size: 1 / size,
    "1/sqrt(G)": lambda size: 1 / sqrt(size),
}
"""The constants that may multiply an estimator, by the group size."""

_OFF = ("none", "false", "0", "0.0")
"""Values that switch an option off."""

_KEPT = "its reward"
"""How the advantage of a group of one begins, where it is the reward itself."""

_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Family:
    """An estimator under five headings: one of this library, all those of one name with numbers, or
    one that is no table by the number of successes.

    Arguments:
        name: as in :data:`ustat_pg.baselines.BASELINES`, or among the others.
        title, formula: what it is called, and its advantages.
        what, climbs, noise, silent, nothing: the five headings.
        advice: one sentence to those who run it.
    """

    name: str
    title: str
    formula: str
    what: str
    climbs: str
    noise: str
    silent: str
    nothing: str
    advice: str


@dataclass(frozen=True)
class Aggregation:
    """A way in which a loss adds up tokens and outputs.

    Arguments:
        name, title, says: what it is called, what it does, and to what effect.
        scale: what it multiplies the gradient by, where that is a constant.
    """

    name: str
    title: str
    says: str
    scale: str | None = None


@dataclass(frozen=True)
class Option:
    """An option of a framework.

    Arguments:
        name: with the sections that it stands in, ``algorithm.adv_estimator``.
        kind: what it acts on, a key of the catalogue's kinds.
        default: as text; None where it must be given.
        values: those that it may have; none for a number.
        aliases: older names.
        synonyms: other ways to write a value.
        means: the aggregation of each value.
        otherwise: the aggregation of a number.
        place: where a KL term goes.
    """

    name: str
    kind: str
    default: str | None = None
    values: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    synonyms: Mapping[str, str] | None = None
    means: Mapping[str, str] | None = None
    otherwise: str | None = None
    place: str = ""

    @property
    def switch(self) -> bool:
        """Whether naming it alone switches it on."""
        return set(self.values or self.means or ()) == {"true", "false"}

    def read(self, text: str) -> str:
        """The value that a text stands for.

        Raises:
            InputError: it is none that the option may have; the message names the nearest.
        """
        value = (self.synonyms or {}).get(text.lower(), text.lower())
        value = "none" if value in ("null", "~", "") else value
        allowed = self.values or tuple(self.means or ())
        if value in allowed:
            return value
        if allowed and not self.otherwise:
            raise InputError(
                f"{self.name} is {text!r}: the nearest value is {_nearest(value, allowed)!r} of "
                f"{', '.join(allowed)}"
            )
        if self.kind == "group size":
            return str(integer(self.name, _whole(text)))
        if value != "none":
            try:
                known = not isnan(float(value))
            except ValueError:
                known = False
            if not known:
                raise InputError(f"{self.name} is {text!r}: it must be a number")
        return value


@dataclass(frozen=True)
class Row:
    """What some values of the options mean: an estimator of this library, or another.

    Arguments:
        when: the values, by option; several where any will do.
        name: the framework's own name, or its paper's.
        estimator: as :func:`ustat_pg.baselines.parse` reads it, ``{G}`` standing for the group size.
        factor: the constant that multiplies it, a key of "1", "1/G", "1/sqrt(G)".
        other: where it is none of this library's estimators, its name among the others.
        ddof: of the deviation that it divides by, if it does.
        epsilon: what it adds to its divisor.
        one_output, equal_rewards: the advantage of a group of one, and of one of equal rewards.
        source: the file in the framework's repository.
    """

    when: Mapping[str, tuple[str, ...]]
    name: str
    source: str
    estimator: str | None = None
    factor: str = "1"
    other: str | None = None
    ddof: int | None = None
    epsilon: float = 0.0
    one_output: str = ""
    equal_rewards: str = ""

    def fits(self, values: Mapping[str, str]) -> bool:
        """Whether these values of all options are among the row's."""
        return all(values[option] in allowed for option, allowed in self.when.items())

    def written(self) -> str:
        """The options as they are typed, each with the first value that will do."""
        return " ".join(f"{short_name(option)}={values[0]}" for option, values in self.when.items())


@dataclass(frozen=True)
class Framework:
    """A framework, its options and what they mean.

    Arguments:
        name, aliases, title: how it is typed, and called.
        repository, commit: where its source was read.
        aggregation: of its loss, where no option says.
        options: by name.
        rows: of which the first that fits holds.
    """

    name: str
    title: str
    repository: str
    commit: str
    aggregation: str
    options: Mapping[str, Option]
    rows: tuple[Row, ...]
    aliases: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> list[Option]:
        """The options that act on one thing."""
        return [option for option in self.options.values() if option.kind == kind]

    def option(self, text: str) -> Option:
        """The option that a name stands for: whole, by its last parts, or by an alias.

        Raises:
            InputError: there is none, and the nearest is named; or there are several.
        """
        asked = text.lstrip("-+").lower().replace("-", "_")
        found = [
            option
            for option in self.options.values()
            if any(f".{name}".endswith(f".{asked}") for name in (option.name, *option.aliases))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(option.name for option in found)
            raise InputError(f"{text} may be one of {names}: write more of it")
        known = {
            name: option.name
            for option in self.options.values()
            for name in (option.name, short_name(option.name), *option.aliases)
        }
        raise InputError(
            f"{self.title} has no option {text!r} in the catalogue: the nearest is "
            f"{known[_nearest(asked, known)]!r}; it knows {', '.join(self.options)}"
        )

    def row(self, values: Mapping[str, str]) -> Row:
        """What these values of all options mean."""
        return next(row for row in self.rows if row.fits(values))

    def combinations(self) -> list[dict[str, str]]:
        """Every choice of values of the options that choose the advantage."""
        options = self.of_kind("advantage")
        return [
            {option.name: value for option, value in zip(options, values, strict=True)}
            for values in product(*(option.values for option in options))
        ]


@dataclass(frozen=True)
class Meaning:
    """What the options of a framework mean.

    Arguments:
        framework, row: where it stands in the catalogue.
        values: of all options, by name.
        given: the names of those that were written.
        group_size: G; None where neither the options nor a default say.
        aggregation: how the loss adds up.
    """

    framework: Framework
    row: Row
    values: Mapping[str, str]
    given: tuple[str, ...]
    group_size: int | None
    aggregation: Aggregation

    @property
    def written(self) -> str:
        """The options that were written."""
        return " ".join(f"{short_name(name)}={self.values[name]}" for name in self.given)

    @property
    def estimator(self) -> str | None:
        """The name of this library's estimator; None where it has none, or G is not known.

        A group of one that keeps its reward has no baseline, whatever larger groups have.
        """
        name = self.row.estimator
        if name is not None and self.group_size == 1 and self.row.one_output.startswith(_KEPT):
            return "vanilla"
        if name is None or ("{G}" in name and self.group_size is None):
            return None
        return name.replace("{G}", str(self.group_size))

    @property
    def factor(self) -> float:
        """The constant that multiplies that estimator."""
        return _FACTORS[self.row.factor](self.group_size or 1)

    @property
    def scale(self) -> float | None:
        """What the loss multiplies the gradient by; None where lengths or a batch decide."""
        if self.aggregation.scale != "1/length":
            return None if self.aggregation.scale is None else float(self.aggregation.scale)
        adding = [self.values[each.name] for each in self.framework.of_kind("aggregation")]
        lengths = [self.values[each.name] for each in self.framework.of_kind("length")]
        for text in (*adding, *lengths):
            try:
                return 1 / positive("the constant of the loss", float(text))
            except ValueError as error:
                if isinstance(error, InputError):
                    raise
        return None

    def unchanged(self) -> dict[str, list[str]]:
        """The options that change nothing in the mean gradient, by the reason why."""
        found: dict[str, list[str]] = {}
        reasons = {"not read by this formula": self._ignored()}
        # Dropping groups changes nothing only where they would say nothing.
        silent = self.row.equal_rewards.startswith("0")
        for kind in ("ratio", "filter") if silent else ("ratio",):
            names = [option.name for option in self.framework.of_kind(kind)]
            reasons[catalogue().kinds[kind]] = names
        for reason, names in reasons.items():
            if names:
                found[reason] = [short_name(name) for name in names]
        return found

    def _ignored(self) -> list[str]:
        """The options on the advantage whose other values would mean the same."""
        names = []
        for option in self.framework.of_kind("advantage"):
            others = [self.framework.row({**self.values, option.name: v}) for v in option.values]
            if self.row.estimator and all(
                (row.estimator, row.factor) == (self.row.estimator, self.row.factor)
                for row in others
            ):
                names.append(option.name)
        return names

    def another_loss(self) -> list[str]:
        """The options that choose another loss than the default."""
        return [
            f"{short_name(option.name)}={self.values[option.name]}"
            for option in self.framework.of_kind("loss")
            if self.values[option.name] != option.default
        ]

    def penalties(self) -> list[str]:
        """The KL terms that are switched on, and where they go; nothing where no option says."""
        options = self.framework.of_kind("KL")
        found = [
            f"{short_name(option.name)}={self.values[option.name]}: {option.place}"
            for option in options
            if self.values[option.name] not in _OFF
        ]
        return found or ["none: it is switched off"] * bool(options)


@dataclass(frozen=True)
class Catalogue:
    """Everything in the catalogue.

    Arguments:
        families: this library's estimators by name.
        others: those that have no closed form here, by name.
        aggregations: by name.
        kinds: what options of each kind change in the mean gradient.
        frameworks: by name.
    """

    families: Mapping[str, Family]
    others: Mapping[str, Family]
    aggregations: Mapping[str, Aggregation]
    kinds: Mapping[str, str]
    frameworks: Mapping[str, Framework]

    def framework(self, text: str) -> Framework:
        """The framework of a name or an alias.

        Raises:
            InputError: there is none; the nearest is named.
        """
        known = {
            name: each for each in self.frameworks.values() for name in (each.name, *each.aliases)
        }
        asked = text.lower().replace("_", "-")
        if asked not in known:
            raise InputError(
                f"framework {text!r} is unknown: the nearest is {_nearest(asked, known)!r} of "
                f"{', '.join(self.frameworks)}"
            )
        return known[asked]

    def called(self, family: str) -> list[tuple[Framework, Row]]:
        """Every row that means an estimator of that name, here or among the others."""
        return [
            (framework, row)
            for framework in self.frameworks.values()
            for row in framework.rows
            if (row.estimator or row.other or "").partition(":")[0] == family
        ]


@cache
def catalogue() -> Catalogue:
    """The catalogue that the library carries.

    >>> catalogue().frameworks["verl"].repository
    'verl-project/verl'
    """
    data = tomllib.loads(files(__package__).joinpath("catalogue.toml").read_text("utf-8"))
    return Catalogue(
        families={key: Family(key, **each) for key, each in data["estimators"].items()},
        others={key: Family(key, **each) for key, each in data["others"].items()},
        aggregations={key: Aggregation(key, **each) for key, each in data["aggregations"].items()},
        kinds={key: each["says"] for key, each in data["kinds"].items()},
        frameworks={each["name"]: _framework(each) for each in data["frameworks"]},
    )


def _framework(data: dict[str, Any]) -> Framework:
    """A framework from its table in the file."""
    options = {name: _option(name, each) for name, each in _flat(data.pop("options"), "kind")}
    rows = []
    for each in data.pop("rows"):
        when = {
            option: tuple(map(_text, values if isinstance(values, list) else [values]))
            for option, values in each.pop("when").items()
        }
        rows.append(Row(when=when, **each))
    return Framework(
        options=options, rows=tuple(rows), aliases=tuple(data.pop("aliases", ())), **data
    )


def _option(name: str, data: Mapping[str, Any]) -> Option:
    rest = {key: data[key] for key in ("kind", "means", "otherwise", "place") if key in data}
    return Option(
        name=name,
        default=_text(data["default"]) if "default" in data else None,
        values=tuple(map(_text, data.get("values", ()))),
        aliases=tuple(data.get("aliases", ())),
        synonyms=data.get("synonyms"),
        **rest,
    )


def _text(value: Any) -> str:
    """A value as a user types it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def short_name(name: str) -> str:
    """The last part of a name, and the one before where the last is a letter: ``rollout.n``."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if len(parts[-1]) < 2 or parts[-1] in _VAGUE else parts[-1]


_VAGUE = frozenset(
    ("name", "enable", "estimator", "mean_level", "std_level", "mean_leave1out", "std_unbiased")
)
"""Last parts of names that say nothing without the part before them."""


def _whole(text: str) -> Any:
    """A whole number from a text, else the text."""
    try:
        return int(text)
    except ValueError:
        return text


def _nearest(text: str, known: Iterable[str]) -> str:
    return get_close_matches(text, list(known), n=1, cutoff=0.0)[0]


def resolve(spec: str, group_size: int | None = None) -> Meaning:
    """What a framework's options mean: ``"framework option=value ..."``, with its own defaults.

    A YAML file of options may stand behind the framework, or alone; options that follow it hold
    before those in it.

    Arguments:
        spec: ``"verl adv_estimator=rloo rollout.n=4"``, ``"trl run.yaml"`` or ``"run.yaml"``.
        group_size: G, in place of what the options say.

    Raises:
        InputError: an unknown framework, option or value, which is named with the nearest; or a
            file that is not as said.

    >>> meaning = resolve("verl adv_estimator=rloo rollout.n=4")
    >>> meaning.estimator, meaning.group_size, meaning.aggregation.name
    ('grpo', 4, 'token-mean')
    """
    words = spec.split() if isinstance(spec, str) else []
    if not words:
        raise InputError("SPEC is empty: write a framework and its options, or a YAML file")
    if words[0].endswith(_YAML):
        file = _of_file(words[0])
        framework = _recognised(words[0], file)
    else:
        file, framework = {}, catalogue().framework(words[0])
    given: dict[str, str] = {}
    for word in words[1:]:
        if word.endswith(_YAML) and "=" not in word:
            file = _of_file(word)
            continue
        key, equals, text = word.partition("=")
        option = framework.option(key)
        if not equals and not option.switch:
            raise InputError(f"{word!r} has no value: write {word}=VALUE")
        given[option.name] = option.read(text if equals else "true")
    # A trainer's file holds much that does not concern the advantage.
    known = {name: framework.options[name].read(text) for name, text in file.items()
             if name in framework.options}  # fmt: skip
    return _meaning(framework, {**known, **given}, group_size)


def _meaning(framework: Framework, given: Mapping[str, str], group_size: int | None) -> Meaning:
    defaults = {option.name: option.default or "none" for option in framework.options.values()}
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
        given=tuple(given),
        group_size=None if size == "none" else int(size),
        aggregation=catalogue().aggregations[aggregation],
    )


def _of_file(path: str) -> dict[str, str]:
    """The options in a YAML file, by their full names."""
    try:
        import yaml
    except ImportError:
        raise InputError(f"{path}: YAML needs PyYAML: pip install 'ustat_pg[llm]'") from None
    try:
        data = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{path}: not YAML: {first}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: it must hold options by name")
    return {name: _text(value) for name, value in _flat(data)}


def _flat(data: Mapping[str, Any], leaf: str | None = None, before: str = "") -> list[Any]:
    """Names with their sections, and the values; a mapping that holds ``leaf`` is a value."""
    found: list[Any] = []
    for key, value in data.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and leaf not in value:
            found += _flat(value, leaf, f"{name}.")
        else:
            found.append((name, value))
    return found


def _recognised(path: str, file: Mapping[str, str]) -> Framework:
    """The framework with the most options in a file.

    Raises:
        InputError: none has any, or two have as many; of two trainers of one repository the first
            is taken.
    """
    matches = {
        each.name: len(each.options.keys() & file) for each in catalogue().frameworks.values()
    }
    most = max(matches.values())
    best = [name for name, count in matches.items() if count == most]
    if most == 0 or len({catalogue().frameworks[name].repository for name in best}) > 1:
        raise InputError(
            f"{path}: whose options are these? Write the framework before the file: 'trl {path}'"
        )
    return catalogue().frameworks[best[0]]

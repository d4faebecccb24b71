"""The catalogue's records: estimators, frameworks and their options."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from math import isnan, nan
from typing import Any

from attrs import converters, evolve, field, frozen

from ..validation import InputError, integer, nearest, one_of


def as_text(value: Any) -> str:
    """A value as a user types it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(values: Any) -> tuple[str, ...]:
    """One value or several, as a user types them."""
    return tuple(map(as_text, values if isinstance(values, list | tuple) else [values]))


def _allowed(when: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    return {option: _texts(values) for option, values in when.items()}


@frozen
class Family:
    """An estimator under five headings: one of this library, all those of one name with numbers, or
    one that is no table by the number of successes.

    Arguments:
        name: as in :data:`ustat_pg.baselines.BASELINES`, or among the others.
        title, formula: what it is called, and its advantages.
        what, climbs, noise, silent, nothing: the five headings.
        advice: one sentence to those who run it.
        graded: what rewards other than 0 and 1 do, where they do otherwise.
        elsewhere: what others call by its name, where that is something else.
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
    graded: str = ""
    elsewhere: str = ""


@frozen
class Aggregation:
    """A way in which a loss adds up tokens and outputs.

    Arguments:
        name, title, says: what it is called, what it does, and to what effect.
        scale: what it multiplies the gradient by, where that is a constant.
        one_factor: whether all outputs of a batch have one factor. Otherwise a baseline that leaves the
            output out changes the mean estimate.
    """

    name: str
    title: str
    says: str
    scale: str | None = None
    one_factor: bool = False


@frozen
class Option:
    """An option of a framework.

    Arguments:
        name: with the sections that it stands in, ``algorithm.adv_estimator``.
        kind: what it acts on, a key of the catalogue's kinds.
        default: as text; None where it must be given.
        beside: its default where another option of its section is given, if that differs.
        by: its default under values of another option that are given, by that option's name.
        values: those that it may have; none for a number.
        unrun: further ones, whose code was only read.
        aliases: older names.
        synonyms: other ways to write a value.
        means: the aggregation of each value.
        otherwise: the aggregation of a number.
        place: where a KL term goes.
        where: ``loss`` or ``reward``, where that says whose gradient it is.
        form: which estimate it is, k1 to k3, abs or full, or the option that says so.
        corrected: the option that keeps the gradient of its ratio, and how that is written: ``NAME=×``, or
            ``NAME=+`` where k2's gradient is put in its place.
        needs: values of other options without which it is off.
        times: the option that multiplies it: at 0 it is off.
        summed: whether it is taken off the reward before the group's statistics.
        caps: the options that cap the ratio from above under a value; the first that is set holds.
        refused: values that are no baseline of a group, and what they are.
        several: whether it is a list of numbers.
        presence: whether all that counts is that it is given.
        neutral: numbers at which it leaves the sampled distribution as it is; none does too.
        scored: the option that, where it has the same value, changes the trained log-probability alike.
        lacking: the sentence that refuses it where a release has no such option; its default is then what
            that release did.
    """

    name: str
    kind: str
    default: str | None = field(default=None, converter=converters.optional(as_text))
    values: tuple[str, ...] = field(default=(), converter=_texts)
    unrun: tuple[str, ...] = field(default=(), converter=_texts)
    aliases: tuple[str, ...] = field(default=(), converter=_texts)
    synonyms: Mapping[str, str] | None = None
    means: Mapping[str, str] | None = None
    otherwise: str | None = None
    place: str = ""
    where: str = ""
    form: str = ""
    corrected: str = ""
    needs: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_allowed)
    times: str = ""
    summed: bool = False
    caps: Mapping[str, list[str]] | None = None
    beside: str | None = None
    by: Mapping[str, Mapping[str, str]] = field(factory=dict)
    refused: Mapping[str, str] = field(factory=dict)
    several: bool = False
    presence: bool = False
    neutral: tuple[float, ...] = field(default=(), converter=tuple)
    scored: str = ""
    lacking: str = ""

    @property
    def possible(self) -> set[str]:
        """The values that it may have; none for a number."""
        return {*self.values, *self.unrun, *(self.means or ())}

    def gone(self, title: str) -> Option:
        """The option in a release, called ``title``, that has no such option."""
        only = [self.default] if self.values else ()
        return evolve(self, values=only, lacking=f"{title} has no {short_name(self.name)}")

    def without(self, value: str, title: str) -> Option:
        """The option in a release, called ``title``, that lacks a value."""
        return evolve(
            self,
            values=[kept for kept in self.values if kept != value],
            means=self.means and {kept: self.means[kept] for kept in self.means if kept != value},
            refused={**self.refused, value: f"{title} has no such value"},
        )

    def unsaid(self, given: Mapping[str, str]) -> str:
        """Its value where only these options are given."""
        for name, defaults in self.by.items():
            if given.get(name) in defaults:
                return as_text(defaults[given[name]])
        section = self.name.rpartition(".")[0]
        if self.beside and any(name.rpartition(".")[0] == section for name in given):
            return self.beside
        return self.default or "none"

    @property
    def switch(self) -> bool:
        """Whether naming it alone switches it on."""
        return set(self.values or self.means or ()) == {"true", "false"}

    def refuses(self, text: str) -> bool:
        """Whether a text is a value that is no baseline of a group."""
        return self._word(text) in self.refused

    def _word(self, text: str) -> str:
        value = (self.synonyms or {}).get(text.lower(), text.lower())
        value = "none" if value in ("null", "~", "") else value
        given = self.presence and value not in ("none", "false", *self.values, *self.refused)
        return "given" if given else value

    def read(self, text: str) -> str:
        """The value that a text stands for."""
        if self.lacking:
            raise InputError(self.lacking)
        value = self._word(text)
        if value in self.refused:
            raise InputError(f"{self.name} is {text!r}: {self.refused[value]}")
        if self.presence:
            return value
        if self.several and value != "none":
            return str(
                [_number(self.name, part) for part in re.split(r"[\s,]+", value.strip("[]() "))]
            )
        allowed = (*self.values, *self.unrun) or tuple(self.means or ())
        if value in allowed:
            return value
        if allowed and not self.otherwise:
            raise InputError(
                f"{self.name} is {text!r}: the nearest value is "
                f"{nearest(value, allowed, cutoff=0.0)[0]!r} of {', '.join(allowed)}"
            )
        if self.kind == "group size":
            return str(integer(self.name, _whole(text)))
        if value != "none":
            _number(self.name, text)
        return value


def _number(name: str, text: str) -> float:
    """The number of a text."""
    try:
        value = float(text)
    except ValueError:
        value = nan
    if isnan(value):
        raise InputError(f"{name} is {text!r}: it must be a number")
    return value


@frozen
class Row:
    """The meaning of some values of the options: an estimator of this library, or another.

    Arguments:
        when: the values, by option; several where any will do.
        name: the framework's own name, or its paper's.
        estimator: as :func:`ustat_pg.baselines.parse` reads it, ``{G}`` standing for the group size.
        factor: the constant that multiplies it, a key of "1", "1/G", "G/(G-1)", "1/sqrt(G)".
        other: where it is none of this library's estimators, its name among the others.
        each: where several rewards have an estimator each, and their weighted sum is taken then, its name.
        ddof: of the deviation that it divides by, if it does.
        epsilon: what it adds to its divisor.
        one_output, equal_rewards: the advantage of a group of one, and of one of equal rewards.
        source: the file in the framework's repository.
        read: whether it was only read there, and not run.
        binary: whether it holds for rewards 0 and 1 alone.
        pooled: whether a batch of unequal groups is taken for one group.
        dropped: whether a rollout goes where all others of its group have one reward, and advantages
            are those of the rest: 0 in a group with one success or one failure.
    """

    when: Mapping[str, tuple[str, ...]] = field(converter=_allowed)
    name: str
    source: str
    estimator: str | None = None
    factor: str = "1"
    other: str | None = None
    each: str | None = None
    ddof: int | None = None
    epsilon: float = 0.0
    one_output: str = ""
    equal_rewards: str = ""
    read: bool = False
    binary: bool = False
    pooled: bool = False
    dropped: bool = False

    def fits(self, values: Mapping[str, str]) -> bool:
        """Whether these values of all options are among the row's."""
        return all(values[option] in allowed for option, allowed in self.when.items())

    def written(self) -> str:
        """The options as they are typed, each with the first value that will do."""
        return " ".join(f"{short_name(option)}={values[0]}" for option, values in self.when.items())


def release_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a release, by which releases are ordered; a pre-release counts as what it comes before.

    >>> release_numbers("0.22.0") == release_numbers("v0.22") < release_numbers("1.0.post1")
    True
    """
    match = _RELEASE.fullmatch(text)
    if not match:
        raise InputError(f"release is {text!r}: it must be numbers with dots, as 0.19.1")
    return tuple(map(int, re.sub(r"(\.0+)+$", "", match[1]).split(".")))


_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.?(?:a|b|rc|dev|post)\d*)*(?:\+[\w.]+)?")


def _rows(tables: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    return tuple(Row(**table) for table in tables)


@frozen
class Earlier:
    """What was otherwise in the releases before one, beside what was otherwise in those before later ones.

    Arguments:
        before: the first release that has it no more.
        defaults: of options, by name.
        absent: options that there were not yet, and values: ``NAME=VALUE``. What was done without an option
            is its default.
        options: other fields of options, by name.
        fields: those of the framework.
        rows: that come before its others, in the releases from the next older ``before`` on alone.
        says: what these come to, for a reader.
        refused: why those releases have no rows here.
    """

    before: str
    says: str = ""
    defaults: Mapping[str, Any] = field(factory=dict)
    absent: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    fields: Mapping[str, Any] = field(factory=dict)
    rows: tuple[Row, ...] = field(default=(), converter=_rows)
    refused: str = ""


@frozen
class Framework:
    """A framework, its options and what they mean.

    Arguments:
        name, aliases, title: how it is typed, and called.
        repository, commit: where its source was read.
        ran: the day on which its own code was last run beside the rows; empty where it never was.
        notes: what its options do that no row says.
        names_of: the framework whose names its options have: a file with those alone is the other's.
        aggregation: of its loss, where no option says.
        options: by name.
        rows: the first that fits holds.
        commands, signs: patterns of the programs and modules that a run of it has, and of names that no
            other has, beside those of its options.
        elsewhere: those of its programs that have a config of their own.
        classes: its config classes in Python.
        bases: the files that its own defaults stand in: a parent of such a name adds nothing.
        refused: its programs that are no group baseline, and what they are.
        foreign: names that are like those of options and that nothing reads.
        excludes: patterns of names that no run of it has, and what has them.
        outputs: what is multiplied to the outputs of one optimizer step, those behind a ``/`` dividing.
        steps: what is multiplied to the optimizer steps on outputs of one sampling, as groups of options'
            names, those behind a ``/`` dividing; a group of which one is not known counts 1, unless a ``?``
            says that it may be left out.
        package: the name under which it is installed, where that is another.
        release: the one that the options and rows are of, where earlier ones are recorded.
        earlier: what was otherwise before, the latest change first.
    """

    name: str
    title: str
    repository: str
    commit: str
    aggregation: str
    options: Mapping[str, Option]
    rows: tuple[Row, ...]
    aliases: tuple[str, ...] = field(default=(), converter=_texts)
    ran: str = ""
    notes: tuple[str, ...] = field(default=(), converter=_texts)
    names_of: str = ""
    commands: tuple[str, ...] = field(default=(), converter=_texts)
    elsewhere: str = ""
    signs: tuple[str, ...] = field(default=(), converter=_texts)
    classes: tuple[str, ...] = field(default=(), converter=_texts)
    bases: tuple[str, ...] = field(default=(), converter=_texts)
    refused: Mapping[str, str] = field(factory=dict)
    foreign: tuple[str, ...] = field(default=(), converter=_texts)
    excludes: Mapping[str, str] = field(factory=dict)
    outputs: tuple[str, ...] = field(default=(), converter=_texts)
    steps: Sequence[Sequence[str]] = ()
    package: str = ""
    release: str = ""
    earlier: tuple[Earlier, ...] = ()

    @property
    def called(self) -> str:
        """The title without the trainer, which releases are of."""
        return self.title.partition(",")[0]

    def span(self, release: str) -> tuple[str, str]:
        """The first release with the defaults of one, and the first without; empty where there is none."""
        wanted = release_numbers(release)
        befores = [entry.before for entry in self.earlier]
        later = [before for before in befores if wanted < release_numbers(before)]
        return "".join(befores[len(later) : len(later) + 1]), "".join(later[-1:])

    def at(self, release: str) -> Framework:
        """The framework as it was at a release: with its defaults, without what it lacked.

        Raises:
            InputError: no releases are recorded, or none as early, or the trainer was another one then.

        >>> catalogue().framework("trl").at("0.19.1").options["loss_type"].default
        'bnpo'
        """
        if not self.earlier:
            raise InputError(
                f"no releases are recorded of {self.called}: its rows are of {self.repository}@{self.commit}"
            )
        wanted = release_numbers(release)
        if wanted == release_numbers(self.release):
            return self
        release = release.removeprefix("v")
        title = f"{self.called} {release}"
        options, fields, rows = dict(self.options), dict[str, Any](), list[Row]()
        for entry in self.earlier:
            if wanted >= release_numbers(entry.before):
                break
            if entry.refused:
                raise InputError(
                    f"{title}: {entry.refused}; the earliest release that is recorded is {entry.before}"
                )
            changes = {name: {"default": value} for name, value in entry.defaults.items()}
            for name, change in (*changes.items(), *entry.options.items()):
                options[name] = evolve(options[name], **change)
            for name, _, value in (word.partition("=") for word in entry.absent):
                option = options[name]
                options[name] = option.without(value, title) if value else option.gone(title)
            fields |= entry.fields
            rows = [*entry.rows]
        rows += [
            row
            for row in self.rows
            if all(options[name].possible & {*allowed} for name, allowed in row.when.items())
        ]
        return evolve(
            self,
            title=self.title.replace(self.called, title, 1),
            commit=f"v{release}",
            release=release,
            options=options,
            rows=tuple(evolve(row, read=True) for row in rows),
            **fields,
        )

    def names(self) -> dict[str, Option]:
        """The options by all their names."""
        return {
            name: option
            for option in self.options.values()
            for name in (option.name, *option.aliases)
        }

    def is_switch(self, name: str) -> bool:
        """Whether naming an option alone switches it on."""
        matches = self.matching(name)
        return len(matches) == 1 and matches[0].switch

    def checked(self, row: Row) -> str:
        """How one of its rows was held to its code."""
        return "read only" if row.read else f"run on {self.ran}"

    def of_kind(self, kind: str) -> list[Option]:
        """The options that act on one thing."""
        return [option for option in self.options.values() if option.kind == kind]

    def matching(self, text: str) -> list[Option]:
        """The options that a name may stand for: whole, by its last parts, or by an alias."""
        wanted = text.lstrip("-+").lower().replace("-", "_")
        return [
            option
            for option in self.options.values()
            if any(f".{name}".endswith(f".{wanted}") for name in (option.name, *option.aliases))
        ]

    def option(self, text: str) -> Option:
        """The option that a name stands for."""
        matches = self.matching(text)
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(option.name for option in matches)
            raise InputError(f"{text} may be one of {names}: write more of it")
        known = {
            name: option.name
            for option in self.options.values()
            for name in (option.name, short_name(option.name), *option.aliases)
        }
        raise InputError(
            f"{self.title} has no option {text!r} in the catalogue: the nearest is "
            f"{known[nearest(text.lstrip('-+'), known, cutoff=0.0)[0]]!r}; it knows {', '.join(self.options)}"
        )

    def row(self, values: Mapping[str, str]) -> Row:
        """The row that fits these values of all options."""
        for row in self.rows:
            if row.fits(values):
                return row
        options = [option for option in self.of_kind("advantage") if values[option.name] == "none"]
        names = " ".join(f"{short_name(option.name)}=VALUE" for option in options)
        raise InputError(f"{self.title} has no advantage without {names}: write it")

    def combinations(self, unrun: bool = False) -> list[dict[str, str]]:
        """Every choice of values of the options that choose the advantage; if that is asked, of the trainer
        and of what was only read too.
        """
        options = [*self.of_kind("advantage"), *(self.of_kind("trainer") if unrun else ())]
        values = [(*option.values, *(option.unrun if unrun else ())) for option in options]
        return [
            {option.name: value for option, value in zip(options, chosen, strict=True)}
            for chosen in product(*values)
        ]


@frozen
class Catalogue:
    """Everything in the catalogue.

    Arguments:
        families: this library's estimators by name.
        others: those that have no closed form here, by name.
        aggregations: by name.
        kinds: what options of each kind change in the mean gradient.
        divergences: whose gradient an estimate of the KL has in the loss and in the reward.
        frameworks: by name.
        absent: why a trainer that one may look for has no rows, by name.
    """

    families: Mapping[str, Family]
    others: Mapping[str, Family]
    aggregations: Mapping[str, Aggregation]
    kinds: Mapping[str, str]
    divergences: Mapping[str, Mapping[str, str]]
    frameworks: Mapping[str, Framework]
    absent: Mapping[str, str]

    @property
    def names(self) -> dict[str, Framework]:
        """The frameworks by names and aliases."""
        return {
            name: record
            for record in self.frameworks.values()
            for name in (record.name, *record.aliases)
        }

    def framework(self, text: str) -> Framework:
        """The framework of a name or an alias."""
        known = self.names
        name = text.lower().replace("_", "-")
        if why := self.absent.get(name):
            raise InputError(f"framework {text!r} has no rows here: {why}")
        return known[one_of("framework", name, known)]

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
    folder = files(__package__)
    data = tomllib.loads(folder.joinpath("catalogue.toml").read_text("utf-8"))
    texts = {
        file.name.removesuffix(".toml"): file.read_text("utf-8")
        for file in folder.joinpath("frameworks").iterdir()
        if file.name.endswith(".toml")
    }
    tables = {name: tomllib.loads(text) for name, text in sorted(texts.items())}
    frameworks = [_completed(table, tables) for table in tables.values()]
    return Catalogue(
        families={key: Family(key, **entry) for key, entry in data["estimators"].items()},
        others={key: Family(key, **entry) for key, entry in data["others"].items()},
        aggregations={
            key: Aggregation(key, **entry) for key, entry in data["aggregations"].items()
        },
        kinds={key: entry["says"] for key, entry in data["kinds"].items()},
        divergences=data["divergences"],
        frameworks={entry.name: entry for entry in frameworks},
        absent=data["absent"],
    )


def _completed(data: dict[str, Any], tables: Mapping[str, dict[str, Any]]) -> Framework:
    """The framework of a table, with what it has from the one that it is ``like``."""
    fields = _inherited(data, tables) if "like" in data else data
    options = {name: Option(name=name, **entry) for name, entry in flat(fields["options"], "kind")}
    earlier = tuple(Earlier(**entry) for entry in fields.get("earlier", ()))
    return Framework(
        **{**fields, "options": options, "rows": _rows(fields["rows"]), "earlier": earlier}
    )


def _inherited(data: dict[str, Any], tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A table with the other's options and rows.

    Of its own options those of the other's names hold, rows come before the other's, and what is
    inherited stands behind a ``prefix`` and lacks the options named ``without``.
    """
    other, prefix = tables[data["like"]], data.get("prefix", "")
    kept = {
        prefix + name: {
            **option,
            "caps": {
                value: [prefix + alias for alias in names]
                for value, names in option.get("caps", {}).items()
            },
        }
        for name, option in other["options"].items()
        if name not in data.get("without", ())
    }
    rows = [
        {**row, "read": True, "when": {prefix + name: value for name, value in row["when"].items()}}
        for row in other["rows"]
    ]
    inherited = [row for row in rows if row["when"].keys() <= kept.keys()]
    steps = [[_behind(prefix, name) for name in group] for group in other.get("steps", ())]
    outputs = [_behind(prefix, name) for name in other.get("outputs", ())]
    return {
        "aggregation": other["aggregation"],
        "names_of": other["name"],
        "outputs": outputs if {*map(bare, outputs)} <= kept.keys() else [],
        "steps": [group for group in steps if {*map(bare, group)} <= kept.keys()],
        **{key: data[key] for key in data if key not in ("like", "prefix", "without")},
        "options": {**kept, **data.get("options", {})},
        "rows": [*data.get("rows", ()), *inherited],
    }


def bare(name: str) -> str:
    """The option of a name in a product, without what says how it counts."""
    return name.strip("/?")


def _behind(prefix: str, name: str) -> str:
    return "/" * name.startswith("/") + prefix + name.lstrip("/")


def short_name(name: str) -> str:
    """The last part of a name, and the one before where the last is a letter: ``rollout.n``."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if len(parts[-1]) < 2 or parts[-1] in _VAGUE else parts[-1]


_VAGUE = (
    *("name", "enable", "estimator", "mean_level", "std_level", "mean_leave1out"),
    *("std_unbiased", "batch_size", "init_coef", "type", "path", "enabled"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
)
"""Last parts of names that say nothing without the part before them."""


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def flat(data: Mapping[str, Any], leaf: str | None = None, before: str = "") -> list[Any]:
    """Names with their sections, and the values; a mapping that holds ``leaf`` is a value."""
    leaves: list[Any] = []
    for key, value in data.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and leaf not in value:
            leaves += flat(value, leaf, f"{name}.")
        else:
            leaves.append((name, value))
    return leaves

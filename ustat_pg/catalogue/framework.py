"""A framework: its options, what they mean, and what they were and meant in earlier releases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from attrs import evolve, field, frozen

from ..validation import InputError, nearest
from .options import Option, short_name, texts, texts_by_name


@frozen
class Row:
    """The meaning of some values of the options: an estimator of this library, or another.

    Arguments:
        when: the values, by option; several where any will do.
        name: the framework's own name, or its paper's.
        estimator: as :func:`ustat_pg.registry.parse` reads it, ``{G}`` standing for the group size.
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

    when: Mapping[str, tuple[str, ...]] = field(converter=texts_by_name)
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


def rows_of(tables: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
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
    rows: tuple[Row, ...] = field(default=(), converter=rows_of)
    refused: str = ""


@frozen
class Framework:
    """A framework, its options and what they mean.

    Arguments:
        name, aliases, title: how it is typed, and called.
        repository, commit: where its source was read.
        ran: the day on which its own code was last run beside the rows; empty where it never was.
        loss_ran: the day on which its own loss was last run with the options on it; empty where it never was.
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
    aliases: tuple[str, ...] = field(default=(), converter=texts)
    ran: str = ""
    loss_ran: str = ""
    notes: tuple[str, ...] = field(default=(), converter=texts)
    names_of: str = ""
    commands: tuple[str, ...] = field(default=(), converter=texts)
    elsewhere: str = ""
    signs: tuple[str, ...] = field(default=(), converter=texts)
    classes: tuple[str, ...] = field(default=(), converter=texts)
    bases: tuple[str, ...] = field(default=(), converter=texts)
    refused: Mapping[str, str] = field(factory=dict)
    foreign: tuple[str, ...] = field(default=(), converter=texts)
    excludes: Mapping[str, str] = field(factory=dict)
    outputs: tuple[str, ...] = field(default=(), converter=texts)
    steps: Sequence[Sequence[str]] = ()
    package: str = ""
    release: str = ""
    earlier: tuple[Earlier, ...] = ()

    @property
    def called(self) -> str:
        """The title without the trainer, as releases name it."""
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

        >>> from ustat_pg.catalogue import catalogue
        >>> catalogue().framework("trl").at("0.19.1").options["loss_type"].default
        'bnpo'
        """
        if not self.earlier:
            raise InputError(
                f"no releases are recorded for {self.called}: its rows hold for "
                f"{self.repository}@{self.commit}"
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
            loss_ran="",
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

    def checked_loss(self, option: Option) -> str:
        """How what is said of an option on the loss was held to the framework's code; empty for others."""
        if not option.of_loss:
            return ""
        if not (self.loss_ran and option.ran):
            return "read only"
        read = f"; read only: {', '.join(option.only_read)}" if option.only_read else ""
        return f"run on {self.loss_ran}{read}"

    def adds_up(self, values: Mapping[str, str], *kinds: str) -> str:
        """The name of the aggregation that options of these kinds choose, the last first."""
        name = self.aggregation
        for option in (each for kind in kinds for each in self.of_kind(kind)):
            name = (option.means or {}).get(values[option.name], option.otherwise or name)
        return name

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
        """Every choice of values of the options that choose the advantage; if requested, of the trainer
        and of what was only read too.
        """
        options = [*self.of_kind("advantage"), *(self.of_kind("trainer") if unrun else ())]
        values = [(*option.values, *(option.unrun if unrun else ())) for option in options]
        return [
            {option.name: value for option, value in zip(options, chosen, strict=True)}
            for chosen in product(*values)
        ]

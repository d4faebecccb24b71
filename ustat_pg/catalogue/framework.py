"""A framework: its options and their meaning, now and in earlier releases."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from attrs import evolve, field, frozen

from ..validation import InputError, nearest
from .options import Option, short_name, texts, texts_by_name


@frozen
class Row:
    """The meaning of some values of the options: an estimator of this library, or another estimator.

    Arguments:
        when: the values, by option; several if any of them fits.
        name: its name in the framework or in its paper.
        estimator: as for :func:`ustat_pg.registry.parse`; ``{G}`` is replaced by the group size.
        factor: constant that multiplies it: "1", "1/G", "G/(G-1)" or "1/sqrt(G)".
        other: its name among the catalogue's other estimators, if this library does not have it.
        each: estimator that is applied to each of several rewards before their weighted sum, if any.
        ddof: ddof of the deviation that it divides by, if any.
        epsilon: constant that it adds to its divisor.
        of_others: whether the deviation is of rewards minus the others' mean, G/(G-1) times the group's, so
            that ε weighs less by this factor.
        one_output, equal_rewards: the advantage in a group of one output, and in a group of equal rewards.
        source: the file in the framework's repository.
        read: whether the code was only read, and not run.
        binary: whether it applies only to rewards 0 and 1.
        pooled: whether a batch of unequal groups is treated as one group.
        dropped: whether a rollout is dropped if all others of its group have equal rewards. Advantages come
            from the rest: they are 0 in a group with one success or one failure.
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
    of_others: bool = False
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
        """The options as a user types them, each with the first value that fits."""
        return " ".join(f"{short_name(option)}={values[0]}" for option, values in self.when.items())


def release_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a release, which order releases; a pre-release counts as its final release.

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
    """The differences of the releases before one release, in addition to the differences before later
    releases.

    Arguments:
        before: the first release without this difference.
        defaults: earlier defaults of options, by name.
        absent: options and values, ``NAME=VALUE``, that did not exist yet. The default of such an option is
            the earlier behaviour.
        options: earlier values of other fields of options, by name.
        fields: earlier values of fields of the framework.
        rows: rows that come before the framework's others, only for releases from the next older ``before``
            on.
        says: a summary for readers.
        refused: the reason why those releases have no rows.
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
class Call:
    """One form of a method that trains.

    Arguments:
        method: its name.
        required: its arguments, in order.
        optional: its other arguments; any if there are none.
    """

    method: str
    required: tuple[str, ...] = field(converter=texts)
    optional: tuple[str, ...] = field(default=(), converter=texts)

    def arguments(
        self, values: Sequence[Any], keywords: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The arguments by name; None if they are not of this form."""
        names = (*self.required, *self.optional)
        given = {**dict(zip(names, values, strict=False)), **keywords}
        others = given.keys() - {*names} if self.optional else ()
        return None if others or {*self.required} - given.keys() else given


def calls_of(tables: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    return tuple(Call(**table) for table in tables)


@frozen
class Framework:
    """A framework, its options and their meaning.

    Arguments:
        name, aliases, title: the names that users type, and the printed name.
        repository, commit: the source that was read.
        ran: the day on which its own code was last compared with the rows; empty if it never was.
        loss_ran: the day on which its own loss was last run with its options; empty if it never was.
        notes: effects of its options that the rows do not contain.
        names_of: the framework from which it takes its options' names; a file with these names alone belongs
            to that framework.
        aggregation: aggregation of its loss, if no option chooses it.
        options: its options, by name.
        rows: its rows; the first one that fits applies.
        commands, signs: patterns of the programs and modules that its runs call, and of names that only it
            has, in addition to its options.
        elsewhere: programs of it that have their own config.
        classes: its Python config classes.
        calls: its methods that train, in code that imports it; an argument ``config`` holds options.
        implied: by option, its values by the names in such code that decide them.
        in_code: whether its options stand only in Python code that imports it, and in no file of options.
        bases: files with its own defaults; a parent with such a name adds nothing.
        refused: its programs without a group baseline, and what they do.
        foreign: names that resemble options but are not read.
        harmless: patterns of names that sound as if they changed the objective, and do not.
        excludes: patterns of names that its runs do not have, and where they occur instead.
        outputs: options whose product is the number of outputs of one optimizer step; a ``/`` before a name
            divides.
        steps: groups of options whose product is the number of optimizer steps on the same outputs; a ``/``
            before a name divides. A group with an unknown value counts as 1, unless a ``?`` allows to skip
            the value.
        bound: the largest reward, and advantage, that it does not clip by default.
        package: the name of its package, if it is another one.
        release: the release of the options and rows, if earlier releases are recorded.
        earlier: differences of earlier releases, with the latest change first.
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
    calls: tuple[Call, ...] = field(default=(), converter=calls_of)
    implied: Mapping[str, Mapping[str, str]] = field(factory=dict)
    in_code: bool = False
    bases: tuple[str, ...] = field(default=(), converter=texts)
    refused: Mapping[str, str] = field(factory=dict)
    foreign: tuple[str, ...] = field(default=(), converter=texts)
    harmless: tuple[str, ...] = field(default=(), converter=texts)
    excludes: Mapping[str, str] = field(factory=dict)
    outputs: tuple[str, ...] = field(default=(), converter=texts)
    steps: Sequence[Sequence[str]] = ()
    bound: float = math.inf
    package: str = ""
    release: str = ""
    earlier: tuple[Earlier, ...] = ()

    @property
    def called(self) -> str:
        """The title without the trainer's name."""
        return self.title.partition(",")[0]

    def span(self, release: str) -> tuple[str, str]:
        """The first release with the same defaults as one, and the first later release with others; empty if
        there is none.
        """
        wanted = release_numbers(release)
        befores = [entry.before for entry in self.earlier]
        later = [before for before in befores if wanted < release_numbers(before)]
        return "".join(befores[len(later) : len(later) + 1]), "".join(later[-1:])

    def at(self, release: str) -> Framework:
        """The framework as of a release: with its defaults, and without the options that it lacked.

        Raises:
            InputError: no releases are recorded, the release is too early, or the trainer was a different one
                then.

        >>> from ustat_pg.catalogue import catalogue
        >>> catalogue().framework("trl").at("0.19.1").options["loss_type"].default
        'bnpo'
        """
        if not self.earlier:
            raise InputError(
                f"no releases are recorded for {self.called}: its rows apply to "
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
        """The options, by each of their names."""
        return {
            name: option
            for option in self.options.values()
            for name in (option.name, *option.aliases)
        }

    def is_switch(self, name: str) -> bool:
        """Whether an option is switched on if it is named without a value."""
        matches = self.matching(name)
        return len(matches) == 1 and matches[0].switch

    def checked(self, row: Row) -> str:
        """How one of its rows was checked against its code."""
        return "read only" if row.read else f"run on {self.ran}"

    def checked_loss(self, option: Option) -> str:
        """How the entry of an option of the loss was checked against the framework's code; else empty."""
        if not option.of_loss:
            return ""
        if not (self.loss_ran and option.ran):
            return "read only"
        read = f"; read only: {', '.join(option.only_read)}" if option.only_read else ""
        return f"run on {self.loss_ran}{read}"

    def adds_up(self, values: Mapping[str, str], *kinds: str) -> str:
        """The name of the aggregation that options of these kinds choose; the last option has priority."""
        name = self.aggregation
        for option in (each for kind in kinds for each in self.of_kind(kind)):
            name = (option.means or {}).get(values[option.name], option.otherwise or name)
        return name

    def of_kind(self, kind: str) -> list[Option]:
        """The options of one kind."""
        return [option for option in self.options.values() if option.kind == kind]

    def matching(self, text: str) -> list[Option]:
        """The options that a name may mean: by the full name, by its last parts, or by an alias."""
        wanted = text.lstrip("-+").lower().replace("-", "_")
        return [
            option
            for option in self.options.values()
            if any(f".{name}".endswith(f".{wanted}") for name in (option.name, *option.aliases))
        ]

    def option(self, text: str) -> Option:
        """The option that a name means."""
        matches = self.matching(text)
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(option.name for option in matches)
            raise InputError(f"{text} may mean {names}: write more of the name")
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
        """Every combination of values of the options that choose the advantage; on request also of options
        that choose the trainer, and of values that were only read.
        """
        options = [*self.of_kind("advantage"), *(self.of_kind("trainer") if unrun else ())]
        values = [(*option.values, *(option.unrun if unrun else ())) for option in options]
        return [
            {option.name: value for option, value in zip(options, chosen, strict=True)}
            for chosen in product(*values)
        ]

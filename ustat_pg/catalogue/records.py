"""The catalogue's records of estimators and frameworks, and the reading of its files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import frozen

from ..validation import InputError, one_of
from .framework import Earlier, Framework, Row, rows_of
from .options import Option


@frozen
class Family:
    """An estimator described under five headings: one of this library (with any numbers in its name), or one
    that is not a table by the number of successes.

    Arguments:
        name: its name in :data:`ustat_pg.registry.ESTIMATORS`, or among the others.
        title, formula: its title, and the formula of its advantages.
        what, climbs, noise, silent, nothing: texts of the five headings.
        advice: one sentence of advice.
        graded: the effect of rewards other than 0 and 1, if it differs.
        elsewhere: another estimator to which others give this name, if any.
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
        name, title, says: its name, what it does, and the effect.
        scale: factor of the gradient, if it is a constant.
        one_factor: whether all outputs of a batch have the same factor. If not, a leave-one-out baseline
            changes the mean estimate.
    """

    name: str
    title: str
    says: str
    scale: str | None = None
    one_factor: bool = False


@frozen
class Catalogue:
    """The whole catalogue.

    Arguments:
        families: this library's estimators, by name.
        others: estimators without a closed form here, by name.
        aggregations: aggregations, by name.
        kinds: how options of each kind change the mean gradient.
        divergences: the gradient of each estimate of the KL, in the loss and in the reward.
        frameworks: frameworks, by name.
        absent: reasons why known trainers have no rows, by name.
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
        """The frameworks, by names and aliases."""
        return {
            name: record
            for record in self.frameworks.values()
            for name in (record.name, *record.aliases)
        }

    def framework(self, text: str) -> Framework:
        """The framework with this name or alias."""
        known = self.names
        name = text.lower().replace("_", "-")
        if why := self.absent.get(name):
            raise InputError(f"framework {text!r} has no rows here: {why}")
        return known[one_of("framework", name, known, ALIKE)]

    def called(self, family: str) -> list[tuple[Framework, Row]]:
        """Every row that means the estimator of that name, in this library or among the others."""
        return [
            (framework, row)
            for framework in self.frameworks.values()
            for row in framework.rows
            if (row.estimator or row.other or "").partition(":")[0] == family
        ]


ALIKE = 0.75
"""The similarity from which on one name of a framework counts as a typing error of another."""


@cache
def catalogue() -> Catalogue:
    """The catalogue that ships with the library.

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
    """The framework of a table, with the entries inherited from the one that it is ``like``."""
    fields = _inherited(data, tables) if "like" in data else data
    options = {name: Option(name=name, **entry) for name, entry in flat(fields["options"], "kind")}
    earlier = tuple(Earlier(**entry) for entry in fields.get("earlier", ()))
    return Framework(
        **{**fields, "options": options, "rows": rows_of(fields["rows"]), "earlier": earlier}
    )


def _inherited(data: dict[str, Any], tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A table to which another's options and rows are added.

    Its own options replace the other's of the same name, and its rows come before the other's. Inherited
    options get a ``prefix``; those in ``without`` are left out.
    """
    other, prefix = tables[data["like"]], data.get("prefix", "")
    kept = {
        prefix + name: {
            **option,
            "caps": {
                value: [prefix + alias for alias in names]
                for value, names in option.get("caps", {}).items()
            },
            "needs": {prefix + name: values for name, values in option.get("needs", {}).items()},
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
    """The option name in a product, without the signs ``/`` and ``?``."""
    return name.strip("/?")


def _behind(prefix: str, name: str) -> str:
    return "/" * name.startswith("/") + prefix + name.lstrip("/")


def flat(data: Mapping[str, Any], leaf: str | None = None, before: str = "") -> list[Any]:
    """Names with their sections, and their values; a mapping with the key ``leaf`` is a value."""
    leaves: list[Any] = []
    for key, value in data.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and leaf not in value:
            leaves += flat(value, leaf, f"{name}.")
        else:
            leaves.append((name, value))
    return leaves

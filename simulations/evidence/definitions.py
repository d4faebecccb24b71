"""What the audit needs of a run beside its verdicts: the problems, and what each check is about.

``simulations/audit.py`` derives every value anew from this and from nothing else. A number is a double as
JSON writes it, which reads back as the same binary fraction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ustat_pg.engines import Distance, Estimator, GradientCell, Mixed
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.files.reading import read_json
from ustat_pg.problems import SoftmaxBandit, WeightedBandit

from ..engines import GradedCell
from .claim import Check, Claim
from .formulas import FormulaDistance, Groups
from .functionals import Extrapolation, Functional, Linear, LogSlope, Ratio

DEFINITIONS_FILE = "definitions.json"

MOST_NUMBERS = 3_000
"""The most numbers in the scores of a problem that is stored."""


class Unstored(Exception):
    """The reason why a check's definition is not stored."""


def definitions(
    claims: Iterable[Claim], versions: Mapping[str, str], earlier: Path | None = None
) -> str:
    """The definitions of the checks of some claims, as JSON.

    Arguments:
        claims: the claims that a run has settled.
        versions: versions of what made the run.
        earlier: file of the same configuration and code, whose other claims are kept if it is there.
    """
    held = read_json(earlier) if earlier is not None and earlier.exists() else {}
    problems, checks = held.get("problems", {}), held.get("checks", {})
    for claim in claims:
        checks[claim.stem] = {check.name: _check(check, problems) for check in claim.checks}
    return json.dumps({"versions": dict(versions), "checks": checks, "problems": problems})


def _check(check: Check, problems: dict[str, Any]) -> Any:
    """A check's functional; where the audit does not know one, the reason."""
    try:
        return _functional(check.functional, problems)
    except Unstored as reason:
        return str(reason)


def _functional(of: Functional, problems: dict[str, Any]) -> dict[str, Any]:
    if isinstance(of, Linear):
        where = _of(of, problems)
        terms = [[weight, *_quantity(quantity)] for quantity, weight in of.weights]
        return {"of": where, "sum": terms, "plus": of.constant}
    if isinstance(of, Ratio):
        return {"ratio": [_functional(side, problems) for side in (of.numerator, of.denominator)]}
    if isinstance(of, Extrapolation | LogSlope):
        points = [_functional(point, problems) for point in of.points]
        weights = of.shares if isinstance(of, Extrapolation) else of.abscissae
        return {"slope" if isinstance(of, LogSlope) else "mix": points, "at": weights}
    raise Unstored(f"of the kind {type(of).__name__}")


def _quantity(of: Any) -> tuple[Any, ...]:
    """The kind of a quantity, the number of its direction if it has one, and its estimators."""
    if isinstance(of, FormulaDistance):
        return "formula", of.formula, _estimator(of.estimator)
    if isinstance(of, Mixed):
        raise Unstored("shares of groups")
    if isinstance(of, Distance):
        return "distance", *map(_estimator, of.estimators)
    kind = of.kind.rstrip("0123456789")
    numbers = (of.number,) if hasattr(of, "number") else ()
    return kind, *numbers, _estimator(of.estimator)


def _estimator(of: Estimator) -> str:
    """The name of an estimator with its numbers behind a colon."""
    numbers = of.values if of.constant is None else (of.constant,)
    return of.name if numbers is None else f"{of.name}:{','.join(map(repr, map(float, numbers)))}"


def _of(of: Linear, problems: dict[str, Any]) -> list[Any]:
    """The name of the problem, G, B, and the design of the prompts."""
    cell: Any = of.cell
    if type(cell) not in (GradientCell, GradedCell, Groups):
        raise Unstored(f"on a {type(cell).__name__}")
    problem, name = cell.problem, cell.problem.digest
    if name not in problems:
        problems[name] = _stored(problem)
    for number in {quantity.number for quantity in of.quantities if hasattr(quantity, "number")}:
        unit = direction(problem, number)[None]
        problems[name]["directions"][str(number)] = _coordinates(problem, unit)[0]
    return [name, cell.group_size, cell.batch_size, cell.design]


def _stored(of: SoftmaxBandit) -> dict[str, Any]:
    outputs = of.contexts * of.arms
    if outputs * min(of.d, outputs) > MOST_NUMBERS:
        raise Unstored("on problems with too many outputs")
    outcomes = of.outcomes
    stored = {
        "chances": of.context_probs.tolist(),
        "outcomes": [
            [*map(list, zip(*(part[x, :count].tolist() for part in parts), strict=True))]
            for parts in [(outcomes.probs, outcomes.rewards, outcomes.arms)]
            for x, count in enumerate(outcomes.counts)
        ],
        "scores": [_coordinates(of, of.policy.scores(x)) for x in range(of.contexts)],
        "directions": {},
    }
    if isinstance(of, WeightedBandit):
        stored["target"] = _coordinates(of, of.gradient()[None])[0]
    return stored


def _coordinates(of: SoftmaxBandit, vectors: np.ndarray) -> list[list[float]]:
    """Vectors (n, d); where scores are longer than they are many, in an orthonormal basis of their span
    and the gradient's.
    """
    if of.d > of.contexts * of.arms:
        tables = [of.policy.scores(x) for x in range(of.contexts)]
        vectors = vectors @ np.linalg.qr(np.concatenate([*tables, of.gradient()[None]]).T)[0]
    rounded: list[list[float]] = vectors.tolist()
    return rounded

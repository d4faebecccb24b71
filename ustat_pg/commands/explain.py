"""``ustat-pg explain``: what a trainer's options mean, in numbers.

Of pass rates alone nothing is known of scores. The numbers are then those of prompts whose scores
have E‖s‖² = 1 whatever the reward, and whose gradients g(x) are small, orthogonal, and of squared
length proportional to p(1-p). So an error is the variance of leading order: that of RLOO is G/(G-1)
times the oracle's, and the squared bias is as small as the gradient's square: 1e-12. Noise to signal
is in units of E‖s‖²/‖∇J‖²: multiply by what your model has.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..baselines import parse
from ..catalogue import Family, Meaning, catalogue, resolve, short_name
from ..moments import HasMoments, Moments, moments_of
from ..predictions import CountTable, best_table, count_table, gradient_mse, silent_share
from ..problems import load_problem
from ..reading import read_json
from ..validation import InputError, finite_array, integer
from .predict import centred

__all__ = ["Explanation", "explain", "moments_of_pass_rates", "run"]

Array = NDArray[np.float64]

PASS_RATES = tuple(k / 10 for k in range(1, 10))
"""The prompts of those who name none."""

GRID = tuple(k / 20 for k in range(21))
"""The pass rates at which w is shown."""

_WIDTH = 100
"""Characters of a line that a person reads."""

_SMALL = 1e-12
"""‖g(x)‖² over p(1-p) E‖s‖² of prompts of which pass rates alone are known."""


@dataclass(frozen=True)
class Explanation:
    """What an estimator does to rewards 0 and 1.

    Arguments:
        name: this library's name of it, or the framework's own where the library has none.
        group_size: G.
        unbiased: for the gradient of the expected reward, the advantage alone; None where unknown,
            as are those that follow.
        weight: ``pass_rate`` and ``w``, the factor of a prompt's mean gradient, of the advantage alone.
        scale: what the loss multiplies the gradient by; None where lengths or the batch decide.
        silent_share: of groups whose rewards are all equal.
        mse: E‖ĝ - ∇J‖² of one prompt drawn at random.
        noise_to_signal: tr Cov ĝ/‖E ĝ‖².
        cosine: of the angle between E ĝ and ∇J.
        best_table: b(0), ..., b(G-1) of the best unbiased estimator here.
        pass_rates, mean_factor: the prompts and w at each.
        noise_to_rloo, noise_to_oracle: noise to signal over that of these two.
        best_noise_to_rloo: the same of the best table.
        meaning: of the framework's options, where it was named by those.
        assumed: whether pass rates were all that is known.
    """

    name: str
    group_size: int
    silent_share: float
    best_table: list[float]
    pass_rates: list[float]
    unbiased: bool | None = None
    weight: dict[str, list[float]] | None = None
    scale: float | None = None
    mse: float | None = None
    noise_to_signal: float | None = None
    cosine: float | None = None
    mean_factor: list[float] | None = None
    noise_to_rloo: float | None = None
    noise_to_oracle: float | None = None
    best_noise_to_rloo: float | None = None
    meaning: Meaning | None = field(default=None, repr=False)
    assumed: bool = True

    @property
    def family(self) -> Family:
        """Its entry in the catalogue."""
        other = None if self.meaning is None else self.meaning.row.other
        if other is not None:
            return catalogue().others[other]
        return catalogue().families[self.name.partition(":")[0]]

    @property
    def called(self) -> list[str]:
        """Who calls it what: title, options and own name, of every row of the catalogue."""
        return [
            f"{framework.title}: {row.written() or 'as it is'} ({row.name})"
            for framework, row in catalogue().called(self.family.name)
        ]


def moments_of_pass_rates(pass_rates: ArrayLike) -> Moments:
    """Moments of equally likely prompts of which only the pass rates are known.

    E‖s‖² = 1 whatever the reward, and orthogonal gradients of ‖g(x)‖² = 1e-12 p(1-p).

    Arguments:
        pass_rates: (X,), in [0, 1].

    Raises:
        InputError: a pass rate outside [0, 1].

    >>> from ustat_pg.predictions import gradient_mse
    >>> moments = moments_of_pass_rates([0.2])
    >>> oracle, rloo = (gradient_mse(moments, name, 4).mse for name in ("oracle", "grpo"))
    >>> round(rloo / oracle, 9)
    1.333333333
    """
    p = finite_array("pass rate", pass_rates, 1)
    if p.min() < 0 or p.max() > 1:
        wrong = p[(p < 0) | (p > 1)][0]
        raise InputError(f"pass rate is {wrong:g}: it must lie in [0, 1]")
    chance, spread = np.full(len(p), 1 / len(p)), p * (1 - p)
    lengths = np.sqrt(_SMALL * spread)
    return Moments(
        context_probs=chance,
        value=p,
        reward_variance=spread,
        fisher_trace=np.ones(len(p)),
        norm_advantage=np.zeros(len(p)),
        norm_squared_advantage=spread,
        gradient_sq=lengths**2,
        mean_gradient_sq=float(np.sum((chance * lengths) ** 2)),
        reward_range=(0.0, 1.0),
        weighted_gradient=lambda weights: np.asarray(weights) * chance * lengths,
    )


def explain(
    spec: Any = None,
    *,
    name: str | None = None,
    group_size: int | None = None,
    pass_rates: ArrayLike | None = None,
    moments: Moments | HasMoments | None = None,
) -> Explanation:
    """What a framework's options, or one of this library's estimators, do to rewards 0 and 1.

    Arguments:
        spec: a framework and its options, a file of them, a mapping or a config, as
            :func:`ustat_pg.catalogue.resolve` reads them: ``explain(trainer.args)``.
        name: one of this library's estimators, in place of ``spec``.
        group_size: G, in place of what the options say.
        pass_rates: of equally likely prompts; .1, .2, ..., .9 unless given.
        moments: of a problem, or the problem, in place of pass rates.

    Raises:
        InputError: neither or both of ``spec`` and ``name``, or of what replaces another; anything
            unknown; a group size that is missing or too small; rewards that are not 0 or 1.

    >>> found = explain("verl adv_estimator=grpo rollout.n=2", pass_rates=[0.2])
    >>> found.name, found.unbiased, [round(w, 4) for w in found.mean_factor]
    ('std-ddof1', False, [0.7071])
    """
    if (spec is None) == (name is None):
        raise InputError("whose estimator: write a framework with its options, or --name NAME")
    if moments is not None and pass_rates is not None:
        raise InputError("a problem has its own pass rates: give one of the two")
    assumed = moments is None
    if moments is None:
        moments = moments_of_pass_rates(PASS_RATES if pass_rates is None else pass_rates)
    else:
        moments = moments_of(moments)
    meaning = None if spec is None else resolve(spec, group_size)
    size = group_size if meaning is None else meaning.group_size
    if size is None:
        option = (
            "" if meaning is None else f"{meaning.framework.of_kind('group size')[0].name}=G or "
        )
        raise InputError(f"group size is not given: write {option}--group-size G")
    size = integer("group size", size)
    common: dict[str, Any] = {
        "group_size": size,
        "silent_share": silent_share(moments, size),
        "best_table": best_table(moments, size).baseline.tolist(),
        "pass_rates": moments.value.tolist(),
        "scale": 1.0 if meaning is None else meaning.scale,
        "meaning": meaning,
        "assumed": assumed,
    }
    estimator = name if meaning is None else meaning.estimator
    if estimator is None:
        assert meaning is not None
        return Explanation(meaning.row.name, **common)
    estimator = centred(estimator, moments)
    factor = 1.0 if meaning is None else meaning.factor
    record = parse(estimator)[0]
    if not record.by_count:
        raise InputError(
            f"{record.name} is no table by the number of successes: ustat-pg predict PROBLEM "
            f"--baseline {record.name} says what it does on a problem"
        )
    table = count_table(estimator, size, moments)
    asked = estimator
    if factor != 1:
        table = CountTable(factor * table.successes, factor * table.failures)
        asked = table.spec
    found = gradient_mse(moments, asked, size)
    noise = found.noise_to_signal
    oracle = gradient_mse(moments, "oracle", size).noise_to_signal
    rloo = gradient_mse(moments, "grpo", size).noise_to_signal if size > 1 else None
    best = gradient_mse(moments, "best", size).noise_to_signal
    unit = moments.mean_gradient_sq if assumed else 1.0
    shown = np.union1d(GRID, moments.value)
    return Explanation(
        record.name + estimator[len(estimator.partition(":")[0]) :],
        unbiased=table.unbiased,
        weight={"pass_rate": shown.tolist(), "w": table.weight(shown).tolist()},
        mse=found.mse,
        noise_to_signal=None if noise is None else float(noise * unit),
        cosine=found.cosine,
        mean_factor=found.mean_factor.tolist(),
        noise_to_rloo=_over(noise, rloo),
        noise_to_oracle=_over(noise, oracle),
        best_noise_to_rloo=_over(best, rloo),
        **common,
    )


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else float(one / other)


def run(options: argparse.Namespace) -> None:
    """Print an explanation, as text or as one JSON object, and draw it if that is asked."""
    rates = [number for text in options.pass_rate for number in _numbers(text)]
    if options.pass_rates is not None:
        rates += _pass_rates(Path(options.pass_rates))
    found = explain(
        " ".join(options.spec) if options.spec else None,
        name=options.name,
        group_size=options.group_size,
        pass_rates=rates or None,
        moments=None if options.problem is None else load_problem(options.problem).moments(),
    )
    if options.plot is not None:
        _draw(found, options.plot)
    if options.json:
        print(json.dumps(_plain(found), allow_nan=False))
    else:
        print("\n".join(_wrapped(line) for line in _text(found)))


def _pass_rates(path: Path) -> list[float]:
    """The pass rates in a JSON list, or of the prompts of a log."""
    if path.suffix == ".json" and isinstance(numbers := read_json(path), list):
        if not numbers:
            raise InputError(f"{path}: it must hold one list of numbers")
        return numbers
    from ..llm.rewards import summarise_rewards

    return [*summarise_rewards(path).pass_rates.values()]


def _wrapped(line: str) -> str:
    """A line of at most so many characters, the rest below it."""
    if len(line) <= _WIDTH:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line,
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _numbers(text: str) -> list[float]:
    """The numbers of a list with commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"pass rate is {text!r}: it must be a number in [0, 1]") from None


def _plain(found: Explanation) -> dict[str, Any]:
    """What JSON holds."""
    keys = (
        *(
            "name",
            "unbiased",
            "weight",
            "scale",
            "silent_share",
            "mse",
            "noise_to_signal",
            "cosine",
        ),
        *("best_table", "group_size", "pass_rates", "mean_factor", "noise_to_rloo"),
        *("noise_to_oracle", "best_noise_to_rloo", "assumed"),
    )
    plain = {key: getattr(found, key) for key in keys}
    meaning = found.meaning
    if meaning is not None:
        plain["framework"] = meaning.framework.name
        plain["own_name"] = meaning.row.name
        plain["aggregation"] = meaning.aggregation.name
        plain["changes_nothing"] = meaning.unchanged()
    plain["called"] = found.called
    plain["advice"] = found.family.advice
    return plain


def _text(found: Explanation) -> list[str]:
    """What a person reads."""
    lines = [*_heading(found), ""]
    family, meaning = found.family, found.meaning
    known = found.weight is not None
    lines += ["What it climbs", f"  {family.climbs}", *(_curve(found) if known else ()), ""]
    lines += ["Bias", f"  {_bias(found)}", ""] if known else []
    lines += ["Noise", f"  {family.noise}", *(_noise(found) if known else ()), ""]
    lines += [
        "Silent groups",
        f"  {found.silent_share:.1%} of groups of {found.group_size} have equal rewards here. "
        f"{family.silent}",
        "",
    ]
    if meaning is not None:
        lines += ["The rest of the loss", *_rest(found, meaning), ""]
    lines += ["What changes nothing", f"  {family.nothing}"]
    if meaning is not None:
        for reason, names in meaning.unchanged().items():
            lines += [f"  {', '.join(names)}: {reason}."]
    if found.called:
        lines += ["", "The same elsewhere", *(f"  {line}" for line in found.called)]
    lines += ["", f"Advice: {family.advice}"]
    if found.assumed and known:
        lines += [
            "",
            "(Of pass rates alone: scores of equal norms, E‖s‖² = 1, and a small gradient; errors in "
            "units of E‖s‖². --problem FILE takes your own.)",
        ]
    return lines


def _heading(found: Explanation) -> list[str]:
    family, meaning = found.family, found.meaning
    lines = []
    if meaning is not None:
        asked = f"{meaning.framework.title} {meaning.written}".rstrip()
        lines += [f"{asked}, G = {found.group_size}: {meaning.row.name}"]
    lines += [f"{found.name}: {family.title}", f"  {family.formula}", f"  {family.what}"]
    if meaning is not None:
        row = meaning.row
        if found.group_size == 1:
            (grouping,) = meaning.framework.of_kind("group size")
            default = f" {grouping.name} is 1 by default." if grouping.default == "1" else ""
            lines += [
                "  G = 1: an output has no others to be compared with. Is that meant?"
                f"{default} Write {short_name(grouping.name)}=G."
            ]
        if row.factor != "1":
            lines += [f"  Here times {row.factor} = {meaning.factor:.4g}."]
        if row.epsilon:
            lines += [f"  {row.epsilon:g} is added to the divisor, which the numbers leave out."]
        if row.one_output:
            lines += [f"  A group of one output: {row.one_output}."]
        framework = meaning.framework
        source = f"{framework.repository}@{framework.commit} {row.source}"
        lines += [f"  Source: {source}, {framework.checked(row)}."]
        lines += [f"  {note}" for note in framework.notes]
    return lines


def _bias(found: Explanation) -> str:
    graded = f" With graded rewards {found.family.graded}" if found.family.graded else ""
    if found.unbiased:
        where = "None with rewards 0 and 1" if found.family.graded else "None"
        return f"{where}: the mean estimate is the gradient, whatever the pass rate.{graded}"
    assert found.mean_factor is not None
    pairs = list(zip(found.pass_rates, found.mean_factor, strict=True))
    shown = ", ".join(f"{w:.4g} at p = {p:.4g}" for p, w in _some(pairs))
    same = bool(np.ptp(found.weight["w"]) < 1e-9) if found.weight else False
    what = "prompts are reweighted by their pass rate"
    if same:
        # What divides by rewards is a constant only where these take two values.
        what = "a rescaled learning rate" + " with rewards 0 and 1" * bool(found.family.graded)
    turned = (
        ""
        if found.cosine is None or len(pairs) == 1
        else f"; its cosine to the gradient is {found.cosine:.4f}"
    )
    return (
        f"The mean estimate is w times the gradient of a prompt: {what}. w is {shown}{turned}."
        f"{graded}"
    )


def _some(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most nine, evenly chosen."""
    if len(pairs) <= 9:
        return list(pairs)
    return [pairs[i] for i in np.linspace(0, len(pairs) - 1, 9).round().astype(int)]


def _noise(found: Explanation) -> list[str]:
    unit = " E‖s‖²/‖∇J‖²" if found.assumed else ""
    lines = [f"  MSE {found.mse:.4g}, one prompt drawn at random"]
    if found.noise_to_signal is not None:
        lines += [f"  noise over signal {found.noise_to_signal:.4g}{unit}"]
    for value, other in ((found.noise_to_rloo, "RLOO"), (found.noise_to_oracle, "the oracle")):
        if value is not None:
            lines += [f"  {_times(value)}that of {other} at G = {found.group_size}"]
    if found.best_noise_to_rloo is not None:
        lines += [f"  the best unbiased table here has {_times(found.best_noise_to_rloo)}RLOO's"]
    return lines


def _times(ratio: float) -> str:
    """A ratio as it stands before what it multiplies; nothing where it is 1 as printed."""
    shown = f"{ratio:.4g}"
    return "" if shown == "1" else f"{shown} times "


def _rest(found: Explanation, meaning: Meaning) -> list[str]:
    aggregation = meaning.aggregation
    scale = "" if found.scale is None else f" Here it multiplies by {found.scale:.4g}."
    lines = [f"  {aggregation.title}. {aggregation.says}{scale}"]
    if meaning.cap:
        lines += [
            "  The ratio is capped at {} = {:g}, below 1: in the first step after sampling every step is "
            "so much of the one without the cap.".format(*meaning.cap)
        ]
    lines += [f"  {loss}: {catalogue().kinds['loss']}." for loss in meaning.another_loss()]
    lines += [f"  {said}" for said in meaning.reused()]
    return lines + [f"  KL, {term}." for term in meaning.penalties()]


def _curve(found: Explanation) -> list[str]:
    """w over the pass rates, drawn with letters; the prompts' own are marked below."""
    assert found.weight is not None
    height, width = 8, 61
    p, w = np.array(found.weight["pass_rate"]), np.array(found.weight["w"])
    low, high = min(0.0, float(w.min())), max(float(w.max()), 1.0)
    across = np.linspace(0, 1, width)
    rows = np.rint((np.interp(across, p, w) - low) / (high - low) * (height - 1)).astype(int)
    lines = []
    for row in range(height - 1, -1, -1):
        label = f"{low + (high - low) * row / (height - 1):8.3g}"
        marks = "".join("*" if own == row else " " for own in rows)
        lines.append(f"  {label} |{marks.rstrip()}")
    ticks = ["-"] * width
    for rate in found.pass_rates:
        ticks[round(rate * (width - 1))] = "^"
    lines.append(f"     w(p)  {''.join(ticks)}")
    lines.append(f"           0{'p':^{width - 2}}1")
    return lines


def _draw(found: Explanation, path: str) -> None:
    """w over the pass rates as a picture."""
    if found.weight is None or found.mean_factor is None:
        raise InputError(f"{found.name} has no closed form here: there is nothing to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install 'ustat_pg[figures]'") from None
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(1.0, color="0.7", linewidth=1, label="expected reward: w = 1")
    axes.plot(
        found.weight["pass_rate"], found.weight["w"], label=f"{found.name}, G = {found.group_size}"
    )
    axes.plot(found.pass_rates, found.mean_factor, "o", markersize=4)
    axes.set(
        xlabel="pass rate p",
        ylabel="weight w(p)",
        xlim=(0, 1),
        ylim=(min(0, *found.weight["w"]), None),
    )
    axes.legend(frameon=False)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None

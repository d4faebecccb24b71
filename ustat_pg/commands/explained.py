"""``ustat-pg explain``: an explanation as text, as JSON and as a picture."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .. import shown
from ..catalogue import Meaning, catalogue, short_name
from ..catalogue.specs import NEAR
from ..problems import load_problem
from ..reading import read_json
from ..sampling import SCHEMES
from ..validation import InputError, nearest
from . import differences, several_rewards
from .explain import Explanation, explain
from .plots import new_axes, refuse_plot, save
from .schemes import SchemeExplanation, explain_scheme

_WIDTH, _LEAST = 100, 40
"""Characters of a line that a person reads, at most and, on a narrow terminal, at least."""

_NAMED = 12
"""Names that were passed over and are shown; JSON has all."""


def run(options: argparse.Namespace) -> None:
    """Print an explanation, as text or as one JSON object, and draw it if that is asked."""
    if options.reward_rates is not None:
        found = several_rewards.of_options(options)
        lines = found.lines()
        print(json.dumps(asdict(found)) if options.json else "\n".join(map(_wrapped, lines)))
        return
    rates = [number for text in options.pass_rate for number in _numbers(text)]
    if options.pass_rates is not None:
        rates += _pass_rates(Path(options.pass_rates), options)
    else:
        _refuse_unread(options, "there is no log to read", "group_by", "reward")
    if len(options.spec) == 1 and options.spec[0] in SCHEMES:
        unread = ("against", "name", "group_size", "problem", "plot")
        _refuse_unread(options, f"{options.spec[0]} is a way of sampling", *unread)
        scheme = explain_scheme(options.spec[0], rates or None)
        lines = scheme.lines(_curve(scheme))
        print(json.dumps(scheme.to_dict()) if options.json else "\n".join(map(_wrapped, lines)))
        return
    prompts: dict[str, Any] = {
        "pass_rates": rates or None,
        "moments": None if options.problem is None else load_problem(options.problem).moments(),
    }
    explanation = explain(
        options.spec or None, name=options.name, group_size=options.group_size, **prompts
    )
    if options.against is not None:
        _refuse_unread(options, "--against compares two", "plot")
        other = explain(options.against, **prompts)
        if explanation.meaning is None:
            raise InputError("--against compares options of trainers: write SPEC, not --name")
        if options.json:
            print(json.dumps(differences.as_json(explanation, other), allow_nan=False))
        else:
            lines = differences.lines(explanation, other)
            for one in (explanation.meaning, other.meaning):
                lines += [] if one is None else _passed(one)
            print("\n".join(map(_wrapped, lines)))
        return
    if options.plot is not None:
        draw(explanation, Path(options.plot))
    if options.json:
        print(json.dumps(as_json(explanation), allow_nan=False))
    else:
        print(as_text(explanation))


def _refuse_unread(options: argparse.Namespace, why: str, *names: str) -> None:
    """Refuse options that are given and that nothing would read."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if given:
        raise InputError(f"{why}: leave out {', '.join(given)}, which would be ignored")


def _pass_rates(path: Path, options: argparse.Namespace) -> list[float]:
    """The pass rates in a JSON list, or of the prompts of a log."""
    if path.suffix == ".json" and isinstance(numbers := read_json(path), list):
        _refuse_unread(options, f"{path} is no log", "group_by", "reward")
        if not numbers:
            raise InputError(f"{path}: it must hold one list of numbers")
        return numbers
    from ..llm.rewards import summarise_rewards

    summary = summarise_rewards(path, group_by=options.group_by, reward=options.reward)
    return [*summary.pass_rates.values()]


def _wrapped(line: str) -> str:
    """The line, what is beyond the width below it: that of a terminal, or of a page."""
    width = max(min(_WIDTH, shown.width() or _WIDTH), _LEAST)
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.fill(line)


def _numbers(text: str) -> list[float]:
    """The numbers of a list with commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"pass rate is {text!r}: it must be a number in [0, 1]") from None


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as one JSON object has it."""
    plain = dict(vars(explanation))
    meaning, alike = plain.pop("meaning"), plain.pop("alike")
    if plain.pop("function"):
        plain["alike"] = None if alike is None else asdict(alike)
    if meaning is not None:
        plain["framework"] = meaning.framework.name
        plain["own_name"] = meaning.row.name
        plain["aggregation"] = meaning.aggregation.name
        plain["passed_over"] = list(meaning.passed_over)
        plain["changes_nothing"] = meaning.unchanged()
    return plain | {"called": explanation.called, "advice": explanation.family.advice}


def as_text(explanation: Explanation) -> str:
    """The explanation for a person, in lines of at most 100 characters."""
    family, meaning = explanation.family, explanation.meaning
    known = explanation.weight is not None
    silent = f"{explanation.silent_share:.1%} of groups of {explanation.group_size}"
    parts = [
        _heading(explanation),
        ["What it climbs", f"  {family.climbs}", *(_curve(explanation) if known else ())],
        ["Bias", f"  {_bias(explanation)}"] if known else [],
        ["Noise", f"  {family.noise}", *(_noise(explanation) if known else ())],
        ["Silent groups", f"  {silent} have equal rewards here. {family.silent}"],
        [] if meaning is None else ["The rest of the loss", *_rest(explanation, meaning)],
        ["What changes nothing", f"  {family.nothing}"],
        [],
        [f"Advice: {family.advice}"],
    ]
    if meaning is not None:
        parts[6] += [
            f"  {', '.join(names)}: {reason}." for reason, names in meaning.unchanged().items()
        ]
    if explanation.called:
        parts[7] = ["The same elsewhere", *(f"  {line}" for line in explanation.called)]
    if explanation.assumed and known:
        parts.append(
            [
                "(Of pass rates alone: scores of equal norms, E‖s‖² = 1, and a small gradient; errors in "
                "units of E‖s‖². --problem FILE takes your own.)"
            ]
        )
    return "\n\n".join("\n".join(map(_wrapped, part)) for part in parts if part)


def _heading(explanation: Explanation) -> list[str]:
    family, meaning = explanation.family, explanation.meaning
    lines = []
    if meaning is not None:
        title = f"{meaning.framework.title} {meaning.written}".rstrip()
        lines += [f"{title}, G = {explanation.group_size}: {meaning.row.name}", *_passed(meaning)]
    lines += [f"{explanation.name}: {family.title}"]
    if explanation.function:
        lines += [f"  {_found(explanation)}"]
    lines += [f"  {family.formula}", f"  {family.what}"]
    if meaning is not None:
        row = meaning.row
        if explanation.group_size == 1:
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


def _found(explanation: Explanation) -> str:
    """What an advantage function was found to be."""
    tried = f"On groups of {explanation.group_size} rewards 0 and 1"
    if explanation.alike is None:
        return f"{tried} it is a table of its own, and no multiple of one in the catalogue."
    if explanation.alike.whole:
        return f"{tried} it is {explanation.alike}."
    climbs = catalogue().families[explanation.alike.name.partition(":")[0]].climbs
    return f"{tried} it is a table of its own, with the weight of {explanation.alike}. {climbs}"


def _passed(meaning: Meaning) -> list[str]:
    """A line on what was not understood; names like those of options first."""
    names = meaning.passed_over
    if not names:
        return []
    known = [option.rpartition(".")[2] for option in meaning.framework.options]
    alike = [name for name in names if nearest(name.rpartition(".")[2], known, cutoff=NEAR)]
    first = [*alike, *(name for name in names if name not in alike)][:_NAMED]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return [f"  Passed over, for the catalogue has no such option: {', '.join(first)}{more}."]


def _bias(explanation: Explanation) -> str:
    graded = (
        f" With graded rewards {explanation.family.graded}" if explanation.family.graded else ""
    )
    if explanation.unbiased:
        where = "None with rewards 0 and 1" if explanation.family.graded else "None"
        return f"{where}: the mean estimate is the gradient, whatever the pass rate.{graded}"
    assert explanation.mean_factor is not None
    pairs = list(zip(explanation.pass_rates, explanation.mean_factor, strict=True))
    shown = ", ".join(f"{w:.4g} at p = {p:.4g}" for p, w in _some(pairs))
    same = bool(np.ptp(explanation.weight["w"]) < 1e-9) if explanation.weight else False
    what = "prompts are reweighted by their pass rate"
    if same:
        # A divisor made of rewards is a constant only where these take two values.
        what = "a rescaled learning rate" + " with rewards 0 and 1" * bool(
            explanation.family.graded
        )
    turned = ""
    if explanation.cosine is not None and len(pairs) > 1:
        turned = f"; its cosine to the gradient is {explanation.cosine:.4f}"
    return (
        f"The mean estimate is w times the gradient of a prompt: {what}. w is {shown}{turned}."
        f"{graded}"
    )


def _some(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most nine, evenly chosen."""
    places = np.linspace(0, len(pairs) - 1, min(len(pairs), 9)).round().astype(int)
    return [pairs[place] for place in places]


def _noise(explanation: Explanation) -> list[str]:
    unit = " E‖s‖²/‖∇J‖²" if explanation.assumed else ""
    lines = [f"  MSE {explanation.mse:.4g}, one prompt drawn at random"]
    if explanation.noise_to_signal is not None:
        lines += [f"  noise over signal {explanation.noise_to_signal:.4g}{unit}"]
    for value, other in (
        (explanation.noise_to_rloo, "RLOO"),
        (explanation.noise_to_oracle, "the oracle"),
    ):
        if value is not None:
            lines += [f"  {_times(value)}that of {other} at G = {explanation.group_size}"]
    if explanation.best_noise_to_rloo is not None:
        lines += [
            f"  the best unbiased table here has {_times(explanation.best_noise_to_rloo)}RLOO's"
        ]
    return lines


def _times(ratio: float) -> str:
    """A ratio as it stands before what it multiplies; nothing where it is 1 as printed."""
    shown = f"{ratio:.4g}"
    return "" if shown == "1" else f"{shown} times "


_CLIPPED = {
    True: "w and all numbers here are of what is left; seldom solved prompts lose most",
    False: "what is left of them has no closed form here",
}


def _rest(explanation: Explanation, meaning: Meaning) -> list[str]:
    aggregation, known = meaning.aggregation, explanation.weight is not None
    scale = "" if explanation.scale is None else f" Here it multiplies by {explanation.scale:.4g}."
    lines = [f"  {aggregation.title}. {aggregation.says}{scale}"]
    if meaning.cap:
        lines += [
            "  The ratio is capped at {} = {:g}, below 1: in the first step after sampling every step is "
            "so much of the one without the cap.".format(*meaning.cap)
        ]
    if meaning.clip:
        cut = not known or explanation.name.startswith("count-table")
        words = _CLIPPED[known] if cut else "none is larger here"
        lines += [f"  Advantages are cut off at ±{meaning.clip:g}: {words}."]
    lines += [f"  {line}" for line in (*meaning.step(), *meaning.reused(), *meaning.beside())]
    return lines + [f"  KL, {term}." for term in meaning.penalties()]


def _curve(explanation: Explanation | SchemeExplanation) -> list[str]:
    """w over the pass rates, drawn with letters; the prompts' own are marked below."""
    assert explanation.weight is not None
    height, width = 8, 61
    p, w = np.array(explanation.weight["pass_rate"]), np.array(explanation.weight["w"])
    low, high = min(0.0, float(w.min())), max(float(w.max()), 1.0)
    across = np.linspace(0, 1, width)
    rows = np.rint((np.interp(across, p, w) - low) / (high - low) * (height - 1)).astype(int)
    lines = []
    for row in range(height - 1, -1, -1):
        label = f"{low + (high - low) * row / (height - 1):8.3g}"
        marks = "".join("*" if place == row else " " for place in rows)
        lines.append(f"  {label} |{marks.rstrip()}")
    ticks = ["-"] * width
    for rate in explanation.pass_rates:
        ticks[round(rate * (width - 1))] = "^"
    lines.append(f"     w(p)  {''.join(ticks)}")
    lines.append(f"           0{'p':^{width - 2}}1")
    return lines


def draw(explanation: Explanation, path: Path) -> None:
    """Draw w over the pass rates into a picture."""
    if explanation.weight is None or explanation.mean_factor is None:
        raise InputError(f"{explanation.name} has no closed form here: there is nothing to draw")
    refuse_plot(path)
    axes = new_axes()
    axes.axhline(1.0, color="0.7", linewidth=1, label="expected reward: w = 1")
    curve = explanation.weight["pass_rate"], explanation.weight["w"]
    axes.plot(*curve, label=f"{explanation.name}, G = {explanation.group_size}")
    axes.plot(explanation.pass_rates, explanation.mean_factor, "o", markersize=4)
    bottom = min(0, *explanation.weight["w"])
    axes.set(xlabel="pass rate p", ylabel="weight w(p)", xlim=(0, 1), ylim=(bottom, None))
    axes.legend(frameon=False)
    save(axes, path)

"""A finished run as one HTML page that stands alone: nothing is loaded, from here or anywhere.

Made from the run's stored verdicts and its drawn figures; needs Jinja2 (``ustat_pg[figures]``).
"""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from .paper import PAPER, RESULTS
from .validation import InputError

__all__ = ["Figure", "check_command", "html_report"]

_ORIGINS = {"made-up": "made up", "generated": "generated", "real": "real data", "user": "problem"}
_KINDS = ("exact", "simulation")
_MARKS = {"CONFIRMED": "✓", "REFUTED": "✗", "INCONCLUSIVE": "?", "SURVIVED": "✗"}

# The picture beside a check, in pixels.
_WIDTH, _EDGE, _UNIT = 148, 4.0, 16.0


@dataclass(frozen=True)
class Figure:
    """A drawn figure for the page.

    Arguments:
        name: short, its anchor.
        title: a few words.
        alt: what is seen, in one sentence.
        svg: the whole file.
    """

    name: str
    title: str
    alt: str
    svg: bytes

    @property
    def source(self) -> str:
        """The picture itself in place of its address."""
        return f"data:image/svg+xml;base64,{b64encode(self.svg).decode()}"


def html_report(folder: str | Path, figures: Sequence[Figure] = ()) -> str:
    """The page of the finished run in a folder.

    Arguments:
        folder: the run's ``--out`` folder, or its ``verdicts.json``.
        figures: drawn ones, in their order.

    Raises:
        InputError: Jinja2 is missing; there is no finished run, its file is damaged, or an older
            version wrote it.
    """
    try:
        from jinja2 import Environment, StrictUndefined, UndefinedError
    except ImportError:
        raise InputError("an HTML report needs Jinja2: pip install 'ustat_pg[figures]'") from None
    path = Path(folder)
    path = path / "verdicts.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: no finished run: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: not the results of a run") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("ustat_pg").joinpath("templates", "report.html").read_text(encoding="utf-8")
    try:
        if "draws" not in document and isinstance(document["claims"], list):
            raise InputError(
                f"{path}: an older version wrote it; verify again, finished blocks are kept"
            )
        view = _view(document)
        return environment.from_string(source).render(**view, figures=figures)
    except InputError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, UndefinedError):
        raise InputError(f"{path}: not the results of a run") from None


def check_command(run: Mapping[str, Any], stem: str, check: Mapping[str, Any], draws: Any) -> str:
    """The command that reproduces one check of a run by itself.

    Arguments:
        run: what the run was: size, engine, seed and problem.
        stem: of the claim.
        check: its name, its evidence and the rivals it was planned for.
        draws: the replications of its cells, or None where groups are compared one by one.
    """
    words = ["python", "-m", "simulations", "check", stem, check["name"]]
    for option in ("size", "engine", "seed"):
        words += [f"--{option}", str(run[option])]
    if check["simulation"] is not None:
        numbers = draws or [check["simulation"]["replications"]]
        numbers = numbers[:1] if len(set(numbers)) == 1 else numbers
        words += ["--replications", ",".join(str(n) for n in numbers)]
    if draws:
        for rival in check["planned_for"]:
            words += ["--refute", rival]
    if run["problem"] is not None:
        words += ["--problem", run["problem"]]
    return shlex.join(words)


def _view(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows, all of it plain values."""
    run = document["run"]
    claims = [_claim(claim, run, document["draws"][claim["stem"]]) for claim in document["claims"]]
    origins = [g for g in _ORIGINS if any(g in claim["evidence"] for claim in claims)]
    count = Counter(claim["verdict"] for claim in claims)
    rivals = [rival for claim in document["claims"] for rival in claim["rivals"]]
    return {
        "paper": PAPER,
        "paper_address": f"https://arxiv.org/abs/{PAPER.split()[-1]}",
        "run": run,
        "claims": claims,
        "origins": {origin: _ORIGINS[origin] for origin in origins},
        "count": count,
        "marks": _MARKS,
        "rivals": len(rivals),
        "rivals_refuted": sum(rival["verdict"] == "REFUTED" for rival in rivals),
        "worst": next((v for v in ("REFUTED", "INCONCLUSIVE") if count[v]), "CONFIRMED"),
    }


def _claim(claim: Mapping[str, Any], run: Mapping[str, Any], draws: Any) -> dict[str, Any]:
    about = RESULTS[claim["stem"]]
    evidence: dict[str, str] = {}
    for origin in dict.fromkeys(check["origin"] for check in claim["checks"]):
        words = []
        for kind in _KINDS:
            heard = {
                c[kind]["verdict"] for c in claim["checks"] if c["origin"] == origin and c[kind]
            }
            worst = next((v for v in ("REFUTED", "INCONCLUSIVE") if v in heard), "")
            words += [f"{kind} {worst}".strip()] if heard else []
        evidence[origin] = " + ".join(words)
    return {
        "stem": claim["stem"],
        "label": claim["label"],
        "verdict": claim["verdict"],
        "statement": about.statement,
        "assumptions": about.assumptions,
        "sharper": about.sharper,
        "evidence": evidence,
        "rivals": claim["rivals"],
        "refuted": sum(rival["verdict"] == "REFUTED" for rival in claim["rivals"]),
        "remarks": list(_remarks(claim)),
        "checks": [
            _check(check, check_command(run, claim["stem"], check, draws.get(check["name"])))
            for check in claim["checks"]
        ],
    }


def _remarks(claim: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must not miss."""
    for check in claim["checks"]:
        for kind in _KINDS:
            found = check[kind]
            if found is None or found["verdict"] == "CONFIRMED":
                continue
            low, high = found["interval"]
            line = (
                f"{check['name']} is {found['verdict']} by {kind}: {_number(found['estimate'])} in "
                f"[{_number(low, '-∞')}, {_number(high, '∞')}], "
                f"predicted {_number(check['prediction'])}"
            )
            if found["replications_needed"] > found["replications"]:
                line += (
                    f"; it would need {found['replications_needed']:,} replications and had "
                    f"{found['replications']:,}"
                )
            yield line
    for rival in claim["rivals"]:
        if rival["verdict"] == "SURVIVED":
            yield f"the wrong formula “{rival['name']}” survived"
    if not claim["checks"]:
        yield "nothing can be checked on this problem"
    elif not any(check["exact"] for check in claim["checks"]):
        reason = next((c["not_enumerated"] for c in claim["checks"] if c["not_enumerated"]), "")
        yield f"nothing was enumerated: {reason}"


def _number(value: float | None, none: str = "-", digits: int = 6) -> str:
    return none if value is None else f"{value:.{digits}g}"


def _check(check: Mapping[str, Any], command: str) -> dict[str, Any]:
    exact, drawn = check["exact"], check["simulation"]
    verdicts = {found["verdict"] for found in (exact, drawn) if found is not None}
    low, high = (drawn or {"interval": (None, None)})["interval"]
    return {
        "name": check["name"],
        "origin": _ORIGINS[check["origin"]],
        "verdict": next((v for v in ("REFUTED", "INCONCLUSIVE") if v in verdicts), "CONFIRMED"),
        "prediction": _number(check["prediction"]),
        "exact": None if exact is None else _number(exact["estimate"]),
        "why_not": check["not_enumerated"] or "",
        "simulated": None if drawn is None else _number(drawn["estimate"]),
        "error": None if drawn is None else _number(drawn["standard_error"], "∞", 2),
        "low": _number(low, "-∞"),
        "high": _number(high, "∞"),
        "replications": None if drawn is None else f"{drawn['replications']:,}",
        "sees": None if drawn is None else _number(drawn["smallest_discrepancy"], "∞", 2),
        "rivals": [
            {
                "name": name,
                "says": _says(rival["says"]),
                "elsewhere": rival.get("simulation") == "SURVIVED"
                and name not in check["planned_for"],
                **{kind: rival.get(kind, "-") for kind in _KINDS},
            }
            for name, rival in check["rivals"].items()
        ],
        "command": [shlex.quote(word) for word in shlex.split(command)],
        "strip": _strip(check),
    }


def _says(values: Sequence[float | None] | None) -> str:
    """What a rival says of a check's value, in words."""
    if values is None:
        return "another formula"
    low, high = values
    if low == high:
        return _number(low)
    return f"at most {_number(high)}" if low is None else f"at least {_number(low)}"


def _strip(check: Mapping[str, Any]) -> dict[str, Any]:
    """Places of the interval, the estimate and the rivals about the prediction, in pixels: in units
    of the interval's half-width, or where nothing is drawn of a third of the nearest rival's distance.
    """
    middle, prediction = _WIDTH / 2, check["prediction"]
    found = check["simulation"] or check["exact"]
    rivals = {
        name: value
        for name, rival in check["rivals"].items()
        if rival["says"] is not None
        and (value := rival["says"][1] if rival["says"][0] is None else rival["says"][0])
        is not None
    }
    if found is None or found["estimate"] is None:
        return {"width": _WIDTH, "middle": middle, "found": False, "label": "no estimate"}
    low, high = found["interval"]
    bounded = low is not None and high is not None
    gaps = [abs(value - prediction) for value in rivals.values() if value != prediction]
    unit = (high - low) / 2 if bounded else 0.0
    if check["simulation"] is None or not unit > 0:
        # A discrepancy is shown against the rounding that is allowed.
        region = check["region"][1]
        unit = min(gaps) / 3 if gaps else (region if not unit > 0 and region else unit) or 1.0

    def place(value: float) -> tuple[float, bool]:
        steps = (value - prediction) / unit
        return round(middle + _UNIT * max(-_EDGE, min(_EDGE, steps)), 2), abs(steps) > _EDGE

    crosses, planned = [], check["planned_for"]
    for name, value in rivals.items():
        x, beyond = place(value)
        side = "" if not beyond else ("left" if value < prediction else "right")
        crosses.append({"x": x, "beyond": side, "name": name, "planned": name in planned})
    ends = [
        place(low)[0] if low is not None else 0.0,
        place(high)[0] if high is not None else _WIDTH,
    ]
    said = f"[{_number(low, '-∞')}, {_number(high, '∞')}]"
    return {
        "width": _WIDTH,
        "middle": middle,
        "found": True,
        "from": ends[0],
        "to": max(ends[1], ends[0] + 0.5),
        "at": place(found["estimate"])[0],
        "crosses": crosses,
        "label": f"estimate {_number(found['estimate'])} in {said}, "
        f"predicted {_number(prediction)}, {len(crosses)} wrong formulas",
    }

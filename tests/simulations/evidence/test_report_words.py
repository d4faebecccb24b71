"""Numbers and verdicts in words, of records made by hand; read back from their file as they were."""

import json
import re
from html import unescape
from math import inf, nan

import pytest
from attrs import evolve

from simulations.evidence import Interval, RivalVerdict, Verdict
from simulations.evidence.findings import CheckResult, Design, Findings
from simulations.evidence.planning import MOST
from simulations.evidence.report import (
    RECONSTRUCTED,
    _fitted,
    _strip,
    check_command,
    digits_apart,
    evidence_of,
    exit_code,
    html,
    in_words,
    markdown,
    number,
    power_table,
    remarks,
    rivals_of,
    says,
    shown,
    summary,
    verdict_table,
)
from simulations.evidence.results import ClaimResult, Control, Power, RivalResult, load_run
from simulations.paper import RESULTS
from simulations.tables import check_table
from tests.support.refusals import refuses
from tests.support.runs import NO_CLAIMS

CONFIRMED, REFUTED, OPEN = Verdict.CONFIRMED, Verdict.REFUTED, Verdict.INCONCLUSIVE
GONE, STAYS = RivalVerdict.REFUTED, RivalVerdict.SURVIVED
SAME, UNASKED = RivalVerdict.NOT_DISTINGUISHABLE, RivalVerdict.NOT_TESTED


def findings(estimate=0.3004, low=0.299, high=0.3018, verdict=CONFIRMED, **changed):
    usual = {
        "standard_error": 3.5e-4,
        "replications": 12_800,
        "replications_needed": 9_000,
        "alpha": 1e-5,
        "smallest_discrepancy": 0.0021,
        "rivals": {"no square": GONE},
    }
    return Findings(verdict, estimate, interval=Interval(low, high), **(usual | changed))


EXACT = {"standard_error": 0.0, "replications": 0, "replications_needed": 0, "alpha": 0.0}
LISTED = findings(0.3, 0.3 - 1e-12, 0.3 + 1e-12, **EXACT, smallest_discrepancy=2e-12)
CHECK = CheckResult(
    name="G = 4, two arms",
    origin="made-up",
    prediction=0.3,
    rounding=1e-12,
    region=Interval(0.297, 0.303),
    scale=1.0,
    exact=LISTED,
    not_enumerated=None,
    simulation=findings(),
    planned_for=("no square",),
    rivals={"no square": Interval(0.45, 0.45)},
    design=Design("two arms", (4,), (1,), ("grpo",)),
)
BY_BOTH = RivalResult(
    "no square", GONE, GONE, GONE, {"made-up": {"exact": GONE, "simulation": GONE}}
)
DRAWN = RivalResult("runs", UNASKED, UNASKED, GONE, {})
LISTED_ALONE = RivalResult("listed", GONE, GONE, None, {})
LEFT = RivalResult("left", STAYS, STAYS, GONE, {})
TWIN = RivalResult("twin", SAME, SAME, SAME, {})
UNHEARD = RivalResult("unheard", UNASKED, UNASKED, UNASKED, {})
POWER = (Power("exact", 0.01, 1.0, 1.0), Power("simulation", 0.01, 0.25, 0.875))
CLAIM = ClaimResult("mse", "Theorem 2", CONFIRMED, (CHECK,), (BY_BOTH,), power=POWER)


def claim(verdict=CONFIRMED, checks=(CHECK,), rivals=(BY_BOTH,), **changed):
    return evolve(CLAIM, verdict=verdict, checks=checks, rivals=rivals, **changed)


@pytest.mark.parametrize(
    ("value", "words"),
    [(1 / 3, "0.333333"), (1234567.0, "1.23457e+06"), (nan, "-"), (inf, "-"), (-0.5, "-0.5")],
)
def test_numbers(value, words):
    assert number(value) == words
    assert number(1 / 3, digits=2) == "0.33"
    assert number(-inf, "∞") == "∞"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "another formula"),
        (Interval(0.5, 0.5), "0.5"),
        (Interval(0.5, 0.75), "from 0.5 to 0.75"),
        (Interval(0.5, inf), "at least 0.5"),
        (Interval(-inf, 0.75), "at most 0.75"),
    ],
)
def test_values_of_a_rival(values, words):
    assert says(values) == words


def test_a_check_in_words():
    assert shown(CHECK) == {
        "name": "G = 4, two arms",
        "verdict": "CONFIRMED",
        "predicted": "0.3",
        "exact": "0.3",
        "simulated": "0.3004",
        "error": "0.00035",
        "interval": "[0.299, 0.3018]",
        "replications": "12,800",
        "sees": "0.0021",
    }
    drawn = evolve(CHECK, exact=None, simulation=findings(low=-inf, high=inf, standard_error=inf))
    words = shown(drawn)
    assert (words["exact"], words["interval"]) == ("not enumerated", "[-∞, ∞]")
    assert words["error"] == "∞"
    listed = shown(evolve(CHECK, simulation=None))
    assert [listed[key] for key in ("simulated", "error", "interval", "replications")] == ["-"] * 4


@pytest.mark.parametrize(
    ("estimate", "interval", "texts"),
    [
        (6.4967650, (6.4967649, 6.4967651), ("6.496765", "[6.496765, 6.496765]", "6.49676")),
        # The nearest end differs in its last bits.
        (7.0, (6.4967601 + 1e-14, 8.0), ("7", "[6.49676010000001, 8]", "6.4967601")),
        (7.0, (6.9, 7.1), ("7", "[6.9, 7.1]", "6.49676")),
    ],
)
def test_what_is_refuted_is_printed_with_digits_that_differ(estimate, interval, texts):
    prediction = 6.4967601
    drawn = findings(estimate, *interval, REFUTED, standard_error=1e-8)
    region = Interval(prediction - 1e-12, prediction + 1e-12)
    check = evolve(CHECK, prediction=prediction, region=region, exact=None, simulation=drawn)
    refuted = claim(REFUTED, (check,))
    value, ends, predicted = texts
    line = f"{value} in {ends}, predicted {predicted}"
    assert any(line in remark for remark in remarks([refuted]))
    words = shown(check)
    assert (words["simulated"], words["interval"], words["predicted"]) == texts
    assert line in html(evolve(RUN, claims=(refuted,), draws={"mse": {}}))
    table = check_table("mse", check)
    assert "predicted 6.4967601\n" in table
    low, high = (f"{end:.15g}" for end in interval)
    assert f"[{low}, {high}]" in table


@pytest.mark.parametrize(
    ("value", "others", "digits"),
    [
        (6.5, [], 6),
        (6.5, [6.5, nan, inf], 6),
        (1.0000001, [1.0], 8),
        (1.0, [1.0 + 2**-52], 17),
        (1.0, [1.0 + 2**-46], 15),
    ],
)
def test_as_many_digits_as_tell_numbers_apart(value, others, digits):
    assert digits_apart(value, others) == digits
    assert digits_apart(value, others, 2) == (digits if digits > 6 else 2)


@pytest.mark.parametrize(
    ("changed", "unit", "rivals"),
    [
        # Half the interval is the unit; where nothing is drawn, a third of the way to the nearest rival.
        ({}, 0.0014, {"no square": 0.15}),
        ({"rivals": {"far": Interval(0.9, 0.9), "same": Interval(0.3, 0.3)}}, 0.0014,
         {"far": 0.6, "same": 0.0}),
        ({"simulation": None}, 0.05, {"no square": 0.15}),
        ({"simulation": None, "rivals": {"far": Interval(0.9, 0.9), "near": Interval(-inf, 0.24)}}, 0.02,
         {"far": 0.6, "near": -0.06}),
        ({"simulation": None, "rivals": {"same": Interval(0.3, 0.3), "other": None}}, 1e-12, {"same": 0.0}),
        ({"simulation": findings(low=0.3004, high=0.3004)}, 0.05, {"no square": 0.15}),
        ({"simulation": findings(low=-inf)}, 0.05, {"no square": 0.15}),
        ({"simulation": findings(0.3, 0.3, 0.3), "rivals": {}}, 0.303, {}),
        ({"simulation": findings(0.3, 0.3, 0.3), "rivals": {}} | {"region": Interval(0.1, inf)}, 1.0, {}),
    ],
)  # fmt: skip
def test_a_picture_of_a_check_has_its_unit(changed, unit, rivals):
    check = evolve(CHECK, **changed)
    seen, by = _strip(check), check.simulation or check.exact
    low, high = by.interval.low, by.interval.high
    assert seen["at"] == pytest.approx((by.estimate - 0.3) / unit, rel=1e-3)
    assert seen["from"] == (None if low == -inf else pytest.approx((low - 0.3) / unit, rel=1e-3))
    assert seen["to"] == pytest.approx((high - 0.3) / unit, rel=1e-3)
    assert seen["rivals"] == {name: pytest.approx(gap / unit) for name, gap in rivals.items()}
    assert seen["label"].endswith(f", predicted 0.3, {len(rivals)} wrong formulas")


def test_what_has_no_estimate_has_no_picture():
    assert _strip(evolve(CHECK, exact=None, simulation=None)) is None
    assert _strip(evolve(CHECK, simulation=findings(nan, -inf, inf, OPEN))) is None


def test_what_is_no_number_is_open_in_words():
    lost = findings(nan, -inf, inf, OPEN, **EXACT, smallest_discrepancy=inf)
    (line,) = remarks([claim(OPEN, (evolve(CHECK, exact=lost),))])
    assert line == "mse: G = 4, two arms is INCONCLUSIVE by exact: no number, predicted 0.3"


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        # As wide as its longest cell, then ever narrower where there is most to spare; words stay whole.
        (100, [6, 14, 12]),
        (36, [6, 14, 12]),
        (35, [6, 13, 12]),
        (32, [6, 10, 12]),
        (29, [6, 7, 12]),
        (1, [6, 7, 12]),
    ],
)
def test_columns_are_fitted_to_a_terminal(room, widths):
    columns = [("four", "x"), ("head", "two words okay"), ("a", "indivisibles")]
    assert _fitted(columns, room) == widths


@pytest.mark.parametrize(
    ("half", "rounding", "words"),
    [
        (2e-12, 1e-12, ("0 to rounding", "[0, 0]")),
        (2.1e-12, 1e-12, ("1e-13", "[-2.1e-12, 2.1e-12]")),
    ],
)
def test_what_differs_from_0_by_rounding_is_0(half, rounding, words):
    check = evolve(CHECK, prediction=0.0, rounding=rounding)
    assert in_words(check, findings(1e-13, -half, half)) == words
    listed = findings(1e-13, -half, half, **(EXACT | {"smallest_discrepancy": rounding}))
    assert in_words(evolve(check, rounding=0.0), listed) == words
    assert in_words(check, findings(0.0, 0.0, 0.0))[0] == "0"
    assert in_words(evolve(check, prediction=0.3), findings(1e-13, -half, half))[0] == "1e-13"


@pytest.mark.parametrize(
    ("rivals", "words"),
    [
        ((BY_BOTH,), "1 of 1"),
        ((BY_BOTH, LISTED_ALONE, LEFT), "2 of 3"),
        ((BY_BOTH, DRAWN), "2 of 2 (1 by simulation alone)"),
        ((BY_BOTH, TWIN, TWIN, UNHEARD), "1 of 1 (2 coincide, 1 not tested)"),
        ((DRAWN, TWIN), "1 of 1 (1 by simulation alone, 1 coincide)"),
        ((), "0 of 0"),
    ],
)
def test_rivals_are_counted(rivals, words):
    assert rivals_of(claim(rivals=rivals)) == words


def test_evidence_of_each_origin():
    real = evolve(CHECK, name="real", origin="real", simulation=findings(verdict=OPEN))
    both = claim(checks=(CHECK, real))
    assert evidence_of(both, "made-up") == "exact + simulation"
    assert evidence_of(both, "real") == "exact + simulation INCONCLUSIVE"
    assert evidence_of(both) == "exact + simulation INCONCLUSIVE"
    assert evidence_of(both, "generated") == "-"


def test_the_line_below_a_table():
    assert summary([claim()]) == (
        "1 of 1 results confirmed; 1 of 1 wrong formulas refuted by enumeration and again by simulation"
    )
    many = [claim(), claim(OPEN, rivals=(DRAWN, TWIN)), claim(REFUTED, rivals=(LEFT,))]
    assert summary(many) == (
        "1 of 3 results confirmed, 1 REFUTED, 1 INCONCLUSIVE; 2 of 3 wrong formulas refuted: "
        "1 by enumeration and again by simulation, 1 by simulation alone; not counted: 1 coincide"
    )


def test_exit_codes():
    held, failed = Control("a", True, ""), Control("b", False, "it was not seen")
    assert exit_code([claim()], [held]) == 0
    assert exit_code([claim(), claim(OPEN)]) == 3
    assert exit_code([claim(OPEN), claim(REFUTED)]) == 1
    assert exit_code([claim()], [held, failed]) == 1
    table = verdict_table([claim()], controls=[held, failed])
    assert "FAILED" in table
    assert "1 of 2 held" in table
    assert remarks([claim()], ["old.json"], [held, failed]) == [
        "control of b FAILED, so that this run confirms nothing: it was not seen",
        "damaged results file, kept and computed again: old.json",
    ]
    assert "HELD" in verdict_table([claim()], controls=[held])
    assert "Controls" not in verdict_table([claim()])


@pytest.mark.parametrize("stem", RESULTS)
def test_a_table_marks_what_was_reconstructed(stem):
    label = RESULTS[stem].label
    table = verdict_table([evolve(claim(), stem=stem, label=label)])
    row = table.splitlines()[2]
    assert row.startswith(f"{label} [r]  " if RESULTS[stem].reconstructed else f"{label}  ")
    assert (RECONSTRUCTED in table) == bool(RESULTS[stem].reconstructed)
    assert "made up" in table
    assert "real data" not in table


def test_powers():
    cells = power_table([claim()]).splitlines()
    assert cells[2].split()[-2:] == ["exact", "100%"]
    assert cells[3].split()[-3:] == ["simulation", "25%", "(88%)"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"replications_needed": 12_800}, ""),
        (
            {"replications_needed": 12_801},
            "; it would need 12,801 replications and had 12,800",
        ),
        ({"replications_needed": MOST - 1}, f"; it would need {MOST - 1:,} replications and had"),
        ({"replications_needed": MOST}, "; no number of replications would do"),
    ],
)
def test_what_is_open_says_what_it_would_take(changed, words):
    check = evolve(CHECK, simulation=findings(verdict=OPEN, **changed))
    (line,) = remarks([claim(OPEN, checks=(check,))])
    start = "mse: G = 4, two arms is INCONCLUSIVE by simulation: 0.3004 in [0.299, 0.3018], predicted 0.3"
    assert line.startswith(start + words)
    assert (line == start) == (not words)


@pytest.mark.parametrize(
    ("verdict", "rivals", "lines"),
    [
        (OPEN, (LEFT,), ["mse: the wrong formula “left” survived"]),
        (
            OPEN,
            (BY_BOTH, TWIN),
            [
                f"mse: the wrong formula “twin” coincides with the prediction on every problem ({kind})"
                for kind in ("exact", "simulation")
            ],
        ),
        (
            OPEN,
            (UNHEARD,),
            [
                *(
                    f"mse: the wrong formula “unheard” is not tested ({k})"
                    for k in ("exact", "simulation")
                ),
                "mse: no wrong formula is distinguishable from the prediction here",
            ],
        ),
        (CONFIRMED, (BY_BOTH, TWIN), []),
    ],
)
def test_what_rivals_leave_open(verdict, rivals, lines):
    assert remarks([claim(verdict, rivals=rivals)]) == lines


def test_formulas_that_fail():
    absurd = evolve(CHECK, prediction=0.4, simulation=findings(verdict=REFUTED))
    said = "mse: G = 4, two arms is REFUTED by its own formula: it gives "
    assert remarks([claim(REFUTED, (absurd,))]) == [
        said + "0.4, and the statement allows 0.297 to 0.303"
    ]
    none = evolve(absurd, prediction=nan)
    assert remarks([claim(REFUTED, (none,))]) == [said + "no number"]
    alone = evolve(CHECK, exact=None, not_enumerated="whole runs")
    assert remarks([claim(checks=(alone,))]) == ["mse: nothing was enumerated: whole runs"]
    failed = ClaimResult.failed("mse", "division by zero")
    assert remarks([failed]) == ["mse: REFUTED: division by zero"]
    assert failed.verdict == REFUTED


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        ((12_800,), ["--replications", "12800", "--refute", "'no square'"]),
        ((512, 512), ["--replications", "512", "--refute", "'no square'"]),
        ((512, 1024), ["--replications", "512,1024", "--refute", "'no square'"]),
        ((), ["--replications", "12800"]),
    ],
)
def test_the_command_of_a_check(draws, words):
    run = evolve(
        NO_CLAIMS,
        claims=(claim(),),
        draws={"mse": {CHECK.name: draws} if draws else {}},
        run=evolve(NO_CLAIMS.run, seed=7),
    )
    found = check_command(run, "mse", CHECK)
    assert found[:6] == ["python", "-m", "simulations", "check", "mse", "'G = 4, two arms'"]
    assert found[6:12] == ["--size", "smoke", "--engine", "cpu", "--seed", "7"]
    assert found[12:] == words
    listed = evolve(CHECK, simulation=None)
    assert "--replications" not in check_command(run, "mse", listed)


RUN = evolve(
    NO_CLAIMS,
    claims=(
        claim(),
        claim(OPEN, (evolve(CHECK, simulation=findings(nan, -inf, inf, OPEN)),), stem="oracle"),
    ),
    controls=(Control("a", True, ""),),
    draws={"mse": {CHECK.name: (512, 1024)}, "oracle": {}},
    run=evolve(
        NO_CLAIMS.run, versions={"ustat_pg": "1.0", "code": "abc"}, paper="A paper 1", seed=3
    ),
)


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "verdicts.json"
    path.write_text(RUN.json(), encoding="utf-8")
    again = load_run(tmp_path)
    assert load_run(path).json() == again.json() == RUN.json()
    assert again.claims[0] == RUN.claims[0]
    assert again.claims[1].checks[0].simulation.interval == Interval(-inf, inf)
    assert (again.controls, again.draws, again.run) == (RUN.controls, RUN.draws, RUN.run)
    frame = again.frame()
    assert frame["kind"].tolist() == ["exact", "simulation"] * 2
    assert frame["low"].tolist()[:2] == [0.3 - 1e-12, 0.299]
    assert frame[["group_size", "batch_size"]].iloc[0].tolist() == [4, 1]
    assert frame["estimator"].unique().tolist() == ["grpo"]
    assert RUN.json(indent=None).count("\n") == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("claims", 0, "verdict"), "SURE"),
        (("claims", 0, "stem"), "unknown"),
        (("claims", 0, "checks", 0, "origin"), "elsewhere"),
        (("claims", 0, "checks", 0, "prediction"), "0.3"),
        (("claims", 0, "checks", 0, "region"), [0.1]),
        (("draws",), {}),
        (("claims",), {}),
        (("run", "seed"), 0.5),
        (("controls", 0), []),
    ],
)
def test_a_file_with_one_wrong_entry_is_refused(tmp_path, place, value):
    data = json.loads(RUN.json())
    *way, last = place
    inner = data
    for step in way:
        inner = inner[step]
    inner[last] = value
    (tmp_path / "verdicts.json").write_text(json.dumps(data))
    refuses("not the results of a run, or those of an older version", load_run, tmp_path)


def words(text):
    """A table's or a page's words and numbers, without its layout."""
    text = unescape(re.sub(r"<[^>]+>", "", text))
    return " ".join(text.replace("\\|", "").replace("|", " ").split())


def test_markdown_html_and_terminal_say_the_same():
    rivals = (BY_BOTH, DRAWN, LISTED_ALONE, LEFT, TWIN, UNHEARD)
    run = evolve(RUN, claims=(claim(OPEN, rivals=rivals), RUN.claims[1]))
    pages = words(markdown(run)), words(html(run))
    for text in (words(verdict_table(run.claims)), *pages):
        assert "3 of 4 (1 by simulation alone, 1 coincide, 1 not tested)" in text
    for text in pages:
        assert f"{summary(run.claims)}." in text
        assert "Theorem 2" in text
    for one in run.claims:
        for check in map(shown, one.checks):
            found = " ".join(check[key] for key in ("predicted", "exact", "simulated"))
            rest = " ".join(check[key] for key in ("interval", "replications", "sees"))
            assert f"{check['name']} {found} {check['error']} {rest} {check['verdict']}" in pages[0]
            assert f"{found} ± {check['error']} {rest}" in pages[1]
    assert "estimate 0.3004 in [0.299, 0.3018], predicted 0.3, 1 wrong formulas" in html(RUN)

"""The plan of a claim: who refutes a rival, what a check needs, and what its cells draw."""

from dataclasses import dataclass, field, replace
from math import nan
from types import SimpleNamespace

import pytest

from simulations.evidence import Check, Claim, Known, Options, allotted_alpha, equal, positive
from simulations.evidence.claim import looks_at
from simulations.evidence.functionals import Functional
from simulations.evidence.measurements import PILOT_FIRST, Measurements
from simulations.evidence.options import LARGEST_BLOCK, SIZES, block_of
from simulations.evidence.plan import Plan, alpha_of, erring_of, looks_of, make_plan
from simulations.evidence.planning import MOST
from simulations.paper import RESULTS
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem

BUDGET = SIZES["smoke"].budget


def a_cell(name="cell", **changed):
    usual = {"block": 8192, "outputs": 6, "batch_size": 2, "steps": 3, "group_size": 1, "looks": 1}
    usual |= {"least": 1, "reserve": 1.0, "budget": lambda number: number}
    return SimpleNamespace(name=name, **(usual | changed))


CELL = a_cell()


@dataclass(frozen=True)
class Costs(Functional):
    """A number that takes so many replications at the margin 1, and four times as many at half of it."""

    number: float
    on: tuple = (CELL,)
    rounding: float = 0.0
    asked: list = field(default_factory=list, compare=False)

    cells = property(lambda self: self.on)
    quantities = ()

    def exact(self, sums):
        raise NotImplementedError

    evidence = exact

    def needed(self, sums, margin, alpha, prediction):
        self.asked.append((margin, alpha, prediction))
        return int(self.number / margin**2)


def check(name, number, rivals=None, origin="made-up", on=(CELL,), **stated):
    stated = {"relative_margin": 1.0} | stated
    return Check(name, origin, Costs(number, on), equal(1.0, rivals, scale=1.0, **stated))


def planned(*checks, rivals=("near", "far"), size="smoke", engine="cpu"):
    return make_plan(Claim("mse", rivals, checks), {}, Options(size, engine))


def test_nothing_is_drawn_for_enumeration_alone():
    plan = planned(check("one", 100), engine="exact")
    assert (plan.required, plan.needed, plan.replications, plan.seconds) == ({}, {}, {}, {})


def test_the_least_work_refutes_a_rival_on_each_origin():
    dear, cheap = a_cell("dear", outputs=600), CELL
    rivals = {"near": 1.2, "far": 3.0}
    plan = planned(
        # Half as many replications on a cell of 100 times the outputs; the first of equals.
        check("a", 50, rivals, on=(dear,)),
        check("b", 100, rivals, on=(cheap,)),
        check("c", 100, rivals, on=(cheap,)),
        check("d", 100, {"near": 1.2}, "generated"),
        check("e", 1, {"near": 1.0}, "generated"),
        check("f", 1, None, "generated"),
    )
    assert plan.required == {
        **dict.fromkeys("acef", ()), "b": ("near", "far"), "d": ("near",)
    }  # fmt: skip
    # Half the way to the nearest rival required, or else the check's own margin.
    assert plan.needed == {"a": 50, "b": 10_000, "c": 100, "d": 10_000, "e": 1, "f": 1}


def test_what_a_replication_costs_counts_outputs_and_prompts():
    """6 outputs and 8 for each of 6 prompts, of every cell."""
    for outputs, first in ((111, True), (113, False)):
        other = a_cell("other", outputs=outputs, batch_size=1, steps=1)
        both = a_cell("both"), a_cell("both too")
        first_of = planned(
            check("two", 100, {"near": 1.2}, on=both), check("one", 90, {"near": 1.2}, on=(other,))
        )
        assert (first_of.required["one"] == ("near",)) == first


@pytest.mark.parametrize("origin", ["made-up", "generated", "real"])
@pytest.mark.parametrize(("times", "within"), [(0.999, True), (1.0, True), (1.001, False)])
def test_a_dear_rival_is_left_out_on_real_data_alone(origin, times, within):
    number = round(BUDGET * times) * 0.1**2
    plan = planned(check("one", number * (1 + 1e-12), {"near": 1.2}, origin))
    assert plan.required["one"] == (("near",) if within or origin != "real" else ())


def test_rounding_and_a_statement_at_odds_with_itself_bound_what_is_asked():
    rough = Costs(100, rounding=0.3)
    rounded = Check("rounded", "made-up", rough, equal(1.0, scale=1.0, relative_margin=0.1))
    assert planned(rounded).needed["rounded"] == int(100 / 0.6**2)
    ((margin, alpha, prediction),) = rough.asked
    assert (margin, prediction) == (0.6, 1.0)
    assert alpha == pytest.approx(1e-3 / len(RESULTS))
    longer = a_cell("longer", block=10**5)
    for statement in (
        equal(nan, {"near": 1.2}),
        positive(-1.0, ["near"], scale=1.0),
        equal(0.0, {"near": 0.0}, scale=0.0),
    ):
        one = Check("one", "made-up", Costs(100, (CELL, longer)), statement)
        assert planned(one).needed == {"one": LARGEST_BLOCK}
        assert not one.functional.asked
    known = Check("known", "made-up", Known(1.0), equal(nan))
    assert (planned(known).needed, planned(known).replications) == ({"known": 0}, {})


def test_a_reserve_is_rounded_up():
    cells = a_cell("usual"), a_cell("reserved", reserve=1.5)
    assert planned(check("one", 101, on=cells)).needed == {"one": 152}
    assert planned(check("one", 101)).needed == {"one": 101}


@pytest.mark.parametrize(
    ("cell", "number", "size", "drawn"),
    [
        # Whole thousands, or a short block's whole.
        (CELL, 1, "smoke", 1024),
        (CELL, 1024, "smoke", 1024),
        (CELL, 1025, "smoke", 2048),
        (a_cell(block=65_536), 8193, "smoke", 9216),
        (a_cell(block=10**6), 8193, "smoke", 9216),
        (a_cell(block=100), 101, "smoke", 200),
        (a_cell(block=2000), 1, "smoke", 1024),
        (a_cell(least=3000), 1, "smoke", 3072),
        (CELL, 1000, "card", 10_240),
        # As much as can be afforded; of what is far beyond it a few blocks.
        (a_cell(budget=lambda number: 10_240), 10_241, "smoke", 10_240),
        (a_cell(budget=lambda number: 10_240), 102_400, "smoke", 10_240),
        (a_cell(budget=lambda number: 10_240), 102_401, "smoke", 32_768),
        (a_cell(budget=lambda number: number // 1000), 50_000, "smoke", 6144),
    ],
)
def test_replications_are_parts_of_blocks_that_can_be_afforded(cell, number, size, drawn):
    plan = planned(check("one", number, on=(cell,)), size=size)
    assert plan.needed == {"one": number}
    assert plan.replications == {"cell": drawn}


def test_a_cell_draws_what_the_check_needs_that_needs_most():
    other = a_cell("other")
    plan = planned(check("a", 5000), check("b", 2000, on=(CELL, other)), check("c", 100))
    assert plan.replications == {"cell": 5120, "other": 2048}


# Looks and rates.


def looked(name, looks, known=False):
    cells = tuple(a_cell(f"{name}{i}", looks=n) for i, n in enumerate(looks))
    return Check(name, "made-up", Known(1.0) if known else Costs(100, cells), equal(1.0))


def test_looks_share_the_rate_of_a_check_and_known_numbers_take_none():
    checks = looked("one", (1, 4)), looked("two", (2,)), looked("known", (), known=True)
    claim = Claim("mse", (), checks)
    assert (erring_of(claim), looks_of(claim)) == (2, 4)
    assert [looks_at(one.functional) for one in checks] == [4, 2, 1]
    assert alpha_of(claim) == pytest.approx(1e-3 / len(RESULTS) / 2)
    assert Plan.of(claim).alpha == alpha_of(claim) / 4
    assert alpha_of(replace(claim, family=1)) == pytest.approx(1e-3 / 2)
    alone = Claim("mse", (), checks[2:])
    assert (erring_of(alone), looks_of(alone)) == (0, 1)
    assert alpha_of(alone) == allotted_alpha(1)
    assert looks_of(Claim("mse", (), ())) == 1
    lazy = replace(checks[0], asks=lambda: checks[0].functional)
    assert erring_of(Claim("mse", (), (lazy, checks[2]))) == 1


def test_another_look_doubles_the_cells_of_what_is_open_and_ends():
    claim = Claim("mse", (), (looked("one", (1, 3)), looked("two", (2,))))
    plan = Plan.of(claim, replications={"one0": 5, "one1": 6, "two0": 7})
    assert plan.look == 1
    assert not plan.look_again([])
    assert plan.look == 1
    assert plan.look_again(["one"])
    assert plan.replications == {"one0": 5, "one1": 12, "two0": 7}
    # The second look of two is that of the plan, whichever check took it.
    assert not plan.look_again(["two"])
    assert plan.look_again(["one", "two"])
    assert (plan.look, plan.replications) == (3, {"one0": 5, "one1": 24, "two0": 7})
    assert not plan.look_again(["one", "two"])
    assert plan.look == 3


# Checks and claims as data.


def test_what_is_made_late_is_one_that_errs_at_two_looks():
    for made in (Known(1.0), Costs(1, (a_cell(looks=3),))):
        late = Check("late", "made-up", lambda made=made: made, lambda: equal(1.0))
        with pytest.raises(TypeError, match="late: counted as one that errs, at up to 2 looks"):
            _ = late.functional
    late = Check("late", "made-up", lambda: Costs(1, rounding=0.25), lambda: equal(1.0))
    assert (late.functional.number, late.statement.floor) == (1, 0.25)
    assert late.coarser(2.0).statement.margin == 2 * late.statement.margin


def test_a_claim_refuses_one_name_twice_and_rivals_that_it_does_not_list():
    refuses("mse: two checks have the same name", Claim, "mse", (), (check("a", 1), check("a", 2)))
    listed = Claim("mse", ("near",), (check("a", 1, {"near": 2.0, "far": 3.0}),))
    refuses(r"mse: rivals \['far'\] are not listed", listed.made)
    assert replace(listed, rivals=("near", "far")).made().label == RESULTS["mse"].label


def test_a_design_names_sizes_and_estimators_once_in_order():
    two = tuple(
        GradientCell(random_problem(0), size, batch) for size, batch in ((4, 2), (2, 3), (4, 3))
    )
    several = SimpleNamespace(estimators=(Estimator("oracle"), Estimator("grpo")))
    functional = SimpleNamespace(
        cells=two, quantities=(SquaredError(Estimator("grpo")), several), rounding=0.0
    )
    made = Check("one", "real", lambda: None, equal(1.0), problem="a problem")
    vars(made)["functional"] = functional
    design = made.design
    assert (design.problem, design.group_sizes, design.batch_sizes) == ("a problem", (2, 4), (2, 3))
    assert design.estimators == ("grpo", "oracle")
    assert design.columns == {
        "problem": "a problem", "group_size": None, "batch_size": None, "estimator": "grpo, oracle",
    }  # fmt: skip
    functional.quantities = (SimpleNamespace(group_size=7), SimpleNamespace(group_size=0))
    functional.cells = two[:1]
    assert made.design.columns == {
        "problem": "a problem", "group_size": 7, "batch_size": 2, "estimator": "",
    }  # fmt: skip


# Options, sizes and what is drawn of a cell.


def test_the_sizes_of_a_run_are_those_that_pages_state():
    stated = {name: (size.budget, size.point_blocks, size.times) for name, size in SIZES.items()}
    assert stated == {
        "smoke": (6_000_000, 1 / 8, 1),
        "quick": (20_000_000, 2, 1),
        "full": (500_000_000, 64, 1),
        "card": (5_000_000_000, 640, 10),
    }
    assert [block_of(a_cell(block=n)) for n in (1, 65_536, 65_537)] == [1, 65_536, 65_536]
    usual = Options()
    assert (usual.size, usual.engine, usual.seed, usual.workers) == ("quick", "cpu", 0, 1)
    assert (usual.progress, usual.device) == (False, "cpu")
    assert usual.simulates
    assert not Options(engine="exact").simulates
    refuses("workers is 0", Options, workers=0)


@pytest.mark.parametrize(
    ("engine", "number"), [("cpu", 8192), ("reference", 1024), ("exact", None)]
)
def test_a_pilot_is_drawn_where_no_verdict_reads(engine, number):
    cell = GradientCell(random_problem(0), 2)
    functional = SimpleNamespace(cells=(cell,), quantities=(SquaredError(Estimator("grpo")),))
    functional.parts = (functional,)
    measured = Measurements([functional], Options(engine=engine, seed=3))
    pilots = list(measured.pilot_tasks.values())
    assert [(one.replications, one.first, one.seed) for one in pilots] == (
        [(number, PILOT_FIRST, 3)] if number else []
    )
    assert [one.engine for one in measured.first_wave()] == [engine, "exact"][number is None :]
    blocks = measured.blocks({cell.name: 2 * LARGEST_BLOCK + 5})
    drawn = [(one.first, one.replications) for one in blocks.get(cell.name, ())]
    both = [(0, LARGEST_BLOCK), (LARGEST_BLOCK, LARGEST_BLOCK), (2 * LARGEST_BLOCK, 5)]
    assert drawn == (both if number else [])
    assert PILOT_FIRST >= MOST
    outputs = cell.outputs
    assert [one.weight for one in pilots] == ([number * outputs] if number else [])
    assert [replace(one, replications=5).weight for one in pilots] == [1024 * outputs] * len(pilots)

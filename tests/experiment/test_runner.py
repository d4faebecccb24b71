"""The runner: equal results whatever the workers and interruptions; open ends said so."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from simulations.problems import mse_of
from tests.support.claims import small_claim
from ustat_pg.checks import RivalVerdict, Verdict, equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import (
    Check,
    Claim,
    Interrupted,
    Options,
    Store,
    StoreError,
    load_results,
    mean_of,
    options,
    plan_claims,
    run_claims,
)
from ustat_pg.experiment import work as module
from ustat_pg.experiment.measurements import Measurements
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.report import document, exit_code, markdown, remarks, verdict_table
from ustat_pg.results import plain
from ustat_pg.validation import InputError


def claims_of(run) -> str:
    return json.dumps([plain(result) for result in run.claims])


def test_a_true_claim_is_confirmed_and_its_rival_refuted(tmp_path):
    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    (result,) = run.claims
    assert result.verdict == Verdict.CONFIRMED
    assert result.rivals[0].verdict == RivalVerdict.REFUTED
    assert exit_code(run.claims) == 0
    assert remarks(run.claims, run.set_aside) == []


def test_a_false_claim_is_refuted_by_both_kinds_of_evidence(tmp_path):
    run = run_claims([small_claim(truth=1.3)], Options("smoke"), Store(tmp_path))
    (result,) = run.claims
    assert result.verdict == Verdict.REFUTED
    assert result.evidence("exact") == result.evidence("simulation") == Verdict.REFUTED
    assert exit_code(run.claims) == 1
    assert "REFUTED by simulation" in "\n".join(remarks(run.claims, run.set_aside))


def test_a_rival_too_near_is_inconclusive_with_the_number_it_would_take(tmp_path):
    run = run_claims([small_claim(rival=1.0005)], Options("smoke"), Store(tmp_path))
    (result,) = run.claims
    assert result.verdict == Verdict.INCONCLUSIVE
    assert result.rivals[0].exact == RivalVerdict.REFUTED
    assert result.rivals[0].simulation == RivalVerdict.SURVIVED
    assert exit_code(run.claims) == 3
    needed = max(check.found["simulation"].replications_needed for check in result.checks)
    assert needed > Options("smoke").budget
    assert f"would need {needed:,} replications" in "\n".join(remarks(run.claims, run.set_aside))


def test_a_rival_that_coincides_is_not_distinguishable(tmp_path):
    run = run_claims([small_claim(rival=1.0)], Options("smoke"), Store(tmp_path))
    assert run.claims[0].rivals[0].verdict == RivalVerdict.NOT_DISTINGUISHABLE
    assert run.claims[0].verdict == Verdict.CONFIRMED


def test_exact_engine_enumerates_alone(tmp_path):
    run = run_claims([small_claim()], Options("smoke", engine="exact"), Store(tmp_path))
    (result,) = run.claims
    assert result.verdict == Verdict.CONFIRMED
    assert result.evidence("simulation") is None
    assert result.rivals[0].simulation is None


def test_what_cannot_be_enumerated_is_inconclusive_and_says_how_large(tmp_path):
    contexts, arms = 40, 12
    rng = np.random.default_rng(0)
    shape = (contexts, arms, 1)
    problem = SoftmaxBandit.tabular(
        np.full(contexts, 1 / contexts),
        rng.normal(size=shape[:2]),
        rng.random(shape),
        np.ones(shape),
    )
    value = gradient_mse(problem.moments(), "grpo", 2, 3).mse
    check = Check(
        "large", "user", mean_of(GradientCell(problem, 2, 3), mse_of("grpo")), equal(value)
    )
    run = run_claims([Claim("mse", (), (check,))], Options("smoke"), Store(tmp_path))
    assert run.claims[0].verdict == Verdict.INCONCLUSIVE
    assert run.claims[0].evidence("simulation") == Verdict.CONFIRMED
    assert "outcomes" in "\n".join(remarks(run.claims, run.set_aside))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return claims_of(
        run_claims([small_claim()], Options("smoke"), Store(tmp_path_factory.mktemp("whole")))
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_change_no_byte(workers, whole, tmp_path):
    run = run_claims([small_claim()], Options("smoke", workers=workers), Store(tmp_path))
    assert claims_of(run) == whole


def test_processes_change_no_byte(whole, tmp_path):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        run = run_claims([small_claim()], Options("smoke", workers=2), Store(tmp_path), pool)
    assert claims_of(run) == whole


def test_three_interruptions_change_no_byte_and_lose_no_block(whole, tmp_path):
    finished = 0
    for allowed in (1, 1, 1):
        left = [allowed]

        def interrupt(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            run_claims([small_claim()], Options("smoke"), Store(tmp_path), on_done=interrupt)
        now = len(list(tmp_path.glob("*.json")))
        # Blocks that were under way are finished and kept as well.
        assert finished + allowed <= now <= finished + allowed + 2
        finished = now
    count = [0]

    def tick() -> None:
        count[0] += 1

    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path), on_done=tick)
    assert claims_of(run) == whole
    assert count[0] == len(list(tmp_path.glob("*.json"))) - finished


def test_a_second_run_computes_nothing(tmp_path, monkeypatch):
    first = run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    monkeypatch.setattr(module, "run_task", lambda task: pytest.fail(f"ran {task}"))
    again = run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    assert claims_of(again) == claims_of(first)


def test_a_truncated_block_is_computed_again_and_reported(whole, tmp_path):
    run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    victim = sorted(tmp_path.glob("*.json"))[0]
    victim.write_text(victim.read_text()[:50])
    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    assert claims_of(run) == whole
    assert run.set_aside == (str(victim.with_suffix(".damaged")),)
    assert "kept and computed again" in "\n".join(remarks(run.claims, run.set_aside))


def test_a_disk_that_fills_keeps_what_was_finished(whole, tmp_path, monkeypatch):
    store, written = Store(tmp_path), []
    put = store.put

    def fill(description, result):
        if len(written) == 2:
            raise StoreError("No space left on device")
        written.append(description)
        put(description, result)

    monkeypatch.setattr(store, "put", fill)
    with pytest.raises(StoreError, match="No space"):
        run_claims([small_claim()], Options("smoke"), store)
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert claims_of(run_claims([small_claim()], Options("smoke"), Store(tmp_path))) == whole


def test_more_replications_begin_with_the_same_blocks(tmp_path):
    (plan,) = plan_claims([small_claim()], Options("smoke"), Store(tmp_path))
    measured = Measurements((c.functional for c in plan.claim.checks), Options("smoke"))
    name, cell = next(iter(measured.cells.items()))
    counts = dict.fromkeys(measured.cells, cell.block)
    few = measured.blocks(counts)[name]
    many = measured.blocks({**counts, name: 5 * cell.block})[name]
    assert many[: len(few)] == few
    assert len(many) == 5 * len(few) == 5


def test_the_plan_is_what_the_run_does(tmp_path):
    (plan,) = plan_claims([small_claim()], Options("smoke"), Store(tmp_path / "a"))
    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path / "b"))
    drawn = {c.name: c.found["simulation"] for c in run.claims[0].checks}
    for name, needed in plan.needed.items():
        assert drawn[name].replications_needed == needed
        assert drawn[name].replications >= needed


def test_reference_engine_gives_the_same_verdicts(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "LARGEST_BLOCK", 16_384)
    run = run_claims([small_claim()], Options("smoke", engine="reference"), Store(tmp_path))
    assert run.claims[0].verdict == Verdict.CONFIRMED


def test_results_load_as_a_tidy_frame(tmp_path):
    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path / "blocks"))
    (tmp_path / "verdicts.json").write_text(document(run, Options("smoke")).json())
    frame = load_results(tmp_path)
    assert len(frame) == 4
    assert set(frame["kind"]) == {"exact", "simulation"}
    drawn = frame[frame["kind"] == "simulation"]
    assert (drawn["low"] < drawn["prediction"]).all()
    assert (drawn["replications"] > 0).all()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"claims": [{}]}'])
def test_no_results_are_one_clear_error(tmp_path, text):
    if text is not None:
        (tmp_path / "verdicts.json").write_text(text)
    with pytest.raises(InputError, match=r"verdicts\.json: no"):
        load_results(tmp_path)


def test_table_and_report_name_every_check(tmp_path):
    run = run_claims([small_claim()], Options("smoke"), Store(tmp_path))
    assert "Theorem 2" in verdict_table(run.claims)
    assert "exact + simulation" in verdict_table(run.claims)
    page = markdown(document(run, Options("smoke"), "the command"))
    for part in ("G=2", "G=3", "other", "the command", "CONFIRMED"):
        assert part in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "huge"}, "size 'huge'"),
        ({"engine": "gpu"}, "engine 'gpu'"),
        ({"seed": -1}, "seed is -1"),
        ({"workers": 0}, "workers is 0"),
        ({"size": []}, r"size \[\] is unknown: choose one of smoke"),
        ({"device": "tpu"}, "device is 'tpu': choose cpu, cuda or cuda:N"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        Options(**options)

"""Each benchmark runs, tiny: its peers compute the same, and it prints a row for each program."""

import json
import re
import tomllib
from dataclasses import replace
from functools import partial

import pytest

from benchmarks import configs, gpu, mse_kernel, pass_rates, seeds, trajectories, weighted_chi2
from simulations import ON_NETWORKS, STEMS
from tests.support.commands import python
from tests.support.readme import printed_table


def test_mse_kernel(monkeypatch, capsys):
    assert mse_kernel.main(["--quick"]) == 0
    case = mse_kernel.Case(5, 4)
    assert capsys.readouterr().out.count("| (5, 4)") == 1 + len(mse_kernel.peers(case))
    true = mse_kernel.peers(case)["NumPy, bisection"]

    def with_the_own_reward(replications):
        """The group's whole mean: (G - 1)/G of the estimate."""
        return (3 / 4) ** 2 * true(replications)

    monkeypatch.setattr(mse_kernel, "peers", lambda case: {"planted": with_the_own_reward})
    with pytest.raises(SystemExit, match="planted at K=5, G=4 computes something else"):
        mse_kernel.main(["--quick"])


def test_trajectories(monkeypatch, capsys):
    case = trajectories.Case("tiny", contexts=3, arms=5, d=2, group=2)
    assert trajectories.main(["--quick"], [case]) == 0
    assert capsys.readouterr().out.count("| tiny") == 1 + len(trajectories.peers(case))
    slower = partial(trajectories.engine, replace(case, c=9.0))
    monkeypatch.setattr(trajectories, "peers", lambda _: {"planted": slower})
    with pytest.raises(SystemExit, match="planted, tiny, computes something else"):
        trajectories.measure(case, 10_000, 60, 1)


def test_gpu_says_that_there_is_no_device(monkeypatch, capsys):
    monkeypatch.setattr("numba.cuda.is_available", lambda: False)
    assert gpu.main(["--quick"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("engine cuda finds no CUDA device")


IN_SIMULATOR = """
import sys
from benchmarks import gpu
def wrong(*call):
    return 1e-11
if sys.argv[1] == "planted":
    gpu.off = wrong
sys.exit(gpu.main(["--quick"]))
"""


@pytest.mark.parametrize("case", ["true", "planted"])
def test_gpu_compares_numbers_before_it_takes_times(case):
    plain = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    done = python(IN_SIMULATOR, case, **plain)
    assert done.returncode == (case == "planted"), done.stderr
    times = [line for line in done.stdout.splitlines() if "| cuda " in line]
    assert len(times) == (0 if case == "planted" else 7)
    assert ("not the same" in done.stdout) == (case == "planted")


def test_weighted_chi2(monkeypatch, capsys):
    (pair,) = (case for case in weighted_chi2.cases(20) if case.name == "pairs_3_1_0.2")
    monkeypatch.setattr(weighted_chi2, "cases", lambda most: (pair,))
    assert weighted_chi2.main(["--quick"]) == 0
    out = capsys.readouterr().out
    assert "- pairs_3_1_0.2: the peer" in out
    assert out.count("| pairs_3_1_0.2") == len(weighted_chi2.PROGRAMS)


def test_seeds_are_counted_and_go_on_where_they_were_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(seeds, "FOLDER", tmp_path)
    monkeypatch.setattr(seeds, "STEMS", ("oracle",))
    monkeypatch.setattr(seeds, "STORE", seeds.Kept())
    words = ["--engine", "exact", "--workers", "1"]
    assert seeds.main([*words, "--seeds", "1", "--first", "3"]) == 0
    out = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")][2:]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["oracle", "1", "0", "0", "0", "0.950"],
        ["a whole run", "1", "0", "0", "0", "0.950"],
    ]
    true, asked = seeds.one_seed, []

    def planted(seed, *how):
        asked.append(seed)
        if seed == 4:
            raise KeyboardInterrupt
        return {**true(3, *how), "seed": seed, "claims": {"oracle": "REFUTED"}, "rivals": [],
                "checks": [["oracle", "plain#5.0 G=2: ratio", "REFUTED"]]}  # fmt: skip

    monkeypatch.setattr(seeds, "one_seed", planted)
    assert seeds.main([*words, "--seeds", "3", "--first", "3"]) == 130
    monkeypatch.setattr(seeds, "one_seed", lambda seed, *how: planted(seed + 1, *how) | {"seed": 4})
    assert seeds.main([*words, "--seeds", "2", "--first", "3"]) == 1
    out = capsys.readouterr().out
    assert asked == [4, 5]
    # All are done: nothing is asked again, by however many workers.
    assert seeds.main(["--engine", "exact", "--seeds", "2", "--first", "3", "--workers", "2"]) == 1
    assert capsys.readouterr().out.split("\n\n")[1:] == out.split("\n\n")[1:]
    assert "| a whole run |       2 |         1 |" in out
    assert "- oracle: plain#_ G=_: ratio: REFUTED: 1, seeds 4" in out
    # What other code has said is not counted.
    monkeypatch.setattr(seeds, "code", lambda: "another")
    refused = {"seed": 3, "claims": {}, "checks": [], "rivals": [], "refused": "no", "seconds": 0.0}
    monkeypatch.setattr(seeds, "one_seed", lambda *how: refused)
    assert seeds.main([*words, "--seeds", "1", "--first", "3"]) == 1
    assert "1 of 1 seeds could not be run." in capsys.readouterr().out


def test_the_page_holds_a_count_of_each_kind_of_run_on_one_code(tmp_path, monkeypatch, capsys):
    page = tmp_path / "seeds.md"
    page.write_text("# Seeds\n\n<!-- counts -->\n<!-- end -->\n\nMore.\n")
    monkeypatch.setattr(seeds, "PAGE", page)
    monkeypatch.setattr(seeds, "FOLDER", tmp_path)
    bad = {"claims": {"mse": "REFUTED"}, "checks": [], "rivals": [["mse", "x", "SURVIVED"]]}
    made = {"claims": {"mse": "CONFIRMED"}, "checks": [], "rivals": []}

    def one_seed(seed, *how):
        return {
            "seed": seed,
            "refused": None,
            "asked": 9,
            "seconds": 30.0,
            **(made if seed else bad),
        }

    monkeypatch.setattr(seeds, "one_seed", one_seed)
    for words in ([], ["--engine", "exact"], ["--engine", "exact", "--on", "tokens"], []):
        seeds.main([*words, "--seeds", "4", "--first", "0", "--workers", "1", "--write"])
    runs = ["smoke, enumeration", "smoke, enumeration, on tokens", "smoke, both kinds of evidence"]
    rows = seeds.counted(page.read_text())
    assert [row["run"] for row in rows] == runs
    assert list(rows[0].values())[3:10] == ["4 (0 on)", "1", "9", "1", "0", "1", "0"]
    assert rows[0]["processor minutes"] == "2.0"
    assert page.read_text().endswith("<!-- end -->\n\nMore.\n")
    monkeypatch.setattr(seeds, "code", lambda: "another")
    seeds.main(["--seeds", "1", "--first", "1", "--workers", "1", "--write"])
    assert [row["code"] for row in seeds.counted(page.read_text())] == ["another"]


def test_the_record_is_of_today_s_results_and_of_one_code():
    rows = seeds.counted(seeds.PAGE.read_text("utf-8"))
    assert len({row["code"] for row in rows}) == 1
    table = re.findall(r"\| CONFIRMED \| .* \| (\d+) of \d+ \|", printed_table())
    for row in rows:
        on_bandits = " on " not in row["run"]
        assert int(row["results"]) == len(STEMS if on_bandits else ON_NETWORKS)
        assert not on_bandits or int(row["wrong formulas"]) == sum(map(int, table))


def test_noise(monkeypatch, capsys):
    pytest.importorskip("trl")
    from benchmarks import noise
    from ustat_pg.llm.models.loading import load_model

    monkeypatch.setattr(noise, "language_model", lambda: load_model("embedded:strong"))
    noise.main(["--pairs", "2", "--tokens", "4"])
    assert "mean of 2 ratios of pairs" in capsys.readouterr().out


def test_files_are_counted_by_what_was_expected(tmp_path, capsys):
    texts = {
        "a.sh": "python -m verl.trainer.main_ppo algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=4",
        "b.sh": "swift sft --model m",
        "c.sh": "trl grpo --num_generations 8",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    wanted = [
        {"path": "a.sh", "framework": "verl", "estimator": "rloo", "group_size": 4},
        {"path": "b.sh", "framework": "none", "estimator": "none", "group_size": None},
        {"path": "c.sh", "framework": "trl", "estimator": "std-ddof1", "group_size": 4},
        {"path": "gone.sh", "framework": "trl", "estimator": "std-ddof1", "group_size": 4},
    ]
    expected = tmp_path / "expected.jsonl"
    expected.write_text("".join(json.dumps(row) + "\n" for row in wanted))
    assert configs.main([str(tmp_path), str(expected)]) == 1
    out = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if "|" in line
    ]
    assert rows[2:] == [["none", "1", "0", "0"], ["trl", "0", "1", "1"], ["verl", "1", "0", "0"],
                        ["all", "2", "1", "1"]]  # fmt: skip
    assert "- wrong: c.sh: trl: std-ddof1, G = 8 (expected trl, std-ddof1, G = 4)" in out


def test_pass_rates(monkeypatch, capsys, tmp_path):
    """The embedded model has a known rate; the table that ships is as it would be written."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from ustat_pg.llm.models.loading import load_model

    shipped = pass_rates.settings()
    assert pass_rates.written(shipped) == pass_rates.SETTINGS.read_text()
    row = {"task": "embedded:short:problems=40"}
    monkeypatch.setattr(pass_rates, "settings", lambda: {"short": {"sums": row}})
    monkeypatch.setattr(pass_rates, "load_model", lambda name: load_model(f"embedded:{name}"))
    monkeypatch.setattr(pass_rates, "SETTINGS", tmp_path / "settings.toml")
    assert pass_rates.main(["--write"]) == 0
    assert "| short:sums |" in capsys.readouterr().out
    (kept,) = tomllib.loads((tmp_path / "settings.toml").read_text())["short"].values()
    assert (kept["task"], kept["prompts"], kept["samples"]) == (row["task"], 16, 16)
    assert 0.3 < kept["rate"] < 0.8
    assert 0 < kept["rate_se"] < 0.15


def test_metric_has_a_row_for_each_metric(monkeypatch, capsys, tmp_path):
    pytest.importorskip("trl")
    from benchmarks import metric

    true = metric.setting
    small = {"prompts": 4, "samples": 4}
    monkeypatch.setattr(metric, "STEPS", 2)
    monkeypatch.setattr(metric, "RUN", metric.RUN | {"max_steps": 2, "save_steps": 2})
    monkeypatch.setattr(metric, "setting", lambda name: true(name) | small)
    assert metric.main(["short", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in ("adam", "plain", "floored"):
        assert re.search(rf"^\| short \| 0\.\d\d \| {name} \|", text, re.M)
    assert re.search(r"^short: \d+\.\d% of coordinates give ", text, re.M)
    # A second call reads the training and the pool.
    monkeypatch.setattr(metric.subprocess, "run", None)
    assert metric.main(["short", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == text

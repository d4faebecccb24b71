"""Two logs side by side: the difference by SciPy and statsmodels, its interval and its gap by simulation."""

import math

import numpy as np
import pytest
from scipy.stats import nct, t
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from tests.support.commands import jsonl, out_of, refusal_of, strict
from tests.support.refusals import refuses
from ustat_pg.cli import main
from ustat_pg.llm.rollouts.two_logs import reward_difference

rng = np.random.default_rng(2026)


def named(rewards, start=0):
    return {f"q{start + x}": row for x, row in enumerate(rewards)}


def words(record):
    return " ".join(str(record).split())


def rows(table):
    return [{"prompt": name, "reward": z} for name, group in table.items() for z in group]


GRADED = [rng.normal(size=(20, 1)) + rng.normal(size=(20, 5)) for _ in range(2)]
UNEVEN = [row[: 1 + x % 5] for x, row in enumerate(GRADED[1])]


def test_prompts_that_are_shared_are_paired():
    found = reward_difference(named(GRADED[0]), named(UNEVEN))
    apart = DescrStatsW(GRADED[0].mean(axis=1) - [row.mean() for row in UNEVEN])
    assert found.paired
    assert (found.shared, found.left_out) == (20, (0, 0))
    assert found.second.rollouts == (1, 5)
    assert found.difference.interval == pytest.approx(apart.tconfint_mean())
    assert found.difference.se == pytest.approx(apart.std_mean)
    _chance_of_80(found.gap / apart.std_mean, 19)


def test_prompts_of_one_log_alone_are_two_samples_of_prompts():
    means = [row.mean() for row in UNEVEN[:13]]
    two = CompareMeans(DescrStatsW(GRADED[0].mean(axis=1)), DescrStatsW(means))
    apart = reward_difference(named(GRADED[0]), named(UNEVEN[:13], 14))
    assert (apart.paired, apart.shared, apart.left_out) == (False, 6, (0, 0))
    assert apart.difference.interval == pytest.approx(two.tconfint_diff(usevar="unequal"))
    _chance_of_80(apart.gap / two.std_meandiff_separatevar, two.dof_satt())


def _chance_of_80(size, freedom):
    """By SciPy's noncentral law."""
    edge = t.isf(0.025, freedom)
    chance = nct.sf(edge, freedom, size) + nct.cdf(-edge, freedom, size)
    assert chance == pytest.approx(0.8, abs=1e-6)


def test_less_than_half_in_common_is_no_pair_and_prompts_left_out_are_counted():
    one = named(GRADED[0])
    assert not reward_difference(one, named(GRADED[1], 11)).paired
    found = reward_difference(one, named(GRADED[1], 10))
    assert (found.paired, found.shared, found.left_out) == (True, 10, (10, 10))
    assert found.first.prompts == found.second.prompts == 10


def test_rewards_in_other_units_are_the_same_differences():
    plain = reward_difference(named(GRADED[0]), named(UNEVEN))
    other = reward_difference(named(100 * GRADED[0] - 7), named([100 * row - 7 for row in UNEVEN]))
    assert other.gap == pytest.approx(100 * plain.gap)
    assert np.array(other.difference.interval) == pytest.approx(
        100 * np.array(plain.difference.interval)
    )
    two = reward_difference(named(2 * (GRADED[0] > 0) - 1), named(2 * (GRADED[1] > 0) - 1))
    assert two.pass_rate.value == pytest.approx(two.difference.value / 2)
    assert plain.pass_rate is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_rewards_have_an_interval_by_a_rule_that_is_said(value):
    """No prompt of 50 differs: at most 1 - .025^(1/50) of them do, each by at most the range."""
    equal = named(np.full((50, 4), value))
    found = reward_difference(equal, equal)
    widest = 1 - 0.025 ** (1 / 50)
    assert found.difference.interval == pytest.approx((-widest, widest))
    said = "No prompt shows a spread, so the interval is that of shares of the range 0 to 1."
    assert said in words(found)
    apart = reward_difference(equal, named(np.full((50, 2), value), 50))
    # A share within [0, w] and another: sqrt(w² + 0²) from their difference of 0.
    assert apart.difference.interval == pytest.approx((-widest, widest))
    # What rounding alone keeps apart is equal.
    third = named(np.full((50, 3), 0.1)) | {"other": [1.0]}
    nearly = named(np.full((50, 7), 0.1 * (1 + 1e-15))) | {"other": [1.0]}
    assert reward_difference(third, nearly).few


def test_equal_rewards_of_an_unknown_range_have_no_interval():
    found = reward_difference(named(np.full((5, 2), 7.0)), named(np.full((5, 2), 7.0)))
    assert found.difference.interval == (-math.inf, math.inf)
    assert found.gap is None
    assert "all rewards are equal, and their range is not known" in words(found)


def test_one_prompt_has_a_difference_and_no_interval():
    one = {"q0": [1, 0, 1]}
    for found in (reward_difference(one, named(GRADED[0])), reward_difference(one, one)):
        assert found.difference.interval == (-math.inf, math.inf)
        assert found.gap is None
        assert "1 prompt does not show how rewards vary between prompts" in words(found)
        assert "The gap that these runs could have seen is not known." in words(found)


def _simulate(draw, gap, repetitions=1000):
    """The shares of intervals that cover the gap and that exclude 0, and the root mean square of the gaps."""
    found = [reward_difference(*draw(gap)) for _ in range(repetitions)]
    ends = np.array([each.difference.interval for each in found])
    covers = (ends[:, 0] <= gap) & (gap <= ends[:, 1])
    told = (ends[:, 0] > 0) | (ends[:, 1] < 0)
    return covers.mean(), told.mean(), float(np.sqrt(np.mean([each.gap**2 for each in found])))


_FOUR = 4 / math.sqrt(1000)
"""Four standard errors of a share of 1,000 repetitions, over the deviation of one."""


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("uneven", [False, True])
def test_intervals_cover_and_the_stated_gap_is_seen_with_a_chance_of_80(paired, uneven):
    """A prompt's level and its rollouts are normal, so interval and power are exact, up to Welch's."""
    draws = np.random.default_rng(7 + 2 * paired + uneven)
    prompts = (40, 40) if paired else (25, 60)
    sizes = [1 + np.arange(count) % 4 if uneven else np.full(count, 3) for count in prompts]

    def run(levels, sizes, start):
        return named([draws.normal(z, 1.0, n) for z, n in zip(levels, sizes, strict=True)], start)

    def draw(gap):
        one, two = (draws.normal(0.0, 0.7, count) for count in prompts)
        second = one if paired else two
        return run(one + gap, sizes[0], 0), run(second, sizes[1], 0 if paired else 1000)

    # A gap shifts intervals and no more; the mean of 200 is off by less than 1%.
    _, _, gap = _simulate(draw, 0.0, 200)
    covered, seen, _ = _simulate(draw, gap)
    assert covered == pytest.approx(0.95, abs=_FOUR * math.sqrt(0.95 * 0.05))
    assert seen == pytest.approx(0.8, abs=_FOUR * math.sqrt(0.8 * 0.2))


def test_rollouts_as_if_independent_would_not_cover():
    """The control: with the rollouts in place of prompts the same simulation refuses the interval."""
    draws = np.random.default_rng(3)

    def draw(gap):
        levels = draws.normal(0.0, 0.7, (2, 25, 1))
        both = [z + draws.normal(0.0, 1.0, (25, 6)) for z in levels]
        return named(both[0].reshape(-1, 1)), named(both[1].reshape(-1, 1), 1000)

    covered, _, _ = _simulate(draw, 0.0, 500)
    assert covered < 0.95 - 2 * _FOUR * math.sqrt(0.95 * 0.05)


@pytest.mark.parametrize(
    ("counts", "rollouts", "rates"),
    [
        ((5, 5), (1, 1), (0.8, 0.8)),
        ((12, 12), (2, 1), (0.1, 0.2)),
        ((30, 30), (1, 1), (0.97, 0.97)),
        ((100, 40), (4, 1), (0.01, 0.03)),
        ((12, 200), (8, 2), (0.5, 0.02)),
    ],
)
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_few_telling_prompts_cover(counts, rollouts, rates, paired):
    draws = np.random.default_rng(11)
    counts = (min(counts),) * 2 if paired else counts

    def draw(gap):
        pairs = zip(counts, rollouts, rates, (0, 0 if paired else 1000), strict=True)
        return [named(draws.binomial(1, p, (n, g)), start) for n, g, p, start in pairs]

    truth = rates[0] - rates[1]
    ends = np.array([reward_difference(*draw(0)).difference.interval for _ in range(1000)])
    covered = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
    assert covered >= 0.95 - _FOUR * math.sqrt(0.95 * 0.05)


def test_the_command_says_it_in_text_json_and_csv(tmp_path, capsys):
    right = [rng.random((40, n)) < 0.25 + 0.5 * (np.arange(40)[:, None] % 2) for n in (8, 4)]
    tables = [named(right[0].astype(float).tolist()), named(right[1].astype(float).tolist(), 5)]
    one, two = (jsonl(tmp_path / f"{i}.jsonl", *rows(table)) for i, table in enumerate(tables))
    found = reward_difference(*tables)
    text = " ".join(out_of(capsys, main, "rewards", one, "--against", two).split())
    assert f"first minus second: {found.difference}" in text
    assert f"without 5 of {one}, 5 of {two}, which the other lacks. Student's interval" in text
    assert f"could have seen a gap of {found.gap:.3g}: with a chance of 80%" in text
    assert "Each prompt counts once" in text
    result = strict(out_of(capsys, main, "rewards", one, "--against", two, "--json"))
    assert result["difference"]["value"] == pytest.approx(found.difference.value)
    assert (result["gap"], result["power"]) == pytest.approx((found.gap, 0.8))
    assert result["paired"]
    assert result["pass_rate"] == pytest.approx(result["difference"])
    table = out_of(capsys, main, "rewards", one, "--against", two, "--csv").splitlines()
    assert table[0] == "quantity,difference,se,low,high"
    assert len(table) == 3


def test_files_of_ones_own_pair_by_ids_and_not_by_places(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"rewards": [[1, 0], [1, 1, 1], [0]]}')
    (tmp_path / "b.json").write_text('{"rewards": [[1, 0], [1], [0]], "ids": ["0", "1", "2"]}')
    (tmp_path / "c.json").write_text('{"rewards": [[1], [0], [0, 1]], "ids": ["0", "1", "3"]}')
    shared = [
        strict(
            out_of(capsys, main, "rewards", tmp_path / one, "--against", tmp_path / two, "--json")
        )
        for one, two in (("a.json", "a.json"), ("a.json", "b.json"), ("b.json", "c.json"))
    ]
    assert [found["shared"] for found in shared] == [0, 0, 2]


def test_what_cannot_be_compared_is_one_line(tmp_path, capsys):
    log = jsonl(tmp_path / "log.jsonl", *rows(named([[1, 0], [0, 1]])))
    bad = jsonl(
        tmp_path / "bad.jsonl", {"prompt": "q0", "reward": 1}, {"prompt": "q0", "reward": "x"}
    )
    said = refusal_of(capsys, main, "rewards", log, "--against", bad)
    assert "bad.jsonl, line 2, column reward: 'x' is not a number" in said
    said = refusal_of(capsys, main, "rewards", log, "--against", tmp_path / "none.jsonl")
    assert "none.jsonl" in said
    said = refusal_of(
        capsys, main, "rewards", log, "--against", log, "--group-sizes", "2", "--draw"
    )
    assert "leave out --group-sizes, --draw, which would be ignored" in said
    refuses("without rewards, or no prompt", reward_difference, {}, {"q": [1]})
    refuses("first gave nan as reward 1 of 1", reward_difference, {"q": [math.nan]}, {"q": [1]})
    refuses("their range must be finite", reward_difference, {"q": [-1e308]}, {"q": [1e308]})

"""Why a loss is 0 or a reward flat: each cause is planted in a log, and a sound log gets no word."""

import re

import numpy as np
import pandas as pd
import pytest

from tests.support.commands import jsonl, out_of, refusal_of, strict
from tests.support.refusals import refuses
from ustat_pg.catalogue import catalogue
from ustat_pg.cli import main
from ustat_pg.estimators import standardised
from ustat_pg.llm.rollouts.files import load_rewards, load_rollouts, logged_rewards
from ustat_pg.llm.rollouts.rewards import summarise_rewards
from ustat_pg.validation import InputError

rng = np.random.default_rng(0)
GROUPS, SIZE = 100, 8
MIXED = np.tile([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0], (GROUPS, 1))
SOUND = {
    "right and wrong": (rng.random((GROUPS, SIZE)) < rng.random((GROUPS, 1))).astype(float),
    "graded": rng.random((GROUPS, SIZE)),
    "by the prompt": rng.normal(size=(GROUPS, SIZE)) + 5 * rng.normal(size=(GROUPS, 1)),
    "-1 and 1": 2 * MIXED - 1,
}


def log(path, rewards=None, **columns):
    """A log of groups, a row for each output; columns are (P, N)."""
    given = {**({} if rewards is None else {"reward": rewards}), **columns}
    tables = {name: np.asarray(table).tolist() for name, table in given.items()}
    count, size = np.shape(next(iter(given.values())))
    rows = (
        {"prompt": f"{x}+1=", "completion": f"{i}"}
        | {name: table[x][i] for name, table in tables.items()}
        for x in range(count)
        for i in range(size)
    )
    return jsonl(path / "log.jsonl", *rows)


def found(path, *args, reward=None, **columns):
    return summarise_rewards(log(path, *args, **columns), reward=reward).findings


def first(count, value, otherwise):
    """A column of groups, the first of them with one value."""
    table = np.array(np.broadcast_to(otherwise, (GROUPS, SIZE)), dtype=object)
    table[:count] = value
    return table


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_log_gets_no_word(tmp_path, capsys, name):
    ended = np.full((GROUPS, SIZE), "stop", dtype=object)
    ended[:8] = "length"
    summary = summarise_rewards(log(tmp_path, SOUND[name], finish_reason=ended))
    assert summary.findings == []
    assert str(summary).count("\n\n") == 2
    result = strict(out_of(capsys, main, "rewards", tmp_path / "log.jsonl", "--json"))
    assert result["findings"] == []


@pytest.mark.parametrize(
    ("groups", "value", "said"),
    [
        (80, 0.0, "All rewards are 0 in 80 of them: prompts are too hard, or the verifier rejects"),
        (50, 1.0, "All rewards are 1 in 50 of them: prompts are too easy, or the verifier accepts"),
        (60, 0.5, "their gradient is 0."),
    ],
)
def test_silent_groups(tmp_path, capsys, groups, value, said):
    rewards = first(groups, value, MIXED)
    (silent,) = found(tmp_path, rewards)
    assert (silent.cause, silent.count, silent.of) == ("silent", groups, GROUPS)
    assert (
        f"{groups} of 100 groups ({groups}%) have equal rewards, so their gradient is 0."
        in silent.says
    )
    assert said in silent.says
    result = strict(out_of(capsys, main, "rewards", tmp_path / "log.jsonl", "--json"))
    (recorded,) = result["findings"]
    assert recorded == {"cause": "silent", "count": groups, "of": GROUPS, "says": silent.says}
    text = out_of(capsys, main, "rewards", tmp_path / "log.jsonl")
    assert silent.says in " ".join(text.split())
    assert found(tmp_path, first(49, value, MIXED)) == []


def test_equal_up_to_rounding_and_a_log_of_one_value(tmp_path):
    rounded = np.full((GROUPS, SIZE), 0.3)
    rounded[:, ::2] = 0.1 + 0.2
    assert [each.cause for each in found(tmp_path, rounded)] == ["silent"]
    (lost,), (won,) = (found(tmp_path, np.full((5, 4), value)) for value in (0.0, 1.0))
    assert "too hard" in lost.says
    assert "too easy" in won.says


@pytest.mark.parametrize(
    ("column", "cut", "ended"),
    [
        ("truncated", True, False),
        ("is_truncated", True, False),
        ("finished", False, True),
        ("finish_reason", "length", "stop"),
        ("stop_reason", "max_tokens", "end_turn"),
        ("status", "truncated", "completed"),
    ],
)
def test_truncation(tmp_path, column, cut, ended):
    rewards = first(60, 0.0, MIXED)
    silent, truncated = found(tmp_path, rewards, **{column: first(60, cut, ended)})
    assert silent.says.endswith("All rewards are 0 in 60 of them.")
    assert (truncated.cause, truncated.count, truncated.of) == ("cut off", 480, 800)
    assert truncated.says.startswith(
        "480 of 800 outputs (60%) were cut off: their mean reward is 0, that of the others 0.375. In 60 of "
        "60 groups of equal rewards all outputs were cut off."
    )
    # Without the cause, and where outputs that are cut off have no lower rewards.
    (alone,) = found(tmp_path, rewards, **{column: first(0, cut, ended)})
    assert "too hard" in alone.says
    assert found(tmp_path, MIXED, **{column: first(60, cut, ended)}) == []


def test_truncation_in_a_file_of_ones_own_and_in_a_csv(tmp_path):
    rows = [{"rewards": [0, 0, 0, 1], "finished": [False, False, False, True]}] * 3
    summary = summarise_rewards(jsonl(tmp_path / "own.jsonl", *rows))
    assert [(each.cause, each.count) for each in summary.findings] == [("cut off", 9)]
    bad = jsonl(tmp_path / "bad.jsonl", {"rewards": [0, 0, 0, 1], "finished": [1, 0, 0, 0]})
    refuses("has finished = .*: it must be true or false for each", summarise_rewards, bad)
    frame = pd.read_json(
        log(tmp_path, first(60, 0.0, MIXED), truncated=first(60, True, False)), lines=True
    )
    frame.to_csv(tmp_path / "log.csv", index=False)
    said = summarise_rewards(tmp_path / "log.csv").findings
    assert [each.count for each in said] == [60, 480]


def test_a_store_says_what_ended(tmp_path, small):
    from ustat_pg.llm.prompts import Prompt, Task
    from ustat_pg.llm.rollouts.stored import sample

    def lost(prompts, completions, **columns):
        return [0.0] * len(completions)

    task = Task("sums", tuple(Prompt(f"{i}", f"{i}+1=") for i in range(3)), lost, 1)
    drawn = sample(small, task, 4, store=tmp_path / "store.jsonl")
    ends = {small.tokenizer.eos_token_id}
    expected = [[ids[-1] in ends for ids in pool.completion_ids] for pool in drawn]
    np.testing.assert_array_equal(logged_rewards(tmp_path / "store.jsonl").finished, expected)


def test_texts_that_were_cut_off_have_no_end(tmp_path, small):
    path = log(tmp_path, MIXED[:1], truncated=[[True, False] * 4])
    (pool,) = load_rollouts(path, small)
    end = small.tokenizer.eos_token_id
    assert [ids[-1] == end for ids in pool.completion_ids] == [False, True] * 4


def test_one_reward_of_several_is_constant(tmp_path, capsys):
    form = first(90, 1.0, np.tile([1.0, 0.0], SIZE // 2))
    (constant,) = found(tmp_path, correct=MIXED, form=form, reward="correct+0.5*form")
    assert (constant.cause, constant.count, constant.of) == ("constant part", 90, 100)
    assert constant.says == (
        "form is constant in 90 of the 100 groups with unequal rewards (90%): their advantages come from "
        "correct alone."
    )
    # The groups of equal sums say nothing of either.
    silent, constant = found(
        tmp_path, correct=first(60, 0.0, MIXED), form=form, reward="correct+form"
    )
    assert (silent.count, constant.count, constant.of) == (90 - 30, 30, 40)
    sound = found(tmp_path, correct=MIXED, form=MIXED[:, ::-1], reward="correct+form")
    assert sound == []
    said = refusal_of(capsys, main, "rewards", tmp_path / "log.jsonl")
    assert (
        "2 columns of rewards: name one (--reward NAME), of correct, form, or a sum, correct+form"
        in said
    )


def test_sums_of_rewards(tmp_path):
    missing = MIXED.astype(object)
    missing[0, 0] = None
    path = log(tmp_path, correct=MIXED, form=missing)
    _, sums = load_rewards(path, reward="correct+-0.5*form+ correct")
    expected = 2 * MIXED - 0.5 * MIXED
    expected[0, 0] = 2 * MIXED[0, 0]
    np.testing.assert_array_equal(sums, expected)
    for reward, said in (
        ("correct+completion", "no column 'completion' of numbers: name one"),
        ("correct+two*form", "reward has 'two\\*form': write NAME, or WEIGHT\\*NAME"),
        ("correct+", "no column '' of numbers"),
    ):
        refuses(said, load_rewards, path, reward=reward)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (
            1e-3,
            "but that of all rewards is 0.4.: after division by their own deviation such differences",
        ),
        (
            1e-6,
            r"of deviation 2.4e-06. Divided by .* 2% with ε = 1e-4 \(.*trl.*; 71% with ε = 1e-6",
        ),
    ],
)
def test_nearly_equal_rewards(tmp_path, size, said):
    rewards = first(12, 0.0, MIXED).astype(float)
    rewards[:12] += size * np.arange(SIZE)
    (near,) = found(tmp_path, rewards)
    assert (near.cause, near.count, near.of) == ("nearly equal", 12, GROUPS)
    assert "12 of 100 groups (12%) have nearly equal rewards, of deviation" in near.says
    assert re.search(said, near.says)
    assert found(tmp_path, first(5, rewards[0], MIXED)) == []


def test_rewards_of_which_all_are_smaller_than_what_is_added(tmp_path):
    """Their deviations are like each other, and all are lost in the ε."""
    (near,) = found(tmp_path, 1 + 1e-5 * SOUND["graded"])
    assert (near.cause, near.count) == ("nearly equal", GROUPS)
    assert "Divided by it and the trainer's ε" in near.says


def test_the_epsilon_of_each_framework_says_what_is_left(tmp_path, capsys):
    """Held against each row's own estimator: a group's largest advantage with ε over that without."""
    group = np.array([1.0, 1.00001, 1.00002, 1.00003])
    path = log(tmp_path, np.array([group, group, [0, 1, 0, 1], [0, 0, 0, 0]]))
    (near,) = summarise_rewards(path).findings
    for name, framework in catalogue().frameworks.items():
        for row in framework.rows:
            if row.ddof == 1 and row.epsilon:
                left = standardised(group, ddof=1, epsilon=row.epsilon) / standardised(
                    group, ddof=1
                )
                power = f"{row.epsilon:.0e}".replace("e-0", "e-")
                assert re.search(rf"{left[0]:.0%} with ε = {power} \([^)]*\b{name}\b", near.says)
    assert "Near 100%, such differences count like those of right and wrong." in near.says
    said = [
        out_of(capsys, main, "rewards", path, "--epsilon", epsilon) for epsilon in ("1e-6", "1e-3")
    ]
    assert "such differences count like those of right and wrong; without it" in " ".join(
        said[0].split()
    )
    assert "of their full size, 1% with ε = 1e-3." in " ".join(said[1].split())
    refused = refusal_of(capsys, main, "rewards", path, "--epsilon", "-1")
    assert "epsilon is -1.0: it must be at least 0" in refused


def test_groups_of_two_and_three_and_prompts_by_their_texts(tmp_path, capsys, small):
    for size in (2, 3):
        path = log(tmp_path, MIXED[:3, :size], step=np.array([[1] * size, [1] * size, [2] * size]))
        result = strict(out_of(capsys, main, "rewards", path, "--json"))
        assert result["pass_rates"] == dict.fromkeys(("0+1=", "1+1=", "2+1="), 1 / size)
        assert [row["group_size"] for row in result["frac_reward_zero_std"]] == [2, 3][: size - 1]
        text = out_of(capsys, main, "rewards", path)
        assert "needs the scores of these rollouts, at least 4 of each prompt" in text
        assert "at least 8" in refusal_of(capsys, main, "rewards", path, "--draw")
        with pytest.raises(InputError, match=r"has . rollouts: it must have at least 4"):
            load_rollouts(path, small)
    rows = [{"prompt": "the same", "rewards": [1, 0]}, {"id": "x", "rewards": [1, 1]}]
    own = jsonl(tmp_path / "own.jsonl", rows[0], rows[0], rows[1], {"rewards": [0, 0]})
    assert load_rewards(own)[0] == ("the same", "the same (2)", "x", "3")


@pytest.mark.parametrize("option", ["--group-by", "--reward"])
def test_columns_of_what_has_none_are_refused(tmp_path, capsys, option):
    (tmp_path / "r.json").write_text('{"rewards": [[1, 0, 0, 1]]}')
    own = jsonl(tmp_path / "r.jsonl", {"rewards": [1, 0, 0, 1]})
    for file in (tmp_path / "r.json", own):
        said = refusal_of(capsys, main, "rewards", file, option, "prompt")
        assert "is not a log with a row for each completion: leave out group_by and reward" in said

"""Logs of trainers: a row for each completion, as TRL, verl and plain scripts write them."""

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.support.commands import jsonl
from ustat_pg.cli import main
from ustat_pg.llm.pool.moments import frac_reward_zero_std
from ustat_pg.llm.rollouts.files import load_rewards, load_rollouts
from ustat_pg.llm.rollouts.logs import LogWarning, groups_of_log
from ustat_pg.llm.rollouts.rewards import summarise_rewards
from ustat_pg.validation import InputError

PASSED = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], float)


def rows(prompt="prompt", completion="completion", reward="reward", **more):
    """Three prompts with four completions each, dealt out by turns as a shuffled log has them."""
    return [
        {prompt: f"q{x}", completion: f"a{x}{i}", reward: PASSED[x, i], **more}
        for i in range(4)
        for x in range(3)
    ]


def writers():
    yield "plain.jsonl", rows(), lines
    yield "verl.jsonl", rows("input", "output", "score", step=3, gts="4"), lines
    yield "plain.csv", rows(), lambda path, found: pd.DataFrame(found).to_csv(path, index=False)
    yield (
        "plain.tsv",
        rows(),
        lambda path, found: pd.DataFrame(found).to_csv(path, index=False, sep="\t"),
    )
    yield "packed.jsonl.gz", rows(), packed(lines)
    yield "list.json", rows(), lambda path, found: path.write_text(json.dumps(found))
    yield "list.json.gz", rows(), packed(lambda path, found: path.write_text(json.dumps(found)))
    yield "words.jsonl", [{**row, "reward": str(row["reward"])} for row in rows()], lines
    yield "chat.jsonl", [chat(row) for row in rows()], lines
    yield "trl.parquet", rows(reward="even", step=3, advantage=0.5), parquet
    yield "completions_9.table.json", rows(reward="even", step=3), table


def lines(path, found):
    return jsonl(path, *found)


def packed(write):
    def both(path, found):
        plain = path.with_suffix("")
        write(plain, found)
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()

    return both


def chat(row):
    """A conversation with a score, and no more."""
    said = ("user", row["prompt"]), ("assistant", row["completion"])
    return {
        "messages": [{"role": role, "content": content} for role, content in said],
        "score": row["reward"],
    }


def table(path, found):
    """As Weights & Biases keeps what TRL logs."""
    frame = pd.DataFrame(found)
    value = {"columns": list(frame), "data": frame.to_numpy().tolist(), "ncols": 4}
    path.write_text(json.dumps(value))


def parquet(path, found):
    pytest.importorskip("pyarrow", reason="pandas reads Parquet by pyarrow")
    pd.DataFrame(found).to_parquet(path)


@pytest.mark.parametrize(
    ("name", "found", "write"), list(writers()), ids=lambda value: str(value)[:10]
)
def test_every_kind_of_log_gives_its_groups_and_their_rewards(tmp_path, name, found, write):
    write(tmp_path / name, found)
    ids, rewards = load_rewards(tmp_path / name)
    assert ids == ("q0", "q1", "q2")
    np.testing.assert_array_equal(rewards, PASSED)
    (_, first), *_ = groups_of_log(tmp_path / name)
    prompt = [{"role": "user", "content": "q0"}] if name == "chat.jsonl" else "q0"
    assert first["prompt"] == prompt
    assert first["completions"] == ["a00", "a01", "a02", "a03"]


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv", "log.tsv", "log.jsonl.gz", "log.csv.gz"])
def test_the_log_of_a_job_that_runs_is_read_up_to_its_last_whole_row(tmp_path, name):
    """Cut anywhere in its last row, and a packed one anywhere in its last block."""
    path, table = tmp_path / name, pd.DataFrame(rows())
    mark = "\t" if ".tsv" in name else ","
    table["completion"] = [f"a {mark} b\n{cell}" for cell in table["completion"]]
    whole = (
        table.to_json(orient="records", lines=True)
        if ".jsonl" in name
        else table.to_csv(index=False, sep=mark)
    ).encode()
    start = whole.rindex(b"q2")
    for cut in (start + 1, start + 6, len(whole) - 7):
        data = gzip.compress(whole[:cut])[:-9] if name.endswith(".gz") else whole[:cut]
        path.write_bytes(data)
        with pytest.warns(LogWarning) as said:
            ids, rewards = load_rewards(path, group_by=["prompt"])
        where = "line" if ".jsonl" in name else "row"
        texts = [str(each.message) for each in said]
        assert any(
            re.search(f"{where} 12, is incomplete, like the last line of a", t) for t in texts
        )
        assert ids == ("q0", "q1")
        np.testing.assert_array_equal(rewards, PASSED[:2])


def test_a_file_without_rows_yet_is_one_of_a_folder(tmp_path):
    """As the next step's of a job that runs; a line may hold any mark of Unicode."""
    table = pd.DataFrame(rows()).assign(completion="a\u2028b")
    table.to_csv(tmp_path / "1.csv", index=False)
    text = (tmp_path / "1.csv").read_text()
    (tmp_path / "1.csv").write_text(text[:-9])
    (tmp_path / "2.jsonl").write_text("")
    with pytest.warns(LogWarning, match="row 12, is incomplete|1 of 3 groups"):
        ids, rewards = load_rewards(tmp_path)
    assert ids == ("q0", "q1")
    np.testing.assert_array_equal(rewards, PASSED[:2])


def test_a_line_that_is_torn_elsewhere_is_refused(tmp_path):
    path = jsonl(tmp_path / "log.jsonl", *rows())
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*text[:5], text[5][:-9] + "\n", *text[6:]]))
    with pytest.raises(InputError, match=r"log\.jsonl, line 6: not JSON"):
        load_rewards(path)
    other = tmp_path / "run.sh"
    other.write_text("trl grpo")
    with pytest.raises(
        InputError, match=r"run\.sh, line 1: not JSON.*; a log is a file, or .*\.csv"
    ):
        load_rewards(other)
    path.write_text(text[0][:20])
    with pytest.raises(InputError, match=r"line 1: not JSON"):
        load_rewards(path)


WRONG = {
    "words.jsonl": (
        lambda row: {**row, "reward": "half"},
        "line 5, column reward: 'half' is not a number",
    ),
    "cells.csv": (
        lambda row: {**row, "reward": "half"},
        "row 5, column reward: 'half' is not a number",
    ),
    "cells.tsv": (
        lambda row: {**row, "reward": "half"},
        "row 5, column reward: 'half' is not a number",
    ),
    "list.json": (lambda row: {**row, "reward": [1]}, "row 5, column reward: .* is not a number"),
    "list.json.gz": (lambda row: {**row, "reward": {}}, "row 5, column reward: .* is not a number"),
    "infinite.csv": (
        lambda row: {**row, "reward": float("inf")},
        "row 5, column reward: inf is not a number",
    ),
    "completion.jsonl": (
        lambda row: {**row, "completion": 5},
        "line 5: completion is 5: it must be text",
    ),
    "no answer.jsonl": (
        lambda row: {**chat(row), "messages": chat(row)["messages"][:1]},
        "line 5: messages does not end with a message of the assistant",
    ),
    "no messages.jsonl": (
        lambda row: {**chat(row), "messages": "q"},
        "line 5: messages is 'q': it must be a list of messages",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cell_is_named_by_its_row_and_column(tmp_path, name):
    wrong, said = WRONG[name]
    found = [chat(row) for row in rows()] if "messages" in wrong(rows()[0]) else rows()
    found[4] = wrong(rows()[4])
    path = tmp_path / name
    if ".json" not in name:
        pd.DataFrame(found).to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    elif name.endswith("l"):
        lines(path, found)
    else:
        data = json.dumps(found).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(InputError, match=said):
        load_rewards(path)


@pytest.mark.parametrize("write", [pd.DataFrame.to_csv, pd.DataFrame.to_json])
def test_true_and_false_are_rewards_beside_a_wrong_cell_too(tmp_path, write):
    table = pd.DataFrame(rows()).assign(reward=["True", "false", "true"] * 4, length=7.0)
    kind = {"orient": "records"} if write is pd.DataFrame.to_json else {"index": False}
    path = tmp_path / ("log.json" if write is pd.DataFrame.to_json else "log.csv")
    write(table, path, **kind)
    np.testing.assert_array_equal(load_rewards(path)[1], [[1] * 4, [0] * 4, [1] * 4])
    # Without its usual name the column is still the one of rewards, in spite of the cell.
    write(table.rename(columns={"reward": "even"}).drop(columns="length"), path, **kind)
    table.loc[7, "reward"] = "half"
    for name in ("reward", "even"):
        left = table.rename(columns={"reward": name}).drop(columns="length")
        write(left, path, **kind)
        with pytest.raises(InputError, match=f"row 8, column {name}: 'half' is not a number"):
            load_rewards(path)
    write(table.rename(columns={"reward": "even"}), path, **kind)
    with pytest.raises(InputError, match=r"2 columns of rewards: name one .* of even, length"):
        load_rewards(path)


def test_words_that_look_like_numbers_stay_words(tmp_path):
    answers = ["007", "NA", "1e3", ""] * 3
    table = pd.DataFrame(rows()).assign(completion=sorted(answers))
    table.to_csv(tmp_path / "log.csv", index=False)
    found = [text for _, row in groups_of_log(tmp_path / "log.csv") for text in row["completions"]]
    assert sorted(found) == sorted(answers)


def test_a_file_that_grows_is_shown_again(tmp_path, capsys, monkeypatch):
    """What is not there yet is waited for; Ctrl-C ends it."""
    path, found = tmp_path / "log.jsonl", rows()

    states = iter(["none", "some", "all", "same", None])

    def later(seconds):
        state = next(states)
        if state is None:
            raise KeyboardInterrupt
        if state in ("some", "all"):
            lines(path, found if state == "all" else found[:-1])

    monkeypatch.setattr("ustat_pg.commands.following.time.sleep", later)
    with pytest.warns(LogWarning, match="1 of 3 groups do not have 4"):
        assert main(["rewards", str(path), "--follow", "--json"]) == 130
    shown = capsys.readouterr()
    assert shown.err.count("waiting: ") == 1
    prompts = [json.loads(line)["prompts"] for line in shown.out.splitlines()]
    assert prompts == [2, 3]


def test_a_folder_of_steps_is_one_log_and_a_prompt_of_two_steps_two_groups(tmp_path):
    for step in (1, 2):
        jsonl(tmp_path / f"{step}.jsonl", *rows(step=step))
    assert load_rewards(tmp_path)[1].shape == (6, 4)
    ids, rewards = load_rewards(tmp_path, group_by=["prompt"])
    assert ids == ("q0", "q1", "q2")
    np.testing.assert_array_equal(rewards, np.hstack([PASSED, PASSED]))


def test_folders_as_runs_leave_them(tmp_path):
    """TRL's output with its completions; prime-rl's rollouts, a folder a step, in the order of steps."""
    trl = tmp_path / "run" / "completions"
    trl.mkdir(parents=True)
    (tmp_path / "run" / "trainer_state.json").write_text("{}")
    for step in (1, 2):
        jsonl(trl / f"{step}.jsonl", *rows(step=step))
    assert load_rewards(tmp_path / "run")[1].shape == (6, 4)
    for step, shift in ((2, 0), (10, 1)):
        folder = tmp_path / "out" / "rollouts" / f"step_{step}"
        folder.mkdir(parents=True)
        jsonl(
            folder / "rank_0.jsonl", *({**row, "reward": row["reward"] + shift} for row in rows())
        )
    ids, rewards = load_rewards(tmp_path / "out")
    assert len(ids) == 6
    np.testing.assert_array_equal(rewards, np.concatenate([PASSED, PASSED + 1]))
    (tmp_path / "none").mkdir()
    with pytest.raises(
        InputError,
        match=r"has no rows: a log is a file, or a folder of files, of these kinds: \.csv",
    ):
        load_rewards(tmp_path / "none")


def test_missing_rewards_are_left_out_aloud(tmp_path):
    found = rows()
    found[0]["reward"] = None
    found[3]["reward"] = float("nan")
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row).replace("NaN", "null") + "\n" for row in found))
    with pytest.warns(LogWarning) as said:
        ids, rewards = load_rewards(path, group_by=["prompt"])
    texts = [str(warning.message) for warning in said]
    assert any("2 of 12 completions have no reward" in text for text in texts)
    assert any("1 of 3 groups do not have 4 completions" in text for text in texts)
    assert ids == ("q1", "q2")
    np.testing.assert_array_equal(rewards, PASSED[1:])


def test_a_log_without_any_reward_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    lines(path, [row | {"reward": None} for row in rows()])
    with (
        pytest.warns(LogWarning),
        pytest.raises(InputError, match="has no rewards: all are missing"),
    ):
        load_rewards(path)


def test_messages_group_by_what_they_say_and_completions_are_their_last_text(tmp_path):
    pytest.importorskip("pyarrow", reason="pandas reads Parquet by pyarrow")
    result = rows()
    for row in result:
        row["prompt"] = [{"role": "user", "content": row["prompt"]}]
        row["completion"] = [{"role": "assistant", "content": row["completion"]}]
    parquet(tmp_path / "chat.parquet", result)
    (_, first), *others = groups_of_log(tmp_path / "chat.parquet")
    assert len(others) == 2
    assert first["prompt"] == [{"role": "user", "content": "q0"}]
    assert first["completions"][:2] == ["a00", "a01"]


def test_groups_of_another_size_are_left_out_and_counted(tmp_path):
    path = jsonl(tmp_path / "torn.jsonl", *rows()[:-1])
    with pytest.warns(LogWarning, match="1 of 3 groups do not have 4 completions"):
        ids, rewards = load_rewards(path)
    assert ids == ("q0", "q1")
    np.testing.assert_array_equal(rewards, PASSED[:2])


@pytest.mark.parametrize(
    ("found", "options", "said"),
    [
        (rows(reward="even") , {"reward": "odd"}, "no column 'odd': name one .*even"),
        ([{**row, "even": 1.0, "short": 0.0} for row in rows(reward="step")], {}, "2 columns"),
        ([{"completion": "a", "step": 1}], {}, "has no prompt: name the columns .*completion, step"),
        ([{"prompt": "q", "completion": "a"}], {}, "0 columns of rewards: none holds numbers"),
        (rows(), {"group_by": ["uid"]}, "no column 'uid': it has prompt, completion, reward"),
        (rows()[:3], {}, "prompt 'q0' .* has 1 rollout: it must have at least 2"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_refused_by_name(tmp_path, found, options, said):
    path = jsonl(tmp_path / "log.jsonl", *found)
    with pytest.raises(InputError, match=said):
        load_rewards(path, **options)


def test_the_log_of_a_trainer_is_scored_as_its_store_is(tmp_path, small):
    """The completions of a store, written as a log, are the same tokens again."""
    from ustat_pg.llm.prompts import Prompt, Task
    from ustat_pg.llm.rollouts.stored import sample

    def even(prompts, completions, **columns):
        return [float(len(completion) % 2 == 0) for completion in completions]

    task = Task("sums", tuple(Prompt(f"{i}", f"{i}+1=") for i in range(3)), even, 4)
    drawn = sample(small, task, 4)
    end = small.tokenizer.eos_token_id
    log = [
        {"prompt": pool.prompt.text, "completion": text, "reward": reward}
        for pool in drawn
        for text, reward in zip(pool.texts, pool.rewards, strict=True)
    ]
    for pool, again in zip(
        drawn, load_rollouts(jsonl(tmp_path / "log.jsonl", *log), small), strict=True
    ):
        assert again.prompt_ids == pool.prompt_ids
        np.testing.assert_array_equal(again.rewards, pool.rewards)
        for ids, own in zip(again.completion_ids, pool.completion_ids, strict=True):
            # A text does not say whether its end was drawn.
            assert ids[:-1] == own[: len(ids) - 1]
            assert ids[-1] == end


def test_a_prompt_that_returns_is_one_prompt_for_the_share_without_a_signal(tmp_path):
    """Five visits of each of 40 prompts: the interval is as wide as of 40 prompts, and holds the truth."""
    rates = np.repeat([0.02, 0.5], 20)
    truth = float((rates**4 + (1 - rates) ** 4).mean())
    prompts, held, alone = np.tile(np.arange(40), 5), [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        drawn = rng.choice(rates, 40)
        z = (rng.random((200, 4)) < drawn[prompts, None]).astype(float)
        (row,) = frac_reward_zero_std(z, [4], prompts).itertuples()
        (apart,) = frac_reward_zero_std(z, [4]).itertuples()
        assert apart.frac_reward_zero_std == pytest.approx(row.frac_reward_zero_std)
        held.append(row.low <= truth <= row.high)
        alone.append(apart.low <= truth <= apart.high)
    assert np.mean(held) >= 0.9
    assert np.mean(alone) < 0.85
    # So it is read from a log.
    found = [
        {"prompt": f"q{x}", "completion": "a", "reward": reward, "step": group // 40}
        for group, x in enumerate(prompts)
        for reward in z[group]
    ]
    path = jsonl(tmp_path / "log.jsonl", *found)
    (read,) = summarise_rewards(path, [4]).to_frame().itertuples()
    assert (read.low, read.high) == pytest.approx((row.low, row.high))

"""What the catalogue says of schemes over turns, against the frameworks' own recorded answers."""

import json

import numpy as np
import pytest

from tests.conformance.turns import DATA, DRIVERS, REWARDS, STATES, chosen
from ustat_pg import explain
from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.catalogue.turns import compared, over_turns, turn_rows
from ustat_pg.estimators import TURN_SCHEMES, turns
from ustat_pg.predictions.turns import CLIMBS


def padded(values, width):
    return np.array([[*each, *[0] * (width - len(each))] for each in values], dtype=float)


def spread_of_others(returns):
    """1 over the deviation of the other episodes' returns, 1 where that is 0."""
    others = [np.delete(returns, i).std(ddof=1) for i in range(len(returns))]
    return np.array([1 / each if each else 1.0 for each in others])[:, None]


def ours(row, values):
    """A row's advantages of the recorded episodes, by the turns of each."""
    answer = []
    for rewards, states in zip(REWARDS, STATES, strict=True):
        width = max(map(len, rewards))
        given, reached = padded(rewards, width), padded([[1] * len(r) for r in rewards], width)
        total = np.zeros_like(given)
        for term in row.terms:
            advantages = turns(
                given,
                reached,
                term.scheme,
                ddof=term.ddof,
                states=padded(states, width).astype(int) if term.states else None,
                discount=float(values[term.discount]) if term.discount else 1.0,
            )
            n = reached.sum()
            factors = {"": 1.0, "n/(n-1)": n / (n - 1), "1/s": spread_of_others(given.sum(axis=1))}
            factor = factors.get(term.times)
            total += (float(values[term.times]) if factor is None else factor) * advantages
        answer.append([total[i, : len(each)].tolist() for i, each in enumerate(rewards)])
    return answer


def test_every_framework_with_rows_was_run():
    assert turn_rows().keys() == DRIVERS.keys() == {path.stem for path in DATA.glob("*.json")}


@pytest.mark.parametrize("name", DRIVERS)
def test_a_row_is_the_frameworks_own_advantages(name):
    record = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    framework = catalogue().frameworks[name]
    assert record["repository"] == framework.repository
    assert record["commit"].startswith(framework.commit)
    known, run = chosen(name), {each["row"]: each["advantages"] for each in record["runs"]}
    rows = turn_rows()[name]
    assert sorted(run) == [i for i, row in enumerate(rows) if not row.read]
    for place, theirs in run.items():
        values = next(each for each in known if rows[place].fits(each))
        flat = [[a for each in group for a in each] for group in (ours(rows[place], values))]
        found = [[a for each in group for a in each] for group in theirs]
        for one, other in zip(flat, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5, err_msg=str(rows[place]))
    assert len({json.dumps(each) for each in run.values()}) == len(run), "rows are told apart"


def test_every_scheme_is_in_words():
    assert tuple(compared()) == TURN_SCHEMES == tuple(CLIMBS)


def test_explain_says_what_is_compared_over_turns():
    spec = "verl-agent adv_estimator=gigpo env.rollout.n=8 gamma=.95 gigpo.step_advantage_w=2"
    result = explain(spec)
    text = " ".join(str(result).split())
    call = 'turns(rewards, reached, "pooled-mean") + 2 · '
    call += 'turns(rewards, reached, "to-go-mean", states=states, discount=.95)'
    assert call in text
    assert f"climbs {CLIMBS['pooled-mean']}." in text
    assert "langfengQ/verl-agent@2716b30b gigpo/core_gigpo.py" in text
    assert result.to_dict()["over_turns"][0] == f"Over the turns of episodes: {call}."
    assert over_turns(resolve("trl")) == []
    assert over_turns(resolve("verl-agent adv_estimator=gae env.rollout.n=8")) == []

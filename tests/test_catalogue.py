"""The catalogue: each row against the framework's own formula, written here from its source."""

from __future__ import annotations

import itertools
import re
import sys
from math import comb
from pathlib import Path

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.baselines import BASELINES, parse
from ustat_pg.catalogue import catalogue, resolve
from ustat_pg.commands.explain import explain
from ustat_pg.estimators import advantages, standardised

GROUPS = [
    np.array(group, dtype=float)
    for size in (2, 3, 4, 5)
    for group in itertools.product((0, 1), repeat=size)
]
FRAMEWORKS = list(catalogue().frameworks.values())
ROWS = [
    pytest.param(framework, row, id=f"{framework.name}-{index}")
    for framework in FRAMEWORKS
    for index, row in enumerate(framework.rows)
]
CLOSED = [case for case in ROWS if case.values[1].estimator is not None]


# ---------------------------------------------------- the formulas, from the sources named in the file


def centred(r):
    return r - r.mean()


def divided(r, epsilon, ddof=1):
    """Torch's std has ddof 1, NumPy's 0; an ε of 0 stands for its limit."""
    std = r.std(ddof=ddof)
    return centred(r) / (std + epsilon) if std + epsilon > 0 else 0 * r


def rloo(r):
    return (r - r.mean()) * len(r) / (len(r) - 1)


def passk(o, r, epsilon):
    """Only the best output, its lead over the second."""
    out = 0 * r
    best = r.argmax()
    out[best] = r[best] - np.sort(r)[-2]
    if o["norm_adv_by_std_in_grpo"] == "true":
        std = r.std(ddof=1)
        out = out / (std + epsilon) if std + epsilon > 0 else 0 * r
    return out


def trl(o, r, epsilon=1e-4):
    return divided(r, epsilon) if o["scale_rewards"] == "group" else centred(r)


def trl_rloo(o, r, epsilon=0.0):
    return r - (r.sum() - r) / (len(r) - 1)


def verl(o, r, epsilon=1e-6):
    name = o["adv_estimator"]
    if name == "grpo_passk":
        return passk(o, r, epsilon)
    if name.startswith("rloo"):
        return rloo(r)
    return divided(r, epsilon) if o["norm_adv_by_std_in_grpo"] == "true" else centred(r)


def openrlhf(o, r, epsilon=1e-9):
    others = (r.sum() - r) / (len(r) - 1)
    return {
        "rloo": r - others,
        "dr_grpo": centred(r),
        "group_norm": divided(r, epsilon),
    }[o["estimator"]]


def nemo(o, r, epsilon=1e-6):
    """The others' mean and Bessel's deviation, which is kept where it is positive."""
    out = []
    for i in range(len(r)):
        seen = np.delete(r, i) if o["use_leave_one_out_baseline"] == "true" else r
        std = seen.std(ddof=1) if len(seen) > 1 else 0.0
        over = std + epsilon if o["normalize_rewards"] == "true" and std > 0 else 1.0
        out.append((r[i] - seen.mean()) / over)
    return np.array(out)


def prime(o, r, epsilon=0.0):
    if o["algo"] == "max_rl":
        return 0 * r if r.mean() <= 0 else centred(r) / r.mean()
    return centred(r)


def skyrl(o, r, epsilon=1e-6):
    name = o["advantage_estimator"]
    if name == "maxrl":
        return centred(r) / (r.mean() + epsilon) if r.mean() + epsilon > 0 else 0 * r
    if name == "rloo":
        return rloo(r)
    return divided(r, epsilon) if o["grpo_norm_by_std"] == "true" else centred(r)


def areal(o, r, epsilon=1e-5):
    """The deviation is taken about whatever mean is subtracted."""
    mean = np.zeros(len(r))
    if o["reward_norm.mean_level"] == "group":
        leave = o["reward_norm.mean_leave1out"] == "true"
        mean = (r.sum() - r) / (len(r) - 1) if leave else np.full(len(r), r.mean())
    if o["reward_norm.std_level"] == "none":
        return r - mean
    lost = 1 if o["reward_norm.std_unbiased"] == "true" else 0
    std = np.sqrt(((r - mean) ** 2).sum() / (len(r) - lost))
    return (r - mean) / (std + epsilon) if std + epsilon > 0 else 0 * r


def roll(o, r, epsilon=1e-6):
    grpo = o["adv_estimator"] == "grpo"
    mean = r.mean() if grpo or o["norm_mean_type"] == "group" else 0.0
    return divided(r, epsilon) if grpo or o["norm_std_type"] == "group" else r - mean


def slime(o, r, epsilon=1e-6):
    plus_plus = o["advantage_estimator"] == "reinforce_plus_plus"
    if plus_plus or o["disable_rewards_normalization"] == "true":
        return r
    std = o["advantage_estimator"] in ("grpo", "gspo", "cispo")
    return (
        divided(r, epsilon)
        if std and o["disable_grpo_std_normalization"] == "false"
        else centred(r)
    )


def rllm(o, r, epsilon=1e-6):
    if o["adv_estimator"] == "reinforce":
        return r
    if o["adv_estimator"] == "rloo":
        return rloo(r)
    return divided(r, epsilon, 0) if o["norm_adv_by_std_in_grpo"] == "true" else centred(r)


def open_instruct(o, r, epsilon=1e-8):
    standard = o["advantage_normalization_type"] == "standard"
    return divided(r, epsilon, 0) if standard else centred(r)


def nanochat(o, r, epsilon=0.0):
    return centred(r)


FORMULAS = {
    "trl": trl,
    "trl-rloo": trl_rloo,
    "verl": verl,
    "openrlhf": openrlhf,
    "nemo-rl": nemo,
    "prime-rl": prime,
    "skyrl": skyrl,
    "areal": areal,
    "roll": roll,
    "slime": slime,
    "rllm": rllm,
    "open-instruct": open_instruct,
    "nanochat": nanochat,
}


class Values(dict):
    """Options by any ending of their names."""

    def __missing__(self, ending):
        (value,) = [value for name, value in self.items() if name.endswith(f".{ending}")]
        return value


def choices(framework, row):
    """Every choice of the options on the advantage that the row stands for."""
    defaults = {each.name: each.default or "none" for each in framework.options.values()}
    every = [Values({**defaults, **chosen}) for chosen in framework.combinations()]
    return [values for values in every if framework.row(values) is row]


def written(framework, values):
    """The options on the advantage as a user types them."""
    chosen = [option.name for option in framework.of_kind("advantage")]
    return " ".join([framework.name, *(f"{name}={values[name]}" for name in chosen)])


# ---------------------------------------------------------------------------------------- each row


@pytest.mark.parametrize(("framework", "row"), CLOSED)
def test_a_row_is_the_frameworks_formula_on_every_binary_group(framework, row):
    formula, every = FORMULAS[framework.name], choices(framework, row)
    assert every
    for values, group in itertools.product(every, GROUPS):
        meaning = resolve(written(framework, values), group_size=len(group))
        assert meaning.row is row
        own = meaning.factor * advantages(meaning.estimator, group)
        np.testing.assert_allclose(own, formula(values, group, 0.0), atol=1e-12)
        # What the frameworks' ε does: at most its share of the divisor.
        theirs = formula(values, group)
        assert np.abs(own - theirs).max() <= 6 * row.epsilon * np.abs(own).max() + 1e-12


@pytest.mark.parametrize(
    ("framework", "row"),
    [case for case in CLOSED if case.values[1].estimator in ("std", "std-ddof1")],
)
def test_a_divided_row_has_its_own_divisor_and_epsilon(framework, row):
    formula = FORMULAS[framework.name]
    for values, group in itertools.product(choices(framework, row), GROUPS):
        own = standardised(group, ddof=row.ddof, epsilon=row.epsilon)
        scale = 1.0
        if values.get("actor.reward_norm.mean_leave1out") == "true":
            # About the others' mean all is G/(G-1) longer, and ε so much smaller beside it.
            scale = len(group) / (len(group) - 1)
            own = standardised(scale * group, ddof=row.ddof, epsilon=row.epsilon)
        np.testing.assert_allclose(own, formula(values, group), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("framework", "row"), CLOSED)
def test_a_row_climbs_what_is_said(framework, row):
    """E ĝ by every group of G = 4, the formula of the framework in it."""
    formula, size = FORMULAS[framework.name], 4
    values = choices(framework, row)[0]
    meaning = resolve(written(framework, values), group_size=size)
    rates = [0.1, 0.35, 0.8]
    found = explain(written(framework, values), group_size=size, pass_rates=rates)
    assert found.name.partition(":")[0] == meaning.estimator.partition(":")[0]
    groups = [group for group in GROUPS if len(group) == size]
    for p, w in zip(rates, found.mean_factor, strict=True):
        chance = [p ** group.sum() * (1 - p) ** (size - group.sum()) for group in groups]
        # The score of p itself is (r - p)/(p (1-p)): its mean with the advantages is dV/dp w.
        pushes = [(formula(values, group, 0.0) * (group - p)).mean() for group in groups]
        assert w == pytest.approx(np.dot(chance, pushes) / (p * (1 - p)), abs=1e-12)
    assert found.unbiased == np.allclose(found.weight["w"], 1.0)


@pytest.mark.parametrize(("framework", "row"), ROWS)
def test_a_row_is_whole(framework, row):
    assert choices(framework, row), "no options lead here"
    assert (row.estimator is None) == (row.other in catalogue().others)
    assert row.name
    assert row.source
    for option, allowed in row.when.items():
        assert set(allowed) <= set(framework.options[option].values)
    if row.estimator:
        record, _ = parse(row.estimator.replace("{G}", "4"))
        assert record.by_count
        assert record.name in catalogue().families
        assert (row.ddof is not None) <= (row.epsilon > 0)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda each: each.name)
def test_a_framework_is_whole(framework):
    known = catalogue()
    assert len(framework.of_kind("group size")) == 1
    assert framework.aggregation in known.aggregations
    for option in framework.options.values():
        assert option.kind in known.kinds
        assert set((option.means or {}).values()) <= set(known.aggregations)
        if option.default is not None:
            assert option.read(option.default) == option.default
        assert bool(option.place) == (option.kind == "KL")


def test_every_table_by_counts_has_its_headings():
    tables = {record.name for record in BASELINES.values() if record.by_count}
    assert tables == set(catalogue().families)
    assert not tables & set(catalogue().others)


def test_the_twelve_frameworks_are_there():
    repositories = {each.repository.partition("/")[2].lower() for each in FRAMEWORKS}
    wanted = "trl verl openrlhf rl prime-rl skyrl areal roll slime rllm open-instruct nanochat"
    assert repositories == set(wanted.split())


def test_what_is_said_of_pkpo():
    """rLLM's credit, from its formula, climbs (1 - k/G)/G of the gradient of pass@k."""
    size, k, p = 5, 2, 0.3
    total = 0.0
    for group in (group for group in GROUPS if len(group) == size):
        credit = np.zeros(size)
        for subset in itertools.combinations(range(size), k):
            credit[list(subset)] += group[list(subset)].max() / comb(size, k)
        chance = p ** group.sum() * (1 - p) ** (size - group.sum())
        total += chance * (centred(credit) * (group - p)).mean() / (p * (1 - p))
    assert total == pytest.approx((1 - k / size) / size * k * (1 - p) ** (k - 1))


# -------------------------------------------------------------------------------------- how specs are read


@pytest.mark.parametrize(
    ("spec", "estimator", "size", "aggregation", "scale"),
    [
        ("trl", "std-ddof1", 8, "token-mean", None),
        ("TRL scale_rewards=False loss_type=luspo", "group-mean", 8, "sequence-sum", 1.0),
        ("trl loss_type=dr_grpo max_completion_length=100", "std-ddof1", 8, "constant", 0.01),
        ("verl algorithm.adv_estimator=rloo n=4", "grpo", 4, "token-mean", None),
        ("verl adv_estimator=opo", None, 1, "token-mean", None),
        ("verl adv_estimator=grpo_passk n=6", "pass-at-k:6", 6, "token-mean", None),
        ("nemo num-generations-per-prompt=16", "others-std", 16, "token-mean", None),
        ("prime_rl --algo=max_rl", "maxrl", None, "token-mean", None),
        ("verl adv_estimator=rloo", "vanilla", 1, "token-mean", None),
        ("verl adv_estimator=rloo_vectorized", "grpo", 1, "token-mean", None),
        ("slime --disable-grpo-std-normalization", "group-mean", 1, "sequence-mean", None),
        ("open-instruct loss_denominator=50", "group-mean", 4, "constant", 0.02),
    ],
)
def test_specs(spec, estimator, size, aggregation, scale):
    meaning = resolve(spec)
    assert meaning.estimator == estimator
    assert meaning.group_size == size
    assert meaning.aggregation.name == aggregation
    assert meaning.scale == scale


def test_a_group_size_given_apart_holds():
    assert resolve("trl num_generations=4", group_size=16).group_size == 16


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "SPEC is empty"),
        ("verll adv_estimator=rloo", "'verll' is unknown: the nearest is 'verl'"),
        ("trl scale_reward=group", "no option 'scale_reward' .* the nearest is 'scale_rewards'"),
        ("verl adv_estimater=grpo", "the nearest is 'algorithm.adv_estimator'"),
        ("trl scale_rewards=groups", "scale_rewards is 'groups': the nearest value is 'group'"),
        ("trl num_generations=two", "num_generations is 'two': it must be a whole number"),
        ("trl num_generations=0", "at least 1"),
        ("trl beta=much", "beta is 'much': it must be a number"),
        ("trl beta=nan", "beta is 'nan': it must be a number"),
        ("trl loss_type", "'loss_type' has no value: write loss_type=VALUE"),
        ("trl loss_type=dr_grpo max_completion_length=-1", "must be positive"),
        ("areal mean_level=group", "may be one of actor.reward_norm.mean_level, actor.adv_norm"),
    ],
)
def test_specs_that_are_refused(spec, said):
    refuses(said, lambda: resolve(spec).scale)


def test_options_that_change_nothing():
    found = resolve("verl adv_estimator=rloo").unchanged()
    assert found["not read by this formula"] == ["norm_adv_by_std_in_grpo"]
    assert ["filter_groups.enable"] in found.values()
    # The deviation is taken about the mean that is subtracted, whichever it is.
    spec = "areal adv_norm.mean_level=none adv_norm.std_level=none reward_norm.mean_level=group"
    found = resolve(f"{spec} reward_norm.std_level=group").unchanged()
    assert found["not read by this formula"] == ["reward_norm.mean_leave1out"]
    # Groups of equal rewards push where nothing is subtracted: to drop them is a change.
    kept = resolve("slime --disable-rewards-normalization").unchanged()
    assert not any("silent" in reason for reason in kept)


def test_kl_terms_are_named():
    assert resolve("trl beta=0.04").penalties() == ["beta=0.04: k3 in the loss"]
    assert resolve("trl").penalties() == ["none: it is switched off"]
    assert resolve("nanochat").penalties() == []


# --------------------------------------------------------------------------------------------- YAML files


@pytest.fixture
def file(tmp_path):
    pytest.importorskip("yaml")

    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return str(tmp_path / "run.yaml")

    return write


VERL = """
algorithm:
  adv_estimator: rloo
  norm_adv_by_std_in_grpo: true
actor_rollout_ref:
  model: {path: some/model}
  rollout:
    n: 4
    temperature: 1.0
trainer: {total_epochs: 3}
"""

TRL = """
model_name_or_path: some/model
learning_rate: 1.0e-6
num_generations: 16
scale_rewards: false
loss_type: dr_grpo
"""


@pytest.mark.parametrize("before", ["", "verl "])
def test_a_verl_file(file, before):
    meaning = resolve(before + file(VERL))
    assert (meaning.framework.name, meaning.estimator, meaning.group_size) == ("verl", "grpo", 4)


def test_the_file_that_the_page_of_files_shows(file):
    page = Path(__file__).resolve().parents[1] / "theory" / "files.md"
    (text,) = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert resolve(file(text)).group_size == 4


def test_a_trl_file_and_options_that_hold_before_it(file):
    meaning = resolve(file(TRL))
    assert (meaning.framework.name, meaning.estimator, meaning.group_size) == (
        "trl",
        "group-mean",
        16,
    )
    assert meaning.scale == 1 / 512
    meaning = resolve(f"trl {file(TRL)} scale_rewards=group num_generations=2")
    assert (meaning.estimator, meaning.group_size) == ("std-ddof1", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate: 1", "whose options are these"),
        ("- 1", "must hold options by name"),
        ("a: [", "not YAML"),
        ("scale_rewards: most\nloss_type: grpo\n", "scale_rewards is 'most'"),
    ],
)
def test_files_that_are_refused(file, text, said):
    refuses(said, resolve, file(text))


def test_yaml_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    refuses("YAML needs PyYAML", resolve, "trl run.yaml")


def test_a_file_that_is_not_there():
    pytest.importorskip("yaml")
    refuses("No such file", resolve, "trl /no/run.yaml")

"""Points of networks' and language models' figures as a run leaves them, with values to recognise."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest


@pytest.fixture
def look():
    """The figures' style, without a screen."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from figures.style import theme

    with theme():
        yield
    plt.close("all")


BASELINES = ("vanilla", "grpo", "minimum-variance", "norm-weighted")
MEASURED = ("estimate", "low", "high")


def _measured(value: float, half: float) -> dict[str, float]:
    return dict(zip(MEASURED, (value, value - half, value + half), strict=True))


def _points(on: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for step in (0, 1, 4, 9, 30):
        at = {"figure": f"{on}_map", "problem": "sums", "step": step}
        correlation = {**at, "panel": "correlation", "series": "grpo"}
        rows.append({**correlation, **_measured(-0.03 * step, 0.01)})
        for rank, name in enumerate((*BASELINES, "oracle")):
            reached = {**at, "panel": "return", "series": name}
            rows.append({**reached, **_measured(0.1 + 0.02 * step + 0.01 * rank, 0.01)})
        for rank, name in enumerate(BASELINES):
            error = {**at, "panel": "error", "series": name, "group_size": 8}
            # The last interval of each reaches below 0, as few runs may have it.
            rows.append({**error, **_measured(1.5 / (1 + rank + step), 0.05)})
    for step in range(0, 50, 10):
        at = {"figure": f"{on}_path", "problem": "sums", "step": step}
        gap, ratio = 0.8 * 0.96**step, 0.02 - 1e-5 * (step - 20) ** 2
        rows.append({**at, "panel": "gap", "series": "gap", "prediction": gap})
        rows[-1] |= _measured(1.02 * gap, 0.01)
        if step >= 20:
            rows.append({**at, "panel": "gap", "series": "PL", "prediction": 0.8 * 0.9**step})
        rows.append({**at, "panel": "pl", "series": "pl", "prediction": ratio})
        rows[-1] |= _measured(0.9 * ratio, 0.001)
    at = {"figure": f"{on}_group_size", "problem": "sums"}
    for budget in (16, 64):
        for step in (10, 20, 40):
            for size in (2, 4, 8, 16):
                own = {**at, "panel": "trained", "series": f"K = {budget}, T = {step}"}
                own |= {"budget": budget, "step": step, "group_size": size}
                value = 0.5 + step / 100 + budget / 1000 - size / 200
                rows.append({**own, **_measured(value, 0.01)})
    for rank, stage in enumerate(("initial", "middle", "final")):
        for size in (2.0, 3.0, 4.0, 6.0, 8.0, 16.0):
            noise = 1.0 + 0.02 * abs(size - 3 - rank)
            own = {"panel": "predicted", "series": stage, "group_size": size}
            rows.append({**at, **own, "prediction": noise})
    cells = [(name, 4) for name in ("vanilla", "oracle", "grpo", "group-mean", "std")]
    cells += [("grpo", size) for size in (2, 8, 16)]
    for place, optimizer in enumerate(("sgd", "adam", "muon") * (on == "transformer")):
        for rank, (name, size) in enumerate(cells):
            own = {"figure": f"{on}_optimizers", "panel": optimizer, "series": name}
            own |= {"group_size": size, "rate": 0.01}
            rows.append({**own, **_measured(0.3 + 0.1 * place - 0.01 * rank, 0.02)})
    return rows


@pytest.fixture(scope="session")
def network_points() -> pd.DataFrame:
    """Points of the pictures of prefix policies and of transformers."""
    points = pd.DataFrame([row for on in ("tokens", "transformer") for row in _points(on)])
    return points.assign(exact=float("nan"))


@pytest.fixture(scope="session")
def language_model_points() -> pd.DataFrame:
    """Points of the pictures of language models as a run leaves them."""
    baselines = ("vanilla", "grpo", "oracle", "minimum-variance", "norm-weighted", "best")
    rows: list[dict[str, object]] = []
    for place, panel in enumerate(("base", "strong", "in-context", "short")):
        for rank, name in enumerate((*baselines, "length-weighted", "token-weighted")):
            for size in (2, 4, 8, 16):
                value = (100.0 + 40 * rank + 7 * place) / size
                row = {"figure": "gradient_mse_lm", "series": name, "panel": panel}
                row |= {"group_size": size, "prediction": value}
                row |= {"pool_low": 0.8 * value, "pool_high": 1.25 * value}
                if rank < 3 and size in (2, 8):
                    row |= _measured(1.1 * value, 0.3 * value)
                rows.append(row)
        estimators = (
            "grpo",
            "vanilla",
            "oracle",
            "bayes:1,1",
            "best",
            "std",
            "others-std",
            "maxrl",
        )
        for rank, name in enumerate((*estimators, "group-mean")):
            for size in (2, 4, 8):
                value = 1.0 + 0.1 * rank * (rank < 8) / size + 0.01 * place
                row = {"figure": "gradient_mse_lm_noise", "series": name, "panel": panel}
                row |= {"group_size": size, "prediction": value}
                row |= {"pool_low": 0.9 * value, "pool_high": 1.15 * value}
                rows.append(row)
        for size in (2, 3, 4, 6, 8, 12, 16, 32, 64, 128):
            value = 1.0 + 0.04 * (abs(size - 3) + place / 10)
            row = {"figure": "group_size_lm", "series": panel, "panel": "noise"}
            row |= {"group_size": size, "prediction": value}
            if size in (2, 8):
                row |= _measured(1.05 * value + 0.01 * place, 0.2)
            rows.append(row)
    return pd.DataFrame(rows).assign(exact=float("nan"))


@pytest.fixture(scope="session")
def sweep_tables() -> dict[str, pd.DataFrame]:
    """The tables of a training sweep, by file: two trainers, budgets and checkpoints."""
    rows = [
        {"trainer": trainer, "K": budget, "step": step, "G": size, "accuracy": value,
         "low": value - 0.03, "high": value + 0.04, "runs": 3, "best": size == 4}
        for rank, trainer in enumerate(("norm-weighted", "rloo"))
        for budget in (32, 64) for step in (20, 40) for size in (2, 4, 8)
        for value in [0.4 + budget / 1000 + step / 500 - 0.02 * abs(size - 4) + 0.01 * rank]
    ]  # fmt: skip
    along = pd.DataFrame(rows)
    last = along[along["step"] == 40][["trainer", "K", "G", "accuracy", "low", "high", "runs"]]
    paper = last["K"] * 0.01 + last["G"] / 100
    return {"figure5": along, "table2": last.assign(paper=paper)}


@pytest.fixture
def sweep_folder(tmp_path: Path, sweep_tables: dict[str, pd.DataFrame]) -> Path:
    """A run's folder with these tables and nothing else."""
    (tmp_path / "sweep").mkdir()
    for name, table in sweep_tables.items():
        table.to_csv(tmp_path / "sweep" / f"{name}.csv", index=False)
    return tmp_path

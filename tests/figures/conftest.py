"""Points of language models' figures as a run leaves them, with values to recognise."""

from itertools import product
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


BASELINES = ("vanilla", "grpo", "oracle", "minimum-variance")
MEASURED = ("estimate", "low", "high")


def _measured(value: float, half: float) -> dict[str, float]:
    return dict(zip(MEASURED, (value, value - half, value + half), strict=True))


@pytest.fixture(scope="session")
def language_model_points() -> pd.DataFrame:
    """Points of the pictures of language models as a run leaves them."""
    rows: list[dict[str, object]] = []
    models = "base", "strong", "in-context", "short"
    strengths = "0 examples", "2 examples", "8 examples"
    others = "norm-weighted", "best", "length-weighted", "token-weighted"
    real = ("gradient_mse_lm_real", strengths, BASELINES)
    for figure, panels, names in (("gradient_mse_lm", models, (*BASELINES, *others)), real):
        for (place, panel), (rank, name) in product(enumerate(panels), enumerate(names)):
            for size in (2, 4, 8, 16):
                value = (100.0 + 40 * rank + 7 * place) / size
                row = {"figure": figure, "series": name, "panel": panel}
                row |= {"group_size": size, "prediction": value}
                row |= {"pool_low": 0.8 * value, "pool_high": 1.25 * value}
                if rank < 3 and size in (2, 8):
                    row |= _measured(1.1 * value, 0.3 * value)
                rows.append(row)
    for place, panel in enumerate(models):
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

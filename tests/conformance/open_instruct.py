"""open-instruct's own advantages, by the lines of its data preparation that work them out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from .record import passage, size_of

FUNCTION = "open_instruct.data_loader.DataPreparationActor._data_preparation_loop"

LINES = compile(
    passage(
        "open_instruct/data_loader.py",
        "scores_per_prompt = scores.reshape",
        'raise ValueError(f"Invalid advantage',
    ),
    FUNCTION,
    "exec",
)


def advantages(options, batch):
    size = size_of(batch)
    config = SimpleNamespace(
        num_samples_per_prompt_rollout=size,
        advantage_normalization_type=options["advantage_normalization_type"],
    )
    names = {"np": np, "scores": np.concatenate(batch), "self": SimpleNamespace(config=config)}
    exec(LINES, names)
    return names["advantages"].reshape(-1, size).tolist()

"""tinker-cookbook's own advantages, by the function that its trainer calls."""

from types import SimpleNamespace

from .record import foreign

FUNCTION = "tinker_cookbook.rl.data_processing.compute_advantages"

module = foreign("tinker_cookbook.rl.data_processing")


def advantages(options, batch):
    groups = [
        SimpleNamespace(get_total_rewards=lambda group=group: [float(each) for each in group])
        for group in batch
    ]
    return [each.tolist() for each in module.compute_advantages(groups)]

"""What tests of networks share: scores output by output, and a machine without torch."""

import numpy as np

WITHOUT_TORCH = """
from importlib.machinery import PathFinder
own = PathFinder.find_spec
def find(name, path=None, target=None):
    return None if name.partition('.')[0] == 'torch' else own(name, path, target)
PathFinder.find_spec = find
"""
"""A machine without torch: find_spec says None, and an import fails."""


def backward_loop(policy, context):
    """Log-probability and score of each output, one at a time, without padding or vmap."""
    import torch

    flat = torch.tensor(policy.theta.copy(), requires_grad=True)
    state = policy.unflatten(flat)
    logs, scores = [], []
    for k in range(policy.space.count):
        row = policy.space.outputs[k, : policy.space.lengths[k]].tolist()
        sequence = [policy.network.begin, *policy.prompts[context], *row[:-1]]
        out = torch.func.functional_call(policy.network, state, (torch.tensor([sequence]),))[0]
        choices = torch.log_softmax(out[-len(row) :], dim=-1)
        log = sum(choices[t, token] for t, token in enumerate(row))
        logs.append(float(log.detach()))
        scores.append(torch.autograd.grad(log, flat)[0].numpy())
        flat.grad = None
        state = policy.unflatten(flat)
    return np.array(logs), np.array(scores)

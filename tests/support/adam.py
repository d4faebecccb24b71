"""States of Adam for tests."""

import torch


def trained(model, groups=None, steps=3, seed=0, **options):
    """AdamW after some steps with random gradients, of different sizes by coordinate.

    ``groups`` are lists of parameters or groups of torch; one of all parameters by default.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(groups or parameters, lr=1e-9, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [torch.exp(2 * torch.randn_like(p)) for p in parameters]
        for _ in range(steps):
            for parameter, size in zip(parameters, sizes, strict=True):
                parameter.grad = size * torch.randn_like(parameter)
            optimizer.step()
    optimizer.zero_grad()
    return optimizer


def saved(model, path, **options):
    """The file of a state by numbers of AdamW with one group, and v without bias of each name."""
    optimizer = trained(model, **options)
    torch.save(optimizer.state_dict(), path)
    return path, corrected(model, optimizer)


def corrected(model, optimizer, key="exp_avg_sq"):
    """v / (1 - β₂ᵗ) by name, in torch's own words."""
    return {
        name: optimizer.state[p][key] / (1 - 0.999 ** float(optimizer.state[p]["step"]))
        for name, p in model.named_parameters()
        if p in optimizer.state
    }

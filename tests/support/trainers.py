"""What tests of trainers share: a verifier, copies of a model, and scores by plain autograd."""

from __future__ import annotations

import copy

import torch

LONGEST = 6


def letters(*, completions, **columns):
    """Between 0 and 1, and seldom equal within a group."""
    return [sum(c in "0123456" for c in text) / LONGEST + 0.3 for text in completions]


def fresh(language_model):
    """A copy that may be trained."""
    return type(language_model)(
        copy.deepcopy(language_model.model),
        language_model.tokenizer,
        language_model.name,
        language_model.device,
        language_model.context,
    )


def flat(model):
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def scores_alone(model, prompt, completion):
    """∇ log π(completion | prompt), by plain autograd, and Σ_t |e_y - π|²."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    log_all = torch.log_softmax(logits, dim=-1)
    own = log_all.gather(1, torch.tensor(completion)[:, None]).sum()
    score = torch.autograd.grad(own, list(model.parameters()))
    chosen = torch.nn.functional.one_hot(torch.tensor(completion), logits.shape[1])
    proxy = (chosen - log_all.detach().exp()).square().sum()
    return torch.cat([part.flatten() for part in score]), float(proxy)


def gradient(scores, advantages):
    return (scores * advantages.reshape(-1, 1)).mean(0)

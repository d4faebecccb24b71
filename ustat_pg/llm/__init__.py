"""Language models: rollouts, scores, and what one pool of them says about every group size.

A pool of N rollouts for each prompt, rewarded by a verifier and scored by the model that wrote them,
holds every moment of the closed forms. So one pool gives the gradient MSE of every baseline at every
group size, the best group size, and what it costs not to know the critic.

=============== ====================================================================
module          what
=============== ====================================================================
tasks           prompts and the verifier that rewards completions
arithmetic      the paper's synthetic arithmetic
models          Hugging Face models, from the hub, a folder, or shipped with the library
embedded        the models that ship with the library
generation      draws of completions, by address
rollouts        sampled completions, stored as they come; a user's own file
scores          Gram matrices of scores through hooks, one backward pass for a prompt
scoring         scores of a whole pool, fold by fold
scored          the pool once scored: rewards and Gram matrices
estimates       unbiased moments of a scored pool, curves, constants, with jackknife errors
brute_force     the same errors by sampling gradients anew: the cross-check
cells           both ways as cells of claims
pipeline        from a model and a task to a scored pool
trainers, sweep TRL runs whose step is the gradient of the theory, in grids over the group size
paper_runs      the paper's own training runs and numbers
callback        signal and moments along a training run
commands        ``ustat-pg llm mse``, ``llm sweep``, ``group-size --model``
=============== ====================================================================
"""

"""The compiled body of trajectories: LANES replications side by side, one to a vector lane.

Arrays are flat, with LANES numbers to a row, and their shapes below are those of rows: a loop over
lanes is then one of vector instructions. No lane's arithmetic reads another's, so a replication's
path is the same bits in any company.

A group is read from how often each of its outcomes (arm k, value m) occurred. With c such counts,
A the advantages of a lane's outcomes and pₖ = Σₘ cₖₘ Aₖₘ, a group's sum is

    Σᵢ Aᵢ sᵢ = Σₖ (pₖ - πₖ Σⱼ pⱼ) fₖ,

so that what follows the draws costs as much for a large group as for a small one. The part with π
is 0 for grpo and the group mean.

Where φ(x, k) = a(x) + gₖ δ(x), as in every location policy, logits need the one number h = ⟨δ, θ⟩ of
each lane, and the sum is δ(x) Σₖ (pₖ - …) gₖ. Where gₖ are equally spaced besides, weights are cₖ ρᵏ
with ρ = exp(h): one exponential for all arms.

The exponential is written out because a call to the C library's would keep the loop from becoming
vectors.
"""

"""The compiled body of trajectories: LANES replications in parallel, one per vector lane.

Arrays are flat, with LANES numbers per row, and shapes below count rows. A loop over
lanes then uses vector instructions. No lane reads another lane's numbers, so a replication's
path has the same bits whatever the other lanes are.

A group is read as the counts of its outcomes (arm k, value m). With c these counts,
A the advantages of a lane's outcomes and pₖ = Σₘ cₖₘ Aₖₘ, a group's sum is

    Σᵢ Aᵢ sᵢ = Σₖ (pₖ - πₖ Σⱼ pⱼ) fₖ,

so the work after the draws is the same for a large group as for a small one. The part with π
is 0 for grpo and the group mean.

Where φ(x, k) = a(x) + gₖ δ(x), as in every location policy, logits need only h = ⟨δ, θ⟩ of
each lane, and the sum is δ(x) Σₖ (pₖ - …) gₖ. If the gₖ are also equally spaced, weights are cₖ ρᵏ
with ρ = exp(h), so one exponential serves all arms.

The code computes the exponential itself, because a call to the C library would prevent
vectorisation.
"""

"""miles's own advantages: its rewards as they reach the actor, then the actor's advantages."""

import itertools
from types import SimpleNamespace

from .losses import MICRO_BATCHES
from .record import Refused, foreign
from .slime import TRIED as TRIED
from .slime import arguments, batches, by_actor, divided, loss_arguments

FUNCTION = "miles.backends.training_utils.loss.compute_advantages_and_returns"
LOSS = "miles.backends.training_utils.loss.loss_function"

conversion = foreign("miles.ray.rollout.train_data_conversion")
training = foreign("miles.backends.training_utils.loss")
hub = foreign("miles.backends.training_utils.loss_hub.losses")
one = SimpleNamespace(
    is_pp_last_stage=True,
    cp=SimpleNamespace(size=1, rank=0, group=None),
    intra_dp_cp=SimpleNamespace(size=1),
    effective_dp=SimpleNamespace(group=None),
    effective_dp_cp=SimpleNamespace(group=None),
)
foreign("miles.backends.training_utils.parallel").set_parallel_state(one)


def advantages(options, batch):
    args = arguments(options, batch)
    if args.advantage_estimator == "ppo":
        raise Refused("a critic's values are wanted")
    args.skip_actor_forward_only, args.qkv_format = False, "thd"
    counter = itertools.count()
    samples = [
        SimpleNamespace(
            get_reward_value=lambda _, value=float(each): value,
            group_index=index,
            rollout_id=next(counter),
            index=None,
        )
        for index, group in enumerate(batch)
        for each in group
    ]
    _, rewards = conversion._post_process_rewards(args, samples, None)
    return by_actor(training, args, batch, rewards)


def loss(options, rollouts):
    args = loss_arguments(options)
    args.__dict__.update(
        qkv_format="thd",
        skip_actor_forward_only=False,
        observe_training_entropy=False,
        custom_pg_loss_reducer_function_path=None,
        dump_details=None,
        true_on_policy_mode=False,
    )
    total, tokens = 0.0, 0.0
    for made, batch in batches(rollouts):
        hub.get_log_probs_and_entropy = lambda *_, made=made, **__: made
        loss, count, _ = training.loss_function(
            args,
            batch,
            MICRO_BATCHES,
            rollouts.own,
            apply_megatron_loss_scaling=True,
            num_rollouts=len(rollouts.own),
        )
        total, tokens = total + loss, tokens + count
    return divided(args, total, tokens)

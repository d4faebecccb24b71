"""miles's own advantages: its rewards as they reach the actor, then the actor's advantages."""

import itertools
from types import SimpleNamespace

from .record import Refused, foreign
from .slime import arguments, by_actor

FUNCTION = "miles.backends.training_utils.loss.compute_advantages_and_returns"

conversion = foreign("miles.ray.rollout.train_data_conversion")
loss = foreign("miles.backends.training_utils.loss")
one = SimpleNamespace(
    is_pp_last_stage=True,
    cp=SimpleNamespace(size=1, rank=0),
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
    return by_actor(loss, args, batch, rewards)

"""Statuses of a run, as its learner writes them."""

from impala_tf.monitoring.status_file import ActorStatus, Status

NOW_S = 1_800_000_000.0


def an_actor(index: int, silent_s: float = 0.0, host: str = "127.0.0.1") -> ActorStatus:
    return {
        "name": f"actor-{index}",
        "host": host,
        "agent_steps_per_s": 1506.2,
        "parameter_lag": 3.14,
        "push_wait_fraction": 0.12,
        "last_contact_unix_s": NOW_S - silent_s,
    }


def a_status(**changes) -> Status:
    status: Status = {
        "state": "training",
        "level_name": "PongNoFrameskip-v4",
        "agent_name": "SimpleConvNetAgent",
        "precision": "bfloat16",
        "logdir": "runs/PongNoFrameskip-v4-SimpleConvNetAgent",
        "agent_steps": 307_200,
        "environment_frames": 1_228_800,
        "total_environment_frames": 10_000_000,
        "frames_per_step": 4,
        "queue_capacity": 32,
        "row": {
            "agent_steps_per_s": 3012.3,
            "frames_per_s": 12049.2,
            "episodes": 153,
            "episode_return_mean": -18.42,
            "policy_lag_mean": 3.14,
            "policy_lag_max": 9.0,
            "queue_size": 12,
            "learner_idle_fraction": 0.043,
        },
        "learners": [],
        "actors": [an_actor(0), an_actor(1)],
        "checkpoint": {
            "path": "runs/x/checkpoints/ckpt-000000012000",
            "environment_frames": 1_200_000,
        },
        "pid": 4711,
        "updated_unix_s": NOW_S,
    }
    return {**status, **changes}  # type: ignore[typeddict-item]


STARTING = a_status(state="starting", environment_frames=0, row=None, checkpoint=None, actors=[])

"""Generated from config/flags.py by: .venv/bin/python -m tests.helpers.arguments"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

_Path = str | os.PathLike[str]
_Wrapper = str | Callable[..., Any]


class TrainArguments(TypedDict, total=False):
    logdir: _Path | None
    fresh: bool
    mirror: _Path
    seed: int
    start_from: _Path
    preset: Literal["tuned", "paper"]
    total_environment_frames: int | None
    schedule_frames: int | None
    stop_at_return: float | None
    info_metrics: str | Sequence[str]
    track: Literal["none", "wandb"]
    video_every: int | None
    eval_every: int | None
    checkpoint_interval_s: float
    metrics_interval_s: float
    level_kwargs: str | Mapping[str, Any]
    level_wrappers: _Wrapper | Sequence[_Wrapper]
    num_action_repeats: int
    environment_processes: bool
    protocol: Literal["classic", "sticky"]
    width: int
    height: int
    frame_skip: int
    stacked_frames: int
    noop_max: int
    max_episode_frames: int
    repeat_action_probability: float
    full_action_space: bool
    terminal_on_life_loss: bool
    distribution_mode: Literal["easy", "hard"]
    num_levels: int
    start_level: int
    agent_name: str | None
    width_scale: int
    core: Literal["feedforward", "lstm"] | None
    heads: Literal["policy", "q_values", "dueling"] | None
    observation_normalization: Literal["none", "elementwise"] | None
    initialization: Literal["default", "orthogonal"] | None
    layer_norm: bool | None
    precision: Literal["auto", "float32", "bfloat16"]
    discounting: float | None
    baseline_cost: float | None
    entropy_cost: float | None
    entropy_cost_end: float | None
    loss_reduction: Literal["sum", "mean"] | None
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] | None
    advantage_scaling: Literal["none", "rms", "batch"] | None
    value_normalization: Literal["none", "running"] | None
    surrogate_clipping: float | None
    target_update_interval: int | None
    n_step: int | None
    trace_lambda: float | None
    batch_size: int | None
    unroll_length: int | None
    updates_per_batch: int | None
    ring_batches: int | None
    minibatches: int | None
    optimizer: Literal["rmsprop", "adam"] | None
    learning_rate: float | None
    learning_rate_schedule: Literal["linear", "constant", "kl"] | None
    learning_rate_end: float | None
    decay: float
    momentum: float
    epsilon: float | None
    gradients_clipping: float | None
    replay_capacity: int | None
    replay_start_steps: int | None
    replay_batch_size: int | None
    replay_ratio: float | None
    replay_sampling: Literal["uniform", "prioritized"] | None
    num_actors: int | None
    envs_per_actor: int | None
    inference: Literal["actor", "learner"]
    synchronization: Literal["none", "trajectory", "step"]
    device: Literal["auto", "cpu", "gpu"]
    learner_hosts: str
    actor_hosts: str
    credentials: str | None
    idle_exit_minutes: float | None
    tmux_sess: str
    min_actors: int | None
    min_learners: int | None
    max_hours: float | None
    end_command: str | None
    env: Sequence[str]
    secret: Sequence[str]
    num_learners: int | None
    actors_per_node: int | None
    slurm_actors: int
    slurm_options: str
    slurm_learner_options: str
    ray_learner_resources: str
    test_num_episodes: int
    test_policy: Literal["greedy", "sampled"]
    checkpoint: Literal["newest", "best"]
    video: bool
    trust_level_module: bool
    to: str | None


class EvaluateArguments(TypedDict, total=False):
    seed: int
    track: Literal["none", "wandb"]
    level_name: str
    level_kwargs: str | Mapping[str, Any]
    level_wrappers: _Wrapper | Sequence[_Wrapper]
    num_action_repeats: int
    environment_processes: bool
    protocol: Literal["classic", "sticky"]
    width: int
    height: int
    frame_skip: int
    stacked_frames: int
    noop_max: int
    max_episode_frames: int
    repeat_action_probability: float
    full_action_space: bool
    terminal_on_life_loss: bool
    distribution_mode: Literal["easy", "hard"]
    num_levels: int
    start_level: int
    device: Literal["auto", "cpu", "gpu"]
    video: bool
    to: str | None

"""The names of our flags in other libraries, so that hints can name ours."""

from __future__ import annotations

_RESUMES = "a run resumes by itself if its --logdir holds a checkpoint"
_FRAMES = "give --total_environment_frames, which counts frames, not agent steps"
_EPISODES = "--test_num_episodes"
_TEST = "give --mode=test --logdir=DIR"

OTHER_NAMES = {
    **dict.fromkeys(
        ("level", "levels", "env_id", "env_name", "environment", "game", "gym_id"),
        "--level_name",
    ),
    **dict.fromkeys(
        ("num_envs", "n_envs", "num_environments", "num_envs_per_worker"),
        "give --envs_per_actor, and --num_actors for how many actors there are",
    ),
    **dict.fromkeys(("num_workers", "n_workers", "workers", "actors"), "--num_actors"),
    **dict.fromkeys(
        ("total_timesteps", "timesteps", "num_timesteps", "total_steps", "num_steps_total",
         "train_for_env_steps", "num_env_steps", "max_steps"),
        _FRAMES,
    ),
    **dict.fromkeys(("total_frames", "frames", "num_frames"), "--total_environment_frames"),
    **dict.fromkeys(("resume", "restore"), _RESUMES),
    **dict.fromkeys(
        ("load", "load_checkpoint"),
        f"{_RESUMES}; --start_from=RUN begins a new run with the network of another one",
    ),
    **dict.fromkeys(
        ("init_from", "initial_checkpoint", "pretrained", "finetune", "fine_tune", "warm_start"),
        "--start_from",
    ),
    **dict.fromkeys(("test", "eval", "evaluate", "play", "enjoy"), _TEST),
    **dict.fromkeys(("eval_episodes", "n_eval_episodes", "num_episodes", "episodes"), _EPISODES),
    **dict.fromkeys(("eval_freq", "evaluation_interval", "eval_interval"), "--eval_every"),
    **dict.fromkeys(
        ("record_video", "capture_video", "save_video"),
        "give --mode=test --logdir=DIR --video after training",
    ),
    **dict.fromkeys(("lr", "alpha"), "--learning_rate"),
    **dict.fromkeys(("gamma", "discount", "discount_factor"), "--discounting"),
    **dict.fromkeys(("ent_coef", "entropy_coef", "entropy_coeff", "entropy"), "--entropy_cost"),
    **dict.fromkeys(("vf_coef", "value_coef", "vf_loss_coeff", "value_cost"), "--baseline_cost"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "grad_norm"), "--gradients_clipping"),
    **dict.fromkeys(("clip_range", "clip_coef", "clip_param"), "--surrogate_clipping"),
    **dict.fromkeys(("n_steps", "num_steps", "rollout", "rollout_length"), "--unroll_length"),
    **dict.fromkeys(("n_epochs", "num_epochs", "update_epochs"), "--updates_per_batch"),
    **dict.fromkeys(("num_minibatches", "n_minibatches"), "--minibatches"),
    **dict.fromkeys(("buffer_size", "replay_size"), "--replay_capacity"),
    **dict.fromkeys(("learning_starts",), "--replay_start_steps"),
    **dict.fromkeys(("algo", "alg"), "--algorithm"),
    **dict.fromkeys(("agent", "model", "network", "net", "policy"), "--agent_name"),
    **dict.fromkeys(("use_lstm", "use_rnn", "lstm"), "--core=lstm"),
    **dict.fromkeys(("log_dir", "logs", "output", "output_dir", "save_dir", "savedir"), "--logdir"),
    **dict.fromkeys(("cuda", "gpu", "use_gpu"), "--device=gpu"),
    **dict.fromkeys(("wandb", "use_wandb"), "--track=wandb"),
    **dict.fromkeys(
        ("wandb_project", "wandb_project_name", "wandb_group", "wandb_tags"),
        "the environment variables WANDB_PROJECT, WANDB_RUN_GROUP and WANDB_TAGS say it",
    ),
    **dict.fromkeys(("config_file", "cfg", "yaml"), "--config"),
    **dict.fromkeys(("env_kwargs", "env_args", "env_config"), "--level_kwargs"),
    **dict.fromkeys(("env_wrapper", "wrapper", "wrappers"), "--level_wrappers"),
    **dict.fromkeys(("callback",), "--callbacks"),
    **dict.fromkeys(("stop_at_reward", "target_return", "stop_return"), "--stop_at_return"),
    **dict.fromkeys(("frameskip", "frame_stack_skip"), "--frame_skip"),
    **dict.fromkeys(("frame_stack", "framestack", "num_stack"), "--stacked_frames"),
    **dict.fromkeys(("sticky_actions", "sticky"), "--repeat_action_probability"),
    **dict.fromkeys(("workers_csv", "csv", "hosts"), "--workers_csv_path"),
}  # fmt: skip
"""{name: our flag, or a sentence}."""

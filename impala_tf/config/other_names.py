"""The names of our flags in other libraries."""

_NAMES = {
    "level_name": "env_id env_name gym_id environment game level",
    "level_kwargs": "env_kwargs env_config",
    "level_wrappers": "env_wrapper",
    "envs_per_actor": "num_envs n_envs num_envs_per_worker",
    "num_actors": "num_workers n_workers",
    "total_environment_frames": "total_timesteps max_steps num_timesteps"
    " total_steps train_for_env_steps total_frames",
    "learning_rate": "lr alpha",
    "learning_rate_schedule": "anneal_lr lr_schedule",
    "discounting": "gamma discount discount_factor",
    "trace_lambda": "gae_lambda",
    "advantage_scaling": "norm_adv normalize_advantage",
    "entropy_cost": "ent_coef entropy_coef entropy_coeff exploration_loss_coeff",
    "baseline_cost": "vf_coef value_coef vf_loss_coeff value_loss_coeff",
    "gradients_clipping": "max_grad_norm grad_clip",
    "surrogate_clipping": "clip_range clip_coef clip_param ppo_clip_ratio",
    "unroll_length": "n_steps num_steps rollout rollout_length rollout_fragment_length",
    "batch_size": "train_batch_size",
    "updates_per_batch": "n_epochs num_epochs update_epochs",
    "minibatches": "num_minibatches n_minibatches",
    "replay_capacity": "buffer_size",
    "replay_start_steps": "learning_starts",
    "algorithm": "algo",
    "agent_name": "policy model network encoder_conv_architecture",
    "core=lstm": "use_rnn use_lstm",
    "logdir": "log_dir output_dir save_dir tensorboard_log train_dir experiment resume",
    "start_from": "load_checkpoint pretrained",
    "device=gpu": "cuda gpu use_gpu num_gpus",
    "track=wandb": "use_wandb with_wandb",
    "video_every": "capture_video record_video save_video",
    "eval_every": "eval_freq evaluation_interval",
    "test_num_episodes": "n_eval_episodes eval_episodes max_num_episodes",
    "stacked_frames": "frame_stack env_framestack",
    "frame_skip": "env_frameskip",
    "protocol=sticky": "sticky_actions",
    "seed": "random_seed",
    "stop_at_return": "stop_reward",
}

OTHER_NAMES = {other: ours for ours, others in _NAMES.items() for other in others.split()}
"""{name: our flag, perhaps with a value}."""

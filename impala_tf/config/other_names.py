"""The names of our flags in other libraries, so that hints can name ours."""

from __future__ import annotations

_NAMES = {
    "--level_name": "level levels env_id env_name environment game gym_id",
    "give --envs_per_actor, and --num_actors for how many actors there are":
        "num_envs n_envs num_environments num_envs_per_worker",
    "--num_actors": "num_workers n_workers workers actors",
    "give --total_environment_frames, which counts frames, not agent steps":
        "total_timesteps timesteps num_timesteps total_steps train_for_env_steps num_env_steps"
        " max_steps",
    "--total_environment_frames": "total_frames frames num_frames",
    "a run resumes by itself if its --logdir holds a checkpoint; --start_from=RUN begins a new one":
        "resume restore load load_checkpoint",
    "--start_from": "init_from initial_checkpoint pretrained finetune fine_tune warm_start",
    "give --mode=test --logdir=DIR": "test eval evaluate play enjoy",
    "--test_num_episodes": "eval_episodes n_eval_episodes num_episodes episodes",
    "--eval_every": "eval_freq evaluation_interval eval_interval",
    "give --mode=test --logdir=DIR --video after training": "record_video capture_video save_video",
    "--learning_rate": "lr alpha",
    "--discounting": "gamma discount discount_factor",
    "--entropy_cost": "ent_coef entropy_coef entropy_coeff entropy",
    "--baseline_cost": "vf_coef value_coef vf_loss_coeff value_cost",
    "--gradients_clipping": "max_grad_norm grad_clip grad_norm",
    "--surrogate_clipping": "clip_range clip_coef clip_param",
    "--unroll_length": "n_steps num_steps rollout rollout_length",
    "--updates_per_batch": "n_epochs num_epochs update_epochs",
    "--minibatches": "num_minibatches n_minibatches",
    "--replay_capacity": "buffer_size replay_size",
    "--replay_start_steps": "learning_starts",
    "--algorithm": "algo alg",
    "--agent_name": "agent model network net policy",
    "--core=lstm": "use_lstm use_rnn lstm",
    "--logdir": "log_dir logs output output_dir save_dir savedir",
    "--device=gpu": "cuda gpu use_gpu",
    "--track=wandb": "wandb use_wandb",
    "the environment variables WANDB_PROJECT, WANDB_RUN_GROUP and WANDB_TAGS say it":
        "wandb_project wandb_project_name wandb_group wandb_tags",
    "--config": "config_file cfg yaml",
    "--level_kwargs": "env_kwargs env_args env_config",
    "--level_wrappers": "env_wrapper wrapper wrappers",
    "--stop_at_return": "stop_at_reward target_return stop_return",
    "--stacked_frames": "frame_stack framestack num_stack",
    "--repeat_action_probability": "sticky_actions sticky",
    "--workers_csv_path": "workers_csv csv hosts",
}  # fmt: skip
OTHER_NAMES = {name: answer for answer, names in _NAMES.items() for name in names.split()}
"""{name: our flag, or a sentence}."""

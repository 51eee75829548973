"""The flags, grouped as `--help` shows them. A field's docstring is its help text.

`--help` shows the first sentence of a text, `--help_all` all of it. Line breaks have no meaning.

A `Config` has a value for every flag. What a command line gives is a `flag_values.Given`;
`defaults.resolve` turns it into a `Config`. There, `Derived` flags that are not given get their
values from the preset, the level or the machine; `--help_all` shows them. More flags are in
`learning_flags`, `engine_flags` and `mode_flags`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from impala_tf.config.engine_flags import (
    RayConfig,
    SlurmConfig,
)
from impala_tf.config.flag_types import DERIVED, Derived, NotNegative, Positive, Share
from impala_tf.config.learning_flags import LossConfig, OptimizerConfig, ReplayConfig
from impala_tf.config.mode_flags import (
    EvaluationConfig,
    ExportConfig,
)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What to do, and where results are kept."""

    mode: Literal["train", "test", "report", "describe", "export", "benchmark"] = "train"
    """train; test: play whole games with the newest checkpoint of --logdir;
    report: write a page that compares the runs in --logdir;
    describe: print the agent's layers and parameters, without a run;
    benchmark: measure every part of a run on this machine and the whole run: what limits it?
    export: write the agent in --logdir as a folder to share (--to)."""
    logdir: Derived[str] = DERIVED
    """Folder of the run: config, metrics, checkpoints, logs.
    If it holds this run, the run resumes. If it holds another run, this one is refused.
    report: several runs, repeated or comma separated; a folder stands for all runs below it.
    Default: runs/LEVEL-AGENT-ALGORITHM-SEED."""
    config: str | None = None
    """YAML file with flags, such as the config.yaml of a run. Flags on the command line win."""
    fresh: bool = False
    """If --logdir holds a run, rename that folder to NAME.1 (or NAME.2, ...) and start again from
    frame 0."""
    mirror: str = ""
    """Where every checkpoint is copied to: a folder (such as a mounted share), sftp://HOST/PATH,
    s3://BUCKET/NAME, gs://... (these two need the extra mirror).
    It also gets everything else that a resume needs, so the same command restores a lost --logdir.
    Each run needs its own mirror."""
    seed: NotNegative[int] = 1
    """The seeds of all environments, actors and learners derive from this one. Actors of a resumed
    run, and restarted actors, get different seeds than before, so they play different games."""
    start_from: str = ""
    """Begin a new run with the network of another one: RUN (its newest checkpoint), RUN/best, or
    RUN/checkpoints/ckpt-N. The torso must fit; the core, the policy and the baseline are new
    if they do not."""
    preset: Literal["tuned", "paper"] = "tuned"
    """Set of default values. tuned: learns fastest per frame; paper: table G.1 of the IMPALA paper.
    To see the values, add --help_all after --preset and --level_name."""
    total_environment_frames: Derived[Positive[int]] = DERIVED
    """Frames to train for, counted over all learners. Default: preset."""
    schedule_frames: Derived[Positive[int]] = DERIVED
    """The frame at which the learning rate and the entropy cost reach their last values. They keep
    these afterwards. Default: preset; if that has none, --total_environment_frames."""
    stop_at_return: float | None = None
    """End the run when the mean return of the last 100 episodes reaches this value, which is
    checked every --metrics_interval_s. For an agent of several levels, it is the mean over the
    levels, of normalised returns if each level has them (docs/runs.md)."""
    callbacks: str = ""
    """module:Class, comma separated: classes of yours that are told what the learner does, and may
    add metrics or end the run (see impala_tf.callbacks.Callback)."""
    info_metrics: str = ""
    """Names of numbers in the level's info, comma separated. The value at the end of an episode
    becomes a metric: its mean over the last 100 episodes, in the column info/NAME. For a key in a
    dictionary of info: DICTIONARY/KEY."""
    track: Literal["none", "wandb"] = "none"
    """wandb: metrics, config and videos go to Weights & Biases, too; WANDB_MODE=offline keeps them
    here until 'wandb sync'. metrics.csv and TensorBoard are always written."""
    video_every: Positive[int] | None = None
    """Frames between two videos, roughly; each shows a game with the next checkpoint. Default: no
    videos. They are in LOGDIR/videos, TensorBoard's images, and W&B if it is on."""
    eval_every: Positive[int] | None = None
    """Frames between two evaluations, roughly; each plays --test_num_episodes games with the next
    checkpoint. The run's last checkpoint is evaluated, too. On Procgen, games are on unseen levels;
    elsewhere, they have seeds that training does not use. Default: none.
    Results are in LOGDIR/evaluation.csv, TensorBoard (eval/), and W&B if it is on."""
    checkpoint_interval_s: Positive[float] = 60.0
    """Seconds between checkpoints."""
    metrics_interval_s: Positive[float] = 10.0
    """Seconds between rows of metrics.csv.
    Without a terminal, also between the progress lines that are printed."""


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """The level and its protocol. Actors and learners must agree on all of these."""

    level_name: str = "PongNoFrameskip-v4"
    """A level, or several, comma separated, that one agent learns. Lists: atari57, procgen16.
    Any Gymnasium id; module:Level-v0 imports your module first, also from the current folder.
    module:name is a function or a class in your module that makes a Gymnasium environment.
    All Atari ids (PongNoFrameskip-v4, ALE/Pong-v5) use the protocol below, whatever the suffix.
    procgen:GAME (procgen:coinrun) and retro:GAME (retro:Airstriker-Genesis-v0) need an extra."""
    level_kwargs: str = ""
    """Arguments of a Gymnasium level, or of a function or class of yours: a JSON object, such as
    '{"size": 8}'."""
    level_wrappers: str = ""
    """module:Wrapper, comma separated: functions or classes that take a Gymnasium environment, and
    perhaps arguments, 'module:Wrapper{"size": 8}', and return one; applied in this order."""
    num_action_repeats: Positive[int] = 1
    """How many steps of the level each action is repeated for.
    A step on Atari is already --frame_skip frames, as in the TF1 code: 1 is the standard there."""
    environment_processes: bool = False
    """Run each environment of a Gymnasium level in a process of its own, not all in the actor's.
    It helps if a step mostly waits (for a simulator, for example), or takes more than 1 ms and
    there are two cores or more for each actor. Levels with a vector environment ignore it."""
    protocol: Literal["classic", "sticky"] = "classic"
    """Atari, retro: classic: games start with no-ops, and no action sticks. sticky: actions stick
    with probability 0.25, games start at once, and a lost life ends nothing (Machado et al., 2018):
    --repeat_action_probability=0.25 --noop_max=0 --no_terminal_on_life_loss."""
    width: Positive[int] = 84
    """Atari, retro: frames are resized to this many pixels."""
    height: Positive[int] = 84
    """Atari, retro: frames are resized to this many pixels."""
    frame_skip: Positive[int] = 4
    """Atari, retro: emulator frames per step; the agent sees the maximum of the last two."""
    stacked_frames: Positive[int] = 4
    """Atari, retro: an observation is this many of the newest frames."""
    noop_max: NotNegative[int] = 30
    """Atari, retro: a game starts with a random number of no-ops, from 0 to this many."""
    max_episode_frames: Positive[int] = 108_000
    """Atari, retro: a game is truncated after this many emulator frames; 108,000 are 30 minutes."""
    repeat_action_probability: Share[float] = 0.0
    """Atari, retro: the probability that the last action is repeated in place of the new one; see
    --protocol."""
    full_action_space: bool = False
    """Atari: all 18 actions instead of the game's minimal set."""
    terminal_on_life_loss: bool = True
    """Atari: whether a lost life ends an episode for learning. It never ends the game or its
    return."""
    distribution_mode: Literal["easy", "hard"] = "easy"
    """Procgen: how varied and difficult the levels are."""
    num_levels: NotNegative[int] = 200
    """Procgen: train on this many levels; 0: on all levels from --start_level on.
    Cobbe et al. (2020) measure generalisation after training on 200 easy or 500 hard levels."""
    start_level: NotNegative[int] = 0
    """Procgen: the first level, a seed. The levels are --start_level to
    --start_level + --num_levels - 1; --mode=test also plays on the levels after these."""

    def __post_init__(self) -> None:
        # A name that was read from a file may end with a newline.
        if isinstance(self.level_name, str):
            object.__setattr__(self, "level_name", self.level_name.strip())


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """The network."""

    agent_name: Derived[str] = DERIVED
    """The network; 'impala agents' and docs/levels_and_agents.md list them. Default: preset.
    module:Class: a Sonnet module of yours, as the torso."""
    width_scale: Positive[int] = 1
    """Multiplies the channels of the convolutions; the other layers keep their size."""
    core: Derived[Literal["feedforward", "lstm"]] = DERIVED
    """The agent's memory: an LSTM, or none. What the agent sees does not change.
    Default: the named agent's own."""
    heads: Derived[Literal["policy", "q_values", "dueling"]] = DERIVED
    """policy: a policy and a baseline; q_values: a value for each action, for dqn and pqn;
    dueling: the same, as a state's value and each action's advantage (arXiv 1511.06581).
    Default: what --algorithm needs."""
    observation_normalization: Derived[Literal["none", "elementwise"]] = DERIVED
    """elementwise: subtract the mean and divide by the standard deviation. Images: of each pixel
    and channel, in the first 50,000 steps; vectors: of each component, over all steps so far.
    Default: preset."""
    initialization: Derived[Literal["default", "orthogonal"]] = DERIVED
    """orthogonal: with a gain of sqrt(2), but 1 for residual convolutions and the baseline, and
    0.01 for the policy head, so that it starts almost uniform; default: each layer's usual
    initialization. Default: preset."""
    layer_norm: Derived[bool] = DERIVED
    """LayerNorm (arXiv 1607.06450) before each activation of the torso; in residual networks, only
    after the linear layer. Default: on for pqn, else off."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the torso on images; everything else is float32.
    auto: bfloat16 on processors that have it (AVX512_BF16), and for residual networks on NVIDIA
    GPUs from Ampere on. bfloat16: processors without it still use float32."""


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """The processes of a run on this machine, or one process of a cluster."""

    num_actors: Derived[Positive[int]] = DERIVED
    """Actor processes of a run on this machine. Default: one per core."""
    envs_per_actor: Derived[Positive[int]] = DERIVED
    """Environments that an actor steps as one batch (N). Default: preset."""
    inference: Literal["actor", "learner"] = "actor"
    """Where actions are chosen. actor: by each actor, with the parameters it fetched; learner: by
    the learner, for all of its actors that wait, with the newest parameters (the paper's dynamic
    batching). Actors need less memory then."""
    synchronization: Literal["none", "trajectory", "step"] = "none"
    """What actors wait for. none: only for room in the queue (IMPALA); trajectory: after every
    unroll, for the update that uses it (batched A2C); step: in addition, all environments
    step together; needs --inference=learner. Except with none, a batch is one unroll of every
    environment. ppo is always at least trajectory."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where learners and --mode=test compute. Actors always use the CPU.
    auto: the GPU if TensorFlow finds one, else the CPU; gpu: no GPU is an error."""
    job_name: Literal["", "learner", "actor", "evaluator"] = ""
    """Run one process of a cluster by hand (sandbox/example_by_hand.md). The first learner starts
    evaluators itself, for --eval_every and --video_every.
    Default: everything on this machine, or what the environment variable TF_CONFIG says."""
    task: NotNegative[int] = 0
    """Index of this learner among the learners, or of this actor among the actors."""
    learner_hosts: str = ""
    """host:port of every learner, comma separated."""
    actor_hosts: str = ""
    """Names of the actors' machines, comma separated; only their number and order matter."""
    credentials: str | None = None
    """Folder with the run's certificates. Default: LOGDIR/credentials."""
    idle_exit_minutes: Positive[float] | None = None
    """An actor ends when it has not reached its learner for this long. Default: it never gives
    up."""


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """A cluster: the machines of a CSV file, or an engine such as Slurm."""

    workers_csv_path: str | None = None
    """CSV of the machines to launch learners and actors on."""
    tmux_sess: str = "impala"
    """tmux session of a launched run's processes; tmux attach shows them."""
    detach: bool = False
    """Return as soon as the run is launched, instead of showing its progress."""
    dry_run: bool = False
    """Print which processes would run where, and start nothing. Without a CSV, too.
    --engine: print what would be submitted."""
    accept_new_host_keys: bool = False
    """Trust machines that SSH does not know yet, and add them to ~/.ssh/known_hosts.
    A host key that has changed is still refused."""
    min_actors: Positive[int] | None = None
    """Start as soon as this many actors can start; the machines of the others join later.
    Default: all of them."""
    min_learners: Positive[int] | None = None
    """The fewest learners that train while the others are away; learner 0 is always needed.
    Learners that arrive later join. Default: all of them at first, then 1."""
    max_hours: Positive[float] | None = None
    """Stop the run after this time, with a checkpoint, so that machines do not cost more. With
    --join (so on Slurm), the time starts again with each job. It has no effect in
    Compose."""
    end_command: str | None = None
    """Shell command that each machine runs once all of its processes have ended, such as one that
    switches it off."""
    env: tuple[str, ...] = ()
    """NAME=VALUE: a variable for all processes of a launch with --workers_csv_path.
    They get no other variables of this shell."""
    secret: tuple[str, ...] = ()
    """NAME: like --env, but the value comes from this shell and is never shown. It is stored only
    in a file that only you can read, on each machine, until the run ends."""
    join: bool = False
    """Run this node's part of a job: one command for every node. The environment says which node
    it is, and where the learners are: Slurm, SkyPilot, Kubernetes or TF_CONFIG
    (docs/engines.md)."""
    num_learners: Positive[int] | None = None
    """--join, --engine=slurm and --engine=ray: how many learners there are. On Slurm and with
    --join, they are on the first nodes, one on each. Default: 1; with --join in a heterogeneous job
    of Slurm, the nodes of its first component."""
    actors_per_node: Positive[int] | None = None
    """--join: actor processes on each node without a learner. Default: one per core of the node."""
    engine: Literal["", "ssh", "slurm", "ray"] = ""
    """ssh: launch the run on the machines of --workers_csv_path, which means this engine; slurm:
    submit the run as a job that starts --join on each of its nodes; ray: let a Ray cluster place
    each process, and restart it elsewhere when its node is lost (docs/engines.md has others).
    --dry_run prints what the engine would get."""


@dataclasses.dataclass(frozen=True)
class Config:
    """All flags, grouped as `--help` shows them."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    agent: AgentConfig = AgentConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    replay: ReplayConfig = ReplayConfig()
    process: ProcessConfig = ProcessConfig()
    cluster: ClusterConfig = ClusterConfig()
    slurm: SlurmConfig = SlurmConfig()
    ray: RayConfig = RayConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    export: ExportConfig = ExportConfig()

"""The flags: a flag is one entry, a field of a group below, and nothing else repeats what it says.

    learning_rate: Annotated[float, POSITIVE, DERIVED, Short("train")] = NOT_GIVEN

Its annotation has the type, the range, where the flag matters (`Scope`; a group's SCOPE is that of
all its flags, except `Not`), and of which algorithms it is (`Of`; see `entries` for all these). The
text below it is its help: `--help_all` shows all of it, the `--help` of a command for which it is
`Short` the first sentence. `FLAGS` has all entries.

A `Config` has a value for every flag. What a command line gives is a `flag_values.Given`;
`defaults.resolve` turns it into a `Config`: there, DERIVED flags that are not given get their
values from the preset, the level or the machine.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from impala_tf.config.engine_flags import EngineConfig
from impala_tf.config.entries import (
    COMMAND,
    DERIVED,
    GRADIENTS,
    HERE,
    LAUNCH,
    LEARNERS,
    NOT_GIVEN,
    NOT_NEGATIVE,
    PLAYER,
    POSITIVE,
    RESUMED,
    SHARE,
    USER,
    WIRE,
    Flag,
    Not,
    Of,
    Scope,
    Short,
    read_entries,
    read_texts,
)

POLICY = Of("impala", "appo", "ppo", "a3c")
"""Those that learn a policy."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What to do, and where results are kept."""

    mode: Annotated[
        Literal["train", "test", "report", "describe", "export", "benchmark"],
        HERE,
        COMMAND,
        RESUMED,
    ] = "train"
    """train; test: play whole games with the newest checkpoint of --logdir;
    report: write a page that compares the runs in --logdir;
    describe: print the agent's layers and parameters, without a run;
    benchmark: measure every part of a run on this machine and the whole run: what limits it?
    export: write the agent in --logdir as a folder to share (--to)."""
    logdir: Annotated[str, DERIVED, HERE, RESUMED, Short("train", "test", "report", "export")] = (
        NOT_GIVEN
    )
    """Folder of the run: config, metrics, checkpoints, logs.
    If it holds this run, the run resumes. If it holds another run, this one is refused.
    report: several runs, repeated or comma separated; a folder stands for all runs below it.
    Default: runs/LEVEL-AGENT-ALGORITHM-SEED."""
    config: Annotated[str | None, HERE, COMMAND, RESUMED] = None
    """YAML file with flags, such as the config.yaml of a run. Flags on the command line win."""
    fresh: Annotated[bool, HERE, LAUNCH, RESUMED, Short("train")] = False
    """If --logdir holds a run, rename that folder to NAME.1 (or NAME.2, ...) and start again from
    frame 0."""
    mirror: Annotated[str, HERE, USER, RESUMED] = ""
    """Where every checkpoint is copied to: a folder (such as a mounted share), sftp://HOST/PATH,
    s3://BUCKET/NAME, gs://... (these two need the extra mirror).
    It also gets everything else that a resume needs, so the same command restores a lost --logdir.
    Each run needs its own mirror."""
    seed: Annotated[int, NOT_NEGATIVE, PLAYER, Short("train", "test")] = 1
    """The seeds of all environments, actors and learners derive from this one. Actors of a resumed
    run, and restarted actors, get different seeds than before, so they play different games."""
    start_from: str = ""
    """Begin a new run with the network of another one: RUN (its newest checkpoint), RUN/best, or
    RUN/checkpoints/ckpt-N. The torso must fit; the core, the policy and the baseline are new
    if they do not."""
    preset: Annotated[Literal["tuned", "paper"], Short("train")] = "tuned"
    """Set of default values. tuned: learns fastest per frame; paper: table G.1 of the IMPALA paper.
    To see the values, add --help_all after --preset and --level_name."""
    total_environment_frames: Annotated[int, POSITIVE, DERIVED, RESUMED, Short("train")] = NOT_GIVEN
    """Frames to train for, counted over all learners. Default: preset."""
    schedule_frames: Annotated[int, POSITIVE, DERIVED, LEARNERS] = NOT_GIVEN
    """The frame at which the learning rate and the entropy cost reach their last values. They keep
    these afterwards. Default: preset; if that has none, --total_environment_frames."""
    stop_at_return: Annotated[float | None, RESUMED, Short("train")] = None
    """End the run when the mean return of the last 100 episodes reaches this value, which is
    checked every --metrics_interval_s. For an agent of several levels, it is the mean over the
    levels, of normalised returns if each level has them (docs/runs.md)."""
    callbacks: Annotated[str, RESUMED] = ""
    """module:Class, comma separated: classes of yours that are told what the learner does, and may
    add metrics or end the run (see impala_tf.callbacks.Callback)."""
    info_metrics: Annotated[str, WIRE] = ""
    """Names of numbers in the level's info, comma separated. The value at the end of an episode
    becomes a metric: its mean over the last 100 episodes, in the column info/NAME. For a key in a
    dictionary of info: DICTIONARY/KEY."""
    track: Annotated[Literal["none", "wandb"], RESUMED, PLAYER, Short("train")] = "none"
    """wandb: metrics, config and videos go to Weights & Biases, too; WANDB_MODE=offline keeps them
    here until 'wandb sync'. metrics.csv and TensorBoard are always written."""
    video_every: Annotated[int | None, POSITIVE, RESUMED] = None
    """Frames between two videos, roughly; each shows a game with the next checkpoint. Default: no
    videos. They are in LOGDIR/videos, TensorBoard's images, and W&B if it is on."""
    eval_every: Annotated[int | None, POSITIVE, RESUMED, Short("train")] = None
    """Frames between two evaluations, roughly; each plays --test_num_episodes games with the next
    checkpoint. The run's last checkpoint is evaluated, too. On Procgen, games are on unseen levels;
    elsewhere, they have seeds that training does not use. Default: none.
    Results are in LOGDIR/evaluation.csv, TensorBoard (eval/), and W&B if it is on."""
    checkpoint_interval_s: Annotated[float, POSITIVE, RESUMED] = 60.0
    """Seconds between checkpoints."""
    metrics_interval_s: Annotated[float, POSITIVE, RESUMED] = 10.0
    """Seconds between rows of metrics.csv.
    Without a terminal, also between the progress lines that are printed."""


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """The level and its protocol. Actors and learners must agree on all of these."""

    SCOPE: ClassVar[Scope] = WIRE
    level_name: Annotated[str, Short("train", "describe", "benchmark")] = "PongNoFrameskip-v4"
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
    num_action_repeats: Annotated[int, POSITIVE] = 1
    """How many steps of the level each action is repeated for.
    A step on Atari is already --frame_skip frames, as in the TF1 code: 1 is the standard there."""
    environment_processes: Annotated[bool, RESUMED] = False
    """Run each environment of a Gymnasium level in a process of its own, not all in the actor's.
    It helps if a step mostly waits (for a simulator, for example), or takes more than 1 ms and
    there are two cores or more for each actor. Levels with a vector environment ignore it."""
    protocol: Literal["classic", "sticky"] = "classic"
    """Atari, retro: classic: games start with no-ops, and no action sticks. sticky: actions stick
    with probability 0.25, games start at once, and a lost life ends nothing (Machado et al., 2018):
    --repeat_action_probability=0.25 --noop_max=0 --no_terminal_on_life_loss."""
    width: Annotated[int, POSITIVE] = 84
    """Atari, retro: frames are resized to this many pixels."""
    height: Annotated[int, POSITIVE] = 84
    """Atari, retro: frames are resized to this many pixels."""
    frame_skip: Annotated[int, POSITIVE] = 4
    """Atari, retro: emulator frames per step; the agent sees the maximum of the last two."""
    stacked_frames: Annotated[int, POSITIVE] = 4
    """Atari, retro: an observation is this many of the newest frames."""
    noop_max: Annotated[int, NOT_NEGATIVE] = 30
    """Atari, retro: a game starts with a random number of no-ops, from 0 to this many."""
    max_episode_frames: Annotated[int, POSITIVE] = 108_000
    """Atari, retro: a game is truncated after this many emulator frames; 108,000 are 30 minutes."""
    repeat_action_probability: Annotated[float, SHARE] = 0.0
    """Atari, retro: the probability that the last action is repeated in place of the new one; see
    --protocol."""
    full_action_space: bool = False
    """Atari: all 18 actions instead of the game's minimal set."""
    terminal_on_life_loss: bool = True
    """Atari: whether a lost life ends an episode for learning. It never ends the game or its
    return."""
    distribution_mode: Literal["easy", "hard"] = "easy"
    """Procgen: how varied and difficult the levels are."""
    num_levels: Annotated[int, NOT_NEGATIVE] = 200
    """Procgen: train on this many levels; 0: on all levels from --start_level on.
    Cobbe et al. (2020) measure generalisation after training on 200 easy or 500 hard levels."""
    start_level: Annotated[int, NOT_NEGATIVE] = 0
    """Procgen: the first level, a seed. The levels are --start_level to
    --start_level + --num_levels - 1; impala test also plays on the levels after these."""

    def __post_init__(self) -> None:
        # A name that was read from a file may end with a newline.
        if isinstance(self.level_name, str):
            object.__setattr__(self, "level_name", self.level_name.strip())


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """The network."""

    SCOPE: ClassVar[Scope] = LEARNERS
    agent_name: Annotated[str, DERIVED, WIRE, Short("train", "describe", "benchmark")] = NOT_GIVEN
    """The network; 'impala agents' and docs/levels_and_agents.md list them. Default: preset.
    module:Class: a Sonnet module of yours, as the torso."""
    width_scale: Annotated[int, POSITIVE, WIRE, Short("describe")] = 1
    """Multiplies the channels of the convolutions; the other layers keep their size."""
    core: Annotated[Literal["feedforward", "lstm"], DERIVED, WIRE, Short("train", "describe")] = (
        NOT_GIVEN
    )
    """The agent's memory: an LSTM, or none. What the agent sees does not change.
    Default: the named agent's own."""
    heads: Annotated[Literal["policy", "q_values", "dueling"], DERIVED, WIRE] = NOT_GIVEN
    """policy: a policy and a baseline; q_values: a value for each action, for dqn and pqn;
    dueling: the same, as a state's value and each action's advantage (arXiv 1511.06581).
    Default: what --algorithm needs."""
    observation_normalization: Annotated[Literal["none", "elementwise"], DERIVED, WIRE] = NOT_GIVEN
    """elementwise: subtract the mean and divide by the standard deviation. Images: of each pixel
    and channel, in the first 50,000 steps; vectors: of each component, over all steps so far.
    Default: preset."""
    initialization: Annotated[Literal["default", "orthogonal"], DERIVED] = NOT_GIVEN
    """orthogonal: with a gain of sqrt(2), but 1 for residual convolutions and the baseline, and
    0.01 for the policy head, so that it starts almost uniform; default: each layer's usual
    initialization. Default: preset."""
    layer_norm: Annotated[bool, DERIVED, WIRE] = NOT_GIVEN
    """LayerNorm (arXiv 1607.06450) before each activation of the torso; in residual networks, only
    after the linear layer. Default: on for pqn, else off."""
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"], RESUMED, Not(LEARNERS), Short("describe")
    ] = "auto"
    """Number format of the torso on images; everything else is float32.
    auto: bfloat16 on processors that have it (AVX512_BF16), and for residual networks on NVIDIA
    GPUs from Ampere on. bfloat16: processors without it still use float32."""


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The algorithm and its losses."""

    SCOPE: ClassVar[Scope] = LEARNERS | GRADIENTS
    algorithm: Annotated[str, DERIVED, WIRE, Short("train")] = NOT_GIVEN
    """impala, appo, ppo, a3c, dqn or pqn. --help_all describes them at its end. Default: preset.
    module:NAME: a record of yours (see impala_tf.config.algorithms.Algorithm)."""
    discounting: Annotated[float, SHARE, DERIVED, Short("train")] = NOT_GIVEN
    """Discount factor gamma of an agent step. Default: preset."""
    baseline_cost: Annotated[float, NOT_NEGATIVE, DERIVED, POLICY] = NOT_GIVEN
    """Weight of the baseline (value) loss. Default: preset."""
    entropy_cost: Annotated[float, NOT_NEGATIVE, DERIVED, POLICY, Short("train")] = NOT_GIVEN
    """Weight of the entropy bonus, at frame 0. Default: preset."""
    entropy_cost_end: Annotated[float, NOT_NEGATIVE, DERIVED, POLICY] = NOT_GIVEN
    """Weight of the entropy bonus from --schedule_frames on; it changes linearly until then.
    Default: preset; if --entropy_cost is given, the same fraction of it as in the preset."""
    loss_reduction: Annotated[Literal["sum", "mean"], DERIVED] = NOT_GIVEN
    """Whether losses are summed or averaged over a batch's steps. dqn and pqn always average.
    Default: preset."""
    reward_clipping: Annotated[
        Literal["abs_one", "soft_asymmetric", "none"], DERIVED, Short("train")
    ] = NOT_GIVEN
    """abs_one: clip to [-1, 1]; soft_asymmetric: 5 tanh(r / 5), negative ones times 0.3 (DMLab).
    Default: preset."""
    advantage_scaling: Annotated[Literal["none", "rms", "batch"], DERIVED, POLICY] = NOT_GIVEN
    """rms: divide by the running root mean square of the advantages; batch: subtract the mean and
    divide by the standard deviation of those in the batch; impala and appo weight the mean by
    pi / mu, as they weight the advantages. Default: preset."""
    value_normalization: Annotated[Literal["none", "running"], DERIVED] = NOT_GIVEN
    """running: the network predicts values in units of their running mean and standard deviation
    (PopArt, arXiv 1809.04474), so that large returns need no clipping. Default: preset."""
    surrogate_clipping: Annotated[float, NOT_NEGATIVE, DERIVED, Of("appo", "ppo")] = NOT_GIVEN
    """Epsilon of the clipped probability ratio; 0 switches it off. Default: preset."""
    target_update_interval: Annotated[int, NOT_NEGATIVE, DERIVED, Of("dqn")] = NOT_GIVEN
    """Learner updates after which the target network becomes a copy of the network.
    Default: preset."""
    n_step: Annotated[int, POSITIVE, DERIVED, Of("dqn")] = NOT_GIVEN
    """Number of rewards in a target, to which the value of the next state is added. At the end
    of an unroll there are fewer. Default: preset; at most --unroll_length."""
    trace_lambda: Annotated[float, SHARE, DERIVED] = NOT_GIVEN
    """How far estimates look ahead. impala, appo, a3c: decay of V-trace's traces (remark 2 of the
    paper); ppo: lambda of the advantage estimates (arXiv 1506.02438); pqn: lambda of the targets.
    0: one reward and the value of the state that follows; 1: all rewards up to the unroll's end.
    Default: preset."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, its schedule, and how batches are used."""

    SCOPE: ClassVar[Scope] = LEARNERS
    batch_size: Annotated[int, POSITIVE, DERIVED, Short("train")] = NOT_GIVEN
    """Unrolls per batch, for each learner (B).
    Default: preset; ppo: one unroll of every environment; a3c: those of one actor."""
    unroll_length: Annotated[int, POSITIVE, DERIVED, WIRE, Short("train")] = NOT_GIVEN
    """Agent steps per unroll (T). Default: preset."""
    updates_per_batch: Annotated[int, POSITIVE, DERIVED, Of("impala", "appo", "ppo", "pqn")] = (
        NOT_GIVEN
    )
    """How many times each batch is learned from; ppo, pqn: epochs. Default: preset.
    A larger number learns more from each frame, but takes more time; V-trace corrects for the
    policy lag."""
    ring_batches: Annotated[int, POSITIVE, DERIVED, Of("appo")] = NOT_GIVEN
    """How many batches are kept. The uses of a batch are spread over the arrivals of this
    many batches, so that consecutive updates use different ones. Default: preset."""
    minibatches: Annotated[int, POSITIVE, DERIVED, Of("ppo", "pqn")] = NOT_GIVEN
    """How many parts, of whole unrolls, a batch is split into; shuffled in every epoch.
    Default: preset; more if actors wait and there are more than two of them."""
    optimizer: Annotated[Literal["rmsprop", "adam"], DERIVED] = NOT_GIVEN
    """The optimizer. Default: preset."""
    learning_rate: Annotated[float, POSITIVE, DERIVED, Short("train")] = NOT_GIVEN
    """Learning rate at frame 0. Default: preset."""
    learning_rate_schedule: Annotated[Literal["linear", "constant", "kl"], DERIVED] = NOT_GIVEN
    """linear: reaches --learning_rate_end at --schedule_frames; constant; kl: as linear, but
    divided by 1.5 while the KL divergence from the policy that acted is above 0.02 nats, and
    multiplied by 1.5 while it is below 0.005; from a tenth of the linear rate to all of it.
    Default: preset."""
    learning_rate_end: Annotated[float, NOT_NEGATIVE, DERIVED] = NOT_GIVEN
    """linear, kl: the learning rate from --schedule_frames on.
    Default: preset; if --learning_rate is given, the same fraction of it as in the preset; 0 if the
    preset's schedule is constant."""
    decay: Annotated[float, SHARE] = 0.99
    """RMSProp's decay of the squared gradients."""
    momentum: Annotated[float, SHARE] = 0.0
    """RMSProp's momentum."""
    epsilon: Annotated[float, POSITIVE, DERIVED] = NOT_GIVEN
    """Added to the root of the squared gradients (Adam), or under it (RMSProp). Default: preset."""
    gradients_clipping: Annotated[float, NOT_NEGATIVE, DERIVED] = NOT_GIVEN
    """Gradients are clipped to this global norm; 0 switches clipping off. Default: preset."""


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Replay and exploration."""

    SCOPE: ClassVar[Scope] = LEARNERS
    OF: ClassVar[tuple[str, ...]] = ("dqn",)
    replay_capacity: Annotated[int, POSITIVE, DERIVED] = NOT_GIVEN
    """How many agent steps, the newest ones, each learner keeps in memory. Default: preset.
    The learner's log says how much memory they take."""
    replay_start_steps: Annotated[int, NOT_NEGATIVE, DERIVED] = NOT_GIVEN
    """Agent steps in the replay before anything is learned from it. Default: preset."""
    replay_batch_size: Annotated[int, POSITIVE, DERIVED] = NOT_GIVEN
    """Agent steps drawn for each gradient step, for each learner. Default: preset."""
    replay_ratio: Annotated[float, POSITIVE, DERIVED] = NOT_GIVEN
    """Gradient steps for each agent step that a learner receives. Default: preset."""
    replay_sampling: Annotated[Literal["uniform", "prioritized"], DERIVED] = NOT_GIVEN
    """prioritized: steps with a large error are drawn more often (arXiv 1511.05952), at first by
    the errors that the actors computed. Default: preset."""


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """The processes of a run on this machine, or one process of a cluster."""

    SCOPE: ClassVar[Scope] = RESUMED
    num_actors: Annotated[int, POSITIVE, DERIVED, Short("train", "benchmark")] = NOT_GIVEN
    """Actor processes of a run on this machine. Default: one per core."""
    envs_per_actor: Annotated[int, POSITIVE, DERIVED, GRADIENTS, Short("train", "benchmark")] = (
        NOT_GIVEN
    )
    """Environments that an actor steps as one batch (N). Default: preset."""
    inference: Annotated[Literal["actor", "learner"], WIRE] = "actor"
    """Where actions are chosen. actor: by each actor, with the parameters it fetched; learner: by
    the learner, for all of its actors that wait, with the newest parameters (the paper's dynamic
    batching). Actors need less memory then."""
    synchronization: Annotated[Literal["none", "trajectory", "step"], WIRE, Not(RESUMED)] = "none"
    """What actors wait for. none: only for room in the queue (IMPALA); trajectory: after every
    unroll, for the update that uses it (batched A2C); step: in addition, all environments
    step together; needs --inference=learner. Except with none, a batch is one unroll of every
    environment. ppo is always at least trajectory."""
    device: Annotated[Literal["auto", "cpu", "gpu"], PLAYER, Short("train")] = "auto"
    """Where learners and impala test compute. Actors always use the CPU.
    auto: the GPU if TensorFlow finds one, else the CPU; gpu: no GPU is an error."""
    job_name: Annotated[Literal["", "learner", "actor", "evaluator"], HERE, USER, COMMAND] = ""
    """Run one process of a cluster by hand (docs/by_hand.md). The first learner starts
    evaluators itself, for --eval_every and --video_every.
    Default: everything on this machine, or what the environment variable TF_CONFIG says."""
    task: Annotated[int, NOT_NEGATIVE, HERE, COMMAND] = 0
    """Index of this learner among the learners, or of this actor among the actors."""
    learner_hosts: Annotated[str, HERE, USER] = ""
    """host:port of every learner, comma separated."""
    actor_hosts: Annotated[str, HERE, USER] = ""
    """Names of the actors' machines, comma separated; only their number and order matter."""
    credentials: Annotated[str | None, HERE, USER, LAUNCH] = None
    """Folder with the run's certificates. Default: LOGDIR/credentials."""
    idle_exit_minutes: Annotated[float | None, POSITIVE] = None
    """An actor ends when it has not reached its learner for this long. Default: it never gives
    up."""


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """A cluster: the machines of a CSV file, or the nodes of an engine."""

    SCOPE: ClassVar[Scope] = HERE | LAUNCH | RESUMED
    workers_csv_path: Annotated[str | None, USER, COMMAND, Short("train")] = None
    """CSV of the machines to launch learners and actors on."""
    tmux_sess: str = "impala"
    """tmux session of a launched run's processes; tmux attach shows them."""
    detach: Annotated[bool, COMMAND] = False
    """Return as soon as the run is launched, instead of showing its progress."""
    dry_run: Annotated[bool, COMMAND, Short("train")] = False
    """Print which processes would run where, and start nothing. Without a CSV, too.
    --engine: print what would be submitted."""
    min_actors: Annotated[int | None, POSITIVE] = None
    """Start as soon as this many actors can start; the machines of the others join later.
    Default: all of them."""
    min_learners: Annotated[int | None, POSITIVE] = None
    """The fewest learners that train while the others are away; learner 0 is always needed.
    Learners that arrive later join. Default: all of them at first, then 1."""
    max_hours: Annotated[float | None, POSITIVE] = None
    """Stop the run after this time, with a checkpoint, so that machines do not cost more. With
    --join (so on Slurm), the time starts again with each job. It has no effect in
    Compose."""
    end_command: Annotated[str | None, USER] = None
    """Shell command that each machine runs once all of its processes have ended, such as one that
    switches it off."""
    env: Annotated[tuple[str, ...], USER] = ()
    """NAME=VALUE: a variable for all processes of a launch with --workers_csv_path.
    They get no other variables of this shell."""
    secret: Annotated[tuple[str, ...], USER] = ()
    """NAME: like --env, but the value comes from this shell and is never shown. It is stored only
    in a file that only you can read, on each machine, until the run ends."""
    join: Annotated[bool, USER, COMMAND] = False
    """Run this node's part of a job: one command for every node. The environment says which node
    it is, and where the learners are: Slurm, SkyPilot, Kubernetes or TF_CONFIG
    (docs/engines.md)."""
    num_learners: Annotated[int | None, POSITIVE] = None
    """--join, --engine=slurm and --engine=ray: how many learners there are, each on a node of its
    own. Default: 1; with --join in a heterogeneous job of Slurm, the nodes of its first
    component."""
    actors_per_node: Annotated[int | None, POSITIVE] = None
    """--join: actor processes on each node without a learner. Default: one per core of the node;
    with --engine=ray, all of --num_actors on one node."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """impala test, and games while training (--eval_every)."""

    SCOPE: ClassVar[Scope] = PLAYER | RESUMED
    test_num_episodes: Annotated[int, POSITIVE, Short("test", "export")] = 10
    """How many whole games to play."""
    test_policy: Annotated[Literal["greedy", "sampled"], Short("test")] = "sampled"
    """greedy: the most likely action; sampled: drawn from the policy, as in training.
    For agents of dqn and pqn, sampled means that one action in a hundred is random."""
    checkpoint: Annotated[Literal["newest", "best"], Short("test", "export")] = "newest"
    """Checkpoint to play or export. best: the one with the highest mean return."""
    video: Annotated[bool, Short("test")] = False
    """Also write an mp4 of one game to the logdir. Only with impala test."""
    trust_level_module: Annotated[bool, HERE, USER, Short("test", "report", "export")] = False
    """Import the Python modules that the run in --logdir names, such as those of its level, network
    or algorithm. Their code runs on this machine, so impala test, report and export ask first.
    Also use all flags of the file in --config: modules, --end_command, --mirror, machines."""
    to: Annotated[str | None, USER, Short("report", "export")] = None
    """export: a new folder for others: a model card with curve and evaluation, a model that plays
    without TensorFlow (impala test --logdir=FOLDER), and a SavedModel. The Hugging Face hub takes
    it as it is. It plays --test_num_episodes games for the card. Default: LOGDIR/export.
    report: where report.html, report.md and report.csv are written. Default: the --logdir; if there
    are several, runs/report."""


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
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


GROUPS: Mapping[str, Any] = typing.get_type_hints(Config)
"""{field of `Config`: its class}."""

FLAGS: Mapping[str, Flag] = {
    flag.name: flag for group, cls in GROUPS.items() for flag in read_entries(group, cls)
}
"""{name: entry}. No name is in two groups."""


def flags_of(scope: Scope) -> tuple[str, ...]:
    """Returns the names of the flags that a scope has."""
    return tuple(name for name, flag in FLAGS.items() if flag.scope & scope)


@functools.cache
def texts() -> dict[str, str]:
    """Returns {flag: its text}; it begins with the algorithms that use the flag, if not all do."""
    found = {}
    for cls in GROUPS.values():
        for name, text in read_texts(cls).items():
            of = FLAGS[name].algorithms
            found[name] = f"{', '.join(of)}: {text}" if of else text
    return found

"""The flags, grouped as `--help` shows them. A field's docstring is its help text.

`--help` keeps the line breaks of these texts, so they break where a sentence ends. A default of
``None`` or ``auto`` depends on the level or the machine: `defaults.resolve` fills it in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What to do, and where results are kept."""

    mode: Literal["train", "test"] = "train"
    """train, or test: play whole games with the newest checkpoint of --logdir."""
    logdir: str | None = None
    """Folder of the run: config, metrics, checkpoints, logs.
    If it holds a checkpoint, the run resumes from it.
    Default: runs/LEVEL-AGENT."""
    seed: int = 1
    """The seeds of all environments, actors and learners derive from this one."""
    total_environment_frames: int | None = None
    """Frames to train for, counted over all learners.
    Default: 200M on Atari, 50M on other images, 1.5M on vectors."""
    checkpoint_interval_s: float = 60.0
    """Seconds between checkpoints."""
    metrics_interval_s: float = 10.0
    """Seconds between rows of metrics.csv.
    Without a terminal, also between the progress lines that are printed."""


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """The level and its protocol. Actors and learners must agree on all of these."""

    level_name: str = "PongNoFrameskip-v4"
    """Any Gymnasium id with discrete actions and image or vector observations.
    All Atari ids (PongNoFrameskip-v4, ALE/Pong-v5) mean the protocol below, whatever the suffix."""
    num_action_repeats: int = 1
    """Steps of the level that each action is repeated for.
    A step on Atari is already --frame_skip frames, as in the TF1 code: 1 is the standard there."""
    width: int = 84
    """Atari: frames are resized to this many pixels."""
    height: int = 84
    """Atari: frames are resized to this many pixels."""
    frame_skip: int = 4
    """Atari: emulator frames per step; the agent sees the maximum of the last two."""
    stacked_frames: int = 4
    """Atari: an observation is this many of the newest frames."""
    noop_max: int = 30
    """Atari: a game starts with a random number of no-ops, from 0 to this many."""
    max_episode_frames: int = 108_000
    """Atari: a game is truncated after this many emulator frames; 108,000 are 30 minutes."""
    repeat_action_probability: float = 0.0
    """Atari: sticky actions; 0.25 is the v5 protocol of Machado et al. (2018)."""
    full_action_space: bool = False
    """Atari: all 18 actions instead of the game's minimal set."""
    terminal_on_life_loss: bool = True
    """Atari: losing a life ends an episode for learning, but not the game or its return."""


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """The network."""

    agent_name: str = "auto"
    """A name from the table in docs/levels_and_agents.md.
    auto: SimpleConvNetAgent on images, MLPAgent on vectors."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the torso computes in on images; everything else is float32.
    bfloat16 is faster on processors with AVX512_BF16; processors without it use float32."""


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """V-trace and the losses (paper, sections 4.1 and 4.2), summed over time and batch."""

    discounting: float = 0.99
    """Discount factor gamma of an agent step."""
    baseline_cost: float | None = None
    """Weight of the baseline (value) loss. Default: 0.5 on images, 0.05 on vectors."""
    entropy_cost: float | None = None
    """Weight of the entropy bonus. Default: 0.01."""
    reward_clipping: Literal["auto", "abs_one", "soft_asymmetric", "none"] = "auto"
    """abs_one: clip to [-1, 1]; soft_asymmetric: 5 tanh(r / 5), negative ones times 0.3 (DMLab);
    auto: abs_one on images, none on vectors."""
    clip_rho_threshold: float = 1.0
    """rho-bar: clips the importance weights of the temporal differences."""
    clip_pg_rho_threshold: float = 1.0
    """Clips the importance weights of the policy gradient."""
    clip_c_threshold: float = 1.0
    """c-bar: clips the trace coefficients."""
    vtrace_lambda: float = 1.0
    """Decay of the traces (remark 2 of the paper)."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """RMSProp; the learning rate falls linearly to 0 over --total_environment_frames."""

    batch_size: int = 32
    """Unrolls per update, for each learner (B)."""
    unroll_length: int = 20
    """Agent steps per unroll (T)."""
    updates_per_batch: int = 1
    """Gradient steps on each batch before it is dropped.
    More steps learn more from a frame; V-trace corrects for the extra policy lag."""
    learning_rate: float | None = None
    """At frame 0. Default: 6e-4 on images, 3e-3 on vectors."""
    decay: float = 0.99
    """RMSProp's decay of the squared gradients."""
    momentum: float = 0.0
    """RMSProp's momentum."""
    epsilon: float | None = None
    """RMSProp's epsilon, added under the square root. Default: 0.01 on images, 1e-5 on vectors."""
    gradients_clipping: float = 40.0
    """Gradients are clipped to this global norm; 0 switches clipping off."""


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """The processes of a run on this machine, or one process of a cluster."""

    num_actors: int | None = None
    """Actor processes of a run on this machine. Default: one per core."""
    envs_per_actor: int | None = None
    """Environments that an actor steps as one batch (N). Default: 32; 8 on images but Atari."""
    queue_capacity: int | None = None
    """Unrolls that the learner's queue holds; when it is full, actors wait.
    Default: the batch size."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where learners and --mode=test compute. Actors always use the CPU.
    auto: the GPU if TensorFlow finds one, else the CPU; gpu: no GPU is an error."""
    job_name: Literal["", "learner", "actor"] = ""
    """Run one process of a cluster by hand (sandbox/example_by_hand.md).
    Default: everything on this machine, or what the environment variable TF_CONFIG says."""
    task: int = 0
    """Index of this learner among the learners, or of this actor among the actors."""
    learner_hosts: str = ""
    """host:port of every learner, comma separated."""
    actor_hosts: str = ""
    """Names of the actors' machines, comma separated; only their number and order matter."""
    credentials: str | None = None
    """Folder with the run's certificates. Default: LOGDIR/credentials."""
    heartbeat_path: str | None = None
    """File that an actor touches on every call to its learner, including failed ones.
    A health check looks at its age."""


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """A cluster that a CSV file describes."""

    workers_csv_path: str | None = None
    """CSV of the machines to launch learners and actors on."""
    tmux_sess: str = "impala"
    """tmux session of a launched run's processes; tmux attach shows them."""
    detach: bool = False
    """Return as soon as the run is launched, instead of showing its progress."""
    accept_new_host_keys: bool = False
    """Trust machines that SSH does not know yet, and add them to ~/.ssh/known_hosts.
    A host key that has changed is still refused."""
    max_restarts: int = 3
    """How often a failed learner is restarted. Actors are always restarted."""
    rendezvous_port: int | None = None
    """Port on learner 0's machine where several learners find each other.
    Default: one above the highest learner port there."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """--mode=test."""

    test_num_episodes: int = 10
    """Whole games to play."""
    test_policy: Literal["greedy", "sampled"] = "sampled"
    """greedy: the most likely action; sampled: drawn from the policy, as in training."""
    video: bool = False
    """Also write an mp4 of one game to the logdir."""


@dataclasses.dataclass(frozen=True)
class Config:
    """All flags, grouped as `--help` shows them."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    agent: AgentConfig = AgentConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    process: ProcessConfig = ProcessConfig()
    cluster: ClusterConfig = ClusterConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


def flat_items(config: Config) -> Iterator[tuple[str, Any]]:
    """Yields (flag name, value) of every flag. No name is in two groups."""
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        for field in dataclasses.fields(values):
            yield field.name, getattr(values, field.name)


def replace(config: Config, **flags: Any) -> Config:
    """Returns `config` with the named flags changed, whichever group they are in."""
    groups = {}
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        mine = {f.name: flags.pop(f.name) for f in dataclasses.fields(values) if f.name in flags}
        groups[group.name] = dataclasses.replace(values, **mine)
    if flags:
        raise TypeError(f"no such flags: {', '.join(flags)}")
    return Config(**groups)


def to_flags(config: Config) -> list[str]:
    """Returns the command line that gives `config` back: every flag that is not at its default."""
    defaults = dict(flat_items(Config()))
    flags = []
    for name, value in flat_items(config):
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no_{name}")
        else:
            flags.append(f"--{name}={value}")
    return flags


def to_dict(config: Config) -> dict[str, Any]:
    """Returns {flag: value}, JSON-ready."""
    return dict(flat_items(config))


def hosts(text: str) -> tuple[str, ...]:
    """Splits a comma-separated flag such as --learner_hosts; '' gives ()."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def wire_digest(config: Config) -> str:
    """Returns a short digest of the flags that actor and learner must share.

    These are the level's protocol, the agent and the unroll length. The handshake compares it.
    """
    shared = {
        **dataclasses.asdict(config.environment),
        "agent_name": config.agent.agent_name,
        "unroll_length": config.optimizer.unroll_length,
    }
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]

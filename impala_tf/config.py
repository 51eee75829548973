"""Every flag: its name, default, help text and limits. The only home of all four.

Standard library only, so that the front end can read it without TensorFlow. `--help` keeps the
line breaks of the texts: they are put where a sentence ends. A default of ``None``
or ``auto`` means that the level decides: ``resolve`` fills it in from ``DEFAULTS_BY_KIND`` and the
machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from impala_tf.types import EnvironmentSpec, Kind

T = TypeVar("T")


class AgentComposition(NamedTuple):
    """An agent is a torso, a core, and whether the core also sees last action and reward."""

    torso: Literal["shallow", "nature", "impala", "impoola", "mlp"]
    core: Literal["feedforward", "lstm"]
    observes_last_action_and_reward: bool


AGENTS: dict[str, AgentComposition] = {
    "SimpleConvNetAgent": AgentComposition("nature", "feedforward", True),
    "ShallowConvNetAgent": AgentComposition("shallow", "feedforward", False),
    "ShallowConvNetLSTMAgent": AgentComposition("shallow", "lstm", True),
    "ResNetAgent": AgentComposition("impala", "feedforward", False),
    "ResNetLSTMAgent": AgentComposition("impala", "lstm", True),
    "ImpoolaAgent": AgentComposition("impoola", "feedforward", False),
    "MLPAgent": AgentComposition("mlp", "feedforward", False),
    "MLPLSTMAgent": AgentComposition("mlp", "lstm", True),
}

# Atari: table G.1 of the paper. The small worlds: measured, see sandbox/cartpole.md.
DEFAULTS_BY_KIND: dict[Kind, dict[str, Any]] = {
    "atari": {
        "agent_name": "SimpleConvNetAgent",
        "total_environment_frames": 200_000_000,
        "learning_rate": 6e-4,
        "epsilon": 0.01,
        "baseline_cost": 0.5,
        "entropy_cost": 0.01,
        "reward_clipping": "abs_one",
        "envs_per_actor": 32,
    },
    "image": {
        "agent_name": "SimpleConvNetAgent",
        "total_environment_frames": 50_000_000,
        "learning_rate": 6e-4,
        "epsilon": 0.01,
        "baseline_cost": 0.5,
        "entropy_cost": 0.01,
        "reward_clipping": "abs_one",
        "envs_per_actor": 8,
    },
    "vector": {
        "agent_name": "MLPAgent",
        "total_environment_frames": 1_500_000,
        "learning_rate": 3e-3,
        "epsilon": 1e-5,
        "baseline_cost": 0.05,
        "entropy_cost": 0.01,
        "reward_clipping": "none",
        "envs_per_actor": 32,
    },
}


class ConfigError(ValueError):
    """Unusable flags, files or combinations: one line a problem, none of them a failure at work."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What to do and where it is kept."""

    mode: Literal["train", "test"] = "train"
    """train, or test: play whole games from the newest checkpoint of --logdir."""
    logdir: str | None = None
    """Folder of the run: config, metrics, checkpoints, logs.
    If it holds a checkpoint, the run goes on from it.
    Default: runs/LEVEL-AGENT."""
    seed: int = 1
    """Every environment, actor and learner seed derives from this one."""
    total_environment_frames: int | None = None
    """Frames to train for, counted over all learners.
    Default: 200M on Atari, 50M on other images, 1.5M on vectors."""
    checkpoint_interval_s: float = 60.0
    """Seconds between checkpoints."""
    metrics_interval_s: float = 10.0
    """Seconds between rows of metrics.csv and, where the output is no terminal, between lines."""


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """The level and its protocol."""

    level_name: str = "PongNoFrameskip-v4"
    """Any Gymnasium id with discrete actions and image or vector observations.
    Atari ids (PongNoFrameskip-v4, ALE/Pong-v5) all mean the protocol below, whatever the suffix."""
    num_action_repeats: int = 1
    """Steps of the level that an action is held for.
    On Atari a step already is --frame_skip frames, as in the TF1 code: 1 is the standard there."""
    width: int = 84
    """Pixels: Atari frames are resized to this width."""
    height: int = 84
    """Pixels: Atari frames are resized to this height."""
    frame_skip: int = 4
    """Atari: emulator frames of a step; the maximum of the last two is seen."""
    stacked_frames: int = 4
    """Atari: newest frames that make an observation."""
    noop_max: int = 30
    """Atari: a game starts with 0 to this many no-ops."""
    max_episode_frames: int = 108_000
    """Atari: emulator frames after which a game is cut (truncated); 108,000 are 30 minutes."""
    repeat_action_probability: float = 0.0
    """Atari: sticky actions; 0.25 is the v5 protocol of Machado et al. (2018)."""
    full_action_space: bool = False
    """Atari: all 18 actions instead of the game's minimal set."""
    terminal_on_life_loss: bool = True
    """Atari: losing a life ends an episode for learning (not the game, nor the reported return)."""


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """The network."""

    agent_name: str = "auto"
    """A name of the README's table, or auto: SimpleConvNetAgent on images, MLPAgent on vectors."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What torsos compute on images in; all else, and what is kept, is float32.
    bfloat16 is faster on processors with AVX512_BF16; those without go on in float32."""


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """V-trace and the losses (paper, sections 4.1, 4.2), summed over time and batch."""

    discounting: float = 0.99
    """Discount factor gamma of an agent step."""
    baseline_cost: float | None = None
    """Weight of the baseline (value) loss. Default: 0.5 on images, 0.05 on vectors."""
    entropy_cost: float | None = None
    """Weight of the entropy bonus. Default: 0.01."""
    reward_clipping: Literal["auto", "abs_one", "soft_asymmetric", "none"] = "auto"
    """abs_one: clip to [-1, 1]; soft_asymmetric: 5 tanh(r / 5), losses weigh 0.3 (DMLab);
    auto: abs_one on images, none on vectors."""
    clip_rho_threshold: float = 1.0
    """rho-bar: truncates the importance weights of the temporal differences."""
    clip_pg_rho_threshold: float = 1.0
    """Truncates the importance weight of the policy gradient."""
    clip_c_threshold: float = 1.0
    """c-bar: truncates the trace-cutting weights."""
    vtrace_lambda: float = 1.0
    """Decay of the traces (remark 2 of the paper)."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """RMSProp, annealed linearly to 0 over the global frames."""

    batch_size: int = 32
    """Unrolls an update, per learner (B)."""
    unroll_length: int = 20
    """Agent steps an unroll (T)."""
    updates_per_batch: int = 1
    """Steps along the gradient of each batch before it is dropped.
    More learn more from a frame; V-trace corrects for the lag that grows with it."""
    learning_rate: float | None = None
    """At frame 0. Default: 6e-4 on images, 3e-3 on vectors."""
    decay: float = 0.99
    """RMSProp's decay of the squared gradients."""
    momentum: float = 0.0
    """RMSProp's momentum."""
    epsilon: float | None = None
    """RMSProp's epsilon, added under the square root. Default: 0.01 on images, 1e-5 on vectors."""
    gradients_clipping: float = 40.0
    """Global norm that gradients are clipped to; 0 switches clipping off."""


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """Processes, on this machine or by hand on several."""

    num_actors: int | None = None
    """Actor processes of a run on this machine. Default: one a core."""
    envs_per_actor: int | None = None
    """Environments an actor steps in one batch (N). Default: 32; 8 on images but Atari."""
    queue_capacity: int | None = None
    """Unrolls that wait for the learner before pushes are held back. Default: the batch size."""
    job_name: Literal["", "learner", "actor"] = ""
    """Run one process of a cluster by hand (sandbox/example_by_hand.md).
    Default: everything on this machine, or what the environment variable TF_CONFIG says."""
    task: int = 0
    """Index of this process among its kind."""
    learner_hosts: str = ""
    """host:port of every learner, comma separated."""
    actor_hosts: str = ""
    """Names of the actors' machines, comma separated; only their number and order matter."""
    credentials: str | None = None
    """Folder with the run's certificates. Default: LOGDIR/credentials."""
    heartbeat_path: str | None = None
    """File that an actor touches at each call to its learner, the vain ones too.
    A health check looks at its age."""


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """A cluster described by a file."""

    workers_csv_path: str | None = None
    """CSV of machines to launch actors and learners on."""
    tmux_sess: str = "impala"
    """tmux session that the processes of a launched run live in; look inside with tmux attach."""
    detach: bool = False
    """Return as soon as the run is launched, instead of showing it."""
    accept_new_host_keys: bool = False
    """Trust machines that SSH does not know yet, and remember them in ~/.ssh/known_hosts.
    A key that has changed is refused all the same."""
    max_restarts: int = 3
    """Times that a learner that failed is started anew. Actors are always started anew."""
    rendezvous_port: int | None = None
    """Port on the machine of learner 0 where several learners find each other.
    Default: one above the highest learner port there."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """--mode=test."""

    test_num_episodes: int = 10
    """Whole games to play."""
    test_policy: Literal["greedy", "sampled"] = "sampled"
    """greedy: the likeliest action; sampled: drawn from the policy, as in training."""
    video: bool = False
    """Also write an mp4 of the first game to the logdir."""


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
    """Yields (flag name, value) of every flag; names are unique over the groups."""
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        for field in dataclasses.fields(values):
            yield field.name, getattr(values, field.name)


def replace(config: Config, **flags: Any) -> Config:
    """Returns `config` with the named flags changed, whichever group each lives in."""
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


def resolve(config: Config, kind: Kind) -> Config:
    """Fills every flag that was left to the level or the machine; what was given stays."""
    given = dict(flat_items(config))
    chosen = {
        name: value
        for name, value in DEFAULTS_BY_KIND[kind].items()
        if given[name] in (None, "auto")
    }
    if given["num_actors"] is None:
        chosen["num_actors"] = max(1, len(os.sched_getaffinity(0)))
    if given["queue_capacity"] is None:
        chosen["queue_capacity"] = given["batch_size"]
    if given["logdir"] is None:
        agent = chosen.get("agent_name", given["agent_name"])
        chosen["logdir"] = f"runs/{slug(given['level_name'])}-{agent}"
    return replace(config, **chosen)


def known(value: T | None) -> T:
    """Returns the value of a flag of a resolved config."""
    if value is None:
        raise ValueError("a flag that the level decides was read before `resolve`")
    return value


def slug(level_name: str) -> str:
    """Returns a level's name as a folder's name: 'ALE/Pong-v5' -> 'ALE-Pong-v5'."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", level_name).strip("-")


# What both sides of the wire must agree on; the handshake compares a digest of it.
WIRE_FLAGS = (
    "level_name", "num_action_repeats", "width", "height", "frame_skip", "stacked_frames",
    "noop_max", "max_episode_frames", "repeat_action_probability", "full_action_space",
    "terminal_on_life_loss", "agent_name", "unroll_length",
)  # fmt: skip


def wire_digest(config: Config) -> str:
    """Returns a short digest of the flags that actor and learner must share."""
    flags = to_dict(config)
    text = json.dumps({name: flags[name] for name in WIRE_FLAGS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_POSITIVE = (
    "total_environment_frames", "checkpoint_interval_s", "metrics_interval_s",
    "num_action_repeats", "width", "height", "frame_skip", "stacked_frames", "max_episode_frames",
    "batch_size", "unroll_length", "updates_per_batch", "learning_rate", "epsilon", "num_actors",
    "envs_per_actor", "queue_capacity", "test_num_episodes", "clip_rho_threshold",
    "clip_pg_rho_threshold", "clip_c_threshold",
)  # fmt: skip
_NOT_NEGATIVE = (
    "seed", "noop_max", "task", "entropy_cost", "baseline_cost", "gradients_clipping",
)  # fmt: skip
_UNIT_INTERVAL = ("repeat_action_probability", "discounting", "vtrace_lambda", "decay", "momentum")


def problems(config: Config) -> list[str]:
    """Returns one line for every flag that is out of range or contradicts another."""
    flags = dict(flat_items(config))
    found = [
        f"--{name}={flags[name]}: give a number"
        for name in flags
        if isinstance(flags[name], float) and not math.isfinite(flags[name])
    ]
    if found:
        return found
    for names, fits, right in (
        (_POSITIVE, lambda v: v > 0, "greater than 0"),
        (_NOT_NEGATIVE, lambda v: v >= 0, "0 or more"),
        (_UNIT_INTERVAL, lambda v: 0 <= v <= 1, "between 0 and 1"),
    ):
        found += [
            f"--{name}={flags[name]}: must be {right}"
            for name in names
            if flags[name] is not None and not fits(flags[name])
        ]
    found += _agent_problems(flags["agent_name"])
    found += _process_problems(flags)
    return found


def _agent_problems(name: str) -> list[str]:
    if name == "auto" or name in AGENTS:
        return []
    return [f"--agent_name={name}: no such agent; there are {', '.join(sorted(AGENTS))}"]


def _process_problems(flags: dict[str, Any]) -> list[str]:
    found = [
        f"--learner_hosts: '{host}' is not host:port"
        for host in hosts(flags["learner_hosts"])
        if not valid_host_port(host)
    ]
    job, task = flags["job_name"], flags["task"]
    learners, actors = hosts(flags["learner_hosts"]), hosts(flags["actor_hosts"])
    if job and not learners:
        found.append(f"--job_name={job}: needs --learner_hosts=host:port[,host:port...]")
    if job == "learner" and learners and task >= len(learners):
        found.append(f"--task={task}: --learner_hosts names {len(learners)} learner(s)")
    if job == "actor" and actors and task >= len(actors):
        found.append(f"--task={task}: --actor_hosts names {len(actors)} actor(s)")
    if job and flags["workers_csv_path"]:
        found.append("--workers_csv_path: starts every job itself; leave --job_name out")
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", flags["tmux_sess"]) is None:
        found.append(f"--tmux_sess={flags['tmux_sess']!r}: letters, digits, _ and - only")
    if flags["max_restarts"] < 0:
        found.append(f"--max_restarts={flags['max_restarts']}: must be 0 or more")
    port = flags["rendezvous_port"]
    if port is not None and not 1 <= port <= 65535:
        found.append(f"--rendezvous_port={port}: must be a port of 1 to 65535")
    return found


def valid_host_port(text: str) -> bool:
    """Tells whether `text` is host:port or [IPv6]:port with a port of 1 to 65535."""
    match = re.fullmatch(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text)
    return match is not None and 1 <= int(match.group(1)) <= 65535


def check_observation(agent_name: str, spec: EnvironmentSpec) -> None:
    """Raises ConfigError where the named agent cannot take the level's observations."""
    takes_vectors = AGENTS[agent_name].torso == "mlp"
    if takes_vectors == (spec.kind == "vector"):
        return
    fitting = [name for name in AGENTS if (AGENTS[name].torso == "mlp") == (spec.kind == "vector")]
    raise ConfigError(
        f"--agent_name={agent_name}: takes {'vectors' if takes_vectors else 'images'}, but "
        f"{spec.level_name} shows {spec.observation_dtype} {list(spec.observation_shape)}; "
        f"use one of {', '.join(fitting)}"
    )

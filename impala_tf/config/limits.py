"""What each flag may be, and which flags contradict each other."""

from __future__ import annotations

import math
import re
from typing import Any

from impala_tf.config import engine_limits, plug_in_files, plug_ins
from impala_tf.config.addresses import valid_host_port
from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.compositions import AGENTS, composition
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given, actors_wait, waits_for_updates
from impala_tf.config.flags import Config
from impala_tf.config.own_levels import own_level_problems
from impala_tf.types import EnvironmentSpec

_POSITIVE = (
    "total_environment_frames", "schedule_frames", "checkpoint_interval_s", "metrics_interval_s",
    "num_action_repeats", "environment_timeout_s", "width", "height", "frame_skip",
    "stacked_frames", "max_episode_frames",
    "batch_size", "unroll_length", "updates_per_batch", "ring_batches", "minibatches",
    "learning_rate", "epsilon", "num_actors", "envs_per_actor", "learner_threads", "queue_capacity",
    "test_num_episodes", "width_scale", "max_policy_lag", "parameter_lag", "min_actors",
    "min_learners", "max_hours", "idle_exit_minutes", "benchmark_seconds", "n_step",
    "replay_capacity", "replay_batch_size", "replay_ratio", "micro_batches",
    "video_every", "eval_every", "join_learners", "actors_per_node", "slurm_learners",
    "ray_learners", "ray_actors",
)  # fmt: skip
_NOT_NEGATIVE = (
    "seed", "noop_max", "task", "entropy_cost", "entropy_cost_end", "baseline_cost",
    "gradients_clipping", "learning_rate_end", "surrogate_clipping",
    "target_update_interval", "num_levels", "start_level", "replay_start_steps", "slurm_actors",
    "pixel_statistics_steps",
)  # fmt: skip
_UNIT_INTERVAL = (
    "repeat_action_probability", "discounting", "vtrace_lambda", "gae_lambda", "q_lambda", "decay",
    "momentum",
)  # fmt: skip
# C code takes them as ints.
_C_INTS = ("max_episode_frames", "noop_max", "queue_capacity", "frame_skip", "stacked_frames")
_LARGEST_C_INT = 2**31 - 1
_LARGEST_FLOAT = 3.4e38  # of float32
_ENOUGH_BATCHES = 30
_LAST_PROCGEN_LEVEL = 2**31 - 2  # seeds are C ints, and Procgen's engine adds one


def problems(given: Given) -> list[str]:
    """Returns one line for every flag that is out of range or contradicts another."""
    flags = given.everything()
    lines = [
        f"--{name}={flags[name]}: {_float_wanted(flags[name])}"
        for name in flags
        if isinstance(flags[name], float) and not abs(flags[name]) <= _LARGEST_FLOAT
    ]
    if lines:
        return lines
    for names, fits, wanted in (
        (_POSITIVE, lambda v: v > 0, "greater than 0"),
        (_NOT_NEGATIVE, lambda v: v >= 0, "0 or more"),
        (_C_INTS, lambda v: v <= _LARGEST_C_INT, f"at most {_LARGEST_C_INT:,}"),
        (_UNIT_INTERVAL, lambda v: 0 <= v <= 1, "between 0 and 1"),
    ):
        lines += [
            f"--{name}={flags[name]}: must be {wanted}"
            for name in names
            if flags[name] is not None and not fits(flags[name])
        ]
    lines += _level_problems(flags)
    lines += _info_problems(flags["info_metrics"])
    lines += plug_ins.problems(flags)
    lines += own_level_problems(flags)
    if flags["mode"] == "report" and not flags["logdir"]:
        lines.append("--mode=report: needs --logdir of a run, or of a folder of runs")
    lines += _logdir_problems(flags["mode"], flags["logdir"])
    if flags["dry_run"] and (flags["mode"] != "train" or flags["job_name"]):
        culprit = f"job_name={flags['job_name']}" if flags["job_name"] else f"mode={flags['mode']}"
        lines.append(f"--dry_run: only training has a plan to print, not --{culprit}; leave it out")
    if flags["video"] and flags["mode"] != "test":
        lines.append(
            "--video: films games of a trained agent: leave it out here, and afterwards give"
            " --mode=test --logdir=DIR --video"
        )
    lines += _export_problems(flags)
    lines += _name_problems(flags)
    lines += _role_problems(flags)
    lines += _synchronization_problems(flags)
    lines += _cluster_problems(flags)
    return lines or engine_limits.problems(flags)


def _float_wanted(value: float) -> str:
    """Returns what to give instead of NaN or a number that is too large."""
    if math.isnan(value):
        return "must be a number"
    return f"give a number of at most {_LARGEST_FLOAT:g}"


def _logdir_problems(mode: str, logdir: str | None) -> list[str]:
    if logdir == "":
        return ["--logdir=: is empty; name a folder, or leave the flag out"]
    if logdir is None:
        return []
    if logdir.startswith("~"):
        return [f"--logdir={logdir}: shells leave ~ as it is there; write --logdir=$HOME/..."]
    if "://" in logdir:
        return [f"--logdir={logdir}: must be a folder; --mirror=URL copies a run elsewhere"]
    if mode == "train" and "," in logdir:
        return [f"--logdir={logdir}: a comma separates the folders of --mode=report, which could"
                " not find this one; give a name without one"]  # fmt: skip
    return []


def check_observation(agent_name: str, spec: EnvironmentSpec) -> None:
    """Raises ConfigError if the named agent cannot take the level's observations."""
    has = "vectors" if spec.kind == "vector" else "images"
    takes = composition(agent_name).torso.takes
    if takes in (has, "both"):
        return
    fitting = [name for name in AGENTS if AGENTS[name].torso.takes == has]
    raise ConfigError(
        f"--agent_name={agent_name}: takes {takes}, but {spec.level_name} has {has}"
        f" as observations; use one of {', '.join(fitting)}"
    )


def check_algorithm(config: Config, spec: EnvironmentSpec) -> None:
    """Raises ConfigError if the algorithm cannot learn the level, or not with these flags."""
    lines = algorithm(config.loss.algorithm).problems(config, spec)
    if lines:
        raise ConfigError(lines)


def check_network(config: Config) -> None:
    """Raises ConfigError if --width_scale or --layer_norm would not change the network."""
    agent = config.agent
    is_own, is_scaled = plug_ins.is_own(agent.agent_name), agent.width_scale != 1
    if is_scaled and is_own:
        raise ConfigError(
            f"--width_scale={agent.width_scale}: {agent.agent_name} is a network of yours, which"
            " the flag does not change; leave it out"
        )
    if is_scaled and composition(agent.agent_name).torso.takes != "images":
        raise ConfigError(
            f"--width_scale={agent.width_scale}: {agent.agent_name} has no convolutions that it"
            " changes; leave the flag out"
        )
    if agent.layer_norm and is_own:
        raise ConfigError(
            f"--layer_norm: {agent.agent_name} has layers of its own; normalise in these, and give"
            " --no_layer_norm"
        )


def check_own_network(config: Config) -> None:
    """Raises ConfigError if --agent_name=module:Class clearly does not exist; imports nothing.

    Args:
      config: the run's config.
    """
    if plug_ins.is_own(config.agent.agent_name):
        plug_in_files.check("agent_name", config.agent.agent_name)


def check_batches(config: Config) -> None:
    """Raises ConfigError if batches cannot be filled or split. For a learner or a local run.

    Args:
      config: the run's config.
    """
    batch_size, parts = config.optimizer.batch_size, config.optimizer.minibatches or 1
    micro = config.optimizer.micro_batches
    for size, whole in _split_sizes(config):
        if size % micro:
            raise ConfigError(
                f"--micro_batches={micro}: does not divide the {size} unrolls of a {whole}; give a"
                " divisor, or leave the flag out"
            )
    if micro > 1 and config.loss.advantage_scaling == "batch":
        raise ConfigError(
            f"--micro_batches={micro}: --advantage_scaling=batch needs whole batches; leave one of"
            " the flags out"
        )
    waits = waits_for_updates(config)
    if algorithm(config.loss.algorithm).estimates_once and parts > batch_size:
        raise ConfigError(
            f"--minibatches={parts}: a batch has only {batch_size} unrolls; give at most as many,"
            f" or more --{'envs_per_actor' if waits else 'batch_size'}"
        )
    if not waits:
        return
    environments = config.process.num_actors * config.process.envs_per_actor
    if not config.process.job_name and batch_size != environments:
        raise ConfigError(
            f"--batch_size={batch_size}: actors wait for the update that uses their unrolls"
            " (--algorithm=ppo, --synchronization), so a batch is one unroll of each of their"
            f" {environments} environments; leave the flag out"
        )


def _split_sizes(config: Config) -> list[tuple[int, str]]:
    """Returns the sizes, in unrolls, and the name of what --micro_batches splits."""
    record, batch_size = algorithm(config.loss.algorithm), config.optimizer.batch_size
    if record.step is not None or not record.estimates_once:
        return [(batch_size, "batch")]
    parts = config.optimizer.minibatches or 1
    # Minibatches are of at most two sizes.
    return [(size, "minibatch") for size in {batch_size // parts, -(-batch_size // parts)}]


def check_windows(config: Config) -> None:
    """Raises ConfigError if --n_step is longer than an unroll, where windows end.

    Args:
      config: the run's config.
    """
    n_step, length = config.loss.n_step, config.optimizer.unroll_length
    if algorithm(config.loss.algorithm).replays and n_step > length:
        raise ConfigError(
            f"--n_step={n_step}: windows of rewards end with the unroll, after {length} steps; give"
            f" --n_step={length} or less, or a larger --unroll_length"
        )


def few_batches(config: Config, spec: EnvironmentSpec) -> str:
    """Returns a warning if batches are so large that a run has few of them; '' if not.

    This can happen only where actors wait: there, batches grow with the number of actors.

    Args:
      config: the run's config.
      spec: the level's specification.
    """
    learners = len(plug_ins.split(config.process.learner_hosts)) or 1
    steps = config.optimizer.batch_size * config.optimizer.unroll_length * learners
    frames = config.run.total_environment_frames
    batches = frames / (steps * spec.frames_per_step)
    if not waits_for_updates(config) or batches >= _ENOUGH_BATCHES:
        return ""
    return (
        f"warning: {frames:,} frames are only {batches:.3g} batches of {steps:,} agent steps, one"
        " unroll of every environment, so little may be learned; give fewer --num_actors or"
        " --envs_per_actor, or more --total_environment_frames"
    )


def _level_problems(flags: dict[str, Any]) -> list[str]:
    last = flags["start_level"] + max(flags["num_levels"], 1) - 1
    if last <= _LAST_PROCGEN_LEVEL:
        return []
    return [
        f"--start_level={flags['start_level']} with --num_levels={flags['num_levels']}: the last"
        f" level of Procgen is {_LAST_PROCGEN_LEVEL}; lower one of them"
    ]


def _info_problems(text: str) -> list[str]:
    names = plug_ins.split(text)
    lines = [
        f"--info_metrics={text}: '{name}' is not a NAME or dictionary/NAME in the level's info"
        for name in names
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name) is None
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    return lines + [f"--info_metrics={text}: {name} is given twice" for name in twice]


def _export_problems(flags: dict[str, Any]) -> list[str]:
    if flags["to"] is not None and flags["mode"] != "export":
        return ["--to: writes a folder to share with --mode=export; leave it out here"]
    if flags["to"] == "":
        return ["--to=: name a folder that is new or empty"]
    return []


def _name_problems(flags: dict[str, Any]) -> list[str]:
    return [
        f"--{flag}={flags[flag]}: no such {what}; use one of {', '.join(names)}"
        for flag, what, names in (
            ("agent_name", "agent", sorted(AGENTS)),
            ("algorithm", "algorithm", list(ALGORITHMS)),
        )
        if flags[flag] is not None and flags[flag] not in names and not plug_ins.is_own(flags[flag])
    ]


def _role_problems(flags: dict[str, Any]) -> list[str]:
    lines = [
        f"--learner_hosts: '{host}' is not host:port"
        for host in plug_ins.split(flags["learner_hosts"])
        if not valid_host_port(host)
    ]
    job, task = flags["job_name"], flags["task"]
    learners, actors = plug_ins.split(flags["learner_hosts"]), plug_ins.split(flags["actor_hosts"])
    synchronization = flags["synchronization"]
    # With --join, the node's role gives each process what it needs.
    alone = job == "learner" and not (actors or flags["batch_size"] or flags["join"])
    # `alone` comes first: the flags of someone else's run are checked before its modules are
    # trusted, so the check must not import an algorithm.
    try:
        waits = alone and actors_wait(flags["algorithm"], synchronization)
    except ConfigError as error:  # an algorithm of the user's own that cannot be imported
        lines += error.problems
        waits = False
    if waits:
        why = "algorithm" if synchronization == "none" else "synchronization"
        lines.append(
            f"--{why}={flags[why]}: a learner needs --actor_hosts, or a --batch_size that is the"
            " number of its actors' environments"
        )
    if job and not learners:
        lines.append(f"--job_name={job}: needs --learner_hosts=host:port[,host:port...]")
    if job == "learner" and learners and task >= len(learners):
        lines.append(f"--task={task}: --learner_hosts names {len(learners)} learner(s)")
    if job == "actor" and actors and task >= len(actors):
        lines.append(f"--task={task}: --actor_hosts names {len(actors)} actor(s)")
    starters = (job, flags["join"], flags["workers_csv_path"], flags["engine"])
    if flags["mode"] == "train" and not any(starters):
        several = len(learners) > 1 and not lines
        by_hand = {"learner_hosts": several, "actor_hosts": actors, "task": task > 0}
        for name in (name for name, given in by_hand.items() if given):
            why = "is for a process started by hand; give its --job_name, or leave it out"
            lines.append(f"--{name}: {why}")
    if job and flags["fresh"]:
        lines.append(
            "--fresh: needs the command that starts the whole run; move the folder yourself"
        )
    if job and flags["workers_csv_path"]:
        lines.append("--workers_csv_path: starts every job itself; leave --job_name out")
    return lines


def _synchronization_problems(flags: dict[str, Any]) -> list[str]:
    synchronization, inference = flags["synchronization"], flags["inference"]
    if synchronization == "step" and inference != "learner":
        return ["--synchronization=step: all environments share one network; add"
                " --inference=learner"]  # fmt: skip
    return []


def _variable_problems(flags: dict[str, Any]) -> list[str]:
    """Returns problems of --env and --secret; they quote no value, as it may be a secret."""
    lines, names = [], list[str]()
    for flag in ("env", "secret"):
        for text in flags[flag]:
            name, equals, _ = text.partition("=")
            is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) is not None
            names.append(name)
            if flag == "env" and not (is_name and equals):
                hint = "" if equals else " (a level is --level_name)"
                lines.append(f"--env={name}: must be NAME=VALUE, with a variable's name{hint}")
            elif flag == "secret" and equals:
                lines.append(f"--secret={name}: give the name alone; its value is that of this"
                             " shell's variable")  # fmt: skip
            elif not is_name:
                lines.append(f"--secret={name}: must be the name of a variable")
        if flags[flag] and not flags["workers_csv_path"]:
            lines.append(
                f"--{flag}: only for a launch with --workers_csv_path; a run on this machine has"
                " the variables of this shell, so leave the flag out"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    return lines + [f"--env and --secret: {name} is given twice; give it once" for name in twice]


def _cluster_problems(flags: dict[str, Any]) -> list[str]:
    lines = []
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", flags["tmux_sess"]) is None:
        lines.append(
            f"--tmux_sess={flags['tmux_sess']!r}: must be up to 64 letters, digits, _ and -"
        )
    if flags["max_restarts"] < 0:
        lines.append(f"--max_restarts={flags['max_restarts']}: must be 0 or more")
    lines += _variable_problems(flags)
    for name in ("rendezvous_port", "join_port", "ray_port"):
        port = flags[name]
        if port is not None and not 1 <= port <= 65535:
            lines.append(f"--{name}={port}: must be a port from 1 to 65535")
    if flags["workers_csv_path"] == "":
        lines.append("--workers_csv_path=: is empty; name a file, or leave the flag out")
    if flags["join"] and flags["workers_csv_path"]:
        lines.append("--join: this node has a part in a job already; leave --workers_csv_path out")
    return lines

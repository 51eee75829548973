"""What each flag may be, and which flags contradict each other."""

from __future__ import annotations

import re
from typing import Any

from impala_tf.config import engine_limits, plug_ins, words
from impala_tf.config.addresses import valid_host_port
from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.compositions import AGENTS, composition
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given, actors_wait, waits_for_updates
from impala_tf.config.flags import Config
from impala_tf.config.own_levels import kwargs_text, level_kwargs, own_level_problems
from impala_tf.types import EnvironmentSpec


def checked(given: Given) -> Given:
    """Returns the flags, with one text for equal --level_kwargs.

    Raises:
      ConfigError: one line for every flag that is out of range or contradicts another.
    """
    if lines := problems(given):
        raise ConfigError(lines)
    kwargs = given["level_kwargs"]
    return given.replace(level_kwargs=kwargs_text(level_kwargs(kwargs))) if kwargs else given


def problems(given: Given) -> list[str]:
    """Returns one line for every flag that is out of range or contradicts another."""
    flags = given.everything()
    lines = [
        f"--{name}={flags[name]}: must be {flag.range.wanted}"
        for name, flag in words.flags().items()
        if flag.range and flags[name] is not None and not flag.range.fits(flags[name])
    ]
    lines += plug_ins.problems(flags)
    lines += own_level_problems(flags)
    lines += _mode_problems(flags)
    lines += _name_problems(flags)
    lines += _role_problems(flags)
    lines += _cluster_problems(flags)
    return lines or engine_limits.problems(flags)


def _mode_problems(flags: dict[str, Any]) -> list[str]:
    """Returns problems of what is done, and of where its results are."""
    mode, logdir, lines = flags["mode"], flags["logdir"], []
    if mode == "report" and not logdir:
        lines.append("--mode=report: needs --logdir of a run, or of a folder of runs")
    elif logdir == "":
        lines.append("--logdir=: is empty; name a folder, or leave the flag out")
    elif logdir and logdir.startswith("~"):
        lines.append(f"--logdir={logdir}: shells leave ~ as it is there; write --logdir=$HOME/...")
    elif logdir and "://" in logdir:
        lines.append(f"--logdir={logdir}: must be a folder; --mirror=URL copies a run elsewhere")
    elif logdir and mode == "train" and "," in logdir:
        lines.append(f"--logdir={logdir}: --mode=report reads a comma as two folders; leave it out")
    if flags["video"] and mode != "test":
        lines.append("--video: films a trained agent; give --mode=test --logdir=DIR --video")
    if flags["synchronization"] == "step" and flags["inference"] != "learner":
        lines.append("--synchronization=step: needs --inference=learner, as all share one network")
    names = plug_ins.split(flags["info_metrics"])
    if any(re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name) is None for name in names):
        lines.append(f"--info_metrics={flags['info_metrics']}: must be names, comma separated")
    return lines + _export_problems(flags)


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
    name, is_scaled = config.agent.agent_name, config.agent.width_scale != 1
    if is_scaled and composition(name).torso.takes != "images":
        raise ConfigError(f"--width_scale={config.agent.width_scale}: changes only the convolutions"
                          f" of the named agents for images, not {name}; leave it out")  # fmt: skip
    if config.agent.layer_norm and plug_ins.is_own(name):
        raise ConfigError(f"--layer_norm: does not change {name}; give --no_layer_norm")


def check_batches(config: Config) -> None:
    """Raises ConfigError if batches cannot be filled or split. For a learner or a local run.

    Args:
      config: the run's config.
    """
    batch_size, parts = config.optimizer.batch_size, config.optimizer.minibatches or 1
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


def _export_problems(flags: dict[str, Any]) -> list[str]:
    if flags["to"] is not None and flags["mode"] not in ("export", "report"):
        return ["--to: is where --mode=export or report writes; leave it out here"]
    return []


def _name_problems(flags: dict[str, Any]) -> list[str]:
    return [
        f"--{flag}={flags[flag]}: no such {what}; use one of {', '.join(names)}, or module:NAME for"
        " your own"
        for flag, what, names in (
            ("agent_name", "agent", sorted(AGENTS)),
            ("algorithm", "algorithm", list(ALGORITHMS)),
        )
        if flags[flag] is not None and flags[flag] not in names and not plug_ins.is_own(flags[flag])
    ]


def _role_problems(flags: dict[str, Any]) -> list[str]:
    job, task = flags["job_name"], flags["task"]
    learners, actors = plug_ins.split(flags["learner_hosts"]), plug_ins.split(flags["actor_hosts"])
    lines = [
        f"--learner_hosts: '{host}' is not host:port"
        for host in learners
        if not valid_host_port(host)
    ]
    # With --join, the node's role gives each process what it needs.
    alone = job == "learner" and not (actors or flags["batch_size"] or flags["join"])
    # `alone` comes first: the flags of someone else's run are checked before its modules are
    # trusted, so the check must not import an algorithm.
    if alone and actors_wait(flags["algorithm"], flags["synchronization"]):
        lines.append("--job_name=learner: actors wait for updates, so this needs --actor_hosts, or"
                     " a --batch_size that is the number of its actors' environments")  # fmt: skip
    if job and not learners:
        lines.append(f"--job_name={job}: needs --learner_hosts=host:port[,host:port...]")
    for role, hosts in (("learner", learners), ("actor", actors)):
        if job == role and hosts and task >= len(hosts):
            lines.append(f"--task={task}: --{role}_hosts names {len(hosts)}, counted from 0")
    starters = (job, flags["join"], flags["workers_csv_path"], flags["engine"])
    several = len(learners) > 1 and not lines
    by_hand = {"learner_hosts": several, "actor_hosts": actors, "task": task > 0}
    if flags["mode"] == "train" and not any(starters):
        lines += [
            f"--{name}: is for a process started by hand; give its --job_name, or leave it out"
            for name, given in by_hand.items()
            if given
        ]
    if job and flags["fresh"]:
        lines.append("--fresh: needs the command that starts the whole run; move the folder")
    if job and flags["workers_csv_path"]:
        lines.append("--workers_csv_path: starts every job itself; leave --job_name out")
    return lines


def _variable_problems(flags: dict[str, Any]) -> list[str]:
    """Returns problems of --env and --secret; they quote no value, as it may be a secret."""
    lines = []
    for flag, wanted in (("env", "NAME=VALUE"), ("secret", "NAME, a variable of this shell")):
        for text in flags[flag]:
            name, equals, _ = text.partition("=")
            is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) is not None
            if not is_name or bool(equals) != (flag == "env"):
                hint = " (a level is --level_name)" if flag == "env" and not equals else ""
                lines.append(f"--{flag}={name}: must be {wanted}{hint}")
        if flags[flag] and not flags["workers_csv_path"]:
            lines.append(f"--{flag}: only with --workers_csv_path; a run on this machine has the"
                         " variables of this shell")  # fmt: skip
    return lines


def _cluster_problems(flags: dict[str, Any]) -> list[str]:
    lines = []
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", flags["tmux_sess"]) is None:
        lines.append(
            f"--tmux_sess={flags['tmux_sess']!r}: must be up to 64 letters, digits, _ and -"
        )
    lines += _variable_problems(flags)
    if flags["workers_csv_path"] == "":
        lines.append("--workers_csv_path=: is empty; name a file, or leave the flag out")
    if flags["join"] and flags["workers_csv_path"]:
        lines.append("--join: this node has a part in a job already; leave --workers_csv_path out")
    return lines

"""What each flag may be, and which flags contradict each other."""

from __future__ import annotations

import re
from typing import Any

from impala_tf.config import engine_flags, plug_ins
from impala_tf.config.addresses import valid_host_port
from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.compositions import AGENTS, composition
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import (
    Given,
    actors_wait,
    waits_for_updates,
)
from impala_tf.config.flags import FLAGS, Config
from impala_tf.types import EnvironmentSpec


def checked(given: Given) -> Given:
    """Returns the flags, with one text for equal --level_kwargs.

    Raises ConfigError: one line for every flag that is out of range or contradicts another.
    """
    if lines := problems(given):
        raise ConfigError(lines)
    if not (kwargs := given["level_kwargs"]):
        return given
    return given.replace(level_kwargs=plug_ins.kwargs_text(plug_ins.level_kwargs(kwargs)))


def problems(given: Given) -> list[str]:
    """Returns one line for every flag that is out of range or contradicts another."""
    flags = given.everything()
    lines = [
        f"--{name}={flags[name]}: must be {flag.range.wanted}"
        for name, flag in FLAGS.items()
        if flag.range and flags[name] is not None and not flag.range.fits(flags[name])
    ]
    lines += plug_ins.problems(flags)
    for flag, names in (("agent_name", sorted(AGENTS)), ("algorithm", list(ALGORITHMS))):
        if flags[flag] not in (None, *names) and not plug_ins.is_own(flags[flag]):
            lines.append(
                f"--{flag}={flags[flag]}: must be one of {', '.join(names)}, or module:NAME for"
                " your own"
            )
    lines += _mode_problems(flags)
    lines += _role_problems(flags)
    lines += _launch_problems(flags)
    return lines or engine_flags.problems(flags)


def _mode_problems(flags: dict[str, Any]) -> list[str]:
    """Returns problems of what is done, and of where its results are."""
    mode, logdir, lines = flags["mode"], flags["logdir"], []
    if mode == "report" and not logdir:
        lines.append("impala report: needs --logdir of a run, or of a folder of runs")
    elif logdir == "":
        lines.append("--logdir=: is empty; name a folder, or leave the flag out")
    elif logdir and logdir.startswith("~"):
        lines.append(f"--logdir={logdir}: shells leave ~ as it is there; write --logdir=$HOME/...")
    elif logdir and "://" in logdir:
        lines.append(f"--logdir={logdir}: must be a folder; --mirror=URL copies a run elsewhere")
    if flags["video"] and mode != "test":
        lines.append("--video: films a trained agent; give impala test --logdir=DIR --video")
    if flags["to"] is not None and mode not in ("export", "report"):
        lines.append("--to: is where impala export or report writes; leave it out here")
    if flags["synchronization"] == "step" and flags["inference"] != "learner":
        lines.append("--synchronization=step: needs --inference=learner, as all share one network")
    return lines


def _role_problems(flags: dict[str, Any]) -> list[str]:
    """Returns problems of a process that is started by hand, and of those that are not."""
    job, task = flags["job_name"], flags["task"]
    learners, actors = plug_ins.split(flags["learner_hosts"]), plug_ins.split(flags["actor_hosts"])
    lines = [
        f"--learner_hosts: '{host}' is not host:port"
        for host in learners
        if not valid_host_port(host)
    ]
    if not job:
        starts = flags["join"] or flags["workers_csv_path"] or flags["engine"]
        if flags["mode"] == "train" and not starts and not lines:
            by_hand = {"learner_hosts": len(learners) > 1, "actor_hosts": actors, "task": task > 0}
            lines += [
                f"--{name}: is for a process started by hand; give its --job_name, or leave it out"
                for name, given in by_hand.items()
                if given
            ]
        return lines
    if not learners:
        lines.append(f"--job_name={job}: needs --learner_hosts=host:port[,host:port...]")
    for role, hosts in (("learner", learners), ("actor", actors)):
        if job == role and hosts and task >= len(hosts):
            lines.append(f"--task={task}: --{role}_hosts names {len(hosts)}, counted from 0")
    # With --join, the node's role gives each process what it needs.
    alone = job == "learner" and not (actors or flags["batch_size"] or flags["join"])
    # `alone` comes first: the flags of someone else's run are checked before its modules are
    # trusted, so the check must not import an algorithm.
    if alone and actors_wait(flags["algorithm"], flags["synchronization"]):
        lines.append(
            "--job_name=learner: actors wait for updates, so this needs --actor_hosts, or"
            " a --batch_size that is the number of its actors' environments"
        )
    lines += [
        f"--{name}: the command that starts the whole run takes it; leave --job_name out"
        for name in ("fresh", "workers_csv_path")
        if flags[name]
    ]
    return lines


def _launch_problems(flags: dict[str, Any]) -> list[str]:
    """Returns problems of a launch; they quote no value of --env and --secret: it may be secret."""
    lines = []
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", flags["tmux_sess"]) is None:
        lines.append(
            f"--tmux_sess={flags['tmux_sess']!r}: must be up to 64 letters, digits, _ and -"
        )
    for flag, wanted in (("env", "NAME=VALUE"), ("secret", "NAME, a variable of this shell")):
        for text in flags[flag]:
            name, equals, _ = text.partition("=")
            is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) is not None
            if not is_name or bool(equals) != (flag == "env"):
                hint = " (a level is --level_name)" if flag == "env" and not equals else ""
                lines.append(f"--{flag}={name}: must be {wanted}{hint}")
        if flags[flag] and not flags["workers_csv_path"]:
            lines.append(
                f"--{flag}: only with --workers_csv_path; a run on this machine has the"
                " variables of this shell"
            )
    return lines


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
    if lines := algorithm(config.loss.algorithm).problems(config, spec):
        raise ConfigError(lines)


def check_network(config: Config) -> None:
    """Raises ConfigError if --width_scale or --layer_norm would not change the network."""
    name, is_scaled = config.agent.agent_name, config.agent.width_scale != 1
    if is_scaled and composition(name).torso.takes != "images":
        raise ConfigError(
            f"--width_scale={config.agent.width_scale}: changes only the convolutions"
            f" of the named agents for images, not {name}; leave it out"
        )
    if config.agent.layer_norm and plug_ins.is_own(name):
        raise ConfigError(f"--layer_norm: does not change {name}; give --no_layer_norm")


def check_batches(config: Config) -> None:
    """Raises ConfigError if batches cannot be filled or split. For a learner or a local run."""
    batch_size, parts = config.optimizer.batch_size, config.optimizer.minibatches or 1
    waits = waits_for_updates(config)
    if algorithm(config.loss.algorithm).estimates_once and parts > batch_size:
        raise ConfigError(
            f"--minibatches={parts}: a batch has only {batch_size} unrolls; give at most as many,"
            f" or more --{'envs_per_actor' if waits else 'batch_size'}"
        )
    environments = config.process.num_actors * config.process.envs_per_actor
    if waits and not config.process.job_name and batch_size != environments:
        raise ConfigError(
            f"--batch_size={batch_size}: actors wait for the update that uses their unrolls"
            " (--algorithm=ppo, --synchronization), so a batch is one unroll of each of their"
            f" {environments} environments; leave the flag out"
        )

"""What a launch would start: which machine runs what, where it listens, what it needs."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from impala_tf.config import ConfigError
from impala_tf.frontend.inventory import is_loopback
from impala_tf.frontend.node.state import ProcessSpec
from impala_tf.frontend.plan import NodeSpec, Plan

_TABLE_WIDTH = 140


def wide_console() -> Console:
    """Returns a console for tables. A narrow terminal wraps lines instead of cutting them."""
    return Console(width=max(Console().width, _TABLE_WIDTH))


def text(plan: Plan) -> str:
    """Returns a row per machine, and the sums, in a fixed width. Opens no connection."""
    table = Table("machine", "login", box=None, pad_edge=False)
    table.add_column("runs", overflow="fold")
    table.add_column("environments", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("listens on", overflow="fold")
    for node in plan.nodes:
        processes = plan.on(node)
        cells = (
            node.name,
            _login(node),
            ", ".join(spans(process.name for process in processes)),
            _environments(processes),
            f"{plan.memory_gib(node):.2g} GiB or more",
            ", ".join(_listens(plan, processes)) or "-",
        )
        table.add_row(*map(Text, cells))  # not as markup
    console = Console(file=io.StringIO(), width=_TABLE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    rows = [line.rstrip() for line in capture.get().splitlines()]
    learners = sum(process.is_learner for process in plan.processes)
    actors = len(plan.processes) - learners
    total = (
        f"{learners} learner(s) and {actors} actor(s) on {len(plan.nodes)} machine(s), "
        f"{_environments(plan.processes)} environments"
    )
    return "".join(f"{line}\n" for line in (*rows, total))


def warnings(plan: Plan, waits: bool = False) -> list[str]:
    """Returns one line for each learner that other machines of the plan probably cannot reach.

    A machine behind a forwarded port has a loopback address here, so the CSV itself looks right.
    Other lines warn if some learners have no actors, or some environments play for nothing.

    Args:
      plan: the plan of the launch.
      waits: whether actors wait for the update that uses their last unroll.
    """
    learners = [process for process in plan.processes if process.is_learner]
    lines = _idle_learners(plan) or (_unequal_learners(plan) if waits else [])
    for number, learner in enumerate(learners):
        host, _ = plan.address_of(learner)
        if not is_loopback(host):
            continue
        others = {
            each.node
            for each in plan.processes
            if each.is_learner or int(each.name.removeprefix("actor-")) % len(learners) == number
        } - {learner.node}
        if others:
            lines.append(
                f"warning: {learner.name} is at {host}, which is another machine on "
                f"{', '.join(sorted(others))}: give as ip the address at which they reach it "
                "(unless a tunnel of your own carries that port there)"
            )
    return lines


def _idle_learners(plan: Plan) -> list[str]:
    """Returns a line if there are fewer actors than learners: an actor plays for one learner."""
    learners = len(plan.learner_hosts)
    actors = len(plan.processes) - learners
    idle = ", ".join(spans(f"learner-{number}" for number in range(actors, learners)))
    return [
        f"warning: {actors} actor(s) for {learners} learners: {idle} would train nothing, because"
        f" each actor plays for one learner; give {learners} actors or more"
    ] if idle else []  # fmt: skip


def _unequal_learners(plan: Plan) -> list[str]:
    """Returns a line if learners have unequal numbers of environments: some are then wasted."""
    actors = [process for process in plan.processes if not process.is_learner]
    learners = len(plan.learner_hosts)
    envs = [_count_environments(actors[rank::learners]) for rank in range(learners)]
    counts = [count for count in envs if count is not None]
    unused = sum(counts) - learners * min(counts, default=0)
    if len(counts) < learners or not unused:
        return []
    return [
        f"warning: what {unused} of the environments play is dropped: actors wait for updates"
        f" (--algorithm=ppo, --synchronization), so all learners have batches of {min(counts)}"
        f" unrolls; give each of the {learners} learners the same number of environments"
    ]


def _login(node: NodeSpec) -> str:
    if node.is_local:
        return "-"
    user = f"{node.ssh_username}@" if node.ssh_username else ""
    return f"{user}{node.ssh_host}" + (f", port {node.ssh_port}" if node.ssh_port else "")


def spans(names: Iterable[str]) -> list[str]:
    """Returns names in order, with actor-3, actor-4, actor-5 as 'actor-3 to actor-5'."""
    spans: list[list[str]] = []
    for name in names:
        job, _, number = name.partition("-")
        if spans and spans[-1][-1] == f"{job}-{int(number) - 1}":
            spans[-1] = [spans[-1][0], name]
        else:
            spans.append([name])
    return [" to ".join(span) for span in spans]


def processes_called(plan: Plan, target: str) -> set[str]:
    """Returns the names of the processes that `target` means: one process, or all of a machine.

    Raises:
      ConfigError: there is no such process or machine.
    """
    hosts = [node.name for node in plan.nodes if target in (node.name, node.ssh_host)]
    names = {p.name for p in plan.processes if p.name == target or p.node in hosts}
    if not names:
        raise ConfigError(
            f"{target}: no such process or machine; this run has "
            f"{', '.join(spans(process.name for process in plan.processes))} on "
            f"{', '.join(node.name for node in plan.nodes)}"
        )
    return names


def machine_called(plan: Plan, host: str) -> NodeSpec:
    """Returns the machine called `host`. Raises ConfigError if there is none, or several."""
    nodes = [node for node in plan.nodes if node.name == host]
    nodes = nodes or [node for node in plan.nodes if node.ssh_host == host]
    if len(nodes) == 1:
        return nodes[0]
    if nodes:
        raise ConfigError(f"{host}: name one of {', '.join(node.name for node in nodes)}")
    names = ", ".join(node.name for node in plan.nodes)
    raise ConfigError(f"{host}: no such machine; this run has {names}")


def _environments(processes: Iterable[ProcessSpec]) -> str:
    """Returns the number of environments, or '?' if an actor uses the default."""
    total = _count_environments(processes)
    return "?" if total is None else f"{total:,}"


def _count_environments(processes: Iterable[ProcessSpec]) -> int | None:
    flag, total = "--envs_per_actor=", 0
    for process in processes:
        if not process.is_learner:
            words = [word for word in process.arguments if word.startswith(flag)]
            if not words:
                return None
            total += int(words[-1].removeprefix(flag))
    return total


def _listens(plan: Plan, processes: Iterable[ProcessSpec]) -> list[str]:
    addresses = []
    for process in processes:
        if not process.is_learner:
            continue
        group = process.group
        addresses.append(plan.learner_hosts[int(process.name.removeprefix("learner-"))])
        if group is not None and group.number == 0:
            addresses.append(f"{group.rendezvous_port} (rendezvous)")
        if group is not None and group.is_spread:
            addresses.append("any port (Gloo, from the other learners)")
    return list(dict.fromkeys(addresses))

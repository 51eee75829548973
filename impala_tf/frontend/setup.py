"""Sets up all machines of a plan at once. Only machines that share a folder take turns."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from impala_tf.frontend import project
from impala_tf.frontend.bootstrap import Installer, Needs, Report, SetupOptions
from impala_tf.frontend.connection import CommandRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.parallel import Machines, connector, on_all, try_all
from impala_tf.frontend.plan import NodeSpec, Plan
from impala_tf.frontend.questions import ask_on_terminal

_WAITING = "waiting"


def set_up(
    plan: Plan,
    known: Mapping[str, Secret],
    accept_new_host_keys: bool,
    console: Console,
    options: SetupOptions,
    level_name: str = "",
    root: Path = project.ROOT,
) -> int:
    """Sets up all machines of a plan in parallel; returns 1 if that fails for any, else 0.

    Prints a line about each machine as soon as it is ready or has failed, and then the totals.
    """
    installer = Installer(plan, project.files(level_name, root), root, options)
    with _Display(console, [node.name for node in plan.nodes]) as display:
        login = connector(known, accept_new_host_keys, ask=display.ask)
        with contextlib.closing(Machines(login)) as machines:
            folders = _Folders(installer)

            def work(node: NodeSpec) -> str:
                report = functools.partial(display.report, node.name)
                try:
                    report(0.0, "logging in")
                    runner = machines.connect([node])[node.name]
                    if isinstance(runner, ClusterError):
                        raise runner
                    done = folders.set_up(runner, report)
                except ClusterError as error:
                    display.end(node.name, str(error))
                    raise
                display.end(node.name, f"{node.name}: {done}")
                return done

            try:
                results = try_all(plan.nodes, lambda node: node.name, work)
            except BaseException:
                installer.cancel()
                raise
            finally:
                folders.close()
    failed = [name for name, result in results.items() if isinstance(result, ClusterError)]
    text = f"{len(results) - len(failed)} of {len(results)} machine(s) ready"
    if failed:
        text += f"; not {', '.join(failed)}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 1 if failed else 0


class _Display(Progress):
    """A row for each machine that is being set up, up to the height of the terminal."""

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        column = functools.partial(TextColumn, markup=False)
        columns = (column("{task.fields[node]}"), BarColumn(), column("{task.description}"))
        self._height = lambda: console.height  # Progress calls this before it has its console
        super().__init__(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._asking = threading.Lock()
        self._rows = {name: self.add_task(_WAITING, total=1.0, node=name) for name in names}

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yields what is shown on the terminal; see Progress."""
        tasks = sorted(self.tasks, key=lambda task: task.description.startswith(_WAITING))
        fitting = max(1, self._height() - 2)
        yield self.make_tasks_table(tasks[:fitting])
        if tasks[fitting:]:
            yield Text(f"... and {len(tasks[fitting:])} more machines")

    def report(self, name: str, share: float, text: str) -> None:
        """Shows what is being done on a machine."""
        self.update(self._rows[name], completed=share, description=text)

    def end(self, name: str, text: str) -> None:
        """Replaces the row of a machine by a line that stays."""
        self.remove_task(self._rows[name])
        with self._asking:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def ask(self, prompt: str) -> Secret | None:
        """Asks for a secret, without the display, which would overwrite the question."""
        if not self.console.is_terminal:
            return ask_on_terminal(prompt)
        with self._asking:
            self.stop()
            try:
                return ask_on_terminal(prompt)
            finally:
                self.start()


class _Folder:
    """A folder to set up; several machines may share it."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.lock = threading.Lock()
        self.ready_for: set[Needs] = set()
        self.failed = ""
        """The machine that could not set it up."""


class _Folders:
    """The folders of all machines. Thread-safe.

    Machines with their home on a file server share a folder. They set it up one after another; a
    machine with the same needs as an earlier one only checks it.
    """

    def __init__(self, installer: Installer) -> None:
        self._installer = installer
        self._mark = f".setup-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._folders: dict[str, _Folder] = {}
        self._marked: list[CommandRunner] = []
        self._is_closed = False

    def set_up(self, runner: CommandRunner, report: Report) -> str:
        """Sets up a machine; see `Installer.set_up`."""
        node, needs = runner.node, self._installer.needs(runner.node)
        folder = _Folder(node.name) if node.is_local else self._find(runner)
        if folder.first != node.name:
            report(0.0, f"{_WAITING} for {folder.first}, which has the same folder")
        with folder.lock:
            if folder.failed:
                raise ClusterError(
                    f"{node.name}: {folder.failed}, which has the same folder, failed"
                )
            if needs not in folder.ready_for:
                try:
                    done = self._installer.set_up(runner, report)
                except ClusterError:
                    folder.failed = node.name
                    raise
                folder.ready_for.add(needs)
                return done
        return self._installer.set_up(runner, report)

    def _find(self, runner: CommandRunner) -> _Folder:
        node = runner.node
        # The first machine makes a link to its own name. A link, unlike a file, appears with its
        # full text or not at all, even for other machines that share the folder.
        script = (
            'mkdir -p -- "$1" && cd -- "$1" && { ln -sn -- "$2" "$3" 2>/dev/null; '
            'readlink -- "$3"; }'
        )
        words = ["sh", "-c", script, "sh", node.workdir, node.name, self._mark]
        if self._is_closed:
            raise ClusterError(f"{node.name}: interrupted")
        done = runner.run(words, in_workdir=False)
        first = done.text.rstrip("\n")
        if not first:
            raise ClusterError(f"{node.name}: {node.workdir}: {done.last_line}")
        with self._lock:
            if first == node.name:
                self._marked.append(runner)
            return self._folders.setdefault(first, _Folder(first))

    def close(self) -> None:
        """Removes the links that tell folders apart."""
        self._is_closed = True
        on_all(self._marked, lambda runner: runner.run(["rm", "-f", "--", self._mark]))

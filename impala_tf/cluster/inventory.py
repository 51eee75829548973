"""The workers CSV: one process per row, with the machine it runs on and how to log in there."""

from __future__ import annotations

import csv
import dataclasses
import io
import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from impala_tf.config import ConfigError
from impala_tf.config.addresses import host_port, valid_host

SSH_PORT = 22


@dataclasses.dataclass(frozen=True)
class Secret:
    """Text that is never shown: not in a repr, an f-string, a log or a traceback."""

    _text: str = dataclasses.field(repr=False)

    def reveal(self) -> str:
        """Returns the text itself."""
        return self._text


@dataclasses.dataclass(frozen=True)
class Row:
    """A valid row. None: there is no such column or, except for the GPUs, the field is empty."""

    line: int
    job: Literal["learner", "actor"]
    ip: str
    """The address at which the other machines reach this one."""
    tf_port: int | None = None
    """The port where a learner listens. Actors need none."""
    cuda_visible_devices: str | None = None
    """'' (an empty field) and '-1' hide every GPU. None (no such column) changes nothing."""
    ssh_host: str | None = None
    """Where to log in, if that is not `ip`: a public address, or an alias of ~/.ssh/config."""
    ssh_port: int | None = None
    ssh_username: str | None = None
    ssh_password: Secret | None = None
    envs: int | None = None
    python: str | None = None
    workdir: str | None = None
    key_filename: str | None = None
    host_key: str | None = None
    """The only host key to accept: 'ssh-ed25519 AAAA...' or 'SHA256:...'."""

    @property
    def machine(self) -> str:
        """The name of its machine: where to log in, with the port if it is not that of SSH."""
        host, port = self.ssh_host or self.ip, self.ssh_port or SSH_PORT
        return host if port == SSH_PORT else host_port(host, port)


COLUMNS = tuple(field.name for field in dataclasses.fields(Row) if field.name != "line")
_OF_A_MACHINE = ("ssh_username", "ssh_password", "python", "workdir", "key_filename", "host_key")


def read_workers(path: Path) -> list[Row]:
    """Returns the rows of a workers CSV, in the file's order. Opens no connection.

    The columns may be in any order. Lines that start with '#' and empty lines are skipped; a
    byte-order mark, CRLF line ends and blanks around fields are fine.

    Raises:
      ConfigError: with every problem of the file, one line each: `file:line: column: problem`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--workers_csv_path={path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    lines = list(io.StringIO(text))
    skipped = next((n for n, line in enumerate(lines) if not _is_skipped(line)), len(lines))
    # Comments become empty lines, so that the reader counts the file's lines.
    body = ("\n" if _is_skipped(line) else line for line in lines[skipped:])
    table = csv.DictReader(body, restval="", strict=True, skipinitialspace=True)
    rows, problems = [], []
    try:
        table.fieldnames = _columns(path, skipped + 1, table.fieldnames or [])
        for cells in table:
            row, found = _row(skipped + table.line_num, cells)
            rows += [row] if row else []
            problems += [f"{path}:{skipped + table.line_num}: {problem}" for problem in found]
    except csv.Error as error:
        problems.append(f"{path}:{skipped + table.reader.line_num}: not valid CSV: {error}")
    if any(row.ssh_password for row in rows) and path.stat().st_mode & 0o077:
        problems.append(
            f"{path}:{skipped + 1}: ssh_password: other users can read this file; run chmod 600"
            f" {path}"
        )
    problems += [f"{path}:{line}: {problem}" for line, problem in _conflicts(rows)]
    if missing := {"learner", "actor"} - {row.job for row in rows} if not problems else None:
        problems.append(f"{path}:{skipped + 1}: job: no {' and no '.join(sorted(missing))}")
    if problems:
        raise ConfigError(problems)
    return rows


def is_loopback(host: str) -> bool:
    """Tells whether `host` means the local machine on every machine, such as localhost."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_forwarded(row: Row) -> bool:
    """Tells whether a row names a port of this machine that is forwarded to another machine."""
    host = row.ssh_host or row.ip
    return is_loopback(host) and row.machine != host


def _is_skipped(line: str) -> bool:
    return line.lstrip()[:1] in ("", "#")


def _columns(path: Path, line: int, header: Sequence[str]) -> list[str]:
    """Returns the names of the columns. Raises ConfigError if a run cannot be read from them."""
    names = [name.strip().lower() for name in header]
    while names and not names[-1]:
        names.pop()  # a spreadsheet adds empty ones
    if len(names) == 1 and (separator := re.search("[;\t]", names[0])):
        raise ConfigError(f"{path}:{line}: separate the columns by ',', not by {separator[0]!r}")
    problems = [f"{name!r}: no such column" for name in names if name not in COLUMNS]
    problems += [f"{name}: the column appears twice" for name in COLUMNS if names.count(name) > 1]
    problems += [f"{name}: the column is missing" for name in ("job", "ip") if name not in names]
    if problems:
        problems[-1] += f"; the first line names the columns, some of {','.join(COLUMNS)}"
        raise ConfigError([f"{path}:{line}: {problem}" for problem in problems])
    return names


def _row(line: int, cells: dict[str | Any, str | Any]) -> tuple[Row | None, list[str]]:
    """Returns a row, or None and its problems."""
    if any(text.strip() for text in cells.pop(None, [])):
        return None, ['more fields than columns; a field with a comma needs quotes, such as "0,1"']
    fields: dict[str, Any] = {}
    problems = []
    for name, cell in cells.items():
        try:
            if (text := cell.strip()) or name in ("job", "ip", "cuda_visible_devices"):
                fields[name] = _PARSERS[name](text)
        except ValueError as error:
            problems.append(f"{name}: {text!r}: {error}")
    if fields.get("job") == "learner" and not cells.get("tf_port", "").strip():
        problems.append("tf_port: a learner needs a port to listen on")
    return (None if problems else Row(line=line, **fields)), problems


def _conflicts(rows: Sequence[Row]) -> Iterator[tuple[int, str]]:
    """Yields (line, problem) for rows that contradict each other."""
    machines: dict[str, Row] = {}
    for row in rows:
        same = machines.setdefault(row.machine, row)
        for name in _OF_A_MACHINE:
            if getattr(row, name) != getattr(same, name):
                yield row.line, f"{name}: differs from line {same.line}, the same machine"


def _host(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        if text.startswith("-") or not valid_host(text):
            raise ValueError("must be an address or a host name") from None
        return text
    if address.is_unspecified or address.is_multicast:
        raise ValueError("give the address at which the other machines reach this one")
    return str(address)


def _key_filename(text: str) -> str:
    if text.endswith(".pub"):
        raise ValueError(f"this is the public key; name the private one, {text[:-4]}")
    return _PATH(text)


def _matching(form: str, meaning: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if re.fullmatch(form, text) is None or not text.isprintable():
            raise ValueError(f"must be {meaning}")
        return text

    return parse


def _number(most: int, meaning: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if re.fullmatch("[0-9]{1,9}", text) is None or not 1 <= int(text) <= most:
            raise ValueError(f"must be {meaning}")
        return int(text)

    return parse


_JOB = _matching("learner|actor", "learner or actor")
_PORT = _number(65535, "a port from 1 to 65535")
_PATH = _matching("[^-].*", "a path")
_GPU = r"(?:[0-9]+|(?:GPU|MIG)-[A-Za-z0-9/-]+)"
_KEY = r"SHA256:[A-Za-z0-9+/]{43}=?|[a-z0-9@.-]+ [A-Za-z0-9+/]{16,}={0,2}"
_PARSERS: dict[str, Callable[[str], Any]] = {
    "job": lambda text: _JOB(text.lower()),
    "ip": _host,
    "tf_port": _PORT,
    "cuda_visible_devices": _matching(rf"|-1|{_GPU}(,{_GPU})*", 'GPUs such as "0,1", or -1'),
    "ssh_host": _host,
    "ssh_port": _PORT,
    "ssh_username": _matching(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\$?", "a user name"),
    "ssh_password": Secret,
    "envs": _number(65536, "a number of environments, 1 or more"),
    "python": _matching("[^-=][^=]*", "a path without '='"),  # env starts it
    "workdir": _PATH,
    "key_filename": _key_filename,
    "host_key": _matching(_KEY, "'ssh-ed25519 AAAA...' or 'SHA256:...'"),
}

"""The workers CSV: one process per row, with the machine it runs on and how to log in there."""

from __future__ import annotations

import csv
import dataclasses
import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from impala_tf.config import ConfigError
from impala_tf.config.addresses import valid_host
from impala_tf.machine.addresses import is_here

SSH_PORT = 22
Machine = tuple[str, int, str | None]
"""Host, port and user name of a login; None: the one in ~/.ssh/config, or the user who launches."""


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
    def machine(self) -> Machine:
        """Where to log in, which is the same for all rows of a machine."""
        return self.ssh_host or self.ip, self.ssh_port or SSH_PORT, self.ssh_username


COLUMNS = tuple(field.name for field in dataclasses.fields(Row) if field.name != "line")
_NEEDED = ("job", "ip")
_OF_A_MACHINE = ("ssh_password", "python", "workdir", "key_filename", "host_key")


def read_workers(path: Path) -> list[Row]:
    """Returns the rows of a workers CSV, in the file's order. Opens no connection.

    The columns may be in any order. Lines that start with '#' and empty lines are skipped; a
    byte-order mark, CRLF line ends and blanks after commas are fine. A password that begins with a
    blank needs quotes.

    Raises:
      ConfigError: with every problem of the file, one line each: `file:line: column: problem`.
    """
    problems: list[str] = []
    records = _records(path, problems)
    if problems:
        raise ConfigError(problems)
    if not records:
        raise ConfigError(
            f"{path}:1: job: the file is empty; its first line must name the columns, some of "
            f"{','.join(COLUMNS)}"
        )
    (header_line, names), *body = records
    columns = [name.strip().lower() for name in _without_blanks_at_end(names)]
    problems += [f"{path}:{header_line}: {text}" for text in _header_problems(columns)]
    if problems:
        raise ConfigError(problems)
    rows = [_row(path, line, columns, values, problems) for line, values in body]
    valid = [row for row in rows if row is not None]
    problems += [f"{path}:{line}: {text}" for line, text in _joint_problems(valid, rows)]
    if any(row.ssh_password for row in valid) and path.stat().st_mode & 0o077:
        problems.append(
            f"{path}:{header_line}: ssh_password: other users can read this file; run "
            f"chmod 600 {path}, or leave the passwords out and log in with keys"
        )
    if problems:
        raise ConfigError(sorted(problems, key=_line_of))
    return valid


def is_loopback(host: str) -> bool:
    """Tells whether `host` means the local machine on every machine, such as localhost."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_forwarded(row: Row) -> bool:
    """Tells whether a row names a port of this machine that is forwarded to another machine."""
    return is_loopback(row.ssh_host or row.ip) and row.ssh_port not in (None, SSH_PORT)


def _line_of(problem: str) -> int:
    match = re.match(r".*?:(\d+): ", problem)
    return int(match.group(1)) if match else 0


def _records(path: Path, problems: list[str]) -> list[tuple[int, list[str]]]:
    """Returns (first line, fields) of every record that is neither empty nor a comment."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines(keepends=True)
    except OSError as error:
        problems.append(f"--workers_csv_path={path}: {error.strerror}")
        return []
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(f"{path}:{line}: job: not UTF-8; save the file as UTF-8")
        return []
    # Comments become empty lines, so that the reader counts the file's lines.
    reader = csv.reader(
        ("\n" if line.lstrip().startswith("#") else line for line in lines),
        strict=True,
        skipinitialspace=True,
    )
    records, first_line = [], 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                records.append((first_line, fields))
            first_line = reader.line_num + 1
    except csv.Error as error:
        problems.append(f"{path}:{first_line}: job: not valid CSV from here on: {error}")
    return records


def _header_problems(columns: list[str]) -> Iterator[str]:
    if len(columns) == 1 and (separator := re.search("[;\t]", columns[0])):
        yield f"job: columns are separated by {separator[0]!r} here; separate them by ','"
        return
    if not set(columns) & set(COLUMNS):
        yield (
            f"job: the first line must name the columns, such as job,ip,tf_port; the columns are"
            f" {', '.join(COLUMNS)}"
        )
        return
    unknown = [repr(name) for name in columns if name not in COLUMNS]
    if unknown:
        yield f"{', '.join(unknown)}: no such column; the columns are {', '.join(COLUMNS)}"
    for name in dict.fromkeys(columns):
        if columns.count(name) > 1:
            yield f"{name}: the column appears more than once"
    for name in _NEEDED:
        if name not in columns:
            yield f"{name}: the column is missing"


def _row(
    path: Path, line: int, columns: list[str], values: list[str], problems: list[str]
) -> Row | None:
    before = len(problems)
    values = values[: len(columns)] + _without_blanks_at_end(values[len(columns) :])
    if len(values) > len(columns):
        problems.append(
            f"{path}:{line}: {columns[-1]}: {len(columns)} columns, but {len(values)} fields; a"
            ' field with a comma needs quotes, such as "0,1"'
        )
        return None
    fields: dict[str, Any] = {}
    texts = dict.fromkeys(columns, "") | dict(zip(columns, values, strict=False))
    for name, text in texts.items():
        if name != "ssh_password" or not text.strip():
            text = text.strip(" \t")
        try:
            if text or name in _READ_EMPTY:
                fields[name] = _PARSERS[name](text)
        except ValueError as error:
            problems.append(f"{path}:{line}: {name}: {error}")
    if fields.get("job") == "learner":
        if "tf_port" not in fields and "tf_port" not in _named(problems[before:]):
            problems.append(f"{path}:{line}: tf_port: a learner needs a port to listen on")
        if "envs" in fields:
            problems.append(f"{path}:{line}: envs: a learner has no environments; leave it empty")
    return None if len(problems) > before else Row(line=line, **fields)


def _without_blanks_at_end(fields: list[str]) -> list[str]:
    """Returns the fields without the empty ones that spreadsheets add at the end."""
    count = max((n for n, text in enumerate(fields, 1) if text.strip()), default=0)
    return fields[:count]


def _named(problems: list[str]) -> set[str]:
    return {problem.split(": ", 2)[1] for problem in problems}


def _joint_problems(good: list[Row], rows: list[Row | None]) -> Iterator[tuple[int, str]]:
    """Yields (line, problem) for rows that contradict each other. Each row by itself is valid."""
    jobs = [row.job for row in good]
    for job in ("learner", "actor"):
        if len(good) == len(rows) and job not in jobs:
            yield 1, f"job: no {job}; a run needs at least one learner and one actor"
    on_loopback = any(row.job == "learner" and is_loopback(row.ip) for row in good)
    elsewhere = next(filter(_is_elsewhere, good), None) if on_loopback else None
    ports: dict[tuple[str, int | None], int] = {}
    machines: dict[Machine, Row] = {}
    for row in good:
        is_learner = row.job == "learner"
        if is_learner and (first := ports.setdefault((row.ip, row.tf_port), row.line)) != row.line:
            text = f"tf_port: {row.tf_port} is already used by the learner in line {first}"
            yield row.line, text
        same = machines.setdefault(row.machine, row)
        for name in _OF_A_MACHINE:
            if getattr(row, name) != getattr(same, name):
                yield row.line, f"{name}: differs from line {same.line}, which has the same machine"
        if is_learner and ":" in row.ip and jobs.count("learner") > 1:
            yield (
                row.line,
                f"ip: {row.ip}: several learners need IPv4 addresses or host names, because "
                "Horovod cannot use IPv6 addresses; a single learner may have one",
            )
        if is_learner and elsewhere is not None and is_loopback(row.ip):
            yield (
                row.line,
                f"ip: on {elsewhere.ip} (line {elsewhere.line}), {row.ip} is another machine; "
                "give the address at which the other machines reach this learner",
            )


def _is_elsewhere(row: Row) -> bool:
    """Tells whether a row names another machine than this one, which may have several names."""
    return not is_loopback(row.ip) and (is_forwarded(row) or not is_here(row.machine[0]))


def _host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        if text.startswith("-") or not valid_host(text):
            raise ValueError(f"{text!r}: must be an address or a host name") from None
        return text
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text!r}: give the address at which the other machines reach this one")
    return str(address)


def _host_key(text: str) -> str:
    return _KEY(" ".join(text.split()[:2]))  # without the comment


def _key_filename(text: str) -> str:
    if text.endswith(".pub"):
        raise ValueError(f"{text!r}: this is the public key; name the private one, {text[:-4]}")
    return _path(text)


def _path(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: must not contain control characters")
    if text.startswith("-"):
        raise ValueError(f"{text!r}: must not start with '-'")
    return text


def _python(text: str) -> str:
    if "=" in text:  # env starts it, and would take it for a variable
        raise ValueError(f"{text!r}: must not contain '='")
    return _path(text)


def _like(form: str, problem: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if re.fullmatch(form, text) is None:
            raise ValueError(f"{text!r}: {problem}")
        return text

    return parse


def _number(most: int, what: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if re.fullmatch(r"[0-9]{1,9}", text) is None or not 1 <= int(text) <= most:
            raise ValueError(f"{text!r}: must be {what}")
        return int(text)

    return parse


_KEY = _like(
    r"SHA256:[A-Za-z0-9+/]{43}=?|[a-z0-9@.-]+ [A-Za-z0-9+/]{16,}={0,2}",
    "must be a key such as 'ssh-ed25519 AAAA...', or its fingerprint 'SHA256:...'; ssh-keyscan "
    "HOST prints the one, ssh-keyscan HOST | ssh-keygen -lf - the other",
)
_JOB = _like("learner|actor", "must be learner or actor")
_PORT = _number(65535, "a port from 1 to 65535")
_GPU = r"(?:[0-9]+|(?:GPU|MIG)-[A-Za-z0-9/-]+)"
_PARSERS: dict[str, Callable[[str], Any]] = {
    "job": lambda text: _JOB(text.lower()),
    "ip": _host,
    "tf_port": _PORT,
    "cuda_visible_devices": _like(
        rf"|-1|{_GPU}(?:,{_GPU})*", 'must be GPU numbers such as 0 or "0,1", or -1 for none'
    ),
    "ssh_host": _host,
    "ssh_port": _PORT,
    "ssh_username": _like(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\$?", "not a valid user name"),
    "ssh_password": Secret,
    "envs": _number(65536, "a number of environments, 1 or more"),
    "python": _python,
    "workdir": _path,
    "key_filename": _key_filename,
    "host_key": _host_key,
}
"""{column: its parser}. Empty fields are None, except in the columns of _READ_EMPTY."""
_READ_EMPTY = (*_NEEDED, "cuda_visible_devices")

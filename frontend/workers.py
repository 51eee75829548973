"""The workers CSV: a process a row, the machine it runs on and how to log in there."""

from __future__ import annotations

import csv
import dataclasses
import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

from impala_tf.config import ConfigError


class Secret:
    """Text that shows itself nowhere: not in a repr, an f-string, a log or a traceback."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the file, checked. None: the column is absent or, but for the GPUs, empty."""

    line: int
    job: Literal["learner", "actor"]
    ip: str
    tf_port: int | None = None
    """Learners listen here; actors need none."""
    cuda_visible_devices: str | None = None
    """'' and '-1' hide every GPU; None leaves the machine's own setting alone."""
    ssh_port: int = 22
    ssh_username: str | None = None
    ssh_password: Secret | None = None
    envs: int | None = None
    python: str | None = None
    workdir: str | None = None
    key_filename: str | None = None


COLUMNS = tuple(field.name for field in dataclasses.fields(Row) if field.name != "line")
_NEEDED = ("job", "ip")
_PLACE = ("ssh_password", "python", "workdir", "key_filename")


def read_workers(path: Path) -> list[Row]:
    """Returns the rows of a workers CSV, in the file's order. Opens no connection.

    Columns come by name in any order; lines that begin with '#', empty lines, a byte-order mark and
    CRLF are taken.

    Raises:
      ConfigError: with every problem of the file, each as `file:line: column: what is wrong`.
    """
    found: list[str] = []
    records = _records(path, found)
    if found:
        raise ConfigError(found)
    if not records:
        raise ConfigError(f"{path}:1: job: the file is empty; begin with {','.join(COLUMNS)}")
    (header_line, names), *body = records
    columns = [name.strip().lower() for name in names]
    found += [f"{path}:{header_line}: {text}" for text in _header_problems(columns)]
    if found:
        raise ConfigError(found)
    rows = [_row(path, line, columns, values, found) for line, values in body]
    good = [row for row in rows if row is not None]
    found += [f"{path}:{line}: {text}" for line, text in _joint_problems(good, rows)]
    has_passwords = any(row.ssh_password and not is_loopback(row.ip) for row in good)
    if has_passwords and path.stat().st_mode & 0o077:
        found.append(
            f"{path}:{header_line}: ssh_password: others may read this file; run chmod 600 {path}, "
            "or log in with keys and leave the passwords out"
        )
    if found:
        raise ConfigError(sorted(found, key=_line_of))
    return good


def is_loopback(host: str) -> bool:
    """Tells whether `host` is this machine for everyone who says so, whichever machine that is."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _line_of(problem: str) -> int:
    match = re.match(r".*?:(\d+): ", problem)
    return int(match.group(1)) if match else 0


def _records(path: Path, found: list[str]) -> list[tuple[int, list[str]]]:
    """Returns (first line, fields) of every record that is neither a comment nor empty."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines(keepends=True)
    except OSError as error:
        found.append(f"--workers_csv_path={path}: {error.strerror}")
        return []
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        found.append(f"{path}:{line}: job: not UTF-8 text; save the file as UTF-8")
        return []
    # Blanked rather than dropped: the reader then counts lines as the file does.
    reader = csv.reader(
        ("\n" if line.lstrip().startswith("#") else line for line in lines), strict=True
    )
    records, first_line = [], 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                records.append((first_line, fields))
            first_line = reader.line_num + 1
    except csv.Error as error:
        found.append(f"{path}:{first_line}: job: not CSV from here on: {error}")
    return records


def _header_problems(columns: list[str]) -> Iterator[str]:
    for name in columns:
        if name not in COLUMNS:
            yield f"{name!r}: no such column; there are {', '.join(COLUMNS)}"
    for name in dict.fromkeys(columns):
        if columns.count(name) > 1:
            yield f"{name}: named more than once"
    for name in _NEEDED:
        if name not in columns:
            yield f"{name}: the column is missing"


def _row(
    path: Path, line: int, columns: list[str], values: list[str], found: list[str]
) -> Row | None:
    before = len(found)
    if len(values) > len(columns):
        more = len(values) - len(columns)
        found.append(f"{path}:{line}: {columns[-1]}: {more} more field(s) after it than columns")
    fields: dict[str, Any] = {}
    texts = dict.fromkeys(columns, "") | dict(zip(columns, values, strict=False))
    for name, text in texts.items():
        try:
            value = _PARSERS[name](text if name == "ssh_password" else text.strip(" \t"))
        except ValueError as error:
            found.append(f"{path}:{line}: {name}: {error}")
            continue
        if value is not None:
            fields[name] = value
    if fields.get("job") == "learner":
        if "tf_port" not in fields and "tf_port" not in _named(found[before:]):
            found.append(f"{path}:{line}: tf_port: a learner needs a port to listen on")
        if "envs" in fields:
            found.append(f"{path}:{line}: envs: only actors have environments; leave it empty")
    return None if len(found) > before else Row(line=line, **fields)


def _named(problems: list[str]) -> set[str]:
    return {problem.split(": ", 2)[1] for problem in problems}


def _joint_problems(good: list[Row], rows: list[Row | None]) -> Iterator[tuple[int, str]]:
    """Yields (line, problem) of what rows say together; what a row says alone has been said."""
    all_read = len(good) == len(rows)
    for job in ("learner", "actor"):
        if all_read and not any(row.job == job for row in good):
            yield 1, f"job: no {job}; a run needs at least one of each"
    listening: dict[tuple[str, int | None], int] = {}
    places: dict[tuple[str, int, str | None], Row] = {}
    for row in good:
        if row.job == "learner":
            first = listening.setdefault((row.ip, row.tf_port), row.line)
            if first != row.line:
                yield row.line, f"tf_port: {row.tf_port} is taken by the learner of line {first}"
        same = places.setdefault((row.ip, row.ssh_port, row.ssh_username), row)
        for name in _PLACE:
            if getattr(row, name) != getattr(same, name):
                yield row.line, f"{name}: not what line {same.line} says of the same machine"
    elsewhere = next((row for row in good if not is_loopback(row.ip)), None)
    if elsewhere is None:
        return
    for row in good:
        if row.job == "learner" and is_loopback(row.ip):
            yield (
                row.line,
                f"ip: {row.ip} means another machine on {elsewhere.ip} (line {elsewhere.line}); "
                "give the address that the others reach this learner by",
            )


def _job(text: str) -> str:
    if text not in ("learner", "actor"):
        raise ValueError(f"{text!r}: must be learner or actor")
    return text


def _host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        if re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})", text) is None:
            raise ValueError(f"{text!r}: must be an address or a host's name") from None
        return text


def _port(text: str) -> int | None:
    return None if not text else _integer(text, 65535, "a port of 1 to 65535")


def _envs(text: str) -> int | None:
    return None if not text else _integer(text, 65536, "a number of environments, 1 or more")


def _integer(text: str, most: int, what: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text) is None or not 1 <= int(text) <= most:
        raise ValueError(f"{text!r}: must be {what}")
    return int(text)


def _devices(text: str) -> str:
    one = r"(?:[0-9]+|(?:GPU|MIG)-[A-Za-z0-9/-]+)"
    if re.fullmatch(rf"|-1|{one}(?:,{one})*", text) is None:
        raise ValueError(f'{text!r}: must be GPU numbers such as 0 or "0,1", or -1 for none')
    return text


def _username(text: str) -> str | None:
    if text and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\$?", text) is None:
        raise ValueError(f"{text!r}: not a user's name")
    return text or None


def _path(text: str) -> str | None:
    if not text.isprintable():
        raise ValueError(f"{text!r}: control characters are not taken")
    if text.startswith("-"):
        raise ValueError(f"{text!r}: must not begin with '-'")
    return text or None


def _python(text: str) -> str | None:
    if "=" in text:  # env, which starts it, would take that for a variable
        raise ValueError(f"{text!r}: must not contain '='")
    return _path(text)


_PARSERS = cast(
    dict[str, Callable[[str], Any]],
    {
        "job": _job,
        "ip": _host,
        "tf_port": _port,
        "cuda_visible_devices": _devices,
        "ssh_port": _port,
        "ssh_username": _username,
        "ssh_password": lambda text: Secret(text) if text else None,
        "envs": _envs,
        "python": _python,
        "workdir": _path,
        "key_filename": _path,
    },
)

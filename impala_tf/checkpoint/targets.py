"""Places for copies of checkpoints: a folder, a machine with SSH, or a bucket.

`of` makes a `Target` from the value of --mirror. A target's operations fail with OSError.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from impala_tf.config import ConfigError, user_commands
from impala_tf.logdir import moved_aside, sync

_PART = ".part"  # the suffix of a file that is being written
_CONNECT_S = 20.0
_SILENCE_S = 60.0


class Target(Protocol):
    """A place with files, whose names are relative paths with slashes."""

    def put(self, source: Path, name: str) -> None:
        """Copies a file to the target, atomically: `name` is the old file or the new one."""

    def get(self, name: str, path: Path) -> None:
        """Copies a file from the target to `path`, whose folder must exist."""

    def sizes(self) -> dict[str, int]:
        """Returns {name: bytes} of all files; {} if there are none."""

    def remove(self, name: str) -> None:
        """Removes a file, and its folder if that becomes empty."""

    def move_aside(self) -> str:
        """Renames the place to the first free name of NAME.1, NAME.2, ...; returns the new name."""


class Folder:
    """A folder of this machine, such as a mounted share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, source: Path, name: str) -> None:
        """See `Target`."""
        final = self.path / name
        final.parent.mkdir(parents=True, exist_ok=True)
        part = final.with_name(final.name + _PART)
        shutil.copyfile(source, part)
        sync(part)
        part.replace(final)

    def get(self, name: str, path: Path) -> None:
        """See `Target`."""
        shutil.copyfile(self.path / name, path)

    def sizes(self) -> dict[str, int]:
        """See `Target`."""
        paths = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.stat().st_size for path in paths}

    def remove(self, name: str) -> None:
        """See `Target`."""
        path = self.path / name
        path.unlink()
        with contextlib.suppress(OSError):  # not empty
            path.parent.rmdir()

    def move_aside(self) -> str:
        """See `Target`."""
        return str(moved_aside(self.path) or "")


class _Login(NamedTuple):
    host: str
    port: int | None
    user: str | None


class Sftp:
    """A folder on a machine that SSH reaches, through paramiko's SFTP.

    Uses ~/.ssh/config (HostName, Port, User, IdentityFile, ProxyCommand), the agent's keys, and the
    host keys in ~/.ssh/known_hosts; unknown hosts are refused. It never prompts. It does not use
    rsync, which many machines lack; every sshd has SFTP, and a checkpoint's files are always new.
    """

    def __init__(self, login: _Login, path: str) -> None:
        self._login = login
        self._path = PurePosixPath(path)
        self._client: Any = None
        self._sftp: Any = None

    def put(self, source: Path, name: str) -> None:
        """See `Target`."""
        final = str(self._path / name)
        with self._connected() as sftp, source.open("rb") as file:
            self._make_folders(sftp, self._path / PurePosixPath(name).parent)
            # No check of the size, because the file may have grown during the copy.
            sftp.putfo(file, final + _PART, confirm=False)
            sftp.posix_rename(final + _PART, final)

    def get(self, name: str, path: Path) -> None:
        """See `Target`."""
        with self._connected() as sftp:
            sftp.get(str(self._path / name), str(path))

    def sizes(self) -> dict[str, int]:
        """See `Target`."""
        with self._connected() as sftp:
            return dict(_files(sftp, self._path, ""))

    def remove(self, name: str) -> None:
        """See `Target`."""
        path = self._path / name
        with self._connected() as sftp:
            sftp.remove(str(path))
            with contextlib.suppress(OSError):  # not empty
                sftp.rmdir(str(path.parent))

    def move_aside(self) -> str:
        """See `Target`."""
        with self._connected() as sftp:
            target = _first_free(str(self._path), lambda path: _exists(sftp, path))
            sftp.posix_rename(str(self._path), target)
        return f"{self._login.host}:{target}"

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """Yields the connection. After a failure, the next call connects again."""
        import paramiko

        try:
            if self._sftp is None:
                self._connect()
            yield self._sftp
        except (paramiko.SSHException, paramiko.SFTPError, EOFError, TimeoutError) as error:
            self._close()
            raise OSError(f"SSH: {error or 'the connection broke'}") from error
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._close()
            raise

    def _connect(self) -> None:
        import paramiko

        host, port, user = self._login
        file = Path.home() / ".ssh" / "config"
        config = paramiko.SSHConfig.from_path(str(file)) if file.is_file() else paramiko.SSHConfig()
        options = config.lookup(host)
        proxy = options.get("proxycommand")
        self._client = client = paramiko.SSHClient()
        hosts = options.get("userknownhostsfile", "").split(" ")[0]
        client.load_system_host_keys(str(Path(hosts).expanduser()) if hosts else None)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.connect(
            options["hostname"],
            port or int(options.get("port", 22)),
            user or options.get("user"),
            key_filename=options.get("identityfile"),
            sock=paramiko.ProxyCommand(proxy) if proxy else None,
            timeout=_CONNECT_S,
            auth_timeout=_CONNECT_S,
        )
        client.get_transport().set_keepalive(15)  # type: ignore[union-attr]
        self._sftp = client.open_sftp()
        self._sftp.get_channel().settimeout(_SILENCE_S)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._sftp = None

    @staticmethod
    def _make_folders(sftp: Any, folder: PurePosixPath) -> None:
        for path in reversed([folder, *folder.parents]):
            if not _exists(sftp, str(path)):
                sftp.mkdir(str(path))


class Bucket:
    """A URL that fsspec understands, such as s3://BUCKET/NAME."""

    def __init__(self, url: str) -> None:
        import fsspec

        settings = {"use_listings_cache": False, "skip_instance_cache": True}
        self._url = url
        self._files, self._path = fsspec.core.url_to_fs(url, **settings)

    def put(self, source: Path, name: str) -> None:
        """See `Target`."""
        with _as_os_error():
            # Buckets write objects atomically.
            self._files.put_file(str(source), f"{self._path}/{name}")

    def get(self, name: str, path: Path) -> None:
        """See `Target`."""
        with _as_os_error():
            self._files.get_file(f"{self._path}/{name}", str(path))

    def sizes(self) -> dict[str, int]:
        """See `Target`."""
        with _as_os_error():
            entries = self._files.find(self._path, detail=True)
            return {
                path.removeprefix(f"{self._path}/"): int(entry["size"])
                for path, entry in entries.items()
            }

    def remove(self, name: str) -> None:
        """See `Target`."""
        with _as_os_error():
            self._files.rm_file(f"{self._path}/{name}")

    def move_aside(self) -> str:
        """See `Target`."""
        with _as_os_error():
            target = _first_free(self._path, self._files.exists)
            names = sorted(self.sizes())
            for name in names:
                self._files.cp_file(f"{self._path}/{name}", f"{target}/{name}")
            for name in names:
                self._files.rm_file(f"{self._path}/{name}")
        return self._url.partition("://")[0] + "://" + target


def of(mirror: str) -> Target:
    """Returns the target that --mirror names, without connecting to it.

    Raises:
      ConfigError: it does not name a place, or a package is missing.
    """
    check(mirror)
    scheme, login, path = _parts(mirror)
    if login is not None:
        return Sftp(login, path)
    if not scheme:
        return Folder(Path(path).expanduser().absolute())
    try:
        return Bucket(mirror)
    except (ImportError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"--mirror={mirror}: cannot be used: {reason}") from None


def check(mirror: str) -> None:
    """Raises ConfigError if --mirror does not name a place, or a package for it is missing."""
    scheme, login, path = _parts(mirror)
    where = path.strip("/.~")
    if login is not None and not (login.host and where):
        raise ConfigError(f"--mirror={mirror}: must name a machine and a folder: HOST:PATH")
    if scheme in ("s3", "gs") and "/" not in where:
        raise ConfigError(
            f"--mirror={mirror}: must name a folder in the bucket: {scheme}://BUCKET/NAME"
        )
    if not where:
        raise ConfigError(
            f"--mirror={mirror}: must name a folder of the run, such as {mirror.rstrip('/')}/NAME"
        )
    packages = ["paramiko"] if login else ["fsspec", "s3fs"] if scheme == "s3" else ["fsspec"]
    extra = "learner" if login else "mirror"
    if (login or scheme) and any(importlib.util.find_spec(name) is None for name in packages):
        raise ConfigError(
            f"--mirror={mirror}: needs the extra {extra}: {user_commands.install_extra(extra)}"
        )


def _parts(mirror: str) -> tuple[str, _Login | None, str]:
    """Returns (scheme or '', login for SSH or None, path)."""
    if match := re.match(r"([a-z][a-z0-9+.-]*)://(.*)", mirror):
        scheme, rest = match.groups()
        if scheme not in ("ssh", "sftp"):
            return scheme, None, rest
        url = urlsplit(mirror)
        try:
            login = _Login(url.hostname or "", url.port, url.username)
        except ValueError as error:
            raise ConfigError(f"--mirror={mirror}: {error}") from None
        return scheme, login, unquote(url.path).replace("/~/", "", 1)
    if match := re.match(r"(?:([^@:/]+)@)?(\[[0-9A-Fa-f:]+\]|[^:/\[]+):(.*)", mirror):
        user, host, path = match.groups()
        return "", _Login(host.strip("[]"), None, user), path.removeprefix("~/")
    return "", None, mirror


def _first_free(path: str, is_taken: Any) -> str:
    names = (f"{path}.{number}" for number in itertools.count(1))
    return next(name for name in names if not is_taken(name))


def _files(sftp: Any, folder: PurePosixPath, prefix: str) -> Iterator[tuple[str, int]]:
    """Yields (name, bytes) of all files below a folder; nothing if the folder is missing."""
    try:
        entries = sftp.listdir_attr(str(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        name = prefix + entry.filename
        if stat.S_ISDIR(entry.st_mode):
            yield from _files(sftp, folder / entry.filename, f"{name}/")
        else:
            yield name, int(entry.st_size)


def _exists(sftp: Any, path: str) -> bool:
    try:
        sftp.stat(path)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Converts exceptions to OSError: fsspec's file systems raise their own, such as botocore's."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error

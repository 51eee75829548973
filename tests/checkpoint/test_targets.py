"""Places for --mirror: a folder, a real sshd, and an S3 server, with one behaviour."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from impala_tf.checkpoint import mirror as mirrors
from impala_tf.checkpoint import targets
from impala_tf.checkpoint.mirror import Mirror
from impala_tf.config import ConfigError
from tests.helpers.mirrored import Run, brought_back
from tests.helpers.sshd import Sshd


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server with a bucket "runs"."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            environment.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="runs")
        yield f"http://{host}:{port}"
    server.stop()


def write_ssh_config(home: Path, sshd: Sshd) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {sshd.user_key}\n"
    )
    shutil.copy(sshd.known_hosts, home / ".ssh" / "known_hosts")


@pytest.fixture(params=["folder", "ssh", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The value of --mirror."""
    if request.param == "folder":
        return str(tmp_path / "a share" / "run")
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://runs/{tmp_path.name}"
    monkeypatch.setenv("HOME", str(tmp_path))
    write_ssh_config(tmp_path, request.getfixturevalue("sshd"))
    return f"box:{tmp_path}/there/run"


@pytest.mark.slow
def test_a_place_keeps_files_and_replaces_them_whole(tmp_path: Path, place: str) -> None:
    target = targets.of(place)
    file, back = tmp_path / "file", tmp_path / "back"
    assert target.sizes() == {}
    file.write_text("first")
    target.put(file, "a/b/name")
    target.put(file, "name")
    file.write_text("a longer one")
    target.put(file, "a/b/name")
    assert target.sizes() == {"a/b/name": 12, "name": 5}
    target.get("a/b/name", back)
    assert back.read_text() == "a longer one"
    with pytest.raises(FileNotFoundError):
        target.get("missing", back)
    target.remove("name")
    target.remove("a/b/name")
    assert target.sizes() == {}


@pytest.mark.slow
def test_a_run_comes_back_from_each_place(tmp_path: Path, place: str) -> None:
    run = Run(tmp_path / "run")
    mirror = Mirror(place, targets.of(place))
    assert [mirror.begin(), mirror.begin()] == ["", ""]
    for updates in (1, 2):
        mirror.upload(run.snapshot(updates))
    shutil.rmtree(run.logdir.path)
    again = Mirror(place, targets.of(place))
    assert len(again.manifests()) == 2
    said: list[str] = []
    mirrors.bring_back(again, run.logdir, said.append)
    assert said == [f"restored from {place}: checkpoint at 20 frames"]
    assert brought_back(run.logdir) == 2
    assert again.move_aside().endswith(".1")
    assert Mirror(place, targets.of(place)).manifests() == []
    assert len(Mirror(place, targets.of(f"{place}.1")).manifests()) == 2


@pytest.mark.slow
def test_a_machine_whose_key_is_not_known_gets_nothing(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_ssh_config(tmp_path, sshd)
    (tmp_path / ".ssh" / "known_hosts").write_text("")
    target = targets.of(f"ssh://root@box{tmp_path}/there")
    with pytest.raises(OSError, match="not found in known_hosts"):
        target.sizes()
    shutil.copy(sshd.known_hosts, tmp_path / ".ssh" / "known_hosts")
    assert target.sizes() == {}


@pytest.mark.slow
def test_a_connection_that_broke_is_made_again(
    tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_ssh_config(tmp_path, sshd)
    target = targets.of(f"box:{tmp_path}/there")
    assert isinstance(target, targets.Sftp)
    assert target.sizes() == {}
    target._client.get_transport().sock.close()
    with pytest.raises(OSError):
        target.sizes()
    assert target.sizes() == {}


@pytest.mark.slow
def test_a_bucket_that_is_missing_is_an_os_error(tmp_path: Path, s3: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError):
        targets.of("s3://another/run").put(tmp_path / "file", "x")


@pytest.mark.parametrize(
    ("mirror", "problem"),
    [
        ("box:", "must name a machine and a folder: HOST:PATH"),
        ("ssh://box", "must name a machine and a folder: HOST:PATH"),
        ("ssh://box:port/runs", "Port could not be cast"),
        ("s3://bucket", "must name a folder in the bucket: s3://BUCKET/NAME"),
        ("s3://bucket/", "must name a folder in the bucket: s3://BUCKET/NAME"),
        ("/", "must name a folder"),
        ("~", "must name a folder"),
        ("gs://bucket/run", "cannot be used: Please install gcsfs"),
        ("ftpx://host/runs", "cannot be used: Protocol not known: ftpx"),
    ],
)
def test_what_names_no_place_is_refused_in_a_line(mirror: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        targets.of(mirror)
    (line,) = caught.value.problems
    assert line.startswith(f"--mirror={mirror}: {problem}")


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for mirror in ("s3://bucket/run", "gs://bucket/run"):
        with pytest.raises(ConfigError, match=r"needs the extra mirror: .*\[mirror\]"):
            targets.check(mirror)
    with pytest.raises(ConfigError, match=r"needs the extra learner: .*\[learner\]"):
        targets.check("box:runs")
    targets.check("/mnt/share/run")


def test_a_path_with_a_colon_after_a_slash_is_a_folder() -> None:
    target = targets.of("./a:b")
    assert isinstance(target, targets.Folder)
    assert target.path == Path.cwd() / "a:b"

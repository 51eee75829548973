"""The workers CSV with any content: rows, or one line for each problem."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impala_tf.cluster.inventory import Row, read_workers
from impala_tf.config import ConfigError

_COLUMNS = ("job", "ip", "tf_port", "cuda_visible_devices", "ssh_port", "ssh_username", "envs",
            "ssh_password", "ssh_host", "key_filename", "workdir", "python", "?")  # fmt: skip
_CELLS = st.one_of(
    st.sampled_from(["learner", "actor", "localhost", "10.0.0.1", "8001", "22", "-1", "", "0,1",
                     "::1", "-oProxyCommand=x", "$(x)", "99999999999999999999", "4e3"]),
    st.text(max_size=20),
)  # fmt: skip


def _joined(header: list[str], rows: list[list[str]]) -> bytes:
    return "\n".join(",".join(row) for row in [header, *rows]).encode("utf-8", "replace")


_TABLES = st.builds(
    _joined,
    st.lists(st.sampled_from(_COLUMNS), max_size=8),
    st.lists(st.lists(_CELLS, max_size=9), max_size=6),
)
_ANY = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(problems: list[str], path: Path) -> None:
    """Every problem is one printable line that names the file."""
    assert problems
    for line in problems:
        assert str(path) in line
        assert line.isprintable(), repr(line)
        assert len(line) <= 2000


@_ANY
@given(data=st.one_of(_TABLES, st.binary(max_size=200)))
def test_a_csv_is_read_or_its_problems_are_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.csv"
    path.write_bytes(data)
    path.chmod(0o600)
    try:
        rows = read_workers(path)
    except ConfigError as error:
        check(error.problems, path)
    else:
        assert rows and all(isinstance(row, Row) for row in rows)

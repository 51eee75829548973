"""`fetch` names in one line what it cannot write here."""

import os
import sys

from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.launch import new_record
from impala_tf.cluster.plan import plan_of
from impala_tf.cluster.record import save
from impala_tf.config import Given


def test_a_machine_sends_results_and_replaces_nothing_else(
    sshd, home, tmp_path, capfd, monkeypatch
):
    """It replaced keys, and what later commands run."""
    there, here, csv = tmp_path / "there", tmp_path / "here", tmp_path / "w.csv"
    (home / "known_hosts").write_text(sshd.known_hosts.read_text())
    rest = f"{sshd.port},root,{sshd.user_key},{tmp_path}"
    csv.write_text(
        "job,ip,tf_port,ssh_port,ssh_username,key_filename,workdir\n"
        f"learner,127.0.0.1,8001,{rest}\nactor,127.0.0.1,,{rest}\n"
    )
    given = Given({"workers_csv_path": str(csv), "logdir": str(there)})
    save(new_record(plan_of(given, sys.executable)[0], given), here)
    written = (here / "launch_id").read_text()
    there.mkdir()
    names = ["launch_id", "code.tar.gz", "metrics.csv", "credentials/ca.pem", "x.py"]
    names += ["processes/node-here.orders.json", "processes/actor-0.log", "checkpoints/c/x"]
    for name in names:
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("old")
        (there / name).chmod(0o755)
    os.mkfifo(there / "status.json")
    (there / "config.yaml").symlink_to("x.py")
    assert main(["fetch", f"--logdir={here}"]) == 0, capfd.readouterr().err
    assert (here / "launch_id").read_text() == written
    files = {str(path.relative_to(here)): path.stat().st_mode & 0o111
             for path in here.rglob("*") if path.is_file()}  # fmt: skip
    results = ("checkpoints/c/x", "launch_id", "metrics.csv", "processes/actor-0.log")
    assert files == dict.fromkeys(results, 0)
    capfd.readouterr()
    with monkeypatch.context() as lower:
        lower.setattr("impala_tf.cluster.fetch.MOST_FILES", 3)
        assert main(["fetch", f"--logdir={here}"]) == 1
    assert "sends more than a run can have" in capfd.readouterr().err
    there.rename(tmp_path / "elsewhere")
    assert main(["fetch", f"--logdir={here}"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("127.0.0.1:") and f": {there}: " in line

"""The doctor says what is wrong with one machine, and what it found on the others."""

import pytest

from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.plan import NodeSpec
from impala_tf.cluster.runner import ClusterError, LocalRunner, NotSetUpError, ask_agent, run_probe


@pytest.mark.parametrize(
    "ask", [lambda r: ask_agent(r, "check", {}), lambda r: run_probe(r, "", 0)]
)
def test_a_python_that_says_something_else_first_is_named(tmp_path, ask):
    """It may be a script that loads modules, and it ended the launch with a traceback."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho loading modules ...\necho '{}'\n")
    python.chmod(0o755)
    node = NodeSpec("gpu7", "", True, str(tmp_path), str(python), "logs")
    with pytest.raises(ClusterError) as caught:
        ask(LocalRunner(node))
    said = "printed 'loading modules ...' where an answer was expected"
    assert str(caught.value) == f"gpu7: {python} {said}"
    assert not isinstance(caught.value, NotSetUpError)


def test_a_machine_that_is_lost_while_it_listens_does_not_hide_the_findings(
    run, capfd, monkeypatch
):
    """Nothing was said about any machine."""

    def start(runner, argv, in_workdir=True):
        raise ClusterError(f"{runner.node.name}: the connection was lost")

    monkeypatch.setattr(LocalRunner, "start", start)
    assert main(["doctor", f"--workers_csv_path={run.csv}", f"--logdir={run.logdir}"]) == 1
    said = capfd.readouterr().out
    assert "  bad" in said and "the connection was lost" in said
    assert " disk " in said and " clock " in said

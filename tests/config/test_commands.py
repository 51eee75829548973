"""The command `impala`: its subcommands, what their help shows, and completion."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from impala_tf import main
from impala_tf.config import BUILT_IN, FLAGS
from impala_tf.config.help_pages import COMMANDS, OTHER_COMMANDS
from tests.helpers.programs import need
from tests.helpers.runs import PROJECT


@pytest.fixture
def impala(monkeypatch, capsys):
    """Runs a command of `impala` in this process; returns its status, output and errors."""

    def run(*words):
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["impala", *words])
        try:
            status: object = main.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def flag_in(text, name):
    """Returns what a help page says about a flag, in one line; None if it is not there."""
    found = re.search(rf"^  --(?:no_)?{name}\b(.*?)(?=^  --|^\S|\Z)", text, re.M | re.S)
    return found and " ".join(found[1].split())


def test_alone_it_names_its_commands(impala):
    for words in ((), ("--help",)):
        status, out, _ = impala(*words)
        assert status == 0
        named = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
        assert named == {*COMMANDS, *OTHER_COMMANDS}


def test_the_help_of_each_command_fits_on_a_screen(impala):
    for command in COMMANDS:
        status, out, _ = impala(command, "--help")
        assert status == 0
        assert len(out.splitlines()) <= 50, command
        assert all(flag_in(out, flag.name) for flag in FLAGS.values() if command in flag.short)


def test_help_shows_all_flags_and_the_defaults_of_the_level(impala):
    _, out, _ = impala("train", "--level_name=CartPole-v1", "--help_all")
    assert all(flag_in(out, name) for name in BUILT_IN)
    assert "MLPAgent" in flag_in(out, "agent_name")
    assert flag_in(out, "learning_rate").endswith("(default: 0.0025)")


def test_the_versions_are_shown(impala):
    status, out, _ = impala("--version")
    assert status == 0
    assert re.fullmatch(r"impala_tf \d\S+, TensorFlow 2\S+, Python 3\S+\n", out)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tain"], "tain: no such command; did you mean train?"),
        (["xyzzy"], "xyzzy: no such command; see impala --help"),
        (["train", "--level_name=CartPoel-v1", "--help"],
         "--level_name=CartPoel-v1: no such level; near matches: CartPole-v1"),
        (["levels", "xyzzy"], "levels xyzzy: no level that is installed has this in its name"),
        (["test"], "impala test: needs --logdir of a run"),
        (["test", "nowhere"], "--logdir=nowhere: "),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line(impala, monkeypatch, words, problem):
    monkeypatch.chdir(PROJECT)
    status, out, err = impala(*words)
    assert (status, out) == (2, "")
    assert err.startswith(f"impala: {problem}"), err
    assert len(err.splitlines()) == 1


def test_levels_and_agents_are_listed(impala):
    _, out, _ = impala("levels", "pong")
    assert "  PongNoFrameskip-v4\n" in out and "CartPole" not in out
    _, out, _ = impala("agents")
    assert re.search(r"^MLPLSTMAgent +mlp +lstm", out, re.M)


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    """A folder with the scripts for both shells, in files that zsh finds."""
    folder = tmp_path_factory.mktemp("completion")
    for shell, name in (("bash", "impala.bash"), ("zsh", "_impala")):
        with (folder / name).open("w") as script:
            command = [sys.executable, "-m", "impala_tf", "completion", shell]
            subprocess.run(command, cwd=PROJECT, stdout=script, check=True)
    return folder


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("impala tr", "train"),
        ("impala train --seed=1 --device g", "gpu"),
        ("impala train --core=", "feedforward lstm"),
        ("impala train --level_name=CartPole-v", "CartPole-v0 CartPole-v1"),
        ("impala cluster doc", "doctor"),
    ],
)
def test_bash_completes_commands_flags_and_values(completion, line, offered):
    script = (
        f"source {completion}/impala.bash; COMP_LINE={line!r} COMP_POINT={len(line)}\n"
        "$(complete -p impala | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\necho ${COMPREPLY[*]}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == offered.split(), done.stderr


def test_zsh_completes_values_after_an_equals_sign(completion):
    zsh = need("zsh", "zsh")
    script = f"""
        zmodload zsh/zpty; zpty shell zsh -f -i; setup() {{ zpty -w shell $1; sleep 1 }}
        setup 'fpath=({completion} $fpath); autoload -Uz compinit; compinit -u -D; TERM=dumb'
        zpty -w -n shell $'impala train --core=lst\t --level_name=CartPo\t'; sleep 2
        zpty -r -t shell text; while zpty -r -t shell more; do text+=$more; done; print -r $text
    """
    done = subprocess.run([zsh, "-f", "-c", script], capture_output=True, text=True, timeout=60)
    assert re.search(r"--core=lstm[ \b]+--level_name=CartPole-v", done.stdout), done


def test_a_reader_who_has_seen_enough_ends_it_quietly():
    """As in `--help_all | head`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "impala_tf", "train", "--help_all"],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


def test_closed_standard_streams_do_no_harm():
    """Daemons and schedulers close them."""
    command = f"{sys.executable} -m impala_tf test --logdir=examples/cartpole"
    shell = f"{command} --test_num_episodes=1 <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", shell], cwd=PROJECT)
    assert done.returncode == 0

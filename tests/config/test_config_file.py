"""--config: flags in a YAML file."""

from __future__ import annotations

import pytest

from impala_tf.config import ConfigError, command_line, config_file, to_flags


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Parses a command line in a folder that has run.yaml with the given text."""
    monkeypatch.chdir(tmp_path)

    def run(text, *words):
        (tmp_path / "run.yaml").write_text(text)
        return command_line.parse(["--config=run.yaml", *words])

    return run


def test_a_file_gives_flags_and_the_command_line_wins(parse):
    given = parse(
        "level_name: CartPole-v1\nlearning_rate: 1e-3\nnum_actors: 3\nfresh: yes\n"
        "level_kwargs: {render_fps: 20}\nsynchronization: none\nbatch_size: null\n"
        "total_environment_frames: 1e6\nschedule_frames: 2_000\n",
        "--num_actors=2",
    )
    assert given.flags == {
        "level_name": "CartPole-v1", "learning_rate": 1e-3, "num_actors": 2, "fresh": True,
        "level_kwargs": '{"render_fps": 20}', "synchronization": "none", "batch_size": None,
        "total_environment_frames": 1_000_000, "schedule_frames": 2_000,
    }  # fmt: skip


def test_lists_are_repeated_or_comma_separated_flags(parse):
    given = parse("level_name: [CartPole-v1, Acrobot-v1]\nenv: [A=1, B=2]\nworkers_csv_path: w\n")
    assert given["level_name"] == "CartPole-v1,Acrobot-v1"
    assert given["env"] == ("A=1", "B=2")


def test_what_is_written_gives_the_same_flags(parse):
    wanted = command_line.parse(
        ["--level_name=CartPole-v1", "--no_terminal_on_life_loss", "--learning_rate=0.0003",
         "--level_wrappers=a:B,c:D", '--level_kwargs={"size": 8}', "--discounting=auto"]
    )  # fmt: skip
    flags = {name: value for name, value in wanted.flags.items() if value is not None}
    assert to_flags(parse(config_file.text(flags))) == to_flags(wanted)
    assert parse(config_file.text({})).flags == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\nbtach_size: 3", "run.yaml, line 2: --btach_size: no such flag; did you mean --"),
        ("batch_size: many", "run.yaml, line 1: --batch_size=many: must be a whole number"),
        ("device: tpu", "run.yaml, line 1: --device=tpu: must be one of auto, cpu, gpu"),
        ("fresh: maybe", "run.yaml, line 1: fresh: must be true or false"),
        ("no_layer_norm: true", "run.yaml, line 1: --no_layer_norm: no such flag; did you mean"),
        ("optimizer: [adam, rmsprop]", "run.yaml, line 1: --optimizer=adam,rmsprop: must be one"),
        ("config: other.yaml", "run.yaml, line 1: config: "),
        ("seed: [1", "run.yaml, line 1: is not YAML: "),
        ("- seed", "run.yaml, line 1: must have lines such as 'learning_rate: 0.001'"),
        ("\nbatch_size: 0", "run.yaml, line 2: --batch_size=0: must be greater than 0"),
    ],
)
def test_what_is_wrong_is_one_line(parse, text, problem):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    (line,) = caught.value.problems
    assert line.startswith(problem), line


def test_a_flag_that_is_there_twice_is_refused(parse):
    """YAML's readers keep the last one, so a value that somebody has edited may have no effect."""
    with pytest.raises(ConfigError) as caught:
        parse("batch_size: 8\nseed: 1\nbatch-size: 16\n")
    assert caught.value.problems == [
        "run.yaml, line 3: batch-size: run.yaml, line 1 gives it, too; leave one out"
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--config=nowhere.yaml"], "--config=nowhere.yaml: cannot read it: No such file"),
        (["--config"], "--config: needs a value"),
        (["--config=/"], "--config=/: cannot read it: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read(words, problem):
    with pytest.raises(ConfigError) as caught:
        command_line.parse(words)
    assert caught.value.problems[0].startswith(problem)

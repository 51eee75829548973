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
        "level_name: [CartPole-v1, Acrobot-v1]\nlearning_rate: 1e-3\nnum_actors: 3\nfresh: yes\n"
        "level_kwargs: {render_fps: 20}\nsynchronization: none\nbatch_size: null\n"
        "total_environment_frames: 1e6\nschedule_frames: 2_000\n",
        "--num_actors=2",
    )
    assert given.flags == {
        "level_name": "CartPole-v1,Acrobot-v1", "learning_rate": 1e-3, "num_actors": 2,
        "fresh": True, "level_kwargs": '{"render_fps": 20}', "synchronization": "none",
        "batch_size": None, "total_environment_frames": 1_000_000, "schedule_frames": 2_000,
    }  # fmt: skip
    variables = parse("env: [A=1, B=2]\nworkers_csv_path: w\n", "--trust_level_module")
    assert variables["env"] == ("A=1", "B=2")


def test_what_is_written_gives_the_same_flags(parse):
    wanted = command_line.parse(
        ["--level_name=CartPole-v1", "--no_terminal_on_life_loss", "--learning_rate=0.0003",
         "--level_wrappers=a:B,c:D", '--level_kwargs={"size": 8}', "--discounting=auto"]
    )  # fmt: skip
    flags = {name: value for name, value in wanted.flags.items() if value is not None}
    trusted = parse(config_file.text(flags), "--trust_level_module")
    assert to_flags(trusted.without("trust_level_module")) == to_flags(wanted)
    assert parse(config_file.text({})).flags == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\nbtach_size: 3", "run.yaml, line 2: btach_size: .*did you mean --batch_size"),
        ("batch_size: many", "run.yaml, line 1: --batch_size=many: must be a whole number"),
        ("fresh: maybe", "run.yaml, line 1: fresh: must be true or false"),
        (
            "batch_size: 8\nseed: 1\nbatch-size: 16",
            "run.yaml, line 3: batch_size: run.yaml, line 1",
        ),
        ("seed: [1", "--config=run.yaml: is not YAML: .*line 1"),
        ("- seed", "--config=run.yaml: must have lines such as"),
        # Hostile ones are refused at once:
        ("level_name: &a [b, b]\ncallbacks: [*a, *a]", "--config=run.yaml: "),
        ("level_kwargs: !!python/object/apply:os.system [touch owned]", "run.yaml, line 1: "),
        (f"level_kwargs: {'{a: ' * 300}1{'}' * 300}", "--config=run.yaml: |run.yaml, line 1: "),
        ("seed: 1\n" * 20_000, "--config=run.yaml: "),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_wrong_is_one_line(parse, text, problem):
    with pytest.raises(ConfigError, match=f"^{problem}") as caught:
        parse(text)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("end_command: touch owned", "--end_command=true"),
        ("level_name: 'procgen:coinrun, their_module:Level-v0'", "--level_name=CartPole-v1"),
        ("level-wrappers: [their_module:Wrapper]", "--level_wrappers=my_module:Wrapper"),
        ("agent_name: their_module:Torso", "--agent_name=MLPAgent"),
        ("algorithm: their_module:RECORD", "--algorithm=impala"),
        ("callbacks: their_module:Watch", "--callbacks=my_module:Watch"),
        ("mirror: sftp://their.host/run", "--mirror=backup"),
        ("workers_csv_path: their.csv", "--workers_csv_path=my.csv"),
        ("learner_hosts: their.host:1", "--learner_hosts=my.host:1"),
        ("trust_level_module: true", "--trust_level_module"),
    ],
)
def test_what_only_the_user_may_decide_needs_consent(parse, line, value):
    """The file may be somebody else's, and messages recommend it."""
    flag = value.partition("=")[0].removeprefix("--")
    with pytest.raises(ConfigError, match=f"^run.yaml, line 2: {flag}: .*--trust_level_module"):
        parse(f"seed: 2\n{line}\n")
    assert flag in parse(f"seed: 2\n{line}\n", "--trust_level_module")
    assert flag in parse(f"seed: 2\n{line}\n", value)  # the command line wins


def test_a_variable_or_secret_is_the_users_own(parse):
    for flag in ("env: [LD_PRELOAD=their.so]", "secret: [AWS_SECRET_ACCESS_KEY]"):
        with pytest.raises(ConfigError, match="line 1: (env|secret): .*--trust_level_module"):
            parse(flag, "--workers_csv_path=my.csv")

"""--mode=describe: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from impala_tf.measure import in_processes
from impala_tf.measure.acting import Measured
from tests.helpers.progress import only_tells

CATCH = "--level_name=tests.helpers.worlds:Catch-v0"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the measurements, which take seconds in processes of their own."""
    found = {
        "inference": Measured(1234.4, "CPU, 1 thread", 512.0),
        "update": Measured(5.6, "GPU", 0),
    }
    monkeypatch.setattr(in_processes, "measure", lambda what, *_: found[what])


@pytest.fixture
def lines(run_here: Callable[..., tuple[int, str, str]], tmp_path, monkeypatch, measured):
    """Returns what --mode=describe prints with the given flags."""
    monkeypatch.chdir(tmp_path)

    def described(*flags: str) -> list[str]:
        code, out, err = run_here("--mode=describe", *flags)
        assert code == 0 and only_tells(err), err
        assert list(tmp_path.iterdir()) == []
        return [line.strip() for line in out.splitlines()]

    return described


def numbers(line: str) -> list[int]:
    """Returns the whole numbers of a line that stand alone."""
    return [int(word.replace(",", "")) for word in re.findall(r"(?<!\S)[\d,]+(?!\S)", line)]


def test_the_table_shows_layers_and_totals(lines) -> None:
    found = lines(
        CATCH,
        "--agent_name=ImpoolaAgent",
        "--width_scale=2",
        "--core=lstm",
        "--precision=float32",
    )
    assert found[0].startswith("ImpoolaAgent (lstm, width scale 2, float32) on ")
    heading = next(n for n, line in enumerate(found) if line.startswith("layer"))
    total = next(n for n, line in enumerate(found) if line.startswith("total"))
    rows = [numbers(line)[-2:] for line in found[heading + 1 : total] if "pooling" not in line]
    assert numbers(found[total]) == [sum(column) for column in zip(*rows, strict=True)]
    # 3x3 convolutions from 1 channel to 32, 64 and 64 and in six blocks; 64 averages to 256; an
    # LSTM of 256; 3 actions and the baseline.
    sections = 9 * 32 + 32 + 4 * 9_248 + 166_208 + 184_640
    assert numbers(found[total])[0] == sections + 65 * 256 + 513 * 1_024 + 257 * 4


def test_the_batch_is_that_of_the_flags(lines) -> None:
    """Memory and speed of another batch would be useless."""
    flags = ("--batch_size=3", "--unroll_length=5", "--envs_per_actor=7")
    found = "\n".join(lines(CATCH, "--agent_name=NatureAgent", *flags))
    # 6 images of 40x40, rewards, 4 flags a step, last actions; 5 actions and logits; a version.
    unroll = 6 * (1600 + 4 + 4 + 4) + 5 * (4 + 12) + 8
    assert f"an unroll of 5 steps, as it is sent {unroll / 1024:,.1f} KiB" in re.sub(
        " +", " ", found
    )
    assert f"a batch of 3 unrolls {3 * unroll / 1024:,.1f} KiB" in re.sub(" +", " ", found)
    assert "activations of a gradient step on 3 unrolls" in found
    assert re.search(r"inference, 7 environments +CPU, 1 thread +1,234 +512.0 MiB", found)
    assert re.search(r"update, batch of 3 x 5 steps +GPU +6 +unknown", found)


def test_a_separate_baseline_has_layers_that_actors_do_not_fetch(lines) -> None:
    shared, separate = (
        lines(CATCH, f"--agent_name={prefix}ShallowConvNetAgent") for prefix in ("", "Separate")
    )
    for layer in ("conv2_d", "linear"):
        assert not any(line.startswith(f"baseline/shallow/{layer}") for line in shared)
        assert any(line.startswith(f"baseline/shallow/{layer}") for line in separate)

    def fetched(found: list[str]) -> float:
        ((size, unit),) = (line.split()[-2:] for line in found if line.startswith("variables, as"))
        return float(size) * {"KiB": 1, "MiB": 1024}[unit]

    assert fetched(separate) == pytest.approx(fetched(shared), rel=0.02)


def test_a_gradient_step_of_ppo_is_on_a_minibatch(lines) -> None:
    found = lines(
        "--level_name=CartPole-v1", "--algorithm=ppo", "--num_actors=1", "--envs_per_actor=6"
    )
    assert any("a gradient step on 2 unrolls" in line for line in found)  # of 6, in 4 parts
    assert any("a batch of 6 unrolls" in line for line in found)


@pytest.mark.long
def test_speed_is_measured_in_processes_that_end(start, tmp_path) -> None:
    """The real thing: no run, no files, and numbers above zero."""
    run = start("--mode=describe", "--level_name=CartPole-v1", cwd=tmp_path)
    code, out, err = run.wait()
    assert code == 0 and only_tells(err), err
    for what in ("inference, 32 environments", "update, batch of 16 x 20 steps"):
        line = next(line for line in out.splitlines() if line.startswith(what))
        assert numbers(line)[-1] > 0
        assert line.rstrip().endswith("MiB")
    assert run.alive() == []
    assert list(tmp_path.iterdir()) == []

"""--save_replay: what survives a killed learner, and what is refused."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tree

from impala_tf.agents.returns import n_step_returns
from impala_tf.algorithms.dqn import arrays, buffer
from impala_tf.algorithms.dqn.buffer import ReplayBuffer
from impala_tf.config import Config, ConfigError
from impala_tf.environments.observations import layout_of
from tests.helpers.replays import A, T, config_of, specs_of, unrolls_of
from tests.helpers.samples import vector_spec

pytestmark = pytest.mark.slow

SPEC = vector_spec(num_actions=A)


def open_replay(folder: Path, config: Config) -> ReplayBuffer:
    specs = specs_of(SPEC)
    make = arrays.in_files(folder, buffer.header(config, specs), nbytes=1000)
    return ReplayBuffer(specs, layout_of(SPEC), config, 1, make)


def fill_until_killed(folder: Path, config: Config, number: Any) -> None:
    replay = open_replay(folder, config)
    for seed in range(1, 10**9):
        replay.add(unrolls_of(SPEC, 2, seed))
        number.value = seed


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    first = open_replay(tmp_path, config_of())
    first.add(unrolls_of(SPEC, 3, seed=1))
    indices, _ = first.draw(6)
    first.set_errors(indices, np.arange(6, dtype=np.float32))
    again = open_replay(tmp_path, config_of())
    assert again.steps == 3 * T
    again.draw(6)  # so that both draw the same numbers next
    tree.map_structure(np.testing.assert_array_equal, again.draw(200), first.draw(200))
    again.add(unrolls_of(SPEC, 2, seed=2))  # the oldest one makes room
    assert set(again.draw(200)[1].parameter_version.tolist()) == {101, 102, 200, 201}


@pytest.mark.long
def test_a_killed_learner_leaves_whole_unrolls(tmp_path: Path) -> None:
    """SIGKILL, in the middle of a write at times; what was being written is not used."""
    context = multiprocessing.get_context("spawn")
    config, number = config_of(), context.Value("i", 0)
    for _ in range(2):
        process = context.Process(target=fill_until_killed, args=(tmp_path, config, number))
        number.value = 0
        process.start()
        while number.value < 3:
            assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        replay = open_replay(tmp_path, config)
        assert replay.steps >= 2 * T
        indices, sample = replay.draw(500)
        slots, steps = np.divmod(indices, T)
        assert len(set(slots)) == replay.steps // T, "not all unrolls were drawn"
        for version in set(sample.parameter_version.tolist()):
            of_it = sample.parameter_version == version
            seed, row = divmod(version, 100)
            written, at = unrolls_of(SPEC, 2, seed), (row, steps[of_it])
            seen = tree.map_structure(lambda a, at=at: a[at], written.env_outputs)
            kept = tree.map_structure(lambda a, of_it=of_it: a[of_it], sample)
            tree.map_structure(np.testing.assert_array_equal, kept.step, seen)
            np.testing.assert_array_equal(kept.action, written.agent_outputs.action[at])
            targets = n_step_returns(written.env_outputs, 2, 0.99, "none")
            np.testing.assert_array_equal(kept.returns, targets.returns[at])


@pytest.mark.parametrize(
    "change", [{"n_step": 3}, {"replay_capacity": 6 * T}, {"discounting": 0.5}]
)
def test_with_other_targets_or_sizes_it_begins_empty(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """The targets in the files were made with the old values."""
    open_replay(tmp_path, config_of()).add(unrolls_of(SPEC, 3))
    assert open_replay(tmp_path, config_of(**change)).steps == 0


def test_a_full_disk_is_one_line_before_anything_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file on a full disk would end the learner in the middle of a run."""

    def no_room(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(ConfigError, match="--save_replay: .*No space left.*--replay_capacity"):
        open_replay(tmp_path, config_of())


def test_other_errors_are_not_blamed_on_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuses)
    with pytest.raises(ConfigError) as caught:
        open_replay(tmp_path, config_of())
    (line,) = caught.value.problems
    assert line.endswith(
        "not supported; give another --logdir, or leave --save_replay out"
    ) and line.startswith(f"--save_replay: {tmp_path}")


def test_parts_of_observations_may_have_any_name(tmp_path: Path) -> None:
    """A slash would name a file in a folder that is not there."""
    make = arrays.in_files(tmp_path, {}, nbytes=1)
    names = ["observation.arm/joints", "observation.arm%2Fjoints", "observation.arm",
             "observation.arm%2Fjoints/x", "observation.arm/joints/x", "load%"]  # fmt: skip
    for number, name in enumerate(names):
        make(name, (1,), np.dtype(np.int64))[0] = number
    again = arrays.in_files(tmp_path, {}, nbytes=1)
    assert [int(again(name, (1,), np.dtype(np.int64))[0]) for name in names] == [*range(6)]
    assert (tmp_path / "load%.bin").is_file(), "replays of older versions have this file"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--save_replay: .*Not a directory"):
        open_replay(tmp_path / "file" / "replay", config_of())

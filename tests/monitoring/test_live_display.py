"""What a user sees during a run, on a terminal and in a log, and the status.json behind it."""

import errno
import io
import json
import os
import time

import numpy as np
import pytest
from rich.console import Console

from impala_tf.monitoring.live_display import Display, FrameRate
from impala_tf.monitoring.render import duration, panel, plain_line, troubles
from impala_tf.monitoring.status import ActorStatus, Status, read_status, write_status
from tests.helpers.clock import Clock

NOW_S = 1_800_000_000.0


def an_actor(index: int, silent_s: float = 0.0, host: str = "127.0.0.1") -> ActorStatus:
    return {
        "name": f"actor-{index}",
        "host": host,
        "agent_steps_per_s": 1506.2,
        "parameter_lag": 3.14,
        "push_wait_fraction": 0.12,
        "last_contact_unix_s": NOW_S - silent_s,
    }


def test_an_actor_that_was_refused_is_shown() -> None:
    refusal = "refused actor actor-9 at h: digest"
    status = a_status(state="starting", row=None, refused_actor=refusal)
    line = plain_line(status, 0.0)
    assert line.endswith("refused actor actor-9 at h: digest; it ends, and needs other flags")


def test_what_keeps_actors_from_acting_is_shown_once() -> None:
    trouble = "its environments broke, and are made again in 2 s (restart 1): NaN"
    actors = [{**an_actor(number), "trouble": trouble} for number in range(3)]
    status = a_status(state="starting", row=None, actors=actors)
    line = plain_line(status, 0.0)
    assert line == f"starting: waiting for the first unrolls, actor-0 and 2 more: {trouble}"
    assert "environments broke, and are made again" in shown(status)
    different = [{**an_actor(n), "trouble": f"trouble {n}"} for n in range(5)]
    assert troubles(a_status(actors=different)) == [
        "actor-0: trouble 0",
        "actor-1: trouble 1",
        "actor-2: trouble 2",
        "and 2 more actors",
    ]


def a_status(**changes) -> Status:
    status: Status = {
        "state": "training",
        "level_name": "PongNoFrameskip-v4",
        "agent_name": "SimpleConvNetAgent",
        "precision": "bfloat16",
        "logdir": "runs/PongNoFrameskip-v4-SimpleConvNetAgent",
        "agent_steps": 307_200,
        "environment_frames": 1_228_800,
        "total_environment_frames": 10_000_000,
        "frames_per_step": 4,
        "queue_capacity": 32,
        "row": {
            "agent_steps_per_s": 3012.3,
            "frames_per_s": 12049.2,
            "episodes": 153,
            "episode_return_mean": -18.42,
            "policy_lag_mean": 3.14,
            "policy_lag_max": 9.0,
            "queue_size": 12,
            "learner_idle_fraction": 0.043,
        },
        "learners": [],
        "actors": [an_actor(0), an_actor(1)],
        "checkpoint": {
            "path": "runs/x/checkpoints/ckpt-000000012000",
            "environment_frames": 1_200_000,
        },
        "pid": 4711,
        "updated_unix_s": NOW_S,
    }
    return {**status, **changes}  # type: ignore[typeddict-item]


STARTING = a_status(state="starting", environment_frames=0, row=None, checkpoint=None, actors=[])


def shown(status: Status | None, width: int = 80, frames_per_s: float = 12049.0) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(panel(status, frames_per_s, NOW_S, max_actors=6))
    text = console.export_text()
    assert all(len(line) == width for line in text.splitlines()), text
    return text


def test_the_panel_at_eighty_columns():
    assert (
        shown(a_status())
        == """\
╭────────────  PongNoFrameskip-v4 · SimpleConvNetAgent · bfloat16  ────────────╮
│ training  ━━━━━╸                                            12%, 12 min left │
│                                                                              │
│ frames      1,228,800 of 10,000,000 (1 agent step = 4 frames)                │
│ speed       3,012 agent steps/s = 12,049 frames/s                            │
│ return      -18.4 (last 100 episodes), 153 so far                            │
│ policy lag  mean 3.1, max 9 updates                                          │
│ learner     idle 4%, queue 12 of 32 unrolls                                  │
│ checkpoint  ckpt-000000012000 at 1,200,000 frames                            │
│                                                                              │
│ actor    host       agent steps/s  lag  waits  last seen                     │
│ actor-0  127.0.0.1          1,506  3.1    12%    0 s ago                     │
│ actor-1  127.0.0.1          1,506  3.1    12%    0 s ago                     │
╰────────────────  runs/PongNoFrameskip-v4-SimpleConvNetAgent  ────────────────╯
"""
    )


def a_learner(rank: int, **changes) -> dict[str, float | int | None]:
    row: dict[str, float | int | None] = {
        "learner": rank,
        "agent_steps_per_s": 1506.2,
        "episode_return_mean": -18.42,
        "policy_lag_mean": 3.14,
        "queue_size": 6,
        "learner_idle_fraction": 0.043,
        "learner_all_reduce_fraction": 0.126,
    }
    return {**row, **changes}


def test_each_of_several_learners_has_a_row():
    starved = dict.fromkeys(("policy_lag_mean", "episode_return_mean"))
    learners = [a_learner(0), a_learner(1, agent_steps_per_s=0.0, queue_size=0, **starved)]
    assert """\
│                                                                              │
│ learner    agent steps/s  return  lag  queue  idle  all-reduce               │
│ learner-0          1,506  -18.42  3.1      6    4%         13%               │
│ learner-1              0       -    -      0    4%         13%               │
│                                                                              │
│ actor    host       agent steps/s  lag  waits  last seen                     │
""" in shown(a_status(learners=learners))


def test_the_panel_says_what_the_run_is_waiting_for():
    assert "waiting for the learner" in shown(None)
    assert "waiting for the first unrolls" in shown(STARTING)
    measuring = shown(a_status(row=None, checkpoint=None))
    assert "speed       measuring" in measuring
    assert "checkpoint  none yet" in measuring


def test_missing_values_are_not_shown_as_numbers():
    young = shown(a_status(row={"episodes": 0, "episode_return_mean": None}))
    assert "no episode finished yet" in young
    assert "idle -, queue - of 32" in young
    assert "None" not in young


def test_long_names_and_many_actors_do_not_break_the_panel():
    hosts = "gpu-worker-17.eu-central-1.compute.internal"
    actors = [an_actor(index, 31.0 if index == 12 else 0.0, hosts) for index in range(16)]
    text = shown(a_status(actors=actors, logdir="runs/" + "long" * 30))
    rows = [line for line in text.splitlines() if "gpu-worker-17.eu" in line]
    # The silent actor comes first, then the others by their numbers.
    assert [row.split()[1] for row in rows] == [f"actor-{n}" for n in (12, 0, 1, 2, 3, 4)]
    assert rows[0].endswith("1,506  3.1    12%   31 s ago   │")
    assert "and 10 more" in text


def test_an_actor_that_is_slow_is_not_shown_as_lost():
    """Its unroll takes a minute, during which it only keeps a call open."""
    slow, lost = {**an_actor(0, 60.0), "present": True}, an_actor(1, 60.0)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", width=80)
    console.print(panel(a_status(actors=[slow, lost]), 0.0, NOW_S, max_actors=6))
    rows = [line for line in output.getvalue().splitlines() if "60 s ago" in line]
    assert ["actor-1" in row for row in rows] == [True, False]  # lost ones come first
    assert ["\x1b[31m" in row for row in rows] == [True, False]


def test_a_narrow_terminal_shortens_the_values_and_not_their_names():
    text = shown(a_status(), width=50)
    assert "│ policy lag  mean 3.1, max 9 updates" in text
    assert "│ frames      1,228,800 of 10,000,000 (1 agent … │" in text


def test_a_silent_learner_is_reported_and_a_finished_one_is_not():
    silent = a_status(updated_unix_s=NOW_S - 300)
    assert "no status from the learner for 5 min" in shown(silent)
    done = shown({**silent, "state": "done", "environment_frames": 10_000_128})
    assert "no status" not in done
    assert "100%" in done
    assert "left" not in done


def test_the_plain_line_of_a_log():
    assert plain_line(a_status(), 12049.0) == (
        "12% 1,228,800 of 10,000,000 frames, 3,012 agent steps/s, 12,049 frames/s,"
        " return -18.4 (last 100 episodes), lag 3.1, learner idle 4%, 12 min left"
    )


def test_no_time_is_left_while_nothing_is_learned() -> None:
    assert "left" not in plain_line(a_status(starving_since_unix_s=NOW_S), 12049.0)


def test_a_replay_is_shown_while_it_fills_and_afterwards():
    """Nothing is learned for a while at first, which looks like a run that hangs."""
    replay = {"steps": 6_000, "capacity": 200_000, "missing": 14_000}
    filling = a_status(state="starting", row=None, replay=replay)
    assert plain_line(filling, 0.0) == (
        "starting: filling the replay: 6,000 of 20,000 agent steps before learning"
    )
    empty = a_status(state="starting", row=None, replay={**replay, "steps": 0})
    assert plain_line(empty, 0.0) == "starting: waiting for the first unrolls"
    assert "6,000 of 200,000 agent steps" in shown(a_status(replay=replay))


def test_the_plain_line_leaves_out_missing_values():
    assert plain_line(None, 0.0) == "starting: waiting for the learner"
    assert plain_line(STARTING, 0.0) == "starting: waiting for the first unrolls"
    assert plain_line(a_status(row=None), 0.0) == (
        "12% 1,228,800 of 10,000,000 frames, no episode finished yet"
    )
    one = a_status(state="stopping", row={"episodes": 1, "episode_return_mean": 0.5})
    assert plain_line(one, 12049.0) == (
        "stopping: 12% 1,228,800 of 10,000,000 frames, return 0.50 (last 1 episode)"
    )


def test_a_run_is_not_called_complete_before_it_is():
    assert plain_line(a_status(environment_frames=9_999_999), 0.0).startswith("99% ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (48, "48 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (11 * 60 + 20, "11 min"),
        (59 * 60 + 40, "1 h 00 min"),
        (2 * 3600 + 5 * 60, "2 h 05 min"),
        (24 * 3600 - 1, "1 d 00 h"),
        (76 * 3600, "3 d 04 h"),
    ],
)
def test_durations_have_one_or_two_units(seconds, text):
    assert duration(seconds) == text


def test_the_rate_is_smoothed_and_ignores_frames_from_before_a_resume():
    rate = FrameRate(time_constant_s=60.0)
    rate.update(5_000_000, 100.0)
    assert rate.per_s == 0.0
    for second in range(1, 300):
        rate.update(5_000_000 + 100 * second, 100.0 + second)
        rate.update(5_000_000 + 100 * second, 100.0 + second)  # the same status, read twice
    assert rate.per_s == pytest.approx(100.0)
    rate.update(5_029_900, 399.0 - 3600.0)  # the clock was set back
    assert rate.per_s == pytest.approx(100.0)
    rate.update(5_029_900, 429.0 - 3600.0)  # half a minute without a frame
    assert 40.0 < rate.per_s < 80.0


def test_the_rate_starts_again_when_frames_go_back():
    """Of a learner that resumes from its checkpoint: it has not lost its speed."""
    rate = FrameRate(time_constant_s=60.0)
    rate.update(10_000, 100.0)
    rate.update(20_000, 200.0)
    rate.update(5_000, 210.0)
    assert rate.per_s == 0.0
    rate.update(6_000, 220.0)
    assert rate.per_s == pytest.approx(100.0)


def last_line(*statuses: Status) -> str:
    """What a log says of the time left, after these statuses."""
    output, left = io.StringIO(), list(statuses)
    display = Display(lambda: left.pop(0), Console(file=output, width=400), interval_s=0.0)
    display.start()
    while left:
        display.update()
    return output.getvalue().splitlines()[-1]


def at(uptime_s: float, frames: int, **changes) -> Status:
    """A status of that moment, from a learner that has had so many of its 10 million frames."""
    times = {"updated_uptime_s": uptime_s, "updated_unix_s": NOW_S + uptime_s}
    return a_status(environment_frames=frames, **{**times, **changes})


def test_the_time_left_is_right_after_a_clock_is_set_or_a_laptop_wakes():
    woken = at(20.0, 2_000_000, updated_unix_s=NOW_S + 8 * 3600)
    assert last_line(at(10.0, 1_000_000), woken).endswith(", 80 s left")


def test_the_time_left_is_that_of_the_learner_that_runs():
    """Not of one that failed, whose frames came before a minute of restarts."""
    failed, restarted = at(10.0, 1_000_000), at(500.0, 1_000_000, pid=4712)
    assert last_line(failed, restarted, at(510.0, 2_000_000, pid=4712)).endswith(", 80 s left")


def test_without_a_terminal_one_plain_line_is_printed_per_interval():
    clock, output, statuses = Clock(NOW_S), io.StringIO(), [STARTING]
    display = Display(
        lambda: statuses[-1], Console(file=output, width=40), interval_s=10.0, clock=clock
    )
    display.start()
    for quarter in range(1, 81):
        clock.now = NOW_S + quarter / 4
        frames = 4000 * quarter
        statuses.append(a_status(environment_frames=frames, updated_unix_s=clock.now))
        display.update()
    display.note("actor-1 restarted [exit status 1]")
    display.stop("done")
    first, *lines, note, last = output.getvalue().splitlines()
    assert first == "starting: waiting for the first unrolls"
    assert [line.split(",")[0:2] for line in lines] == [
        ["1% 160", "000 of 10"],
        ["3% 320", "000 of 10"],
    ]
    assert lines[0].endswith(", 10 min left")
    assert note.endswith(" actor-1 restarted [exit status 1]")
    assert last == "done"
    assert "\x1b" not in output.getvalue()


def test_a_trouble_is_printed_when_it_begins_and_not_when_the_next_line_is_due():
    output, statuses = io.StringIO(), [a_status()]
    display = Display(lambda: statuses[-1], Console(file=output), clock=Clock(NOW_S))
    display.start()
    statuses.append(a_status(starving_since_unix_s=NOW_S))
    for _ in range(3):
        display.update()
    statuses.append(a_status())
    display.update()
    starving = ["starving since" in line for line in output.getvalue().splitlines()]
    assert starving == [False, True, False]


def test_learners_that_are_away_are_named():
    away = [{"learner": 1, "since_unix_s": NOW_S}, {"learner": 2, "since_unix_s": NOW_S - 60}]
    (line,) = troubles(a_status(num_learners=1, away_learners=away))
    clock = [time.strftime("%H:%M:%S", time.localtime(NOW_S - ago_s)) for ago_s in (0, 60)]
    assert line == (
        f"training with 1 of 3 learners; away: learner-1 (since {clock[0]}),"
        f" learner-2 (since {clock[1]})"
    )
    assert troubles(a_status(num_learners=3, away_learners=[])) == []
    assert troubles(a_status(state="done", num_learners=1, away_learners=away)) == []


def test_the_clock_of_this_machine_does_not_matter(monkeypatch):
    """It may be an hour off, and may be set while the run is shown."""
    monkeypatch.setenv("TERM", "xterm")
    output, clock = io.StringIO(), Clock(5.0)
    status = a_status(starving_since_unix_s=None)
    display = Display(lambda: status, terminal(output), clock=clock)
    display.start()
    assert "no status from the learner" not in output.getvalue()
    clock.now += 29.0
    display.update()
    assert "no status from the learner" not in output.getvalue()
    clock.now += 2.0
    display.update()
    assert "no status from the learner for 31 s" in output.getvalue()


def terminal(output: io.StringIO) -> Console:
    return Console(file=output, force_terminal=True, width=80, height=24, color_system=None)


def test_a_status_that_cannot_be_read_for_a_moment_does_not_end_a_run(tmp_path, monkeypatch):
    """As on a network file system. What was shown before stays."""
    path, output = tmp_path / "status.json", io.StringIO()
    write_status(path, a_status())
    display = Display(lambda: read_status(path), Console(file=output, width=400), interval_s=0.0)
    display.start()

    def broken(*args, **kwargs):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("pathlib.Path.read_text", broken)
    assert read_status(path) is None
    display.update()
    display.stop("done")
    monkeypatch.undo()
    path.write_bytes(b'{"state": "\xff')  # a disk that gives nonsense
    assert read_status(path) is None
    assert "starting" not in output.getvalue()


class FullDisk(io.StringIO):
    """A file of which nothing more can be written while the disk is `full`."""

    full = True

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_run_goes_on_while_its_output_cannot_be_written(is_terminal, monkeypatch, caplog):
    """As with `nohup impala train > out.log` on a full disk. Lost lines take no memory."""
    monkeypatch.setenv("TERM", "xterm")
    output = FullDisk()
    console = Console(file=output, force_terminal=is_terminal)
    display = Display(a_status, console, interval_s=0.0, clock=Clock(NOW_S))
    display.start()
    display.update()
    display.note("lost")
    (record,) = caplog.records
    assert record.getMessage() == "cannot show the run: No space left on device; training continues"
    output.full = False
    output.truncate(0)
    display.note("actor-1 restarted")
    assert "actor-1 restarted" in output.getvalue()
    assert "lost" not in output.getvalue()
    output.full = True
    display.stop("done")


def test_on_a_terminal_notes_stay_above_the_panel_and_the_last_line_is_below(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    output, statuses = io.StringIO(), [STARTING]
    display = Display(lambda: statuses[-1], terminal(output), clock=Clock(NOW_S))
    display.start()
    assert "waiting for the first unrolls" in output.getvalue()
    display.note("actor-1 restarted")
    statuses.append(a_status())
    display.update()
    statuses.append(a_status(state="done", environment_frames=10_000_000))
    display.stop("done: 10,000,000 frames")
    note, panel_at, last = (
        output.getvalue().rindex(text)
        for text in (" actor-1 restarted", "10,000,000 of 10,000,000", "done: 10,000,000 frames")
    )
    assert note < panel_at < last
    assert output.getvalue().endswith("done: 10,000,000 frames\n")
    assert output.getvalue().count("\x1b[?25l") == output.getvalue().count("\x1b[?25h") == 1


def test_a_reader_never_sees_half_a_status_and_a_missing_one_is_no_error(tmp_path):
    path = tmp_path / "logdir" / "status.json"
    assert read_status(path) is None
    write_status(path, a_status())
    reader = path.open()  # it keeps the file that it opened
    write_status(path, a_status(state="done", environment_frames=np.int64(7)))
    with reader:
        assert json.load(reader)["state"] == "training"
    found = read_status(path)
    assert found is not None
    assert (found["state"], found["environment_frames"]) == ("done", 7)
    assert found["pid"] == os.getpid()
    assert found["updated_unix_s"] > 0
    assert [file.name for file in path.parent.iterdir()] == ["status.json"]

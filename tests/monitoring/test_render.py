"""The panel of a terminal and the line of a log, made of a status."""

import io
import time

import pytest
from rich.console import Console

from impala_tf.monitoring.render import duration, panel, plain_line, troubles
from impala_tf.monitoring.status import Status
from tests.helpers.statuses import NOW_S, STARTING, a_status, an_actor


def shown(status: Status | None, width: int = 80, frames_per_s: float = 12049.0) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(panel(status, frames_per_s, NOW_S, max_actors=6))
    text = console.export_text()
    assert all(len(line) == width for line in text.splitlines()), text
    return text


def test_an_actor_that_was_refused_is_shown() -> None:
    refusal = "refused actor actor-9 at h: digest"
    status = a_status(state="starting", row=None, refused_actor=refusal)
    line = plain_line(status, 0.0)
    assert line.endswith("refused actor actor-9 at h: digest; restart it with the learner's flags")


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


def test_after_the_last_frame_the_last_checkpoint_is_what_remains() -> None:
    """On a full disk it is tried for half a minute, in which 0 s were said to be left."""
    over = a_status(environment_frames=10_000_128)
    for said in (plain_line(over, 12049.0), shown(over, width=100)):
        assert "100%" in said
        assert "writing the last checkpoint" in said
        assert " left" not in said
    saved = a_status(
        environment_frames=10_000_128,
        checkpoint={"path": "runs/x/checkpoints/ckpt-1", "environment_frames": 10_000_128},
    )
    assert plain_line(saved, 12049.0).endswith("learner idle 4%")


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
    assert plain_line(a_status(row=None), 0.0) == ("12% 1,228,800 of 10,000,000 frames"), (
        "nobody knows how many episodes have finished"
    )
    one = a_status(state="stopping", row={"episodes": 1, "episode_return_mean": 0.5})
    assert plain_line(one, 12049.0) == (
        "stopping: 12% 1,228,800 of 10,000,000 frames, return 0.50 (last 1 episode)"
    )


def test_updates_that_were_skipped_are_shown() -> None:
    """A run that learns nothing looks like any other."""
    row = {"episodes": 0, "episode_return_mean": None, "updates_skipped": 1200}
    skipping, once = a_status(row=row), a_status(row={**row, "updates_skipped": 1})
    assert "no episode finished yet, 1,200 updates skipped for" in plain_line(skipping, 0.0)
    assert "1,200 updates skipped for gradients that were not finite" in shown(skipping)
    assert "1 update skipped for" in plain_line(once, 0.0)


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

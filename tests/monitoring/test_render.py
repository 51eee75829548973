"""The panel of a terminal and the line of a log, made of a status."""

import io
from typing import Any

import pytest
from rich.console import Console

from impala_tf.monitoring.render import panel, plain_line
from impala_tf.monitoring.status_file import Status
from tests.helpers.statuses import NOW_S, STARTING, a_status, an_actor

NO_GAME: dict[str, Any] = {"episodes": 0, "episode_return_mean": None}
REPLAY = {"steps": 6_000, "capacity": 200_000, "missing": 14_000}
AWAY = [{"learner": 1, "since_unix_s": NOW_S}, {"learner": 2, "since_unix_s": NOW_S - 60}]
OVER = {"environment_frames": 10_000_128}
SAVED = {**OVER, "checkpoint": {"path": "runs/x/ckpt-1", "environment_frames": 10_000_128}}


def shown(status: Status | None, width: int = 80) -> str:
    """Returns the panel's text, which fills the terminal's width and no more."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(panel(status, NOW_S, max_actors=6))
    text = console.export_text()
    assert all(len(line) == width for line in text.splitlines()), text
    return text


def test_panel_and_line_have_the_numbers_of_a_run() -> None:
    text, line = shown(a_status()), plain_line(a_status())
    for number in ("12%", "1,228,800", "10,000,000", "3,012", "12,049", "-18.4", "12 min"):
        assert number in text and number in line
    for only_in_panel in ("PongNoFrameskip-v4", "bfloat16", "1,200,000", "actor-1"):
        assert only_in_panel in text
    assert "\n" not in line


@pytest.mark.parametrize(
    ("status", "said", "not_said"),
    [
        pytest.param(STARTING, ["waiting for the first unrolls"], [], id="no unroll"),
        pytest.param(
            a_status(state="starting", row=None, replay=REPLAY), ["6,000 of 20,000"], ["unrolls"],
            id="a replay is filled",
        ),
        pytest.param(a_status(row=NO_GAME), ["no episode finished"], ["None"], id="no game yet"),
        pytest.param(
            a_status(row={**NO_GAME, "updates_skipped": 1200}), ["1,200 updates skipped"], [],
            id="skipped updates",
        ),
        pytest.param(
            a_status(starving_since_unix_s=NOW_S), ["starving since"], [], id="starving"
        ),
        pytest.param(
            a_status(**OVER), ["100%"], [" left"], id="all frames"
        ),
        pytest.param(
            a_status(num_learners=1, away_learners=AWAY), ["1 of 3 learners", "learner-1 (since "],
            [], id="learners are away",
        ),
        pytest.param(
            a_status(state="done", num_learners=1, away_learners=AWAY, **SAVED), ["done"],
            ["away"], id="done",
        ),
    ],
)  # fmt: skip
def test_panel_and_line_say_how_a_run_stands(
    status: Status | None, said: list[str], not_said: list[str]
) -> None:
    for text in (shown(status, width=100), plain_line(status)):
        assert [each for each in said if each not in text] == [], text
        assert [each for each in not_said if each in text] == [], text


def test_an_actor_that_is_slow_is_not_shown_as_lost() -> None:
    """Its unroll takes a minute, during which it only keeps a call open."""
    slow, lost = {**an_actor(0, 60.0), "present": True}, an_actor(1, 60.0)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", width=80)
    console.print(panel(a_status(actors=[slow, lost]), NOW_S, max_actors=6))
    rows = [line for line in output.getvalue().splitlines() if "60 s ago" in line]
    assert ["actor-1" in row for row in rows] == [True, False]  # lost ones come first
    assert ["\x1b[31m" in row for row in rows] == [True, False]

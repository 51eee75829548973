"""What a user sees while a run goes on, on a terminal and in a log, and its status.json."""

import errno
import io
import json
import os

import numpy as np
from rich.console import Console

from impala_tf.monitoring.live_display import Display
from impala_tf.monitoring.status_file import read_status, write_status
from tests.helpers.clock import Clock
from tests.helpers.statuses import NOW_S, STARTING, a_status


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
    assert note.endswith(" actor-1 restarted [exit status 1]")
    assert last == "done"
    assert "\x1b" not in output.getvalue()


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


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_goes_on_while_its_output_cannot_be_written():
    """As with `nohup impala train > out.log` on a full disk."""
    display = Display(a_status, Console(file=FullDisk()), interval_s=0.0, clock=Clock(NOW_S))
    display.start()
    display.note("lost")
    display.stop("done")


def test_a_file_gets_plain_lines_where_colors_are_forced(monkeypatch, capsys):
    """As on CI systems: the panel would be in the log, four times per second."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    display = Display(a_status, interval_s=0.0, clock=Clock(NOW_S))
    display.start()
    display.stop("done")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.endswith("\ndone\n")


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

"""Draws the terminal display of a run as a picture: python sandbox/draw_display.py LOGDIR OUT.svg.

Run it while the run trains: it shows what the terminal shows at that moment.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from impala_tf.monitoring.render import panel  # noqa: E402
from impala_tf.monitoring.status import read_status  # noqa: E402


def main(logdir: str, out: str) -> None:
    status = read_status(Path(logdir) / "status.json")
    if status is None:
        sys.exit(f"{logdir}: holds no run (no status.json)")
    row = status["row"] or {}
    console = Console(record=True, width=102, file=io.StringIO())
    console.print(panel(status, row.get("frames_per_s") or 0.0, time.time(), max_actors=8))
    console.save_svg(out, title="make train")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Draws the terminal display of a run as a picture: python sandbox/draw_display.py LOGDIR OUT.svg.

Call this while the run trains: it draws what the terminal shows at that moment.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from impala_tf.monitoring.render import panel  # noqa: E402
from impala_tf.monitoring.status_file import read_status  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logdir", type=Path, metavar="LOGDIR")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    options = parser.parse_args(arguments)
    status = read_status(options.logdir / "status.json")
    if status is None:
        sys.exit(f"{options.logdir}: holds no run (no status.json)")
    console = Console(record=True, width=102, file=io.StringIO())
    console.print(panel(status, status["updated_unix_s"], max_actors=8))
    svg = console.export_svg(title="impala train")
    # rich names a font that viewers would download; their own monospace font is good enough.
    options.out.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Draws a trained agent's game as a moving picture: python sandbox/draw_game.py FOLDER OUT.svg.

FOLDER is a run or an exported folder. The picture is text: what no frame changes is drawn once, and
each frame has rectangles only where it differs. Games with few moving parts, such as Pong, fit.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from impala_tf.config import Given  # noqa: E402
from impala_tf.processes import players  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("--skip", type=int, default=236, help="steps before the first frame")
    parser.add_argument("--frames", type=int, default=180, help="one frame is one agent step")
    options = parser.parse_args(arguments)
    given = Given({"mode": "test", "logdir": options.folder})
    with players.load(given, choose_device=False).film() as (pictures, fps):
        shown = itertools.islice(pictures, options.skip, options.skip + options.frames)
        frames = np.stack(list(shown)).astype(np.uint32)
    options.out.write_text(svg(frames @ np.array([1 << 16, 1 << 8, 1], np.uint32), fps))


def svg(frames: np.ndarray, fps: float) -> str:
    """Returns the frames [N, H, W] of colours 0xRRGGBB as an SVG that repeats for ever."""
    (count, height, width), seconds = frames.shape, len(frames) / fps
    still = np.sort(frames, axis=0)[count // 2]
    moving = [
        f'<g style="animation-delay:{n / fps:.2f}s">{rectangles(frame, frame != still)}</g>\n'
        for n, frame in enumerate(frames)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{height}" shape-rendering="crispEdges">\n<style>'
        f"g{{visibility:hidden;animation:f {seconds:.2f}s step-end infinite}}"
        f"@keyframes f{{0%{{visibility:visible}}{100 / count:.3f}%{{visibility:hidden}}}}</style>\n"
        f"{rectangles(still, np.ones_like(still, bool))}\n{''.join(moving)}</svg>\n"
    )


def rectangles(colours: np.ndarray, drawn: np.ndarray) -> str:
    """Returns a path for each colour [H, W], made of rectangles that cover what is `drawn`."""
    left = drawn.copy()
    paths: defaultdict[str, str] = defaultdict(str)
    for y, x in np.argwhere(drawn):
        if left[y, x]:
            same = left & (colours == colours[y, x])
            w = int(np.argmin(np.append(same[y, x:], False)))
            h = int(np.argmin(np.append(same[y:, x : x + w].all(axis=1), False)))
            left[y : y + h, x : x + w] = False
            paths[f"{colours[y, x]:06x}"] += f"M{x} {y}h{w}v{h}h-{w}z"
    return "".join(f'<path fill="#{colour}" d="{d}"/>' for colour, d in paths.items())


if __name__ == "__main__":
    main(sys.argv[1:])

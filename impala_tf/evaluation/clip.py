"""Short videos for pages: the first seconds of a game, in a file of limited size."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np

from impala_tf.evaluation.video import write_mp4

SECONDS = 15.0
BYTES = 400_000
_MAX_FPS = 30
# Tried in this order: what needs the fewest bytes comes last.
_HEIGHTS = (360, 240)
_RATE_FACTORS = (23, 28, 33, 38, 43)


def first_seconds(frames: Iterable[np.ndarray], fps: float) -> tuple[bytes, float]:
    """Returns (mp4, seconds) of the first frames, at their own speed.

    Fast videos lose every second frame (or more). The picture is as good as the size allows.

    Args:
      frames: uint8 [H, W, 3], RGB; no more are taken than the clip shows.
      fps: frames per second.

    Raises:
      ValueError: there are no frames, or they differ in size.
    """
    step = math.ceil(fps / _MAX_FPS)
    shown = itertools.islice(frames, 0, max(1, int(SECONDS * fps)), step)
    kept = [_at_most(frame, _HEIGHTS[0]) for frame in shown]
    for height, rate_factor in itertools.product(_HEIGHTS, _RATE_FACTORS):
        mp4 = _encoded([_at_most(frame, height) for frame in kept], fps / step, rate_factor, height)
        if len(mp4) <= BYTES:
            break
    return mp4, len(kept) * step / fps


def _encoded(frames: list[np.ndarray], fps: float, rate_factor: int, height: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        write_mp4(path, frames, fps, rate_factor, height)
        return path.read_bytes()


def _at_most(frame: np.ndarray, height: int) -> np.ndarray:
    """Returns uint8 [H, W, 3], made smaller if it is higher than `height`."""
    if frame.shape[0] <= height:
        return frame
    width = round(frame.shape[1] * height / frame.shape[0])
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    small = picture.reformat(width=width, height=height, interpolation="AREA")
    return np.asarray(small.to_ndarray(format="rgb24"))

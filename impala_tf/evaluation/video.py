"""Writes videos of games as H.264 in mp4, which browsers play, and short clips and GIFs."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from impala_tf.logdir import written_aside

CLIP_SECONDS = 15.0
CLIP_BYTES = 400_000
GIF_HEIGHT = 160
_CLIP_MAX_FPS = 30
# Tried in this order, which ends with the smallest file.
_CLIP_HEIGHTS = (360, 240)
_CLIP_RATE_FACTORS = (23, 28, 33, 38, 43)

_WATCHABLE_HEIGHT = 480  # pixels, to which smaller frames are enlarged
_VISUALLY_LOSSLESS = 18  # H.264's constant rate factor: 6 more halves the bytes


def write_mp4(
    path: str | os.PathLike[str],
    frames: Iterable[np.ndarray],
    fps: float,
    rate_factor: int = _VISUALLY_LOSSLESS,
    height: int = _WATCHABLE_HEIGHT,
) -> None:
    """Writes frames as a video, one at a time. The file appears when it is complete.

    Small frames are enlarged by an integer factor. A side with an odd number of pixels grows by
    one, because the format needs even numbers.

    Args:
      path: the mp4 file.
      frames: uint8 [H, W, 3], RGB, all of the same size.
      fps: frames per second.
      rate_factor: 0 to 51; a larger one gives a smaller file and a worse picture.
      height: small frames are enlarged to about this many pixels.

    Raises:
      ValueError: there are no frames, or they differ in size.
    """
    with written_aside(Path(path)) as unfinished:
        rate = Fraction(fps).limit_denominator(1000)
        _encode(unfinished, iter(frames), rate, rate_factor, height)


def first_seconds(frames: Iterable[np.ndarray], fps: float) -> tuple[bytes, float]:
    """Returns (mp4, seconds) of a clip of the first frames, at their own speed.

    Fast videos lose every second frame (or more). The picture is as good as CLIP_BYTES allow.

    Args:
      frames: uint8 [H, W, 3], RGB; only the frames of the clip are consumed.
      fps: frames per second.

    Raises:
      ValueError: there are no frames, or they differ in size.
    """
    step = math.ceil(fps / _CLIP_MAX_FPS)
    clip_frames = itertools.islice(frames, 0, max(1, int(CLIP_SECONDS * fps)), step)
    # Copies, because a level may render all pictures into the same array.
    kept = [_at_most(frame, _CLIP_HEIGHTS[0]).copy() for frame in clip_frames]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        for height, rate_factor in itertools.product(_CLIP_HEIGHTS, _CLIP_RATE_FACTORS):
            smaller = (_at_most(frame, height) for frame in kept)
            write_mp4(path, smaller, fps / step, rate_factor, height)
            if path.stat().st_size <= CLIP_BYTES:
                break
        return path.read_bytes(), len(kept) * step / fps


def write_gif(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Writes a GIF that repeats forever, with at most GIF_HEIGHT rows of pixels.

    Args:
      path: the file.
      frames: uint8 [H, W, 3], RGB, all of the same size; at least one.
      fps: frames per second.
    """
    first, *others = (Image.fromarray(_at_most(frame, GIF_HEIGHT)) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)


def _encode(
    path: Path, frames: Iterator[np.ndarray], rate: Fraction, rate_factor: int, height: int
) -> None:
    first = next(frames, None)
    if first is None:
        raise ValueError("a video needs at least one frame")
    with av.open(path, "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": str(rate_factor)})
        stream.pix_fmt = "yuv420p"  # every browser decodes it
        stream.height, stream.width = _enlarged(first, height).shape[:2]
        for frame in itertools.chain([first], frames):
            if frame.shape != first.shape:
                raise ValueError(
                    f"a frame of shape {frame.shape} among frames of shape {first.shape}"
                )
            picture = av.VideoFrame.from_ndarray(_enlarged(frame, height), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def _enlarged(frame: np.ndarray, height: int) -> np.ndarray:
    """Returns uint8 [H, W, 3] enlarged by an integer factor to about `height`, with even sides."""
    factor = max(1, round(height / frame.shape[0]))
    large = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    odd = ((0, large.shape[0] % 2), (0, large.shape[1] % 2), (0, 0))
    return np.pad(large, odd, mode="edge")


def _at_most(frame: np.ndarray, height: int) -> np.ndarray:
    """Returns uint8 [H, W, 3], scaled down if it is higher than `height`."""
    if frame.shape[0] <= height:
        return frame
    width = round(frame.shape[1] * height / frame.shape[0])
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    small = picture.reformat(width=width, height=height, interpolation="AREA")
    return np.asarray(small.to_ndarray(format="rgb24"))

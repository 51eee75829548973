"""Writes videos of games as H.264 in mp4, which browsers play, and short clips and GIFs."""

from __future__ import annotations

import itertools
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
CLIP_HEIGHT = 360
GIF_HEIGHT = 160
_CLIP_RATE_FACTOR = 33  # a page has a clip of every agent

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
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError("a video needs at least one frame")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with (
        written_aside(Path(path)) as unfinished,
        av.open(unfinished, "w", format="mp4", options={"movflags": "faststart"}) as container,
    ):
        rate = Fraction(fps).limit_denominator(1000)
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


def first_seconds(frames: Iterable[np.ndarray], fps: float) -> tuple[bytes, float]:
    """Returns (mp4, seconds) of a clip of the first CLIP_SECONDS, of at most CLIP_HEIGHT pixels.

    Args:
      frames: uint8 [H, W, 3], RGB; only the frames of the clip are consumed.
      fps: frames per second.

    Raises:
      ValueError: there are no frames, or they differ in size.
    """
    count = 0

    def shown() -> Iterator[np.ndarray]:
        nonlocal count
        for frame in itertools.islice(frames, max(1, int(CLIP_SECONDS * fps))):
            count += 1
            yield _at_most(frame, CLIP_HEIGHT)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        write_mp4(path, shown(), fps, _CLIP_RATE_FACTOR, CLIP_HEIGHT)
        return path.read_bytes(), count / fps


def write_gif(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Writes a GIF that repeats forever, with at most GIF_HEIGHT rows of pixels.

    Args:
      path: the file.
      frames: uint8 [H, W, 3], RGB, all of the same size; at least one.
      fps: frames per second.
    """
    first, *others = (Image.fromarray(_at_most(frame, GIF_HEIGHT)) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)


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

"""The clips of a report: short, small, and at the game's own speed."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest

from impala_tf.evaluation import video
from tests.helpers.videos import decode

pytestmark = pytest.mark.slow


def flashes(count: int, height: int = 60, width: int = 80) -> Iterator[np.ndarray]:
    """Yields frames that are white once per 50, black otherwise."""
    for n in range(count):
        yield np.full((height, width, 3), 255 if n % 50 == 0 else 0, np.uint8)


def test_a_long_game_is_cut_and_a_fast_one_loses_frames_but_not_its_speed() -> None:
    """Browsers on phones would not show 50 pictures per second anyway."""
    endless = flashes(10**9)
    mp4, seconds = video.first_seconds(endless, fps=50)
    stream, pictures = decode(io.BytesIO(mp4))
    assert seconds == video.CLIP_SECONDS == 15
    assert len(pictures) == 375 and float(stream.average_rate) == 25
    white = [n for n, picture in enumerate(pictures) if picture.mean() > 200]
    assert white == list(range(0, 375, 25))  # once per second
    assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")


def test_a_level_may_draw_all_its_pictures_into_one_array() -> None:
    canvas = np.zeros((60, 80, 3), np.uint8)

    def drawn() -> Iterator[np.ndarray]:
        for n in range(10):
            canvas[:] = 25 * n
            yield canvas

    brightness = [p.mean() for p in decode(io.BytesIO(video.first_seconds(drawn(), fps=10)[0]))[1]]
    assert brightness == sorted(brightness) and brightness[-1] - brightness[0] > 150


def test_a_short_game_is_shown_whole() -> None:
    mp4, seconds = video.first_seconds(flashes(20), fps=10)
    assert seconds == 2.0
    assert len(decode(io.BytesIO(mp4))[1]) == 20


def test_a_picture_that_compresses_badly_gets_coarser_until_it_fits() -> None:
    """A page with several agents would be too large to send."""
    rng = np.random.default_rng(1)
    noise = (rng.integers(0, 256, (400, 500, 3), np.uint8) for _ in range(60))
    mp4, seconds = video.first_seconds(noise, fps=30)
    stream, pictures = decode(io.BytesIO(mp4))
    assert len(mp4) <= video.CLIP_BYTES and seconds == 2.0
    assert pictures[0].shape in [(240, 300, 3), (360, 450, 3)]


def test_large_pictures_are_made_smaller() -> None:
    mp4, _ = video.first_seconds(flashes(2, 720, 1280), fps=2)
    assert decode(io.BytesIO(mp4))[1][0].shape == (360, 640, 3)


def test_no_frames_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        video.first_seconds(iter([]), fps=30)

"""Videos play everywhere and show every frame."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from impala_tf.evaluation import video
from tests.helpers.videos import decode


def moving_square(count: int, height: int = 210, width: int = 160) -> Iterator[np.ndarray]:
    """Yields frames of an orange square that moves over a blue background."""
    for n in range(count):
        frame = np.full((height, width, 3), (20, 40, 160), np.uint8)
        frame[50:80, 10 + 3 * n : 40 + 3 * n] = (220, 120, 30)
        yield frame


def test_a_video_has_every_frame(tmp_path: Path) -> None:
    """In order and in colour, in the format that all browsers decode before they have it all."""
    path = tmp_path / "game.mp4"
    video.write_mp4(path, moving_square(20), fps=15)
    stream, pictures = decode(path)
    assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
    assert float(stream.average_rate) == 15
    assert [picture.shape for picture in pictures] == [(420, 320, 3)] * 20
    for picture, frame in zip(pictures, moving_square(20), strict=True):
        difference = np.abs(picture[::2, ::2].astype(int) - frame)
        assert difference.mean() < 4
    content = path.read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat"), "the index is at the end"


@pytest.mark.parametrize(
    ("size", "written"),
    [((64, 64), (512, 512)), ((401, 601), (402, 602)), ((230, 160), (460, 320))],
)
def test_small_frames_are_enlarged_and_odd_sizes_are_padded(
    tmp_path: Path, size: tuple[int, int], written: tuple[int, int]
) -> None:
    """64 pixels are too few to watch, and encoders refuse odd sizes."""
    path = tmp_path / "game.mp4"
    video.write_mp4(path, moving_square(2, *size), fps=29.97)
    _, pictures = decode(path)
    assert [picture.shape[:2] for picture in pictures] == [written] * 2


@pytest.mark.parametrize(("count", "seconds"), [(20, 2.0), (10**9, 15.0)])
def test_the_clip_of_a_report_is_the_beginning_of_a_game(count: int, seconds: float) -> None:
    """A level may draw all of its pictures, which may be large, into one array."""
    canvas = np.zeros((540, 960, 3), np.uint8)

    def drawn() -> Iterator[np.ndarray]:
        for n in range(count):
            canvas[:] = n
            yield canvas

    mp4, found = video.first_seconds(drawn(), fps=10)
    _, pictures = decode(io.BytesIO(mp4))
    assert found == seconds and len(pictures) == 10 * seconds
    assert pictures[0].shape == (360, 640, 3)
    assert [p.mean() for p in pictures] == pytest.approx(range(len(pictures)), abs=4)

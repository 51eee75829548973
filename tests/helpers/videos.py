"""What a video shows."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np


def decode(video: Path | io.BytesIO) -> tuple[av.VideoStream, list[np.ndarray]]:
    """Returns the stream of an MP4 video, and all its frames."""
    with av.open(video) as container:
        stream = container.streams.video[0]
        return stream, [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]

"""Encoding of tensors, and the parameter store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from impala_tf.machine.process_memory import peak_mib
from impala_tf.transport import DecodeError, NamedSpec, ParameterStore, impala_pb2
from impala_tf.transport.codec import NestCodec, decode, encode
from impala_tf.types import ArraySpec

EXTREMES = {
    "uint8": [0, 255],
    "bool": [False, True],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "float32": [-0.0, np.inf, np.nan, 1e-45, -np.finfo(np.float32).max, 1 / 3],
}


class Pair(NamedTuple):
    """A nest with a core state."""

    image: Any
    state: Any


@pytest.mark.parametrize("dtype", EXTREMES)
def test_every_dtype_is_decoded_bit_for_bit(dtype: str) -> None:
    array = np.array(EXTREMES[dtype], dtype)
    spec = NamedSpec.of("x", array.shape, dtype)
    back = decode(spec, encode(spec, array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert not back.flags.writeable


@pytest.mark.parametrize(
    ("n", "tensors", "said"),
    [
        (2, [bytes(5), bytes(2)], r"image: expected 4 bytes of uint8\[2, 2\], got 5"),
        (2, [bytes(4), bytes(3)], r"state: expected 2 bytes of bool\[2\], got 3"),
        (2, [bytes(4), b"\x00\x02"], "state: expected bool"),
        (2, [bytes(4)], "expected 2 tensors, got 1"),
        (0, [b"", b""], "1 environment or more, got 0"),
        (-1, [b"", b""], "1 environment or more, got -1"),
    ],
)
def test_bytes_that_do_not_fit_are_named(n: int, tensors: list[bytes], said: str) -> None:
    codec = NestCodec(Pair(ArraySpec((2,), "uint8"), ArraySpec((), "bool")))
    with pytest.raises(DecodeError, match=said):
        codec.decode(n, tensors)


def test_published_parameters_are_encoded_once_and_read_only() -> None:
    store = ParameterStore()
    array = np.ones([2], np.float32)
    store.publish(0, [array])
    snapshot = store.latest
    assert snapshot is not None
    with pytest.raises(ValueError, match="read-only"):
        array += 1  # an actor could otherwise get half of the change
    specs = [NamedSpec.of("w", (2,), "float32")]
    assert snapshot.reply(specs) is snapshot.reply(specs)
    reply = impala_pb2.FromLearner.FromString(snapshot.reply(specs))
    assert reply.parameters.tensors == [np.ones([2], np.float32).tobytes()]


IMAGES = NamedSpec((36, 84, 84), "uint8", "image")


def images(n: int) -> np.ndarray:
    """Frames as of a game: mostly background."""
    found = np.full((n, *IMAGES.shape), 87, np.uint8)
    found[:, ::2, 10:14, 20:30] = noise(n, 18, 4, 10)
    return found


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(("sent", "most"), [(images(2), 0.02), (noise(2, *IMAGES.shape), 1.0)])
def test_images_are_compressed_if_that_helps_and_come_back_bit_for_bit(
    sent: np.ndarray, most: float
) -> None:
    data = encode(IMAGES, sent, (2,))
    assert len(data) <= most * sent.nbytes
    np.testing.assert_array_equal(decode(IMAGES, data, (2,)), sent)


@pytest.mark.parametrize(
    "data",
    [
        zstandard.compress(bytes(10**8)),  # 10 KB that claim to be 100 MB
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(36 * 84 * 84)),
        zstandard.compress(bytes(36 * 84 * 84)) + b"more",
        zstandard.compress(bytes(36 * 84 * 84))[:-3],
        b"\x28\xb5\x2f\xfd" + b"\xff" * 30,  # the magic number, then nonsense
    ],
    ids=len,
)
def test_what_is_no_compressed_image_of_that_size_is_refused(data: bytes) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak of earlier tests, see proc(5)
    before = peak_mib() or 0.0
    with pytest.raises(DecodeError, match="image: expected 254016 "):
        decode(IMAGES, data, (1,))
    assert (peak_mib() or 0.0) - before < 30, "the claimed size was allocated"


@given(data=st.binary(max_size=300), cut=st.integers(0, 400))
def test_any_bytes_are_refused_or_decoded(data: bytes, cut: int) -> None:
    whole = encode(IMAGES, images(1), (1,))
    for attempt in (data, whole[:cut] + data, whole[cut:]):
        try:
            assert decode(IMAGES, attempt, (1,)).nbytes == 36 * 84 * 84
        except DecodeError as error:
            assert "image: expected" in str(error)

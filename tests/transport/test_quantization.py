"""Parameters as int8: what is lost, and what an actor may ask for, over real gRPC."""

from __future__ import annotations

import numpy as np
import pytest

from impala_tf.transport import DecodeError, TransportError, quantize
from impala_tf.transport.quantization import Quantized, decode_quantized, encode_quantized
from impala_tf.types import ArraySpec
from tests.helpers.wire import Connect, FakeLearner, Serve, make_parameters

SPEC = ArraySpec((3, 4, 5), "float32")


def weights() -> np.ndarray:
    """Returns weights whose outputs differ by 15 orders of magnitude; one output has none."""
    array = np.random.default_rng(0).standard_normal(SPEC.shape).astype(np.float32)
    return array * np.array([1e-10, 1e-3, 1.0, 1e5, 0.0], np.float32)


def test_each_weight_is_off_by_half_a_unit_of_its_output_at_most() -> None:
    array = weights()
    sent = decode_quantized(SPEC, encode_quantized(array))
    np.testing.assert_array_less(
        np.abs(sent.values * sent.scales - array).max(axis=(0, 1)),
        np.abs(array).max(axis=(0, 1)) / 127 * 0.501 + 1e-37,
    )
    assert np.abs(sent.values.astype(int)).max(axis=(0, 1)).tolist() == [127, 127, 127, 127, 0]


def test_tiny_weights_stay_finite() -> None:
    """Below 1e-38, float32 has few digits left, and the inverse of a scale would be infinite."""
    sent = quantize(np.full((2, 3), 1e-40, np.float32))
    assert np.isfinite(sent.scales).all()
    assert np.abs(sent.values * sent.scales).max() <= 1e-37


@pytest.mark.parametrize("change", [b"", b"x", b"xxxx"])
def test_other_sizes_are_refused(change: bytes) -> None:
    data = encode_quantized(weights())
    with pytest.raises(DecodeError, match=r"expected 80 bytes of int8\[3, 4, 5\], got"):
        decode_quantized(SPEC, data + change if change else data[:-1])


def test_scales_that_are_not_finite_are_refused() -> None:
    """The actor would act with NaN for an unroll, and the learner would refuse it."""
    data = encode_quantized(weights())
    with pytest.raises(DecodeError, match="not finite"):
        decode_quantized(SPEC, data[:-4] + np.float32(np.inf).tobytes())


def test_an_actor_gets_weights_as_int8_and_others_the_same_version_as_float32(
    serve: Serve, connect: Connect
) -> None:
    learner = FakeLearner()
    one = serve(learner)
    learner.parameters.publish(3, make_parameters(0.5))
    actor, other = connect(one.port), connect(one.port, "actor-1")
    found = actor.fetch_parameters(-1, [0])
    assert found is not None and found[0] == 3
    matrix, vector = found[1]
    assert isinstance(matrix, Quantized) and isinstance(vector, np.ndarray)
    np.testing.assert_allclose(matrix.values * matrix.scales, 0.5, rtol=1e-6)
    plain = other.fetch_parameters(-1)
    assert plain is not None
    for got, wanted in zip(plain[1], make_parameters(0.5), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert actor.fetch_parameters(3, [0]) is None


def test_an_actor_gets_only_the_parameters_that_it_uses(serve: Serve, connect: Connect) -> None:
    """Those of a separate baseline would double what fifty actors fetch again and again."""
    learner = FakeLearner()
    one = serve(learner)
    learner.parameters.publish(3, make_parameters(0.5))
    actor, other = connect(one.port), connect(one.port, "actor-1")
    found = actor.fetch_parameters(-1, used=[1])
    assert found is not None
    matrix, vector = found[1]
    assert matrix is None
    np.testing.assert_array_equal(vector, make_parameters(0.5)[1])
    everything = other.fetch_parameters(-1)
    assert everything is not None
    for got, wanted in zip(everything[1], make_parameters(0.5), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("index", [-1, 1, 2, 2**31 - 1])
def test_what_are_no_weights_of_a_layer_is_not_sent_as_int8(
    serve: Serve, connect: Connect, index: int
) -> None:
    """Parameter 1 is a bias; there is no other. The learner serves the next actor as before."""
    learner = FakeLearner()
    one = serve(learner)
    learner.parameters.publish(3, make_parameters(0.5))
    with pytest.raises(TransportError, match=f"parameter {index} cannot be sent as int8"):
        connect(one.port).fetch_parameters(-1, [index])
    assert connect(one.port, "actor-1").fetch_parameters(-1) is not None

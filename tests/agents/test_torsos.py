"""Torsos compared with the papers, layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.agents import torsos
from impala_tf.types import EnvironmentSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec, randomize


def pixels(*shape: int, seed: int = 0) -> tf.Tensor:
    """Returns float32 in [0, 1] with the 256 values that images have."""
    shades = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return torsos.to_unit_floats(tf.constant(shades), tf.float32)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_images_are_scaled_to_one(dtype: tf.DType) -> None:
    """With pixels up to 255, training would silently be worse."""
    shades = tf.constant([0, 51, 128, 255], tf.uint8)
    scaled = torsos.to_unit_floats(shades, dtype)
    assert scaled.dtype == dtype
    np.testing.assert_allclose(tf.cast(scaled, tf.float32), [0, 0.2, 128 / 255, 1], rtol=2**-8)


@pytest.mark.parametrize(("side", "limit"), [(31, 20.0), (32, 5.0)])
def test_codes_may_be_further_from_their_mean_than_grey_levels(side: int, limit: float) -> None:
    """MiniGrid's goal is rare, and its code is far from the others."""
    normalizer = torsos.ObservationNormalizer((side, 84, 1), "uint8")
    normalizer.set(tf.zeros((side, 84, 1)), tf.ones((side, 84, 1)))
    seen = normalizer(tf.fill((1, side, 84, 1), tf.constant(255, tf.uint8)), tf.float32)
    assert np.unique(seen).tolist() == [limit]


@pytest.mark.parametrize(
    ("side", "kernels"),
    [(19, [[3, 3, 1, 16], [3, 3, 16, 32]]), (20, [[8, 8, 1, 16], [4, 4, 16, 32]])],
)
def test_small_images_have_a_torso_with_small_kernels(side: int, kernels: list[list[int]]) -> None:
    agent = make_agent("ShallowConvNetAgent", image_spec((side, 84, 1)))
    found = [v.shape.as_list() for v in agent.trainable_variables if v.shape.rank == 4]
    assert found == kernels


@pytest.mark.parametrize("torso", ["shallow", "nature"])
@pytest.mark.parametrize("size", [(84, 84), (24, 36)])
def test_every_pixel_is_seen(torso: str, size: tuple[int, int]) -> None:
    """Convolutions without padding ignored the paddle in the last row of a small image."""
    module = torsos.TORSOS[torso](None, 1)
    images = tf.random.stateless_uniform((1, *size, 1), (1, 2))
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(tf.square(module(images)))
    gradient = tape.gradient(total, images).numpy()[0, ..., 0]
    assert (np.abs(gradient).sum(axis=0) > 0).all()
    assert (np.abs(gradient).sum(axis=1) > 0).all()


def test_layer_norm_equals_its_formula() -> None:
    """Over height, width and channels together, each image for itself."""
    norm = torsos.LayerNorm()
    images = pixels(3, 5, 4, 2)
    norm(images)
    randomize(norm)
    offset, scale = (v.numpy() for v in norm.trainable_variables)
    for m, image in enumerate(images.numpy()):
        expected = (image - image.mean()) / np.sqrt(image.var() + 1e-5) * scale + offset
        np.testing.assert_allclose(norm(images)[m], expected, rtol=1e-4, atol=1e-5)
    assert norm(tf.cast(images, tf.bfloat16)).dtype == tf.bfloat16


def test_the_conv_torso_equals_loops_over_its_pixels() -> None:
    """A missing ReLU or another padding would silently train worse."""
    torso = torsos.ConvTorso(((2, 3, 2), (3, 2, 1)), hidden=4)
    images = pixels(2, 9, 7, 2)
    torso(images)
    randomize(torso)
    *convs, linear_b, linear_w = [v.numpy() for v in torso.trainable_variables]

    features = images.numpy()
    for bias, weights, stride in ((convs[0], convs[1], 2), (convs[2], convs[3], 1)):
        k = len(weights)
        height, width = ((size - k) // stride + 1 for size in features.shape[1:3])
        out = np.zeros((2, height, width, len(bias)))
        for i, j in np.ndindex(height, width):
            window = features[:, i * stride : i * stride + k, j * stride : j * stride + k]
            out[:, i, j] = np.einsum("mhwc,hwco->mo", window, weights) + bias
        features = np.maximum(out, 0)
    expected = np.maximum(features.reshape(2, -1) @ linear_w + linear_b, 0)

    assert (expected > 0).any() and (expected == 0).any()
    np.testing.assert_allclose(torso(images), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("average_pool", [False, True])
def test_the_residual_torso_equals_figure_3_of_the_paper(average_pool: bool) -> None:
    """With another pooling or without a shortcut, it would be another network."""
    torso = torsos.ResNetTorso((3, 4), hidden=5, average_pool=average_pool)
    images = pixels(2, 9, 10, 2)  # "SAME" pads these sizes on one side and on both sides
    torso(images)
    randomize(torso)
    variables = iter(torso.trainable_variables)
    linear_b, linear_w = next(variables), next(variables)

    def conv(features: tf.Tensor) -> tf.Tensor:
        bias, weights = next(variables), next(variables)
        return tf.nn.conv2d(features, weights, strides=1, padding="SAME") + bias

    features = images
    for _ in range(2):
        features = tf.nn.max_pool2d(conv(features), ksize=3, strides=2, padding="SAME")
        for _ in range(2):
            features += conv(tf.nn.relu(conv(tf.nn.relu(features))))
    features = tf.nn.relu(features).numpy()
    flat = features.mean(axis=(1, 2)) if average_pool else features.reshape(2, -1)
    expected = np.maximum(flat @ linear_w.numpy() + linear_b.numpy(), 0)

    assert next(variables, None) is None
    assert (expected > 0).any()
    np.testing.assert_allclose(torso(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "width"),
    [(8, 4, "VALID", 84), (3, 1, "SAME", 11), (4, 2, "VALID", 21), (4, 2, "SAME", 20)],
)
def test_a_convolution_is_the_same_in_every_dtype(
    kernel: int, stride: int, padding: str, width: int
) -> None:
    """Whether its columns can be folded into channels or not; and so are its gradients."""
    conv = snt.Conv2D(5, kernel, stride, padding=padding)
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(2, 30, width, 3)), tf.float32)
    conv(images)
    conv.b.assign(rng.normal(size=5).astype(np.float32))
    found = []
    for dtype in (tf.float32, tf.float64):
        with tf.GradientTape() as tape:
            tape.watch(images)
            out = torsos.convolve(conv, tf.cast(images, dtype))
            total = tf.reduce_sum(tf.cast(out, tf.float32) ** 2)
        gradients = tape.gradient(total, (images, conv.w, conv.b))
        found.append([tf.cast(each, tf.float32).numpy() for each in (out, *gradients)])
    for single, double in zip(*found, strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-3)


def test_a_linear_layer_is_the_same_in_every_dtype() -> None:
    layer = snt.Linear(5)
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.normal(size=(2, 3)), tf.float32)
    layer(inputs)
    layer.b.assign(rng.normal(size=5).astype(np.float32))
    single, double = (torsos.linear(layer, tf.cast(inputs, t)) for t in (tf.float32, tf.float64))
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-5)


def test_orthogonal_weights_make_up_for_what_a_relu_cuts_off() -> None:
    """W' W = 2 I (Saxe et al., 2014, arXiv 1312.6120)."""
    made = torsos.initializer("orthogonal")
    assert made is not None
    weights = made([8, 5], tf.float32)
    found = tf.matmul(weights, weights, transpose_a=True)
    np.testing.assert_allclose(found, 2 * np.eye(5), atol=1e-5)


def test_the_features_of_a_text_end_with_its_last_word() -> None:
    torso = torsos.LanguageTorso()
    text, padded = tf.constant([[3, 5]]), tf.constant([[3, 5, 0, 0]])
    np.testing.assert_allclose(torso(text), torso(padded), rtol=1e-5)


PROCGEN = image_spec((64, 64, 3), num_actions=15)
PONG = image_spec((84, 84, 4), stacked_frames=4, num_actions=6)
# Mnih et al. (2015): 8x8 stride 4, 4x4 stride 2 and 3x3 stride 1 with 32, 64 and 64 channels leave
# 7x7 positions of 84x84; then 512 units, and an output for each action. The baseline is one more.
NATURE = 8_224 + 32_832 + 36_928 + (7 * 7 * 64 * 512 + 512)


@pytest.mark.parametrize(
    ("agent_name", "spec", "width_scale", "parameters"),
    [
        # What PPOAgent of Impoola's own code counts; see docs/levels_and_agents.md.
        ("ImpoolaAgent", PROCGEN, 1, 110_160),
        ("ImpoolaAgent", PROCGEN, 2, 409_488),
        ("ResNetAgent", PROCGEN, 1, 626_256),
        ("ResNetAgent", PROCGEN, 2, 1_441_680),
        ("NatureAgent", PONG, 1, NATURE + 513 * 7),
        # This one also sees the one-hot last action and the last reward.
        ("SimpleConvNetAgent", PONG, 1, NATURE + (512 + 6 + 1 + 1) * 7),
    ],
)
def test_an_agent_has_the_published_size(
    agent_name: str, spec: EnvironmentSpec, width_scale: int, parameters: int
) -> None:
    """Otherwise comparisons such as that of Trumpp et al. (2025) could not be repeated."""
    agent = make_agent(agent_name, spec, width_scale=width_scale)
    assert sum(int(tf.size(variable)) for variable in agent.trainable_variables) == parameters

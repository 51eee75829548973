"""Torsos, which map observations to features; what they get; weights and dtypes of all layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

from impala_tf.config import ConfigError, plug_ins
from impala_tf.config.compositions import Torso
from impala_tf.environments.spaces import WORD_BUCKETS
from impala_tf.types import ObservationSpec

_SCREEN = 32
"""Pixels. Images with a shorter side hold codes, not a scene. In MiniGrid, most cells are 1, goal
and lava 8 and 9."""
_SCREEN_LIMIT, _CODES_LIMIT, _VECTOR_LIMIT = 5.0, 20.0, 10.0  # in standard deviations
# Added to variances. The unit of images is their whole range, so theirs is (0.8 grey levels)^2. For
# vectors, it is the one of Gymnasium and Stable-Baselines3.
_IMAGE_EPSILON, _VECTOR_EPSILON = 1e-5, 1e-8


def initializer(name: str, gain: float = math.sqrt(2.0)) -> snt.initializers.Initializer | None:
    """Returns the initial weights of a layer; None: its module's default.

    Args:
      name: --initialization.
      gain: of orthogonal weights; by default that of layers before a ReLU or a tanh.
    """
    return snt.initializers.Orthogonal(gain) if name == "orthogonal" else None


@tf.function(jit_compile=True, autograph=False)  # one pass over the images instead of two
def to_unit_floats(images: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts uint8 images to `dtype`, scaled to [0, 1]."""
    return tf.cast(tf.cast(images, tf.float32) / 255.0, dtype)


class ObservationNormalizer(snt.Module):
    """clip((observation - mean) / standard deviation, -limit, limit), element by element.

    The limit is 5 for images, 10 for vectors, and 20 for images of codes.

    Mean and standard deviation are variables that are not trained: the learner estimates them (see
    `learner.moments`) and sends them to actors with the parameters. Until then, images are
    scaled to [0, 1] and vectors are unchanged.

    Args:
      shape: an observation's shape.
      dtype: "uint8" or "float32".

    Attributes:
      lasting: whether the statistics cover the whole run. Those of vectors do, because they change
        while a policy learns to reach new places. Pixels stay in their range, and cost more to sum.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__()
        self._unit = 255.0 if dtype == "uint8" else 1.0
        self._limit = _VECTOR_LIMIT
        if dtype == "uint8":
            self._limit = _CODES_LIMIT if min(shape[:2]) < _SCREEN else _SCREEN_LIMIT
        self.lasting = dtype != "uint8"
        self.mean = tf.Variable(tf.zeros(shape), trainable=False, name="mean")
        self.inverse_std = tf.Variable(
            tf.fill(shape, 1.0 / self._unit), trainable=False, name="inverse_std"
        )

    def __call__(self, observations: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Maps observations [M, *shape] to floats of `dtype`, of the same shape."""
        normalized = _compiled(tuple(self.mean.shape))
        return normalized(observations, self.mean, self.inverse_std, self._limit, dtype)

    def set(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Sets the statistics, float32 [*shape], in the observation's units."""
        self.mean.assign(mean)
        epsilon = _VECTOR_EPSILON if self.lasting else _IMAGE_EPSILON * self._unit**2
        self.inverse_std.assign(tf.math.rsqrt(variance + epsilon))


@functools.cache
def _compiled(shape: tuple[int, ...]) -> Callable[..., tf.Tensor]:
    """Returns `_normalized`, compiled to one pass over the observations instead of four.

    Each shape has its own function, because TensorFlow warns if one function is retraced for the
    shapes of several agents. It identifies functions by their code; a partial has none.

    Args:
      shape: an observation's shape.
    """
    partial = functools.partial(_normalized)
    compiled: Callable[..., tf.Tensor] = tf.function(partial, jit_compile=True, autograph=False)
    return compiled


def _normalized(
    observations: tf.Tensor,
    mean: tf.Tensor,
    inverse_std: tf.Tensor,
    limit: float,
    dtype: tf.DType,
) -> tf.Tensor:
    normalized = (tf.cast(observations, tf.float32) - mean) * inverse_std
    return tf.cast(tf.clip_by_value(normalized, -limit, limit), dtype)


def linear(layer: snt.Linear, inputs: tf.Tensor) -> tf.Tensor:
    """Applies a layer in the dtype of its inputs; its variables keep their dtype."""
    if inputs.dtype == tf.float32:
        return layer(inputs)
    return tf.matmul(inputs, tf.cast(layer.w, inputs.dtype)) + tf.cast(layer.b, inputs.dtype)


def convolve(conv: snt.Conv2D, images: tf.Tensor) -> tf.Tensor:
    """Applies a convolution in the dtype of its images; its variables keep their dtype.

    In memory, an image [H, W, C] is also [H, W / s, s * C]. So if s divides the widths of image and
    kernel, a convolution with stride s equals one with stride 1 along the width and s times the
    channels. Processors with bfloat16 instructions can then do more at once.
    """
    dtype, stride = images.dtype, conv.stride
    if dtype == tf.float32:
        return conv(images)
    kernel, bias = tf.cast(conv.w, dtype), tf.cast(conv.b, dtype)
    _, height, width, depth = images.shape
    rows, columns, _, channels = kernel.shape
    along_width = stride
    if conv.conv_padding == "VALID" and width % stride == columns % stride == 0:
        images = tf.reshape(images, (-1, height, width // stride, stride * depth))
        kernel = tf.reshape(kernel, (rows, columns // stride, stride * depth, channels))
        along_width = 1
    out = tf.nn.conv2d(images, kernel, (stride, along_width), conv.conv_padding)
    return tf.nn.bias_add(out, bias)


class LayerNorm(snt.Module):
    """LayerNorm (Ba et al., 2016, arXiv 1607.06450) over all dimensions except the batch.

    Each channel has a scale and an offset. It computes in float32.
    """

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Maps floats [M, ..., C] to the same shape and dtype."""
        self._initialize(features.shape[-1])
        # As a matrix, because moments over several axes take longer.
        flat = tf.cast(tf.reshape(features, (-1, math.prod(features.shape[1:]))), tf.float32)
        centered = flat - tf.reduce_mean(flat, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        normal = tf.reshape(centered * tf.math.rsqrt(variance + 1e-5), tf.shape(features))
        return tf.cast(normal * self.scale + self.offset, features.dtype)

    @snt.once
    def _initialize(self, channels: int) -> None:
        self.scale = tf.Variable(tf.ones(channels), name="scale")
        self.offset = tf.Variable(tf.zeros(channels), name="offset")


def _norms(layer_norm: bool, count: int) -> list[Callable[[tf.Tensor], tf.Tensor]]:
    """Returns the layers before `count` activations: LayerNorm or the identity."""
    return [LayerNorm() if layer_norm else lambda features: features for _ in range(count)]


class ConvTorso(snt.Module):
    """Convolutions and one linear layer, each followed by a ReLU.

    The convolutions have no padding, so they would ignore the last rows and columns of images whose
    size does not fit the strides (84 does). Such images are padded with zeros.

    Args:
      layers: (channels, kernel, stride) of each convolution.
      hidden: the number of units of the linear layer.
      w_init: the initial weights of all layers; None: those of He et al.
      layer_norm: whether there is LayerNorm before each ReLU.
    """

    def __init__(
        self,
        layers: tuple[tuple[int, int, int], ...],
        hidden: int,
        w_init: snt.initializers.Initializer | None = None,
        layer_norm: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        # He et al. (2015, arXiv 1502.01852) keep the variance through ReLUs. Sonnet's default
        # halves it at every layer, so the few pixels that change on an Atari screen fade away.
        init = w_init or snt.initializers.VarianceScaling(2.0, "fan_in", "truncated_normal")
        self._layers = layers
        self._convs = [
            snt.Conv2D(channels, kernel, stride, padding="VALID", w_init=init)
            for channels, kernel, stride in layers
        ]
        self._linear = snt.Linear(hidden, w_init=init)
        self._norms = _norms(layer_norm, len(layers) + 1)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Maps floats [M, H, W, C] to [M, hidden], of the same dtype."""
        features = self._padded(images)
        for conv, norm in zip(self._convs, self._norms[:-1], strict=True):
            features = tf.nn.relu(norm(convolve(conv, features)))
        return tf.nn.relu(self._norms[-1](linear(self._linear, snt.Flatten()(features))))

    def _padded(self, images: tf.Tensor) -> tf.Tensor:
        missing = [self._fitting(size) - size for size in images.shape[1:3]]
        if missing == [0, 0]:
            return images
        return tf.pad(images, [[0, 0], *([0, size] for size in missing), [0, 0]])

    def _fitting(self, size: int) -> int:
        """Returns the smallest size, at least `size`, at which no pixel is ignored."""
        for _, kernel, stride in self._layers:
            size = max(0, -(-(size - kernel) // stride)) + 1
        for _, kernel, stride in reversed(self._layers):
            size = (size - 1) * stride + kernel
        return size


class ResidualBlock(snt.Module):
    """x + conv(relu(conv(relu(x)))), 3x3 convolutions (paper, figure 3)."""

    def __init__(self, channels: int, w_init: snt.initializers.Initializer | None) -> None:
        super().__init__()
        self._convs = [snt.Conv2D(channels, 3, w_init=w_init) for _ in range(2)]

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Maps floats [M, H, W, channels] to the same shape and dtype."""
        out = features
        for conv in self._convs:
            out = convolve(conv, tf.nn.relu(out))
        return features + out


class ResNetTorso(snt.Module):
    """The paper's deep torso (figure 3, right); with average pooling, Impoola's.

    Sections of a 3x3 convolution, a 3x3 max-pooling with stride 2 and two residual blocks; then a
    linear layer over all positions or, with `average_pool`, over their average (Trumpp et al.,
    2025, arXiv 2503.05546). With `layer_norm`, the linear layer has LayerNorm before its ReLU.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        hidden: int = 256,
        average_pool: bool = False,
        w_init: snt.initializers.Initializer | None = None,
        layer_norm: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        conv_init = w_init
        if isinstance(w_init, snt.initializers.Orthogonal):
            # The ReLU gain, sqrt(2), would double the variance at each block and section. On random
            # pixels, features would be about 40 and initial values 20, while returns may be 1.
            conv_init = snt.initializers.Orthogonal(1.0)
        self._sections = [
            (
                snt.Conv2D(width, 3, w_init=conv_init),
                [ResidualBlock(width, conv_init) for _ in range(2)],
            )
            for width in channels
        ]
        self._average_pool = average_pool
        self._linear = snt.Linear(hidden, w_init=w_init)
        (self._norm,) = _norms(layer_norm, 1)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Maps floats [M, H, W, C] to [M, hidden], of the same dtype."""
        features = images
        for conv, blocks in self._sections:
            features = tf.nn.max_pool2d(
                convolve(conv, features), ksize=3, strides=2, padding="SAME"
            )
            for block in blocks:
                features = block(features)
        features = tf.nn.relu(features)
        if self._average_pool:
            features = tf.reduce_mean(features, axis=[1, 2])
        return tf.nn.relu(self._norm(linear(self._linear, snt.Flatten()(features))))


_MLP_SIZES = (64, 64)


class MLPTorso(snt.Module):
    """Linear layers with tanh, for vectors; with `layer_norm`, LayerNorm is before each tanh."""

    def __init__(
        self,
        w_init: snt.initializers.Initializer | None = None,
        layer_norm: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._mlp = (
            snt.Sequential(
                [
                    part
                    for size in _MLP_SIZES
                    for part in (snt.Linear(size, w_init=w_init), LayerNorm(), tf.nn.tanh)
                ]
            )
            if layer_norm
            else snt.nets.MLP(_MLP_SIZES, w_init=w_init, activation=tf.nn.tanh, activate_final=True)
        )

    def __call__(self, vectors: tf.Tensor) -> tf.Tensor:
        """Maps floats [M, D] to [M, 64], of the same dtype."""
        return self._mlp(vectors)


def _resnet(width_scale: int) -> tuple[int, ...]:
    """Returns the channels of the paper's three sections (figure 3, right), scaled."""
    return tuple(width_scale * channels for channels in (16, 32, 32))


class LanguageTorso(snt.Module):
    """Word embeddings and an LSTM; a text's features are its output after the last word.

    The language network of the agent in the IMPALA paper's experiments on DMLab: words hashed to
    1000 buckets, embeddings of 20, LSTM of 64 units.
    """

    def __init__(self) -> None:
        super().__init__()
        self._embed = snt.Embed(WORD_BUCKETS + 1, 20)
        self._lstm = snt.LSTM(64)

    def __call__(self, words: tf.Tensor) -> tf.Tensor:
        """Maps hashed words int32 [M, words], 0 after the last one, to float32 [M, 64]."""
        state = self._lstm.initial_state(tf.shape(words)[0])
        embedded = tf.unstack(self._embed(words), axis=1)
        for word, inputs in zip(tf.unstack(words, axis=1), embedded, strict=True):
            _, after = self._lstm(inputs, state)
            is_word = (word > 0)[:, None]
            state = snt.LSTMState(
                tf.where(is_word, after.hidden, state.hidden),
                tf.where(is_word, after.cell, state.cell),
            )
        return state.hidden

    def of_many(self, words: tf.Tensor) -> tf.Tensor:
        """Equals `__call__`, but processes equal texts only once.

        A mission stays the same for a whole episode, so the many steps of a batch have few distinct
        texts. LiteRT does not support this, and for one step it does not pay off.
        """
        distinct, which = tf.raw_ops.UniqueV2(x=words, axis=[0])
        return tf.gather(self(tf.ensure_shape(distinct, (None, words.shape[1]))), which)


# Each makes a torso from: the initial weights of its layers (None: the default), --width_scale and
# --layer_norm. As in Impoola's code, --width_scale multiplies the channels of convolutions, but not
# the linear layer.
TORSOS: dict[str, Callable[..., snt.Module]] = {
    "shallow": lambda init, k, norm=False: ConvTorso(
        ((16 * k, 8, 4), (32 * k, 4, 2)), 256, init, norm, "shallow"
    ),
    "nature": lambda init, k, norm=False: ConvTorso(
        ((32 * k, 8, 4), (64 * k, 4, 2), (64 * k, 3, 1)), 512, init, norm, "nature"
    ),
    "impala": lambda init, k, norm=False: ResNetTorso(
        _resnet(k), w_init=init, layer_norm=norm, name="impala"
    ),
    "impoola": lambda init, k, norm=False: ResNetTorso(
        _resnet(k), average_pool=True, w_init=init, layer_norm=norm, name="impoola"
    ),
    "mlp": lambda init, _, norm=False: MLPTorso(w_init=init, layer_norm=norm, name="mlp"),
}
_SMALL = 20  # pixels


def own_torso(name: str, part: ObservationSpec) -> snt.Module:
    """Returns a user's torso, with its variables created.

    Args:
      name: module:Class or module:function, which returns a module when called without arguments.
      part: the specification of the torso's inputs, which are float32 [B, H, W, C] or [B, D].

    Raises:
      ConfigError: it cannot be made, is not a Sonnet module, or does not return float32
        [B, features].
    """
    shape = ", ".join(map(str, ("B", *part.shape)))
    try:
        torso = plug_ins.load("agent_name", name)()
        if not isinstance(torso, snt.Module):
            raise ConfigError(
                f"--agent_name={name}: must make a sonnet.Module, not a {type(torso).__name__}"
            )
        features = torso(tf.zeros((2, *part.shape), tf.float32))
    except ConfigError:
        raise
    except Exception as error:
        problem = f"raised for [{shape}]: {plug_ins.raised(error)}"
        raise ConfigError(f"--agent_name={name}: {problem}") from error
    is_float32 = isinstance(features, tf.Tensor) and features.dtype == tf.float32
    if not is_float32 or features.shape.rank != 2 or features.shape[0] != 2:
        got = getattr(features, "shape", type(features).__name__)
        raise ConfigError(
            f"--agent_name={name}: must return float32 [B, features], but for [{shape}] with B=2"
            f" returned {got}"
        )
    return torso


def make_torso(
    torso: Torso,
    part: ObservationSpec,
    w_init: snt.initializers.Initializer | None,
    width_scale: int = 1,
    layer_norm: bool = False,
) -> snt.Module:
    """Returns the torso of an agent for a part of its observations.

    Args:
      torso: the composition's torso, for images.
      part: the specification of the part. Vectors go through "mlp", texts through a
        `LanguageTorso`. Images smaller than the receptive field of "shallow", such as MiniGrid's
        7x7 cells, go through 3x3 convolutions, unless the torso is residual.
      w_init: the initial weights of linear layers and convolutions.
      width_scale: k, --width_scale.
      layer_norm: whether LayerNorm precedes each activation. Residual networks have it only before
        the activation of their linear layer, `LanguageTorso` has none.
    """
    if part.kind == "text":
        return LanguageTorso()
    if plug_ins.is_own(torso.name):
        return own_torso(torso.name, part)
    if part.kind == "image" and not torso.is_residual and min(part.shape[:2]) < _SMALL:
        k = width_scale
        return ConvTorso(((16 * k, 3, 1), (32 * k, 3, 1)), 256, w_init, layer_norm, "small")
    return TORSOS["mlp" if part.kind == "vector" else torso.name](w_init, width_scale, layer_norm)

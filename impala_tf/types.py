"""What flows from environment to learner, field by field, and which step an action belongs to.

Time. Index ``t`` is one decision. At ``t`` the agent sees ``EnvOutput[t]`` and answers with
``AgentOutput[t]``; the environment answers that with ``EnvOutput[t + 1]``. So ``reward[t]``,
``terminated[t]`` and ``truncated[t]`` are consequences of ``action[t - 1]``, and ``last_action[t]``
is that action. An unroll holds ``EnvOutput[0..T]`` and ``AgentOutput[0..T - 1]``: its last
observation only bootstraps, and is also the first observation of the next unroll.

Episode ends follow Gymnasium's NEXT_STEP autoreset. The final observation of an episode is inside
the unroll, with ``terminated`` or ``truncated`` set. The environment ignores the action after it.
The next step has ``autoreset`` set and holds the first observation of the next episode. The
transition into an ``autoreset`` step belongs to no episode and is masked out of every loss.

A life lost on Atari ends an episode for learning but not the game: ``terminated`` and
``episode_start`` are set on the same step (its observation ends one episode and begins the next),
and there is no ``autoreset`` step.

Shapes: ``T`` unroll_length, ``B`` batch_size, ``N`` environments of one actor, ``A`` actions,
``P`` parameters of a policy (A logits, if there is one choice of A), ``K`` stacked frames. Arrays
travel batch-major (``[N, T, ...]``), because each entry of the queue is one unroll; the learner's
graph makes them time-major (``[T, B, ...]``), as in the paper.

Parameters have one version everywhere, ``parameter_version``: how many learner updates made them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

# NumPy array, tf.Tensor, ArraySpec or tf.TensorSpec: the same tuples hold values and their specs.
Array = Any
Nest = Any

Kind = Literal["atari", "procgen", "image", "vector"]


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """What an array is, without its values."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name


class EnvOutput(NamedTuple):
    """What the agent is told at step t. Leading dimensions: [N], [N, T + 1] or [T + 1, B]."""

    reward: Array  # float32 [...]: unclipped reward of action t - 1; 0 where autoreset
    terminated: Array  # bool [...]: an episode ended here: nothing to bootstrap from
    truncated: Array  # bool [...]: an episode was cut here, its observation still bootstraps
    autoreset: Array  # bool [...]: action t - 1 was ignored, a new episode begins here
    episode_start: Array  # bool [...]: recurrent cores reset before this step
    observation: Nest  # an array of each part of EnvironmentSpec.observation; see observations.py
    last_action: Array  # as `action` below: action t - 1; 0 at the first step of a run


class AgentOutput(NamedTuple):
    """What the agent answers at step t. Leading dimensions: [N], [N, T] or [T, B]."""

    action: Array  # int32 or float32 [..., *ActionSpec.shape]
    policy_logits: Array  # float32 [..., P]: of the policy that chose `action`; or Q(x, .)


class NetworkOutput(NamedTuple):
    """What the network computes for a step. Leading dimensions: [N] or [T + 1, B]."""

    policy_logits: Array  # float32 [..., P]: what makes a policy, or Q(x, .)
    baseline: Array  # float32 [..., levels]: the value estimate V(x_t) if that level is played


class Unroll(NamedTuple):
    """T decisions of N environments, as an actor sends them; batched to [B, ...] by the learner."""

    parameter_version: Array  # int64 [N]: of the parameters that acted
    core_state: Nest  # float32 [N, ...]: core state before step 0; () for a feed-forward core
    env_outputs: EnvOutput  # [N, T + 1, ...], observations packed as in observations.py
    agent_outputs: AgentOutput  # [N, T, ...]
    level: Array  # int32 [N]: index in EnvironmentSpec.levels
    td_errors: Nest = ()  # float32 [N, T]: n-step errors of the actor's Q-values, or ()


class ActorGradient(NamedTuple):
    """What an actor of a3c sends: the gradient of the loss of its unrolls. All are [1, ...]."""

    parameter_version: Array  # int64 [1]: of the parameters that acted
    gradients: Nest  # float32 [1, ...] of each trainable variable of the agent, a tuple
    stats: Array  # float32 [1, S]: the fields of learner.policy.PolicyStats


Sent = Unroll | ActorGradient
"""What an actor sends to its learner."""


@dataclasses.dataclass(frozen=True)
class ObservationSpec:
    """An observation, or one part of it, as the agent sees it."""

    kind: Literal["image", "vector", "text"]
    shape: tuple[int, ...]  # (H, W, C), (D,) or (words,)

    @property
    def dtype(self) -> str:
        """Of images uint8, of vectors float32, of texts int32: hashed words, 0 after the last."""
        return {"image": "uint8", "vector": "float32", "text": "int32"}[self.kind]


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """What an agent decides at each step.

    discrete: one of A. multi_discrete: several choices at once. continuous: numbers, -1 and 1 being
    the bounds of the environment's own actions (or its own units, if it has no bounds).
    """

    kind: Literal["discrete", "multi_discrete", "continuous"]
    sizes: tuple[int, ...]  # (A,); the number of options of each choice; (how many numbers,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        shapes = {"discrete": (), "multi_discrete": (len(self.sizes),), "continuous": self.sizes}
        return shapes[self.kind]

    @property
    def dtype(self) -> str:
        """Of an action."""
        return "float32" if self.kind == "continuous" else "int32"

    def __str__(self) -> str:
        total = math.prod(self.sizes)
        if self.kind == "multi_discrete":
            return "x".join(map(str, self.sizes)) + " actions"
        return f"{total} {'continuous ' if self.kind == 'continuous' else ''}actions"


class EnvironmentSpec(NamedTuple):
    """A level's interface, known before any process starts."""

    level_name: str
    kind: Kind  # picks the default agent and the default flags
    observation: ObservationSpec | dict[str, ObservationSpec]  # by part, if it has several
    actions: ActionSpec
    stacked_frames: int  # K: channels are the K newest frames; 0: no stack
    frames_per_step: int  # environment frames per agent step
    protocol: str  # one line to print next to every score
    tasks: tuple[str, ...] = ()  # the levels, if one agent learns several
    time_limit: int = 0  # agent steps of an episode; 0: none, unknown, or one of each level

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of all levels that one agent learns: one, or several."""
        return self.tasks or (self.level_name,)


class ActorReport(NamedTuple):
    """What an actor tells about the time since its last unroll. Waits for the learner count.

    The last two fields are filled in where unrolls are sent.
    """

    agent_steps_per_s: float = 0.0
    environment_fraction: float = 0.0  # of its time, in the environments
    inference_fraction: float = 0.0  # of its time, choosing actions
    environment_restarts: int = 0  # since its process started
    push_wait_fraction: float = 0.0  # of its time, waiting for the learner
    memory_mb: float = 0.0  # its peak so far, in MiB; 0: unknown


class Progress(NamedTuple):
    """Where the training of a run is, over all learners."""

    agent_steps: int
    environment_frames: int
    learner_updates: int
    updates_skipped: int  # since the start or resume
    learning_rate: float  # of the next update
    entropy_cost: float  # of the next update


class Episode(NamedTuple):
    """A finished whole game."""

    episode_return: float  # sum of unclipped rewards
    episode_length: int  # agent steps
    environment: int = 0  # which of an actor's environments
    level: int = 0  # index in EnvironmentSpec.levels
    info: tuple[float | None, ...] = ()  # a number for each of --info_metrics; None: it had none

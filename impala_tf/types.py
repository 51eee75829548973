"""The data that flows from environment to learner, and which step each field belongs to.

Time. Index ``t`` is one decision. At ``t`` the agent sees ``EnvOutput[t]`` and answers with
``AgentOutput[t]``; the environment responds with ``EnvOutput[t + 1]``. So ``reward[t]``,
``terminated[t]`` and ``truncated[t]`` are consequences of ``action[t - 1]``, and ``last_action[t]``
is that action. An unroll holds ``EnvOutput[0..T]`` and ``AgentOutput[0..T - 1]``: its last
observation is used only for bootstrapping, and is also the first observation of the next unroll.

Episode ends follow Gymnasium's NEXT_STEP autoreset. The final observation of an episode is inside
the unroll, with ``terminated`` or ``truncated`` set. The environment ignores the action after it.
The next step has ``autoreset`` set and holds the first observation of the next episode. The
transition into an ``autoreset`` step belongs to no episode and is masked out of every loss.

A life lost on Atari ends an episode for learning but not the game: ``terminated`` and
``episode_start`` are set on the same step (its observation ends one episode and begins the next),
and there is no ``autoreset`` step.

Shapes: ``T`` unroll_length, ``B`` batch_size, ``N`` environments of one actor, ``A`` actions,
``P`` parameters of a policy (A logits, if the action is one choice of A), ``K`` stacked frames.
Arrays are sent batch-major (``[N, T, ...]``), because each entry of the queue is one unroll; the
learner's graph makes them time-major (``[T, B, ...]``), as in the paper.

Parameters are identified by ``parameter_version``, the number of learner updates they result from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

# NumPy array, tf.Tensor, ArraySpec or tf.TensorSpec: the same tuples hold values and their specs.
Array = Any
Nest = Any

LARGEST = 1e30
"""No number that is larger is a measurement: sums of a few of them are infinite in float32."""

LARGEST_REWARD = 1e15
"""Squares of sums of larger rewards are infinite in float32."""

ACTION_MASK = "action_mask"
"""The part of an observation that says which actions a level allows; see `environments.masks`."""

Kind = Literal["atari", "procgen", "image", "vector"]


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name


class EnvOutput(NamedTuple):
    """What the agent is told at step t. Leading dimensions: [N], [N, T + 1] or [T + 1, B]."""

    reward: Array  # float32 [...]: unclipped reward of action t - 1; 0 where autoreset
    terminated: Array  # bool [...]: an episode ended here: nothing to bootstrap from
    truncated: Array  # bool [...]: an episode was cut here; bootstrap from its observation
    autoreset: Array  # bool [...]: action t - 1 was ignored, a new episode begins here
    episode_start: Array  # bool [...]: recurrent cores reset before this step
    observation: Nest  # one array per part of EnvironmentSpec.observation; see observations.py
    last_action: Array  # action t - 1, like `AgentOutput.action`; 0 at the first step of a run


class AgentOutput(NamedTuple):
    """The agent's answer at step t. Leading dimensions: [N], [N, T] or [T, B]."""

    action: Array  # int32 or float32 [..., *ActionSpec.shape]
    policy_logits: Array  # float32 [..., P]: of the policy that chose `action`; or Q(x, .)


class NetworkOutput(NamedTuple):
    """The network's outputs for a step. Leading dimensions: [N] or [T + 1, B]."""

    policy_logits: Array  # float32 [..., P]: parameters of the policy, or Q(x, .)
    baseline: Array  # float32 [..., levels]: the value estimate V(x_t) on each level


class Unroll(NamedTuple):
    """T decisions of N environments, as an actor sends them; batched to [B, ...] by the learner."""

    parameter_version: Array  # int64 [N]: of the parameters that chose the actions
    core_state: Nest  # float32 [N, ...]: core state before step 0; () for a feed-forward core
    env_outputs: EnvOutput  # [N, T + 1, ...], observations packed as in observations.py
    agent_outputs: AgentOutput  # [N, T, ...]
    level: Array  # int32 [N]: index in EnvironmentSpec.levels
    td_errors: Nest = ()  # float32 [N, T]: n-step errors of the actor's Q-values, or ()
    actor: Nest = ()  # int32 [N]: its number (see learner.arrivals.Senders), or ()


class ActorGradient(NamedTuple):
    """What an actor of a3c sends: the gradient of its unrolls' loss. All arrays are [1, ...]."""

    parameter_version: Array  # int64 [1]: of the parameters that chose the actions
    gradients: Nest  # a tuple, float32 [1, ...] for each trainable variable of the agent
    stats: Array  # float32 [1, S]: the fields of learner.policy_step.PolicyStats
    num_played: Array  # int32 [1]: `n_step_returns.played_steps` of the unroll
    actor: Nest = ()  # int32 [1]: as in Unroll


Sent = Unroll | ActorGradient
"""What an actor sends to its learner."""


@dataclasses.dataclass(frozen=True)
class ObservationSpec:
    """The specification of an observation, or of one part of it, as the agent sees it."""

    kind: Literal["image", "vector", "text"]
    shape: tuple[int, ...]  # (H, W, C), (D,) or (words,)

    @property
    def dtype(self) -> str:
        """Images are uint8, vectors float32, texts int32: hashed words, padded with 0."""
        return {"image": "uint8", "vector": "float32", "text": "int32"}[self.kind]


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """The specification of an action.

    discrete: one of A. multi_discrete: several choices at once. continuous: numbers that are scaled
    so that -1 and 1 are the environment's bounds (or in the environment's units, if unbounded).
    """

    kind: Literal["discrete", "multi_discrete", "continuous"]
    sizes: tuple[int, ...]  # (A,); the number of options of each choice; (count of numbers,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one action."""
        shapes = {"discrete": (), "multi_discrete": (len(self.sizes),), "continuous": self.sizes}
        return shapes[self.kind]

    @property
    def dtype(self) -> str:
        """The dtype of an action, by NumPy's name."""
        return "float32" if self.kind == "continuous" else "int32"

    def __str__(self) -> str:
        total = math.prod(self.sizes)
        if self.kind == "multi_discrete":
            return "x".join(map(str, self.sizes)) + " actions"
        kind = "continuous " if self.kind == "continuous" else ""
        return f"{total} {kind}action{'s' * (total != 1)}"


class EnvironmentSpec(NamedTuple):
    """A level's interface. One process makes the level to find it; all others are told."""

    level_name: str
    kind: Kind  # selects the default agent and the default flags
    observation: ObservationSpec | dict[str, ObservationSpec]  # by part, if there are several
    actions: ActionSpec
    stacked_frames: int  # K: channels are the K newest frames; 0: no stack
    frames_per_step: int  # environment frames per agent step
    protocol: str  # one line to print next to every score
    tasks: tuple[str, ...] = ()  # the levels, if one agent learns several
    time_limit: int = 0  # agent steps per episode; 0: none, unknown, or different for each level
    renders: bool = False  # whether it can be drawn, for videos
    offsets: Mapping[str, Any] = {}  # by part; lists of numbers, see `spaces.offsets_of`
    parts: tuple[EnvironmentSpec, ...] = ()  # of each of `tasks`

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of all levels that one agent learns: one, or several."""
        return self.tasks or (self.level_name,)

    @property
    def masks_actions(self) -> bool:
        """Whether observations have an action mask."""
        parts = self.observation if isinstance(self.observation, dict) else {}
        return ACTION_MASK in parts and self.actions.kind != "continuous"

    def of_level(self, index: int) -> EnvironmentSpec:
        """Returns the spec of one of `levels`."""
        return self.parts[index] if self.parts else self

    def to_json(self) -> dict[str, Any]:
        """Returns this as JSON values."""
        seen = self.observation
        parts = {name: vars(part) for name, part in seen.items()} if isinstance(seen, dict) else {}
        return {
            **self._asdict(),
            "observation": parts or vars(seen),
            "actions": vars(self.actions),
            "offsets": dict(self.offsets),
            "parts": [part.to_json() for part in self.parts],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> EnvironmentSpec:
        """Returns the spec that `to_json` wrote; raises LookupError, TypeError or ValueError."""

        def observation(part: Mapping[str, Any]) -> ObservationSpec:
            return ObservationSpec(part["kind"], tuple(part["shape"]))

        seen, actions = fields["observation"], fields["actions"]
        is_single = isinstance(seen.get("kind"), str)
        return cls(
            **{
                **fields,
                "observation": observation(seen)
                if is_single
                else {name: observation(part) for name, part in seen.items()},
                "actions": ActionSpec(actions["kind"], tuple(actions["sizes"])),
                "tasks": tuple(fields["tasks"]),
                "parts": tuple(map(cls.from_json, fields["parts"])),
            }
        )


class ActorReport(NamedTuple):
    """An actor's statistics since its last unroll. The time includes waits for the learner.

    The last two fields are filled in where unrolls are sent.
    """

    agent_steps_per_s: float = 0.0
    environment_fraction: float = 0.0  # of its time, spent in the environments
    inference_fraction: float = 0.0  # of its time, spent choosing actions
    environment_restarts: int = 0  # since its process started
    push_wait_fraction: float = 0.0  # of its time, spent waiting for the learner
    memory_mb: float = 0.0  # its peak so far, in MiB; 0: unknown


class Progress(NamedTuple):
    """The training progress of a run, over all learners."""

    agent_steps: int
    environment_frames: int
    learner_updates: int
    updates_skipped: int  # since the start or resume
    learning_rate: float  # of the next update
    entropy_cost: float  # of the next update


class Episode(NamedTuple):
    """A completed game, with all its lives."""

    episode_return: float  # sum of unclipped rewards
    episode_length: int  # agent steps
    environment: int = 0  # index among the actor's environments
    level: int = 0  # index in EnvironmentSpec.levels
    info: tuple[float | None, ...] = ()  # a number for each of --info_metrics; None: not given

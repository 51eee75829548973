"""One update rebuilt by hand, and the loop that asks for rows, checkpoints and an end."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf import agents, losses
from impala_tf.allreduce import SingleLearner
from impala_tf.config import Config, known
from impala_tf.learner import Control, Learner, TrainingLoop, UpdateStats, time_major
from impala_tf.types import EnvironmentSpec, EnvOutput, Unroll
from tests.samples import image_spec, random_unrolls, resolved_config, vector_spec

B, T = 3, 4
SPEC = vector_spec(frames_per_step=4)
NOTHING = Control(stop=False, write_row=False, checkpoint=False)


def config(**flags: Any) -> Config:
    """Of runs whose frames are used up after 10 updates of one learner."""
    defaults = {
        "batch_size": B,
        "unroll_length": T,
        "total_environment_frames": 10 * B * T * SPEC.frames_per_step,
        "learning_rate": 0.05,
        "epsilon": 0.2,  # large enough to see whether it is under the root
    }
    return resolved_config(**{**defaults, **flags})


def batch(agent: agents.Agent, spec: EnvironmentSpec = SPEC, seed: int = 0) -> Unroll:
    unrolls = random_unrolls(agents.unroll_specs(agent, spec, T), B, seed)
    return tree.map_structure(tf.constant, unrolls)


def make(
    agent_name: str = "MLPLSTMAgent", group: Any = None, **flags: Any
) -> tuple[Learner, agents.Agent]:
    agent = agents.make(agent_name, SPEC)
    return Learner(agent, SPEC, config(**flags), group or SingleLearner()), agent


# The batch as the graph sees it.


def test_time_comes_first_and_nothing_else_moves() -> None:
    """Mixing time and batch would train on steps of other environments, with no error."""
    agent = agents.make("MLPLSTMAgent", SPEC)
    before = batch(agent)
    after = time_major(before, SPEC)
    tree.assert_same_structure(after, before)
    for name in EnvOutput._fields:
        array = getattr(before.env_outputs, name).numpy()
        np.testing.assert_array_equal(getattr(after.env_outputs, name), np.swapaxes(array, 0, 1))
    for got, array in zip(after.agent_outputs, before.agent_outputs, strict=True):
        np.testing.assert_array_equal(got, np.swapaxes(array.numpy(), 0, 1))
    for got, array in zip(after.core_state, before.core_state, strict=True):
        np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(after.parameter_version, before.parameter_version)


def test_stacked_frames_are_rebuilt_step_by_step() -> None:
    """Written out: the newest frame last, and zeros for what a reset came after."""
    spec = image_spec((6, 7, 3), stacked_frames=3)
    before = batch(agents.make("ImpoolaAgent", spec), spec)
    frames, autoreset = before.env_outputs.observation.numpy(), before.env_outputs.autoreset.numpy()
    assert frames.shape == (B, T + 3, 6, 7)
    assert autoreset[:, 1:].any()
    expected = np.zeros((T + 1, B, 6, 7, 3), np.uint8)
    for t, b, k in itertools.product(range(T + 1), range(B), range(3)):
        # Channel k of step t is the frame of step t + k - 2, or before step 0 one of the first
        # stack, which was sent as it was.
        since = max(t + k - 2, 0) + 1
        if not autoreset[b, since : t + 1].any():
            expected[t, b, :, :, k] = frames[b, t + k]
    after = time_major(before, spec).env_outputs
    np.testing.assert_array_equal(after.observation, expected)
    np.testing.assert_array_equal(after.autoreset, autoreset.T)
    np.testing.assert_array_equal(after.reward, before.env_outputs.reward.numpy().T)


# One update.


def gradients_of(agent: agents.Agent, unrolls: Unroll, settings: Config) -> list[np.ndarray]:
    """Gradients of the summed loss, eagerly."""
    env_outputs, answers = tree.map_structure(
        lambda a: tf.constant(np.swapaxes(a.numpy(), 0, 1)),
        (unrolls.env_outputs, unrolls.agent_outputs),
    )
    with tf.GradientTape() as tape:
        outputs, _ = agent.unroll(env_outputs, unrolls.core_state)
        total = losses.compute(outputs, env_outputs, answers, settings.loss).total
    return [g.numpy().astype(np.float64) for g in tape.gradient(total, agent.trainable_variables)]


def global_norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays)))


class ByHand:
    """RMSProp after clipping, in NumPy: epsilon under the root, mean squares from 1 on."""

    def __init__(self, settings: Config, arrays: list[np.ndarray]) -> None:
        self._optimizer = settings.optimizer
        self._before = [array.astype(np.float64) for array in arrays]
        self._arrays = list(self._before)
        self._squares = [np.ones_like(array) for array in self._arrays]
        self._moments = [np.zeros_like(array) for array in self._arrays]

    def update(self, gradients: list[np.ndarray], learning_rate: float) -> None:
        o = self._optimizer
        scale = 1.0
        if o.gradients_clipping > 0:
            scale = min(1.0, o.gradients_clipping / global_norm(gradients))
        for k, gradient in enumerate(gradients):
            g = scale * gradient
            self._squares[k] = o.decay * self._squares[k] + (1 - o.decay) * g * g
            step = learning_rate * g / np.sqrt(self._squares[k] + known(o.epsilon))
            self._moments[k] = o.momentum * self._moments[k] + step
            self._arrays[k] = self._arrays[k] - self._moments[k]

    def assert_equals(self, learner: Learner) -> None:
        """Compares what has changed: the arrays themselves would hide a wrong small step."""
        for got, expected, before in zip(
            learner.parameters(), self._arrays, self._before, strict=True
        ):
            np.testing.assert_allclose(got - before, expected - before, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("agent_name", ["MLPAgent", "MLPLSTMAgent"])
@pytest.mark.parametrize(
    ("gradients_clipping", "momentum", "decay"),
    [(0.5, 0.0, 0.99), (1e6, 0.0, 0.9), (0.0, 0.7, 0.99)],
    ids=["clipped", "not reached", "off, momentum"],
)
def test_three_updates_equal_those_by_hand(
    agent_name: str, gradients_clipping: float, momentum: float, decay: float
) -> None:
    """What the table of hyperparameters says is what happens to the parameters."""
    learner, agent = make(
        agent_name, gradients_clipping=gradients_clipping, momentum=momentum, decay=decay
    )
    settings = config(
        agent_name=agent_name,
        gradients_clipping=gradients_clipping,
        momentum=momentum,
        decay=decay,
    )
    by_hand = ByHand(settings, learner.parameters())
    for update in range(3):
        unrolls = batch(agent, seed=update)
        gradients = gradients_of(agent, unrolls, settings)
        assert global_norm(gradients) > 0.5  # above the one clip, below the other
        stats, _ = learner.update(unrolls, NOTHING)
        np.testing.assert_allclose(stats.gradient_norm, global_norm(gradients), rtol=1e-4)
        # Annealed linearly from 0.05 at frame 0 to 0 after 10 updates.
        by_hand.update(gradients, learning_rate=0.05 * (1 - update / 10))
        by_hand.assert_equals(learner)


def test_stats_are_those_of_the_losses() -> None:
    """A curve under another curve's name misleads whoever looks for what went wrong."""
    learner, agent = make()
    unrolls = batch(agent)
    swapped = time_major(unrolls, SPEC)
    outputs, _ = agent.unroll(swapped.env_outputs, swapped.core_state)
    found = losses.compute(outputs, swapped.env_outputs, swapped.agent_outputs, config().loss)
    learner.restore_counters({"learner_updates": 7, "agent_steps": 0, "environment_frames": 0})
    stats, _ = learner.update(
        unrolls._replace(parameter_version=tf.constant([7, 4, 2], tf.int64)), NOTHING
    )
    for name, expected in {
        "loss_total": found.total,
        "loss_policy_gradient": found.policy_gradient,
        "loss_baseline": found.baseline,
        "entropy": found.entropy,
        "rho_clip_fraction": found.rho_clip_fraction,
        "c_clip_fraction": found.c_clip_fraction,
        "policy_lag_mean": (0 + 3 + 5) / 3,
        "policy_lag_max": 5,
    }.items():
        np.testing.assert_allclose(getattr(stats, name), expected, rtol=1e-4, err_msg=name)


class GroupOf:
    """This learner and others that send what the test decides: gradients and a control vector.

    A control vector says whether the learner has a batch (1 or 0), then its three wishes.
    """

    rank = 0

    def __init__(self, *others: list[np.ndarray]) -> None:
        self._others = others
        self.size = 1 + len(others)

    def sum(self, tensors: list[Any]) -> list[Any]:
        return [sum(column) for column in zip(tensors, *self._others, strict=True)]


def sent(agent: agents.Agent, seed: int, *control: float) -> list[np.ndarray]:
    """What another learner sends; nothing but the control vector where it has no batch."""
    rng = np.random.default_rng(seed)
    shapes = [variable.shape for variable in agent.trainable_variables]
    arrays = [control[0] * rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return [*arrays, np.array(control, np.float32)]


def test_several_learners_step_along_the_mean_of_their_gradients() -> None:
    """Clipping one's own gradient before the mean would let the learners drift apart."""
    agent = agents.make("MLPLSTMAgent", SPEC)
    others = [sent(agent, 1, 1, 0, 0, 0), sent(agent, 2, 1, 0, 0, 0), sent(agent, 3, 0, 0, 0, 0)]
    settings = config(gradients_clipping=0.5)
    learner = Learner(agent, SPEC, settings, GroupOf(*others))  # type: ignore[arg-type]
    unrolls = batch(agent)
    mine = gradients_of(agent, unrolls, settings)
    # Of four learners, one has no batch and does not weaken the step of the others.
    mean = [(a + b + c) / 3 for a, b, c in zip(mine, others[0][:-1], others[1][:-1], strict=True)]
    by_hand = ByHand(settings, learner.parameters())
    by_hand.update(mean, learning_rate=0.05)
    stats, _ = learner.update(unrolls, NOTHING)
    np.testing.assert_allclose(stats.gradient_norm, global_norm(mean), rtol=1e-4)
    by_hand.assert_equals(learner)
    # Frames count over all learners: three batches, 4 frames a step.
    assert learner.agent_steps == 3 * B * T
    assert learner.environment_frames == 4 * 3 * B * T


def test_a_learner_without_a_batch_follows_the_others() -> None:
    """It would be another network from then on, and its actors would act by it."""
    agent = agents.make("MLPAgent", SPEC)
    settings = config()
    other = sent(agent, 1, 1, 0, 1, 0)
    learner = Learner(agent, SPEC, settings, GroupOf(other))  # type: ignore[arg-type]
    by_hand = ByHand(settings, learner.parameters())
    by_hand.update([array.astype(np.float64) for array in other[:-1]], learning_rate=0.05)
    assert learner.join(NOTHING) == Control(stop=False, write_row=True, checkpoint=False)
    by_hand.assert_equals(learner)
    assert learner.counters() == {
        "learner_updates": 1,
        "agent_steps": B * T,
        "environment_frames": 4 * B * T,
    }


@pytest.mark.parametrize(
    ("mine", "others", "agreed"),
    [
        ((False, False, False), (0, 0, 0), (False, False, False)),
        ((True, False, False), (0, 0, 0), (True, False, False)),
        ((False, True, False), (0, 0, 0), (False, True, False)),
        ((False, False, True), (0, 0, 0), (False, False, True)),
        ((False, False, False), (0, 1, 0), (False, True, False)),
        ((True, False, True), (1, 1, 0), (True, True, True)),
    ],
)
def test_the_wish_of_one_learner_is_everybodys(
    mine: tuple[bool, ...], others: tuple[float, ...], agreed: tuple[bool, ...]
) -> None:
    """Learners that disagree about the end wait for each other for ever."""
    agent = agents.make("MLPAgent", SPEC)
    group = GroupOf(sent(agent, 1, 1, *others), sent(agent, 2, 0, 0, 0, 0))
    learner = Learner(agent, SPEC, config(), group)  # type: ignore[arg-type]
    _, control = learner.update(batch(agent), Control(*mine))
    assert control == Control(*agreed)


def test_learning_rate_falls_linearly_with_the_frames_to_zero() -> None:
    learner, agent = make()
    rates = []
    while not learner.done:
        rates.append(learner.learning_rate)
        learner.update(batch(agent), NOTHING)
    np.testing.assert_allclose(rates, 0.05 * (1 - np.arange(10) / 10), rtol=1e-6)
    assert learner.learning_rate == 0
    assert learner.counters() == {
        "learner_updates": 10,
        "agent_steps": 10 * B * T,
        "environment_frames": 40 * B * T,
    }
    learner.update(batch(agent), NOTHING)  # one more, as a group may need it
    assert learner.learning_rate == 0


def test_a_learner_goes_on_where_its_checkpoint_was() -> None:
    """Without the optimizer's slots or the counters, a resumed run is another run."""
    first, agent = make(momentum=0.5)
    unrolls = [batch(agent, seed=k) for k in range(4)]
    for each in unrolls[:2]:
        first.update(each, NOTHING)
    saved = {name: [v.numpy() for v in part.variables] for name, part in first.trackables().items()}
    counters = first.counters()
    for each in unrolls[2:]:
        first.update(each, NOTHING)

    second, _ = make(momentum=0.5)
    for name, part in second.trackables().items():
        for variable, array in zip(part.variables, saved[name], strict=True):
            variable.assign(array)
    second.restore_counters(counters)
    for each in unrolls[2:]:
        second.update(each, NOTHING)

    assert second.counters() == first.counters()
    for got, expected in zip(second.parameters(), first.parameters(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_published_parameters_do_not_change_under_the_reader() -> None:
    """Actors fetch them while the next update runs: a torn copy is a policy that never was."""
    learner, agent = make()
    published = learner.parameters()
    before = copy.deepcopy(published)
    learner.update(batch(agent), NOTHING)
    for array, kept in zip(published, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert any(np.any(a != b) for a, b in zip(published, learner.parameters(), strict=True))


def test_it_learns_what_pays() -> None:
    """The right action is shown by the observation; its reward arrives one step later."""
    spec = vector_spec(size=3, num_actions=3)
    settings = config(
        agent_name="MLPAgent",
        batch_size=16,
        discounting=0.0,
        learning_rate=0.01,
        total_environment_frames=1_000_000,
    )
    tf.random.set_seed(0)
    agent = agents.make("MLPAgent", spec)
    learner = Learner(agent, spec, settings, SingleLearner())
    rng = np.random.default_rng(0)
    unroll = tf.function(agent.unroll)
    generator = tf.random.Generator.from_seed(1)
    paid: list[float] = []
    for _ in range(40):
        best = rng.integers(0, 3, (16, T + 1))
        never = np.zeros((16, T + 1), np.bool_)
        env_outputs = EnvOutput(
            reward=tf.zeros((16, T + 1)),
            terminated=tf.constant(never),
            truncated=tf.constant(never),
            autoreset=tf.constant(never),
            episode_start=tf.constant(never),
            observation=tf.one_hot(best, 3),
            last_action=tf.zeros((16, T + 1), tf.int32),
        )
        logits = unroll(env_outputs, ())[0].policy_logits[:, :T]
        actions = agents.sample_actions(tf.reshape(logits, (-1, 3)), generator)
        actions = tf.reshape(actions, (16, T))
        reward = np.zeros((16, T + 1), np.float32)
        reward[:, 1:] = actions.numpy() == best[:, :T]
        learner.update(
            Unroll(
                parameter_version=tf.fill([16], tf.constant(learner.updates, tf.int64)),
                core_state=(),
                env_outputs=env_outputs._replace(reward=tf.constant(reward)),
                agent_outputs=agents.AgentOutput(actions, logits),
            ),
            NOTHING,
        )
        paid.append(reward[:, 1:].mean())
    assert paid[0] < 0.6  # chance is 1 / 3
    assert np.mean(paid[-5:]) > 0.9


# The loop.


class FakeLearner:
    """Counts updates; is done after `total`, fails at the update named `fails_at`."""

    def __init__(self, total: int, fails_at: int | None = None, agreed: Any = None) -> None:
        self.updates = 0
        self.total = total
        self.fails_at = fails_at
        self.agreed: dict[int, Control] = agreed or {}
        self.wishes: list[Control] = []
        self.batches: list[Any] = []
        self.joined: list[int] = []

    @property
    def done(self) -> bool:
        return self.updates >= self.total

    def parameters(self) -> list[int]:
        return [100 + self.updates]

    def update(self, unrolls: Any, control: Control) -> tuple[Any, Control]:
        if self.updates == self.fails_at:
            raise FloatingPointError("no update")
        self.batches.append(unrolls)
        return f"stats of {self.updates + 1}", self._step(control)

    def join(self, control: Control) -> Control:
        self.joined.append(self.updates + 1)
        return self._step(control)

    def _step(self, control: Control) -> Control:
        self.wishes.append(control)
        self.updates += 1
        return self.agreed.get(self.updates, control)


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A loop among fakes, and what happened in it, in order."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        learner: FakeLearner,
        rank: int = 0,
        row_due_at: tuple[int, ...] = (),
        checkpoint_interval_s: float = 60.0,
    ) -> None:
        self.clock = Clock()
        monkeypatch.setattr("impala_tf.learner.time", SimpleNamespace(monotonic=self.clock))
        self.learner = learner
        self.rank, self.size = rank, 2
        self.row_due_at = row_due_at
        self.events: list[tuple[Any, ...]] = []
        self.published: list[tuple[int, list[Any]]] = []
        self.idle_s: list[float] = []
        self.loop = TrainingLoop(
            learner,  # type: ignore[arg-type]
            lambda version, arrays: self.published.append((version, arrays)),
            self,
            lambda: self.events.append(("checkpoint", learner.updates)),
            self,  # type: ignore[arg-type]
            checkpoint_interval_s,
        )

    def run(self, batches: Iterator[Any] | None = None, stop_at: int | None = None) -> None:
        """Runs on endless batches or those given; a stop is requested before update `stop_at`."""
        self.loop.run(
            itertools.count() if batches is None else batches,  # type: ignore[arg-type]
            lambda: stop_at is not None and self.learner.updates >= stop_at - 1,
        )

    # What the loop asks of its recorder ...

    def record_update(self, stats: UpdateStats, idle_s: float) -> None:
        assert stats == f"stats of {self.learner.updates}"
        self.idle_s.append(idle_s)

    def row_due(self) -> bool:
        return self.learner.updates + 1 in self.row_due_at

    def interval(self) -> dict[str, Any]:
        return {"of": self.rank}

    def write_row(self, intervals: list[dict[str, Any]], learner: Any) -> None:
        assert learner is self.learner
        self.events.append(("row", self.learner.updates, intervals))

    # ... and of its group.

    def gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        self.events.append(("gather", self.learner.updates))
        return [value, {"of": "another"}]

    def of_kind(self, *kinds: str) -> list[tuple[str, int]]:
        return [(event[0], event[1]) for event in self.events if event[0] in kinds]


LAST = "row", "checkpoint"


def test_training_ends_when_the_frames_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, FakeLearner(total=3))
    batches = iter("abcdef")
    world.run(batches)
    assert world.learner.batches == ["a", "b", "c"]
    assert next(batches) == "d"  # no batch was taken only to be thrown away
    assert world.of_kind(*LAST) == [("row", 3), ("checkpoint", 3)]


def test_every_update_is_published_and_so_is_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors wait for parameters before their first step: no version 0, no unroll, no update."""
    world = World(monkeypatch, FakeLearner(total=2))
    world.run()
    assert world.published == [(0, [100]), (1, [101]), (2, [102])]


def test_a_run_that_is_done_already_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, FakeLearner(total=0))
    world.run(iter(()))
    assert world.published == [(0, [100])]
    assert world.of_kind(*LAST) == [("row", 0), ("checkpoint", 0)]


def test_a_stop_request_ends_with_a_row_and_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C must not cost the work since the last checkpoint."""
    world = World(monkeypatch, FakeLearner(total=100))
    world.run(stop_at=4)
    assert world.learner.updates == 4
    assert [wish.stop for wish in world.learner.wishes] == [False, False, False, True]
    assert world.of_kind(*LAST) == [("row", 4), ("checkpoint", 4)]


def test_another_learners_stop_ends_this_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = {3: Control(stop=True, write_row=False, checkpoint=False)}
    world = World(monkeypatch, FakeLearner(total=100, agreed=stop))
    world.run()
    assert world.learner.updates == 3
    assert world.of_kind(*LAST) == [("row", 3), ("checkpoint", 3)]


def test_a_closed_queue_ends_with_a_row_and_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, FakeLearner(total=100))
    world.run(iter("ab"))
    assert world.learner.updates == 2
    assert world.of_kind(*LAST) == [("row", 2), ("checkpoint", 2)]


def test_a_failed_update_leaves_the_last_checkpoint_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that an error left behind must not replace the ones that were good."""
    world = World(monkeypatch, FakeLearner(total=100, fails_at=2))
    with pytest.raises(FloatingPointError):
        world.run()
    assert world.events == []


def test_rows_are_written_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, FakeLearner(total=5), row_due_at=(2, 4))
    world.run()
    assert world.of_kind("row") == [("row", 2), ("row", 4), ("row", 5)]
    assert world.events[1] == ("row", 2, [{"of": 0}, {"of": "another"}])


def test_checkpoints_come_at_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from the last one: a slow save must not make the next one due at once."""
    world = World(monkeypatch, FakeLearner(total=8), checkpoint_interval_s=25.0)

    def ten_seconds_each() -> Iterator[int]:
        while True:
            world.clock.now += 10.0
            yield 0

    world.run(ten_seconds_each())
    # 30 s: due; 60 s: 30 s later, due; 80 s: the end.
    assert world.of_kind("checkpoint") == [("checkpoint", 3), ("checkpoint", 6), ("checkpoint", 8)]


def test_only_the_wait_for_batches_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """learner_idle_fraction says whether more actors would help: not so if updates were counted."""

    class Slow(FakeLearner):
        def update(self, unrolls: Any, control: Control) -> tuple[Any, Control]:
            world.clock.now += 100.0
            return super().update(unrolls, control)

    world = World(monkeypatch, Slow(total=3), row_due_at=(1,))

    def three_seconds_each() -> Iterator[int]:
        while True:
            world.clock.now += 3.0
            yield 0

    world.run(three_seconds_each())
    assert world.idle_s == [3.0, 3.0, 3.0]


def test_other_learners_write_nothing_and_wish_nothing_but_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two writers of one checkpoint or one metrics.csv spoil both."""
    agreed = {2: Control(stop=False, write_row=True, checkpoint=True)}
    learner = FakeLearner(total=100, agreed=agreed)
    world = World(monkeypatch, learner, rank=1, row_due_at=(1, 2, 3), checkpoint_interval_s=1e-9)
    world.clock.now += 1.0
    world.run(stop_at=3)
    assert [tuple(wish) for wish in learner.wishes] == [
        (False, False, False),
        (False, False, False),
        (True, False, False),
    ]
    # It sends its part of the agreed row and of the last one, or rank 0 would wait for it.
    assert world.events == [("gather", 2), ("gather", 3)]


def test_without_a_batch_it_joins_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step is published like any other, carries its wishes, and has no losses to record."""
    world = World(monkeypatch, FakeLearner(total=100), row_due_at=(2,))
    world.run(itertools.chain(["a", None], itertools.repeat(None)), stop_at=3)
    assert world.learner.batches == ["a"]
    assert world.learner.joined == [2, 3]
    assert [wish.stop for wish in world.learner.wishes] == [False, False, True]
    assert [version for version, _ in world.published] == [0, 1, 2, 3]
    assert len(world.idle_s) == 1
    assert world.of_kind(*LAST) == [("row", 2), ("row", 3), ("checkpoint", 3)]


def test_a_row_is_written_before_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint stores how far the files go: games since the last row would be lost."""
    agreed = {2: Control(stop=False, write_row=False, checkpoint=True)}
    world = World(monkeypatch, FakeLearner(total=3, agreed=agreed))
    world.run()
    assert world.of_kind(*LAST)[:2] == [("row", 2), ("checkpoint", 2)]


def test_a_real_learner_runs_its_frames_out() -> None:
    """The pieces fit: compiled update, counters and loop."""
    learner, agent = make()
    versions: list[int] = []
    saves: list[int] = []
    recorded: list[float] = []
    recorder = SimpleNamespace(
        record_update=lambda stats, idle_s: recorded.append(float(stats.loss_total)),
        row_due=lambda: False,
        interval=dict,
        write_row=lambda intervals, learner: None,
    )
    loop = TrainingLoop(
        learner,
        lambda version, arrays: versions.append(version),
        recorder,
        lambda: saves.append(learner.environment_frames),
        SingleLearner(),
        checkpoint_interval_s=1e9,
    )
    loop.run((batch(agent, seed=k) for k in itertools.count()), lambda: False)
    assert versions == list(range(11))
    assert len(recorded) == 10 and np.isfinite(recorded).all()
    assert saves == [10 * B * T * SPEC.frames_per_step]

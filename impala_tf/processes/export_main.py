"""--mode=export: the policy of a run as a SavedModel."""

from __future__ import annotations

from impala_tf.config import Given, user_commands
from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.processes.common import logdir_of, resolve
from impala_tf.processes.tensorflow_startup import import_tensorflow, select_device
from impala_tf.processes.trained_flags import as_trained


def main(given: Given) -> int:
    """Exports the newest checkpoint of --logdir to its folder `export`; returns 0.

    The flags that are not given are the run's.

    Raises:
      ConfigError: there is no logdir or no complete checkpoint, or the checkpoint is of another
        level or network.
    """
    # float32, as other machines may lack bfloat16.
    config, spec = resolve(as_trained(given).replace(precision="float32"))
    import_tensorflow()  # takes seconds, so questions and wrong flags come first
    from impala_tf.evaluation.export import export
    from impala_tf.processes import trained_agent

    select_device(config.process.device)
    trained = trained_agent.load(config, spec)
    action_space = suites.action_space(config.environment)
    folder = logdir_of(config).path / "export"
    recipe = suites.recipe(config.environment)
    longest = games.longest_game(config.environment)
    written = export(trained.agent, spec, action_space, recipe, folder, longest_game=longest)
    print(f"{trained.checkpoint} at {trained.environment_frames:,} frames; {spec.protocol}")
    print(f"written to {folder}: {', '.join(written)}")
    if recipe is None:
        print("no play.py: this package makes the level, or converts what the agent sees of it")
    else:
        print("to play without this package:", user_commands.python(str(folder / "play.py")))
    return 0

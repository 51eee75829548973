"""Plays with an exported policy: python play.py [GAMES] [sampled|greedy].

It needs TensorFlow, Gymnasium and the level's package. `level.json` says how to make the level.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it logs that there is no GPU as errors
import tensorflow as tf  # noqa: E402

FOLDER = Path(__file__).parent


def play(games: int = 10, choice: str = "sampled") -> list[float]:
    """Plays whole games and returns their returns; prints how many were cut, if any were."""
    level = json.loads((FOLDER / "level.json").read_text())
    for module in level["imports"]:
        importlib.import_module(module)
    module, maker = level["make"].split(":")
    env = getattr(importlib.import_module(module), maker)(**level["settings"])
    same_step = getattr(env.metadata.get("autoreset_mode"), "name", "") == "SAME_STEP"
    counts_lives = level.get("lost_life_starts_episode", False)
    current = Path.cwd()
    os.chdir(FOLDER)  # TensorFlow would read [ and \ in the folder's name as a pattern
    act = tf.saved_model.load(".").signatures[choice]
    os.chdir(current)
    specs = act.structured_input_signature[1]
    inputs = {
        name: np.zeros((1, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
        for name, spec in specs.items()
    }
    observation, info = env.reset(seed=1)
    returns: list[float] = []
    total, length, starts, over = 0.0, 0, True, False
    cut = 0
    lives = info["lives"][0] if counts_lives else 0
    while len(returns) < games:
        for part, name in level["inputs"].items():
            value = observation[part] if isinstance(observation, dict) else observation
            inputs[name] = value.reshape(inputs[name].shape).astype(inputs[name].dtype)
        inputs["episode_start"] = np.array([starts])
        answer = act(**{name: tf.constant(value) for name, value in inputs.items()})
        inputs |= {name: value.numpy() for name, value in answer.items() if name in inputs}
        inputs["last_action"] = answer["action"].numpy()
        action = answer["environment_action"].numpy()
        observation, reward, terminated, truncated, info = env.step(action)
        inputs["reward"] = np.asarray(reward, np.float32)
        ended = bool(terminated[0] or truncated[0])
        # Unless the mode is SAME_STEP, the step after the end of a game ignores its action and
        # starts the next game.
        starts, was_over, over = ended if same_step else over, over, ended
        if counts_lives:  # the loss of a life resets the core, as in training
            old_lives, lives = lives, info["lives"][0]
            starts = starts or bool(0 < lives < old_lives and not was_over and not terminated[0])
        total += float(reward[0])
        length += same_step or not was_over
        if over:
            returns.append(total)
            total, length = 0.0, 0
        elif length >= level["longest_game"]:
            cut += 1
            returns.append(total)
            total, length, starts, over = 0.0, 0, True, False
            observation, info = env.reset()
            inputs["reward"] = np.zeros(1, np.float32)
            lives = info["lives"][0] if counts_lives else 0
    if cut:
        print(
            f"{cut} of {games} games had not ended after {level['longest_game']:,} steps and were"
            " cut there; the level needs a time limit (max_episode_steps)"
        )
    return returns


if __name__ == "__main__":
    sys.path.append(str(Path.cwd()))  # the level's module may be there
    parser = argparse.ArgumentParser("play.py", description="Plays whole games.")
    parser.add_argument("games", type=int, nargs="?", default=10, help="how many (10)")
    parser.add_argument("policy", nargs="?", default="sampled", choices=("sampled", "greedy"))
    asked = parser.parse_args()
    if asked.games < 1:
        parser.error(f"games: must be 1 or more, not {asked.games}")
    played = play(asked.games, asked.policy)
    protocol = json.loads((FOLDER / "level.json").read_text())["protocol"]
    print(f"{len(played)} games: mean {np.mean(played):.2f}, returns {played}; {protocol}")

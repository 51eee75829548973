"""The model card: README.md of an exported folder, in the format of the Hugging Face hub."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from impala_tf import __version__
from impala_tf import config as configs
from impala_tf.config import Given
from impala_tf.evaluation import exported
from impala_tf.evaluation.exported import About
from impala_tf.evaluation.games import cut_note
from impala_tf.reporting import numbers
from impala_tf.reporting.runs import Run
from impala_tf.sharing.faithful import Difference

_FILES = {
    exported.MODEL: "the network for LiteRT, {precision}: the observation and the core state of one"
    " environment to the policy's logits and the next core state",
    "agent.json": "the level, and the settings that the model needs to play it",
    exported.CONFIG: "the flags that repeat the run",
    exported.EVALUATION: "the games of the table above",
    exported.CURVE_CSV: "the learning curve",
    exported.SAVED_MODEL: "the policy for TensorFlow, which needs no impala_tf; play.py plays it if"
    " it is there",
}


class Facts(NamedTuple):
    """The facts in a card."""

    about: About
    flags: Mapping[str, Any]  # the flags that repeat the run
    run: Run
    evaluation: Mapping[str, Any]  # evaluation.json
    difference: Difference
    modules: Sequence[str]  # the user's modules that the level needs
    files: Sequence[str]  # the names of the files in the folder


def text(facts: Facts) -> str:
    """Returns the content of README.md."""
    parts = [
        f"---\n{yaml.safe_dump(_front_matter(facts), sort_keys=False, allow_unicode=True)}---",
        f"# {facts.about.agent_name} on {_levels_text(facts)}",
        f"A trained reinforcement learning agent: {facts.about.agent_name}, trained with"
        f" {facts.about.algorithm} on {_levels_text(facts)} for"
        f" {facts.about.environment_frames:,} environment frames by impala_tf.",
        "## Evaluation",
        _evaluation(facts),
        "## How to play it",
        how_to_play(facts),
        "## How it learned",
        _learning(facts),
        "## Files",
        _files(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _levels_text(facts: Facts) -> str:
    names = [row["level_name"] for row in _rows(facts)]
    return names[0] if len(names) == 1 else f"{len(names)} levels"


def _rows(facts: Facts) -> list[Mapping[str, Any]]:
    """Returns the results of each level."""
    return list(facts.evaluation.get("levels", [facts.evaluation]))


def _front_matter(facts: Facts) -> dict[str, Any]:
    """Returns the card's metadata, in the form of `huggingface_hub.ModelCardData`."""
    names = [row["level_name"] for row in _rows(facts)]
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "impala"]
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"type": row["level_name"], "name": row["level_name"]},
            "metrics": [
                {
                    "type": "mean_reward",
                    "name": "mean_reward",
                    "value": f"{row['mean']:.2f} +/- {row['std']:.2f}",
                    "verified": False,
                    "args": {"protocol": facts.evaluation["protocol"]},
                }
            ],
        }
        for row in _rows(facts)
    ]
    return {
        "library_name": "impala_tf",
        "pipeline_tag": "reinforcement-learning",
        "tags": list(dict.fromkeys([*tags, facts.about.algorithm, *names])),
        "model-index": [{"name": facts.about.agent_name, "results": results}],
    }


def _evaluation(facts: Facts) -> str:
    lines = [
        "| level | games | mean return | std | median | lowest | highest | normalised |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in _rows(facts):
        score = f"{row['normalized_mean']:.3f}" if "normalized_mean" in row else numbers.NOTHING
        figures = [f"{row[name]:.2f}" for name in ("mean", "std", "median")]
        ends = [f"{row[name]:g}" for name in ("min", "max")]
        cells = [row["level_name"], str(row["num_episodes"]), *figures, *ends, score]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Whole games, rewards not clipped, {facts.evaluation['test_policy']} actions, seed"
        f" {facts.evaluation['seed']}; played with {exported.MODEL}.",
        *(f"{row['level_name']}: {note}." for row in _rows(facts) if (note := cut_note(row))),
        "",
        f"Protocol: {facts.evaluation['protocol']}.",
    ]
    if (gap := facts.evaluation.get("generalization")) is not None:
        test = gap["test"]
        lines += [
            "",
            f"Levels that it was not trained on ({test['levels']}): mean return"
            f" {test['mean']:.2f} in {test['num_episodes']} games.",
        ]
    unseen = [row for row in _rows(facts) if "unseen" in row]
    if unseen:
        lines += ["", "Generated levels that it was not trained on:", ""]
        lines += [
            f"- {row['level_name']}: mean return {row['unseen']['mean']:.2f} in"
            f" {row['unseen']['num_episodes']} games"
            for row in unseen
        ]
    return "\n".join(lines)


def how_to_play(facts: Facts) -> str:
    """Returns the part of the card that says how to play with the agent."""
    trust = ", trust_level_module=True" if facts.modules else ""
    arguments = "state"
    if configs.composition(facts.about.agent_name).observes_last_action_and_reward:
        arguments = "state, reward=reward"
    act = [
        "env = agent.make_env()  # a Gymnasium vector environment of length 1",
        "observation, _ = env.reset(seed=1)",
        f"action, state = agent.act(observation[0])  # then agent.act(observation[0], {arguments})",
    ]
    if facts.about.level["observation"].keys() != {""}:
        act = [f"# then agent.act(observation, {arguments}); the form: agent.observation_space",
               "action, state = agent.act(observation)"]  # fmt: skip
    flag = " --trust_level_module" if facts.modules else ""
    python = [
        "```python",
        "import impala_tf as impala",
        "",
        f'agent = impala.load("."{trust})',
        *act,
        "```",
        "",
    ]
    lines = [
        "With impala_tf, in the folder that holds these files; it needs no TensorFlow:",
        "",
        *(python if facts.about.level["levels"] == 1 else []),  # `load` refuses several levels
        f"`impala test --logdir=.{flag}` plays whole games.",
    ]
    if facts.modules:
        lines += ["", f"Its level is defined in its author's modules: {', '.join(facts.modules)}."]
    return "\n".join(lines)


def _learning(facts: Facts) -> str:
    run = facts.run
    given = Given({name: value for name, value in facts.flags.items() if name in configs.BUILT_IN})
    named = [f"--{name}={given[name]}" for name in ("level_name", "seed")]
    others = configs.to_flags(given.without("level_name", "seed"))
    command = shlex.join(["impala", "train", *named, *others])
    has_curve = exported.CURVE in facts.files
    lines = [f"![Learning curve]({exported.CURVE})", ""] if has_curve else []
    return "\n".join([
        *lines,
        f"Its run had {run.frames:,} frames in {run.minutes:.1f} minutes. Machine of"
        f" its learner: {run.machine}.",
        "",
        "The command that repeats it:",
        "",
        f"    {command}",
        "",
        f"Trained at commit {run.commit}, exported by impala_tf {__version__}.",
    ])  # fmt: skip


def _files(facts: Facts) -> str:
    precision = facts.about.precision
    rows = [
        f"| {name} | {about.format(precision=precision)} |"
        for name, about in _FILES.items()
        if name in facts.files
    ]
    sentence = str(facts.difference)
    head = ["| file | what it holds |", "|---|---|"]
    return "\n".join([*head, *rows, "", f"{sentence[0].upper()}{sentence[1:]}."])

"""The model card: README.md of an exported folder, in the format of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from impala_tf import __version__
from impala_tf.evaluation.exported import About
from impala_tf.evaluation.games import cut_note
from impala_tf.reporting.runs import Run
from impala_tf.reporting.texts import escape_in_markdown

_TEMPLATE = Path(__file__).with_name("card.md.jinja")


def text(
    about: About,
    run: Run,
    evaluation: Mapping[str, Any],
    modules: Sequence[str],
    files: Sequence[str],
) -> str:
    """Returns the content of README.md.

    Args:
      about: the agent and its level.
      run: the run that trained it.
      evaluation: the content of evaluation.json.
      modules: the user's modules that the level needs.
      files: the names of the files in the folder.
    """
    rows = list(evaluation.get("levels", [evaluation]))  # the results of each level
    names = [row["level_name"] for row in rows]
    metadata = yaml.safe_dump(
        _metadata(about, rows, evaluation["protocol"]), sort_keys=False, allow_unicode=True
    )
    environment = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=escape_in_markdown,
    )
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        metadata=Markup(metadata),
        about=about,
        levels=names[0] if len(names) == 1 else f"{len(names)} levels",
        rows=rows,
        cut_notes={row["level_name"]: note for row in rows if (note := cut_note(row))},
        evaluation=evaluation,
        run=run,
        modules=modules,
        files=files,
        version=__version__,
    )


def _metadata(about: About, rows: Sequence[Mapping[str, Any]], protocol: str) -> dict[str, Any]:
    """Returns the card's metadata, in the form of `huggingface_hub.ModelCardData`."""
    learning = "reinforcement-learning"
    results = [
        {
            "task": {"type": learning, "name": learning},
            "dataset": {"type": row["level_name"], "name": row["level_name"]},
            "metrics": [
                {
                    "type": "mean_reward",
                    "name": "mean_reward",
                    "value": f"{row['mean']:.2f} +/- {row['std']:.2f}",
                    "verified": False,
                    "args": {"protocol": protocol},
                }
            ],
        }
        for row in rows
    ]
    names = [row["level_name"] for row in rows]
    tags = [learning, "deep-reinforcement-learning", "impala", about.algorithm, *names]
    return {
        "library_name": "impala_tf",
        "pipeline_tag": learning,
        "tags": list(dict.fromkeys(tags)),
        "model-index": [{"name": about.agent_name, "results": results}],
    }

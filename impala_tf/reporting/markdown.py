"""report.md: the same as the page, without curves and videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impala_tf.reporting import facts
from impala_tf.reporting.table import LevelSummary, table


def markdown(
    summaries: Sequence[LevelSummary], pictures: Mapping[str, str], command: str, written: str
) -> str:
    """Returns the report in Markdown.

    Args:
      summaries: one per level.
      pictures: {level: file name of its curves}; a level without curves is missing.
      command: that writes the report.
      written: when it was written, as text.
    """
    lines = [f"# {facts.title([summary.level for summary in summaries])}", ""]
    for summary in summaries:
        if len(summaries) > 1:
            lines += [f"## {summary.level.name}", ""]
        lines += [facts.headline(summary), ""]
        if name := pictures.get(summary.level.name):
            lines += [f"![{facts.description(summary, 'frames and minutes')}]({name})", ""]
            lines += [facts.LEGEND, ""]
        lines += [*_table(summary), ""]
        lines += [f"* {note}" for note in facts.notes(summary)] + [""]
        lines += [f"* {name}: {value}" for name, value in facts.facts(summary.level.runs)]
        lines += ["", "The command of each run:", ""]
        for name, each in facts.commands(summary.level):
            lines += [f"    # {name}", f"    {each}"]
        lines.append("")
    return "\n".join([*lines, f"Written by impala_tf on {written} with", "", f"    {command}", ""])


def _table(summary: LevelSummary) -> list[str]:
    titles, rows = table(summary)
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]

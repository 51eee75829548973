"""The documents of a report: report.html, which needs no other file, and report.md."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from impala_tf.reporting import curves, facts, style
from impala_tf.reporting.summary import Exhibit, LevelSummary
from impala_tf.reporting.table import best, table

# With this policy, the browser loads nothing but the file itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"


def html(summaries: Sequence[LevelSummary], command: str, written: str) -> str:
    """Returns the page.

    Args:
      summaries: one per level.
      command: the command that writes the page.
      written: when it was written, as text.
    """
    title = facts.title([summary.level for summary in summaries])
    several = len(summaries) > 1
    sections = "".join(_section(*numbered, several) for numbered in enumerate(summaries))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style.THEMES}{style.CHART}{style.PAGE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_contents(summaries) if several else ""}</header>
<main>
{sections}</main>
<footer>
<p>Written by impala_tf on {escape(written)} with</p>
<pre>{escape(command)}</pre>
</footer>
</body>
</html>
"""


def _contents(summaries: Sequence[LevelSummary]) -> str:
    links = "".join(
        f'<li><a href="#level-{number}">{escape(summary.level.name)}</a>: '
        f"{escape(facts.headline(summary))}</li>\n"
        for number, summary in enumerate(summaries)
    )
    return f"<nav><ul>\n{links}</ul></nav>\n"


def _section(number: int, summary: LevelSummary, several: bool) -> str:
    heading = f"<h2>{escape(summary.level.name)}</h2>\n" if several else ""
    return f"""<section id="level-{number}">
{heading}<p class="lead">{escape(facts.headline(summary))}</p>
<p class="dim">{escape(facts.byline(summary))}</p>
{_curves(summary)}
{_table(summary)}
{_videos(summary)}
{_facts(summary)}
{_commands(summary)}
</section>
"""


def _curves(summary: LevelSummary) -> str:
    charts = curves.charts(summary)
    if not charts:
        return f"<p>There are no curves: {facts.NO_CURVES}.</p>"
    legend = "".join(
        f"<li>{curves.key(number)}{escape(setting.label)}</li>"
        for number, setting in enumerate(summary.level.settings)
    )
    return f"""<figure>
<ul class="legend">{legend}</ul>
<div class="charts">
{"".join(charts)}
</div>
<figcaption>{facts.legend(summary)}</figcaption>
</figure>"""


def _table(summary: LevelSummary) -> str:
    titles, rows = table(summary)
    top = best(summary)
    head = "".join(f'<th scope="col" role="columnheader">{escape(title)}</th>' for title in titles)
    body = ""
    for number, (row, cells) in enumerate(zip(summary.rows, rows, strict=True)):
        first = f'<th scope="row" role="rowheader">{curves.key(number)}{escape(cells[0])}</th>'
        cells_after = "".join(
            f'<td role="cell" data-label="{escape(title)}"{_emphasis(title, row is top)}>'
            f"{escape(cell)}</td>"
            for title, cell in zip(titles[1:], cells[1:], strict=True)
        )
        body += f'<tr role="row">{first}{cells_after}</tr>\n'
    compared, notes = (
        "".join(f"<p>{escape(line)}</p>" for line in lines)
        for lines in (facts.comparisons(summary), facts.notes(summary))
    )
    return f"""<h3>Figures</h3>
<div class="scroll"><table role="table">
<thead><tr role="row">{head}</tr></thead>
<tbody>
{body}</tbody>
</table></div>
{compared}<div class="dim">{notes}</div>"""


def _emphasis(title: str, is_best: bool) -> str:
    return ' class="best"' if is_best and title == "final return" else ""


def _videos(summary: LevelSummary) -> str:
    if not any(row.exhibit.caption for row in summary.rows):
        return ""
    figures = "".join(_video(row.setting.label, row.exhibit) for row in summary.rows)
    return f'<h3>The agents play</h3>\n<div class="videos">\n{figures}</div>'


def _video(setting: str, exhibit: Exhibit) -> str:
    label = escape(setting)
    if exhibit.clip is None:
        picture, caption = f'<div class="no-video">{escape(exhibit.caption)}</div>', ""
    else:
        data = base64.b64encode(exhibit.clip).decode("ascii")
        picture = (
            "<video controls muted loop playsinline preload=metadata"
            f' aria-label="{label} plays" src="data:video/mp4;base64,{data}"></video>'
        )
        caption = f": {escape(exhibit.caption)}"
    return f"<figure>{picture}<figcaption><strong>{label}</strong>{caption}</figcaption></figure>\n"


def _facts(summary: LevelSummary) -> str:
    pairs = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n"
        for name, value in facts.facts(summary.level.runs)
    )
    return f"<h3>How it was measured</h3>\n<dl>\n{pairs}</dl>"


def _commands(summary: LevelSummary) -> str:
    lines = "".join(
        f"<p>{escape(name)}</p>\n<pre>{escape(command)}</pre>\n"
        for name, command in facts.commands(summary.level)
    )
    return f"<details>\n<summary>The command of each run</summary>\n{lines}</details>"


def markdown(
    summaries: Sequence[LevelSummary], pictures: Mapping[str, str], command: str, written: str
) -> str:
    """Returns the report in Markdown.

    Args:
      summaries: one per level.
      pictures: {level: file name of its curves}; a level without curves is missing.
      command: the command that writes the report.
      written: when it was written, as text.
    """
    lines = [f"# {facts.title([summary.level for summary in summaries])}", ""]
    for summary in summaries:
        if len(summaries) > 1:
            lines += [f"## {summary.level.name}", ""]
        lines += [facts.headline(summary), ""]
        if name := pictures.get(summary.level.name):
            lines += [f"![{facts.description(summary, 'frames and minutes')}]({name})", ""]
            lines += [facts.legend(summary), ""]
        lines += [*_markdown_table(summary), ""]
        lines += [f"* {line}" for line in [*facts.comparisons(summary), *facts.notes(summary)]]
        lines.append("")
        lines += [f"* {name}: {value}" for name, value in facts.facts(summary.level.runs)]
        lines += ["", "The command of each run:", ""]
        for name, line in facts.commands(summary.level):
            lines += [f"    # {name}", f"    {line}"]
        lines.append("")
    return "\n".join([*lines, f"Written by impala_tf on {written} with", "", f"    {command}", ""])


def _markdown_table(summary: LevelSummary) -> list[str]:
    titles, rows = table(summary)
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]

"""MkDocs hook: the site is made of the repository's own files, under their own paths.

So a relative link works on GitHub and on the site. Links to files that are not on the site, such
as source files, become plain text. The pages of flags and metrics come from the project's tables;
these need none of its packages.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT))

import impala_tf  # noqa: E402
from impala_tf.config import flags  # noqa: E402
from impala_tf.config.other_names import OTHER_NAMES  # noqa: E402
from impala_tf.monitoring import metrics  # noqa: E402

_SHOWN = (".md", ".svg", ".css")
_FOLDERS = ("", "docs", "examples")
_PICTURES = ("sandbox/curves",)  # the records of experiments beside them are not on the site
_FIRST = ("train", "Run", "load", "Agent", "evaluate", "Evaluation", "Callback")
_OTHERS = ("impala_tf.config.algorithms", "impala_tf.types")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Returns the files of the site: the theme's, the repository's, and the generated pages."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    own = [
        File(str(path.relative_to(_ROOT)), str(_ROOT), config.site_dir, config.use_directory_urls)
        for folder in (*_FOLDERS, *_PICTURES)
        for path in sorted(_ROOT.glob(posixpath.join(folder, "*.*")))
        if path.suffix in _SHOWN and not (folder in _PICTURES and path.suffix == ".md")
    ]
    pages = {"flags": flags_page, "metrics": metrics_page, "reference": reference_page}
    made = [
        File.generated(config, f"docs/{name}.md", content=page()) for name, page in pages.items()
    ]
    return Files([*theme, *own, *made])


def flags_page() -> str:
    """Returns the page of all flags, by group, with their names in other libraries."""
    other_names = defaultdict(list)
    for other, ours in OTHER_NAMES.items():
        other_names[ours.partition("=")[0]].append(f"`--{other}`")
    parts = [
        "# Flags\n\nAll flags of `impala train` and of the other commands; in Python, they are"
        " keywords. A default that is empty follows from the level, the preset, other flags or the"
        " machine: `impala train --level_name=LEVEL --help_all` shows the one of a level."
    ]
    for group, cls in flags.GROUPS.items():
        rows = []
        for flag in flags.FLAGS.values():
            if flag.group == group:
                text = flags.texts()[flag.name]
                if flag.choices:
                    text += f" One of {', '.join(f'`{choice}`' for choice in flag.choices)}."
                if flag.name in other_names:
                    text += f" Elsewhere: {', '.join(other_names[flag.name])}."
                rows.append((f"`--{flag.name}`", _default(flag.default), text))
        parts += [f"## {group.title()}", cls.__doc__ or "", _table(("flag", "default", ""), rows)]
    return "\n\n".join(parts)


def _default(value: Any) -> str:
    if value is None or value in ("", ()):
        return ""
    return f"`{value}`" if not isinstance(value, bool) else ("on" if value else "off")


def metrics_page() -> str:
    """Returns the page of the columns of a run's files."""
    run = [(f"`{n}`", f"`{metrics.tag(n)}`", text) for n, text in metrics.METRICS.items()]
    parts = ["# Metrics", "## metrics.csv", _table(("column", "in TensorBoard", ""), run)]
    tables = {"metrics-levels.csv": metrics.LEVEL_METRICS}
    tables["evaluation.csv"] = metrics.EVALUATION_METRICS
    for name, columns in tables.items():
        rows = [(f"`{column}`", text) for column, text in columns.items()]
        parts += [f"## {name}", _table(("column", ""), rows)]
    return "\n\n".join(parts)


def reference_page() -> str:
    """Returns the page of the public interface, from its docstrings."""
    names = [*_FIRST, *(name for name in impala_tf._PLACES if name not in _FIRST)]
    blocks = [
        f"::: {impala_tf._PLACES[name]}.{name}\n    options: {{ heading: impala_tf.{name} }}"
        for name in names
    ]
    blocks += [f"::: {module}" for module in _OTHERS]
    return "\n\n".join(["# Python reference", *blocks])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    escaped = ([cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Returns a page in which links to files that are not on the site are text with a path."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if files.get_file_from_path(target) is None and (_ROOT / target).exists():
            return link[1] if link[1].strip("`") == target else f"{link[1]}: `{target}`"
        return link[0]

    return _LINK.sub(shown, markdown)

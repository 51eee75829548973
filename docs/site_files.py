"""MkDocs hook: the site is made of the repository's own files, under their own paths.

So a relative link works on GitHub and on the site. Links to files that are not on the site, such
as source files, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_SHOWN = (".md", ".svg", ".png", ".gif")
_FOLDERS = ("", "docs", "sandbox", "sandbox/curves", "examples")
# The public interface. A new module of it gets a line here.
_MODULES = (
    "impala_tf.api.run",
    "impala_tf.api.trained",
    "impala_tf.callbacks",
    "impala_tf.config.algorithms",
    "impala_tf.types",
)
_REFERENCE = "docs/reference.md"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Returns the files of the site: the theme's and the repository's."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    own = [
        File(str(path.relative_to(_ROOT)), str(_ROOT), config.site_dir, config.use_directory_urls)
        for folder in _FOLDERS
        for path in sorted(_ROOT.glob(posixpath.join(folder, "*.*")))
        if path.suffix in _SHOWN
    ]
    text = "# Python interface\n\n" + "".join(f"::: {module}\n\n" for module in _MODULES)
    return Files([*theme, *own, File.generated(config, _REFERENCE, content=text)])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Returns a page in which links to files that are not on the site are text."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if files.get_file_from_path(target) is None and (_ROOT / target).exists():
            return link[1]
        return link[0]

    return _LINK.sub(shown, markdown)

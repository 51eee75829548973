"""The documentation becomes a site: every link and anchor of it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from impala_tf.config.flags import FLAGS
from impala_tf.monitoring.metrics import METRICS
from tests.helpers.runs import PROJECT


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={tmp_path}"],
        cwd=PROJECT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reference, flags, metrics = (
        (tmp_path / "docs" / name / "index.html").read_text()
        for name in ("reference", "flags", "metrics")
    )
    assert "Unroll" in reference
    assert all(f"<code>--{name}</code>" in flags for name in FLAGS)
    assert all(f"<code>{name}</code>" in metrics for name in METRICS)
    assert not (tmp_path / "sandbox" / "atari").exists()  # records are no pages
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]* (?:src|href)=\"?([^\" >]+)", page.read_text()
        )
        assert not [url for url in loaded if url.startswith(("http:", "https:", "//"))], page

"""Reports that compare runs: a self-contained HTML page, Markdown and CSV."""

"""Reports that compare runs: one HTML page without anything external, Markdown and CSV."""

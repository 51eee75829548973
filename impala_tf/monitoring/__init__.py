"""What a run reports: metrics, files, status and the terminal display."""

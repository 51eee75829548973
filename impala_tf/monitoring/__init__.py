"""A run's reports: metrics, files, status and the terminal display."""

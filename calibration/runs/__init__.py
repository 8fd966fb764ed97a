"""Parameters of training runs, fitted to published ones, and their spread."""

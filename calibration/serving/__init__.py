"""Parameters of serving engines, fitted to published runs."""

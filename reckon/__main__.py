"""`python -m reckon`."""

from reckon.console.cli import entry

entry()

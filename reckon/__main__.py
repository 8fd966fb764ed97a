"""`python -m reckon`."""

from reckon.cli import entry

entry()

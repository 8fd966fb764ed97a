"""Sweeps over models, plans, machines and technologies, and the best shares of a machine's area."""

from reckon.explore.evaluate import Explored, explore
from reckon.explore.grid import Grid, read_grid

__all__ = ["Explored", "Grid", "explore", "read_grid"]

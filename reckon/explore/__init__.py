"""Sweeps over models, plans, machines and technologies, and the best shares of a machine's area."""

from reckon.explore.evaluate import Explored, explore
from reckon.explore.grid import Grid, read_grid
from reckon.explore.optimise import Optimum, optimise

__all__ = ["Explored", "Grid", "Optimum", "explore", "optimise", "read_grid"]

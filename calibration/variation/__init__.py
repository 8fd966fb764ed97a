"""How steady steps of real runs are: tables of step times over their run's median."""

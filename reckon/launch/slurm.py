"""Variables that Slurm sets for a job, of the options that its script asks with."""

from __future__ import annotations

import re
from collections.abc import Mapping

GRANTED = {"nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
           "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
           "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
           "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS")}  # fmt: skip
"""Variables by options (sbatch's manual, output environment variables)."""

COUNT = r"\d{1,9}"
SHORT = {"-N": "nodes", "-n": "ntasks"}


def granted(asked: Mapping[str, str | bool]) -> dict[str, list[str]]:
    """What Slurm sets for a job that asks for these, where it asks in numbers.

    asked  options of `#SBATCH` lines
    """
    named = {SHORT.get(name, name.lstrip("-")): str(value) for name, value in asked.items()}
    both = [named.get(name, "") for name in ("ntasks-per-node", "nodes")]
    if "ntasks" not in named and all(re.fullmatch(COUNT, one) for one in both):
        named["ntasks"] = str(int(both[0]) * int(both[1]))
    return {
        variable: [named[name].rsplit(":", 1)[-1]]
        for name, variables in GRANTED.items()
        for variable in variables
        if re.fullmatch(rf"(\w+:)?{COUNT}", named.get(name, ""))
    }

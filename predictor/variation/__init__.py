"""How long a step and a run will take on machines that vary: order statistics, no sampling.

Apart from what we do not know (`low` and `high` of a prediction): this is what the run will do.
"""

from predictor.variation.composition import Meeting, Waiting, waiting
from predictor.variation.faults import Fault, faults
from predictor.variation.outcome import LEVELS, Series, levels, stalled
from predictor.variation.profile import NONE, SILENT, TERMS, Profile, known, names, profile

__all__ = [
    "LEVELS",
    "NONE",
    "SILENT",
    "TERMS",
    "Fault",
    "Meeting",
    "Profile",
    "Series",
    "Waiting",
    "faults",
    "known",
    "levels",
    "names",
    "profile",
    "stalled",
    "waiting",
]

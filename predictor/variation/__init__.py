"""How long a step and a run will take on machines that vary: order statistics, no sampling.

Apart from what we do not know (`low` and `high` of a prediction): this is what the run will do.
"""

from predictor.variation.composition import Meeting, Waiting, waiting
from predictor.variation.experts import (
    LOAD_KEYS,
    Busiest,
    Loads,
    busiest,
    load_of,
    parse_loads,
    take_loads,
)
from predictor.variation.faults import Fault, faults
from predictor.variation.images import Tiles, busiest_replica, tiles_of
from predictor.variation.links import fair_shares
from predictor.variation.outcome import LEVELS, Series, levels, stalled
from predictor.variation.packing import (
    PACKED_FIELDS,
    PACKING_KEYS,
    Packed,
    packed,
    packed_fields,
    take_packing,
    waiting_for,
)
from predictor.variation.profile import NONE, SILENT, TERMS, Profile, known, names, profile
from predictor.variation.sharing import kept_of, shared

__all__ = [
    "LEVELS",
    "LOAD_KEYS",
    "NONE",
    "PACKED_FIELDS",
    "PACKING_KEYS",
    "SILENT",
    "TERMS",
    "Busiest",
    "Fault",
    "Loads",
    "Meeting",
    "Packed",
    "Profile",
    "Series",
    "Tiles",
    "Waiting",
    "busiest",
    "busiest_replica",
    "fair_shares",
    "faults",
    "kept_of",
    "known",
    "levels",
    "load_of",
    "names",
    "packed",
    "packed_fields",
    "parse_loads",
    "profile",
    "shared",
    "stalled",
    "take_loads",
    "take_packing",
    "tiles_of",
    "waiting",
    "waiting_for",
]

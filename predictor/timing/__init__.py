"""How long each takes: fitted efficiencies, ideal times, collectives."""

from predictor.timing.calibration import (
    ANY,
    DEFAULTS,
    Calibration,
    EfficiencyModel,
    Neighbours,
    RunParameters,
    Throttle,
    empty_kernel,
    shape_keys,
)
from predictor.timing.collectives import (
    Span,
    collective_time,
    hop_time,
    hops,
    latency,
    span,
    traffic,
    volume,
)
from predictor.timing.engines import ENGINE_FIELDS, EngineParameters, ServingParameters
from predictor.timing.features import CLOCK, Shapes, columns, energy_of, ideal, kind_of, peak_of
from predictor.timing.kernels import BOUNDS, Timing, operator_times, shape_times
from predictor.timing.likeness import Kin, traits
from predictor.timing.roofline import hierarchy

__all__ = [
    "ANY",
    "BOUNDS",
    "CLOCK",
    "DEFAULTS",
    "ENGINE_FIELDS",
    "Calibration",
    "EfficiencyModel",
    "EngineParameters",
    "Kin",
    "Neighbours",
    "RunParameters",
    "ServingParameters",
    "Shapes",
    "Span",
    "Throttle",
    "Timing",
    "collective_time",
    "columns",
    "empty_kernel",
    "energy_of",
    "hierarchy",
    "hop_time",
    "hops",
    "ideal",
    "kind_of",
    "latency",
    "operator_times",
    "peak_of",
    "shape_keys",
    "shape_times",
    "span",
    "traffic",
    "traits",
    "volume",
]

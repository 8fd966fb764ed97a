"""A training step: completion of a request, its parts, their assembly, its explanation."""

from predictor.training.completion import (
    TrainingRequest,
    complete_training,
    enforce_reach,
)
from predictor.training.dealt import Dealt, Share
from predictor.training.decomposition import (
    COMPUTE_TERMS,
    EXCHANGE_TERMS,
    Parts,
    joined,
    parts,
    singles,
    stack,
    take,
)
from predictor.training.doubts import others, otherwise
from predictor.training.explanation import Explanation, explain
from predictor.training.faults import Case
from predictor.training.faults import told as losses
from predictor.training.fleet import Reserve, served
from predictor.training.frame import LAYERED, Frame, frame, is_apart
from predictor.training.habits import TRAINED_LOAD, trainer
from predictor.training.layer import (
    COLLECTIVE_CATEGORIES,
    STEP_CATEGORIES,
    LayerKernels,
    LayerParts,
    LayerTimes,
    Worklist,
    distinct,
    inner_categories,
    layer_kernels,
    layer_parts,
)
from predictor.training.ledger import TERMS
from predictor.training.own import (
    SIZES,
    SLOPES,
    WORDS,
    Described,
    as_measured,
    check_prior,
    describe,
    traits,
)
from predictor.training.pacing import Pipeline, delayed, pipeline_of, with_clocks
from predictor.training.power import (
    StepActivity,
    limited,
    step_activity,
    step_power,
    under_limits,
)
from predictor.training.prediction import (
    TrainingPrediction,
    predict,
    units,
)
from predictor.training.reliability import Goodput, goodput
from predictor.training.software import (
    ANY,
    HOP,
    LAUNCH,
    MIXED,
    NODES,
    ONCE,
    ROUTED,
    YOUNG,
    Environment,
    alone,
    environment,
    environment_of,
    stretched,
    youth,
)
from predictor.training.spread import family_errors, host_error, interval
from predictor.training.step import Step, assemble
from predictor.training.taxes import taxes
from predictor.training.together import predict_batches
from predictor.training.uneven import dealt_step
from predictor.training.unlike import SEVERAL
from predictor.training.variation import (
    Variation,
    checked_by_lots,
    meets,
    sensitivity,
    slowest_pass,
    told,
    vary,
    vary_meeting,
)
from predictor.training.whole_run import reliability_defaults, reliability_of

__all__ = [
    "ANY",
    "COLLECTIVE_CATEGORIES",
    "COMPUTE_TERMS",
    "EXCHANGE_TERMS",
    "HOP",
    "LAUNCH",
    "LAYERED",
    "MIXED",
    "NODES",
    "ONCE",
    "ROUTED",
    "SEVERAL",
    "SIZES",
    "SLOPES",
    "STEP_CATEGORIES",
    "TERMS",
    "TRAINED_LOAD",
    "WORDS",
    "YOUNG",
    "Case",
    "Dealt",
    "Described",
    "Environment",
    "Explanation",
    "Frame",
    "Goodput",
    "LayerKernels",
    "LayerParts",
    "LayerTimes",
    "Parts",
    "Pipeline",
    "Reserve",
    "Share",
    "Step",
    "StepActivity",
    "TrainingPrediction",
    "TrainingRequest",
    "Variation",
    "Worklist",
    "alone",
    "as_measured",
    "assemble",
    "check_prior",
    "checked_by_lots",
    "complete_training",
    "dealt_step",
    "delayed",
    "describe",
    "distinct",
    "enforce_reach",
    "environment",
    "environment_of",
    "explain",
    "family_errors",
    "frame",
    "goodput",
    "host_error",
    "inner_categories",
    "interval",
    "is_apart",
    "joined",
    "layer_kernels",
    "layer_parts",
    "limited",
    "losses",
    "meets",
    "others",
    "otherwise",
    "parts",
    "pipeline_of",
    "predict",
    "predict_batches",
    "reliability_defaults",
    "reliability_of",
    "sensitivity",
    "served",
    "singles",
    "slowest_pass",
    "stack",
    "step_activity",
    "step_power",
    "stretched",
    "take",
    "taxes",
    "told",
    "trainer",
    "traits",
    "under_limits",
    "units",
    "vary",
    "vary_meeting",
    "with_clocks",
    "youth",
]

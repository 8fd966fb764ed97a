"""The one list of kernels and collectives that a plan runs, for training and serving alike."""

from predictor.work.communication import (
    PASSES,
    Collective,
    Group,
    Held,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_collectives,
)
from predictor.work.primitives import Operator, streaming
from predictor.work.recompute import freed
from predictor.work.serving import (
    Exchange,
    decode_attention,
    end_operators,
    exchanges,
    kv_token_bytes,
    layer_operators,
    prefill_attention,
    state_bytes,
)
from predictor.work.sparse import SCORED, index_bytes
from predictor.work.training import LAYER_MODULES, step_operators, update_operators

__all__ = [
    "LAYER_MODULES",
    "PASSES",
    "SCORED",
    "Collective",
    "Exchange",
    "Group",
    "Held",
    "Operator",
    "decode_attention",
    "end_operators",
    "exchanges",
    "freed",
    "gradient_collectives",
    "groups",
    "index_bytes",
    "kv_token_bytes",
    "layer_operators",
    "pipeline_collectives",
    "prefill_attention",
    "state_bytes",
    "step_collectives",
    "step_operators",
    "streaming",
    "update_operators",
]

"""The one list of kernels and collectives that a plan runs, for training and serving alike."""

from predictor.work.communication import (
    PASSES,
    Held,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_collectives,
)
from predictor.work.context import held_by_blocks
from predictor.work.cores import EACH
from predictor.work.graphs import captured
from predictor.work.ngrams import LOOKUP, row_bytes, table_bytes
from predictor.work.orthogonal import STEPS, matrices, newton_schulz
from predictor.work.primitives import Collective, Group, Operator, streaming
from predictor.work.recompute import freed, kept_outcome
from predictor.work.serving import (
    adapter_bytes,
    cache_bytes,
    decode_attention,
    end_operators,
    layer_operators,
    pass_collectives,
    pass_groups,
    passing_tokens,
    prefill_attention,
    read_bytes,
    state_bytes,
)
from predictor.work.sparse import SCORED
from predictor.work.training import (
    cast_operators,
    flat_operators,
    step_operators,
    sum_operators,
    update_operators,
)
from predictor.work.worklist import LAYER_MODULES

__all__ = [
    "EACH",
    "LAYER_MODULES",
    "LOOKUP",
    "PASSES",
    "SCORED",
    "STEPS",
    "Collective",
    "Group",
    "Held",
    "Operator",
    "adapter_bytes",
    "cache_bytes",
    "captured",
    "cast_operators",
    "decode_attention",
    "end_operators",
    "flat_operators",
    "freed",
    "gradient_collectives",
    "groups",
    "held_by_blocks",
    "kept_outcome",
    "layer_operators",
    "matrices",
    "newton_schulz",
    "pass_collectives",
    "pass_groups",
    "passing_tokens",
    "pipeline_collectives",
    "prefill_attention",
    "read_bytes",
    "row_bytes",
    "state_bytes",
    "step_collectives",
    "step_operators",
    "streaming",
    "sum_operators",
    "table_bytes",
    "update_operators",
]

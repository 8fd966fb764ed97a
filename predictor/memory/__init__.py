"""What a device holds, by class and stage, while it trains or serves."""

from predictor.memory.kept import Kept, kept_by
from predictor.memory.offload import host_room, node_memory
from predictor.memory.serving import ServingMemory, serving_memory, weight_bytes
from predictor.memory.training import (
    CONTEXT,
    FRAGMENTATION,
    GATHERED,
    HELD,
    LAID,
    MEMORY_FRACTION,
    SENT,
    UNHELD,
    WHOLE_WEIGHT,
    Layout,
    Memory,
    allocation,
    beside,
    divided,
    lay_out,
    layer_activations,
    memory,
    table_parameters,
)

__all__ = [
    "CONTEXT",
    "FRAGMENTATION",
    "GATHERED",
    "HELD",
    "LAID",
    "MEMORY_FRACTION",
    "SENT",
    "UNHELD",
    "WHOLE_WEIGHT",
    "Kept",
    "Layout",
    "Memory",
    "ServingMemory",
    "allocation",
    "beside",
    "divided",
    "host_room",
    "kept_by",
    "lay_out",
    "layer_activations",
    "memory",
    "node_memory",
    "serving_memory",
    "table_parameters",
    "weight_bytes",
]

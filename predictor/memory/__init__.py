"""What a device holds, by class and stage, while it trains or serves."""

from predictor.memory.kept import Kept, kept_by
from predictor.memory.offload import host_room, node_memory
from predictor.memory.serving import ServingMemory, serving_memory, weight_bytes
from predictor.memory.training import (
    CONTEXT,
    FRAGMENTATION,
    GATHERED,
    HELD,
    MEMORY_FRACTION,
    SENT,
    UNHELD,
    Memory,
    allocation,
    beside,
    divided,
    layer_activations,
    memory,
    stage_parameters,
)

__all__ = [
    "CONTEXT",
    "FRAGMENTATION",
    "GATHERED",
    "HELD",
    "MEMORY_FRACTION",
    "SENT",
    "UNHELD",
    "Kept",
    "Memory",
    "ServingMemory",
    "allocation",
    "beside",
    "divided",
    "host_room",
    "kept_by",
    "layer_activations",
    "memory",
    "node_memory",
    "serving_memory",
    "stage_parameters",
    "weight_bytes",
]

"""What a device holds, by class and stage, while it trains or serves."""

from predictor.memory.offload import host_room, node_memory
from predictor.memory.serving import ServingMemory, serving_memory, weight_bytes
from predictor.memory.training import (
    CONTEXT,
    FRAGMENTATION,
    HELD,
    Memory,
    allocation,
    beside,
    divided,
    layer_activations,
    memory,
    saved_at,
    savers,
    stage_parameters,
)

__all__ = [
    "CONTEXT",
    "FRAGMENTATION",
    "HELD",
    "Memory",
    "ServingMemory",
    "allocation",
    "beside",
    "divided",
    "host_room",
    "layer_activations",
    "memory",
    "node_memory",
    "saved_at",
    "savers",
    "serving_memory",
    "stage_parameters",
    "weight_bytes",
]

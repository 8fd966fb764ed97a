"""Bytes per device while serving: weights, cache, activations, runtime; how many sequences fit.

The cache has what weights, activations and runtime leave of the share of memory that engines take
(Kwon et al. 2023, section 4.5; vLLM's gpu_memory_utilization; TensorRT-LLM's
free_gpu_memory_fraction, which counts only what is left; SGLang's mem_fraction_static, which counts
weights and cache alone).
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.hardware import Cluster
from predictor.memory.offload import HOST_USABLE
from predictor.memory.parameters import (
    attention_parameters,
    delta_parameters,
    dense_parameters,
    expert_parameters,
    mixture_parameters,
)
from predictor.models import Model, tower_parameters
from predictor.plans import ServingPlan
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.work import adapter_bytes, cache_bytes, state_bytes, table_bytes

WIDE_LOGIT = 4.0
"""Bytes of a logit as it is drawn from: products leave 16 bits, which engines copy to fp32 before
the softmax (vLLM's sampler), so that both are there at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class ServingMemory:
    """Bytes on the fullest device by class; arrays of the plans' shape.

    capacity     memory that the engine may take
    per_sequence  cache of one sequence of full length on one device
    sequences    most sequences of full length that the cache holds, of all replicas
    admitted     the same of sequences of mean length (prompt and half the output)
    entered      the same of prompts alone
    """

    classes: dict[str, Array]
    capacity: Array
    total: Array
    per_sequence: Array
    sequences: Array
    admitted: Array
    entered: Array

    @property
    def shortfall(self) -> Array:
        """Bytes that are missing; 0 where it fits."""
        return np.asarray(np.maximum(self.total - self.capacity, 0.0))

    @property
    def fits(self) -> Array:
        """1 where weights, cache of all sequences, activations and runtime fit, else 0."""
        return np.asarray(self.total <= self.capacity, float)


def weight_bytes(model: Model, plan: ServingPlan) -> Array:
    """Bytes of weights on the fullest device: linear layers as narrow as they are stored, the
    rest in 16 bits unless the format packs it too. The stages' layers are spread as evenly as
    whole layers allow."""
    narrow, ends = WEIGHT_BYTES[plan.projections], WEIGHT_BYTES[plan.head]
    blocks = WEIGHT_BYTES[plan.feed_forward]
    layers = np.ceil(model.layers / plan.pp) / model.layers
    dense = (model.ffn_blocks - model.moe_layers) * dense_parameters(model, plan.tp)
    matrices = model.attention_blocks * attention_parameters(model, plan.tp)
    matrices = matrices + model.mamba_layers * model.mamba_matrix / plan.tp
    matrices = matrices + model.mamba_layers * model.hidden * model.mamba_repeated(plan.tp)
    matrices = matrices + model.mamba_layers * model.mamba_norm
    matrices = matrices + model.delta_layers * model.norm_parameters
    if model.conv_layers:
        matrices = matrices + model.conv_layers * (
            model.conv_matrix / plan.tp + model.norm_parameters
        )
    if model.delta_layers:
        matrices = matrices + model.delta_layers * delta_parameters(model, plan.tp)
    experts: Numeric = 0.0
    if model.is_moe:
        dense = dense + model.moe_layers * mixture_parameters(model, plan.tp)
        one = np.ceil(model.num_experts / plan.ep) * expert_parameters(model, plan.etp)
        experts = model.moe_layers * one * WEIGHT_BYTES[plan.weights]
    words = model.vocab * model.embedding_width
    # First and last stage hold one of the two tables each; one stage alone holds both. Positions
    # are whole on every rank (`wpe` of vllm/model_executor/models/gpt2.py).
    tables = np.where(np.asarray(plan.pp) > 1, words, words + model.head_parameters) / plan.tp
    tables = tables + model.embedding_parameters - words
    tables = tables + model.alternating_ends
    tables = tables + model.input_projection + model.stream_matrix + model.norm_parameters
    tables = tables + (2 * model.layers + 1) * model.stream_norm
    whole = (narrow * matrices + blocks * dense + experts) * layers + ends * tables
    return np.asarray(whole + _ngram_bytes(model, plan, narrow) if model.ngram_layers else whole)


def _ngram_bytes(model: Model, plan: ServingPlan, narrow: float) -> Numeric:
    """Tables of n-grams, which ranks divide unless the host has them, and the projections of what
    they give, which every rank has whole [bytes]."""
    project = model.ngram_layers * (narrow * model.ngram_matrix + 2.0 * model.ngram_vectors)
    here = 0.0 if plan.offload == "ngrams" else table_bytes(model, plan.weights)
    return here / plan.tp + project


def tower_bytes(model: Model, plan: ServingPlan) -> Numeric:
    """Bytes of the second tower's weights on one device, where requests have images."""
    if model.tower is None or not np.any(plan.tiles):
        return 0.0
    divided = model.tower.heads % np.maximum(np.asarray(plan.tp), 1.0) == 0
    whole = ELEMENT_BYTES[plan.half] * tower_parameters(model.tower, model.hidden)
    return np.where(np.asarray(plan.tiles) > 0, whole / np.where(divided, plan.tp, 1.0), 0.0)


def _widest(model: Model, tp: Numeric) -> Numeric:
    """Elements of a token that are there at a time where a layer has most of them: the residual and
    what its norm leaves, and of a feed-forward block what the first product and the activation put
    out, or the activation and the second product (vLLM's and TensorRT-LLM's blocks, whose norms
    work in place); over all experts that a token goes to, with its copies there and back."""
    h, found = float(model.hidden), np.asarray(0.0)
    if model.has_dense:
        gate, inner = model.ffn_in_width / tp, model.ffn_hidden / tp
        found = np.maximum(2.0 * h + gate + inner, 3.0 * h + inner)
    if model.is_hybrid:
        inner = model.mamba_in_width + model.mamba_width
        found = np.maximum(found, 2.0 * h + inner / tp)
    if model.is_moe:
        wide = model.top_k * (2.0 * model.expert_width + 3.0 * model.expert_ffn_hidden)
        found = np.maximum(found, 4.0 * h + 2.0 * wide / tp)
    return found


def _adapters(model: Model, plan: ServingPlan, sequences: Numeric) -> Numeric:
    """Bytes of the adapters that one device holds: those that there are, as far as there are slots,
    and no more than sequences that ask for one each (Sheng et al. 2023, S-LoRA: others wait in the
    host's memory).

    sequences   of one replica at a time
    """
    if not np.any(plan.adapters):
        return 0.0
    slots = np.where(np.asarray(plan.adapter_slots) > 0, plan.adapter_slots, np.inf)
    many = np.minimum(np.minimum(plan.adapters, slots), np.maximum(sequences, 1.0))
    return adapter_bytes(model, plan) * many


def _usable(plan: ServingPlan, device: Numeric, fixed: Numeric, weights: Numeric) -> Array:
    """What an engine may take of a device [bytes].

    fixed   weights, activations and runtime
    """
    usable = plan.memory_fraction * np.asarray(device, float)
    if plan.pool == "free":
        return np.asarray(usable + (1.0 - plan.memory_fraction) * np.minimum(fixed, device))
    if plan.pool == "static":
        # Activations and the runtime have what is left; there must be room for them, too.
        return np.asarray(np.minimum(usable + fixed - weights, device))
    return usable


def _pass_bytes(model: Model, plan: ServingPlan, sequences: Numeric) -> tuple[Numeric, Numeric]:
    """Activations, the widest layer's input and output for the tokens of one pass, and logits as
    they are multiplied and as they are drawn from [bytes].

    sequences   of one replica at a time

    A server holds room for the largest pass that it may ever run, however short prompts are and
    however few clients it has: it measures what that leaves before it takes the rest for its cache
    (vLLM: `profile_run` of vllm/worker/model_runner.py of 0.2 to 0.7, vllm/v1/worker/
    gpu_model_runner.py since; Text Generation Inference warms up with `max_batch_prefill_tokens`,
    TensorRT-LLM builds its engine for `max_num_tokens`).
    """
    half, serving = ELEMENT_BYTES[plan.half], np.asarray(plan.serving) > 0
    largest = serving | (plan.pool == "total")
    tokens = np.where(largest, plan.chunk, np.minimum(plan.chunk, sequences * plan.new_tokens))
    activations = half * tokens * _widest(model, plan.tp)
    drawn = np.where(serving, plan.max_batch, np.minimum(sequences, plan.max_batch))
    logits = (half + WIDE_LOGIT) * drawn * model.vocab / plan.tp
    return activations, logits


def serving_memory(
    model: Model, cluster: Cluster, plan: ServingPlan, run: RunParameters
) -> ServingMemory:
    """Memory per device of a plan or a batch of plans.

    run   `engine`: what context, captured graphs and communication buffers take
    """
    shape = plan.shape
    serving = np.asarray(plan.serving) > 0
    sequences = np.where(serving, np.minimum(plan.sequences, plan.max_batch), plan.sequences)
    activations, logits = _pass_bytes(model, plan, sequences)
    held_here = weights = weight_bytes(model, plan) + tower_bytes(model, plan)
    held_layers = np.ceil(model.layers / plan.pp)
    if plan.offload == "weights":
        # Of the layers' weights two are on the device at a time: one computes, one arrives.
        held_here = weights * 2.0 / held_layers
    here = held_layers / model.layers
    state = state_bytes(model, plan) * here

    def held(tokens_of_one: Numeric) -> Numeric:
        """Cache of a sequence, and its states."""
        return cache_bytes(model, plan, tokens_of_one) * here + state

    live = _adapters(model, plan, sequences)
    fixed = held_here + activations + logits + run.engine + live
    capacity = np.broadcast_to(_usable(plan, cluster.accelerator.memory, fixed, held_here), shape)
    room = np.maximum(capacity - fixed, 0.0)
    if plan.offload == "weights":
        room = np.maximum(HOST_USABLE * plan.host_memory / plan.gpus - weights, 0.0)
    whole = held(plan.input_len + plan.output_len)
    mean = held(plan.input_len + 0.5 * plan.output_len)
    classes = {
        "weights": held_here,
        # While serving, as much of the cache is used as there is, one sequence at least.
        "cache": np.where(serving, np.clip(np.floor(room / whole), 1.0, sequences), sequences)
        * whole,
        "activations": activations + logits,
        "runtime": run.engine,
    }
    if plan.offload == "weights":
        classes["cache"] = np.zeros(shape)
    if np.any(plan.adapters):
        classes["adapters"] = live
    filled = {name: np.broadcast_to(np.asarray(v, float), shape) for name, v in classes.items()}
    total: Array = np.asarray(sum(filled.values(), np.zeros(shape)))

    def most(one: Numeric) -> Array:
        return np.asarray(np.broadcast_to(np.floor(room / one) * plan.dp, shape))

    return ServingMemory(
        classes=filled,
        capacity=capacity,
        total=total,
        per_sequence=np.broadcast_to(whole, shape),
        sequences=most(whole),
        admitted=most(mean),
        entered=most(held(plan.input_len)),
    )

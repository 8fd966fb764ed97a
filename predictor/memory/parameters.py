"""Parameters of blocks on one tensor-parallel rank: of some it has a part, of others the whole."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Numeric
from predictor.models import Model


def mixer_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of one attention block on one tensor-parallel rank, where all are alike."""
    split, whole = model.mixer_vectors
    if model.is_compressed:
        shared = model.compressed_whole_matrix
        return (model.attention_matrix - shared + split) / tp + shared + whole
    if model.is_latent:
        latent = model.latent_down_matrix + model.index_matrix
        return (model.attention_matrix - latent) / tp + latent + whole
    # Key and value projections are replicated where tp exceeds the key/value heads.
    extra = np.maximum(tp / model.kv_heads, 1.0) - 1.0
    replicated = model.attention_input * model.kv_heads * model.kv_head_columns * extra
    if model.index_means:  # every rank has all of it
        replicated = replicated + model.index_matrix * (tp - 1.0)
    if model.index_block:  # index queries go with key heads; every rank has the index key
        key = model.hidden * model.index_head_dim
        replicated = replicated + key * (model.index_heads * extra + tp - 1.0)
    return (model.attention_matrix + replicated + split) / tp + whole


def attention_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of the mean attention block on one tensor-parallel rank, with what the layer adds
    of its own embedding, which every rank holds whole; of shared blocks a part, with what each use
    has of its own."""
    kinds = model.attention_kinds
    if len(kinds) == 1:
        mean = mixer_parameters(kinds[0][1], tp)
    else:
        every = sum(n * mixer_parameters(one, tp) for n, one in kinds)
        mean = every / model.attention_blocks
    if model.shared_blocks:
        own = model.use_matrix + model.use_adapters / tp
        return mean * model.stored_share + own
    if not model.layer_inputs:
        return mean
    own = model.layer_input_matrix + model.alternating_layer_matrix + model.laurel_norm
    return mean + own + model.laurel_matrix / tp + model.norm_parameters


def dense_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of the mean dense feed-forward block on one tensor-parallel rank."""
    kinds = model.dense_kinds
    split, whole = model.ffn_vectors
    matrix: float = model.dense_ffn_matrix
    if len(kinds) > 1:
        matrix = sum(n * one.dense_ffn_matrix for n, one in kinds) / sum(n for n, _ in kinds)
    return ((matrix + split) / tp + whole) * model.stored_share


def mixture_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of a mixture of experts on one tensor-parallel rank, routed experts aside."""
    return model.shared_matrix / tp + model.router_matrix + model.norm_parameters


def expert_parameters(model: Model, etp: Numeric) -> Numeric:
    """Parameters of one routed expert on one of the `etp` ranks that divide it."""
    split, whole = model.expert_vectors
    return (model.expert_matrix + split) / etp + whole


def layer_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of one layer on one tensor-parallel rank, routed experts aside: of the mean layer
    where layers differ."""
    return (
        mixers_parameters(model, tp)
        + model.dense_share * dense_parameters(model, tp)
        + model.moe_share * mixture_parameters(model, tp)
    )


def mixers_parameters(model: Model, tp: Numeric) -> Numeric:
    """Parameters of the mean layer's attention and state-space blocks, of its delta rules, and of
    what mixes its streams."""
    own = model.mamba_matrix / tp + model.hidden * model.mamba_repeated(tp)
    mamba = own + model.mamba_norm
    mixers = model.attention_share * attention_parameters(model, tp) + model.mamba_share * mamba
    mixers = mixers + model.stream_layer_matrix + 2 * model.stream_norm
    if model.ngram_layers and not model.ngram_embedding:
        added = model.ngram_matrix + model.ngram_vectors
        mixers = mixers + model.ngram_layers / model.layers * added
    if model.conv_layers:
        mixers = mixers + model.conv_share * (model.conv_matrix / tp + model.norm_parameters)
    if not model.delta_layers:
        return mixers
    return mixers + model.delta_share * (delta_parameters(model, tp) + model.norm_parameters)


def delta_parameters(model: Model, tp: Numeric) -> Numeric:
    """Weights of one delta rule on one tensor-parallel rank."""
    whole = model.delta_down_matrix
    return (model.delta_matrix - whole) / tp + whole

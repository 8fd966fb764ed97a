"""Which products run again where checkpoints keep the outcome of every other matrix of a block."""

from __future__ import annotations

from predictor.models.model import Model

GONE, UNKNOWN = 1.0, 0.5
"""Share that runs again: of products whose outcome is never kept; of those whose place among the
matrices of a block is not known."""

Matrices = dict[str, tuple[tuple[float, ...], float]]
"""By name in the work list: columns of each matrix of a product, and rows of all of them."""


def _attention(model: Model) -> Matrices:
    """Matrices of an attention block in the order in which they run."""
    h, heads = float(model.hidden), model.heads
    out: Matrices = {"attention.out": ((h,), float(heads * model.v_dim))}
    if not model.is_latent:
        keys = model.kv_heads * model.kv_head_columns / 2.0
        inward = float(model.attention_input)
        return {"attention.qkv": ((float(heads * model.head_dim), keys, keys), inward), **out}
    rank, latent, rope = model.q_lora_rank, model.kv_lora_rank, model.qk_rope_head_dim
    down: Matrices = {"attention.q_down": ((float(rank),), h)} if rank else {}
    return {
        **down,
        "attention.q_up": ((float(heads * model.qk_dim),), float(rank or h)),
        "attention.kv_down": ((float(latent + rope),), h),
        "attention.kv_up": ((float(heads * (model.qk_nope_head_dim + model.v_dim)),), latent),
        **out,
    }


def _even(columns: tuple[float, ...], before: int) -> float:
    """Share of the columns of some matrices that are of those with even numbers.

    before   matrices of the block that come before them
    """
    return sum(columns[(before + 1) % 2 :: 2]) / sum(columns)


def repeated_products(model: Model) -> dict[str, float]:
    """Share of each product of a layer that runs again, by its name in the work list.

    Of the matrices of a block the second, the fourth and so on run again (torchtitan's
    `_get_custom_policy`, models/llama3/infra/parallelize.py @ b39377f9f): queries, keys, values,
    output, then one side of the gate, the other, and the way down; in latent attention the latents
    of queries come before those of keys and values (models/deepseek_v3/model/model.py). Grouped
    products of experts are none of those that are kept (`_op_sac_save_list`, models/llama4/infra/
    parallelize.py), nor are the router's (`per_op_sac_force_recompute_mm_shapes_by_fqns`). Of
    Llama-3 8B 36.5 % of the products run again.
    """
    found, place = {}, 0
    for name, (columns, _) in _attention(model).items():
        found[name] = _even(columns, place)
        place += len(columns)
    sides = (1.0, 1.0)[: 1 + model.gated]
    for block in ("mlp", "shared"):
        found[f"{block}.up"] = _even(sides, place)
        found[f"{block}.down"] = _even((1.0,), place + len(sides))
    return found | dict.fromkeys(("moe.router", "moe.up", "moe.down"), GONE)


def repeated_share(model: Model) -> float:
    """Share of the arithmetic of all layers' products that runs again, 0..1."""
    share = repeated_products(model)
    again = 0.0
    for blocks, one in model.attention_kinds:
        known = {name: sum(wide) * deep for name, (wide, deep) in _attention(one).items()}
        again += blocks * sum(share[name] * size for name, size in known.items())
        again += blocks * UNKNOWN * (one.attention_matrix - sum(known.values()))
    sides = 2.0 if model.gated else 1.0
    block = (sides * share["mlp.up"] + share["mlp.down"]) / (sides + 1.0)
    again += block * sum(blocks * one.dense_ffn_matrix for blocks, one in model.dense_kinds)
    routed = model.router_matrix + model.top_k * model.expert_matrix
    again += model.moe_layers * (GONE * routed + block * model.shared_matrix)
    again += UNKNOWN * model.mamba_layers * model.mamba_matrix
    again += UNKNOWN * model.delta_layers * model.delta_matrix
    again += UNKNOWN * (model.layers * model.layer_input_matrix + model.input_projection)
    return again / model.matrix_parameters(active=True)

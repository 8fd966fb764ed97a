"""Keys of `config.json` of small models, by what they are of."""

from typing import Any

ROUTED: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENTS: dict[str, Any] = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
INDEXED: dict[str, Any] = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 4}

"""Which keys of HuggingFace's `config.json` hold the dimensions of a model: tables that types of
`models.families` share."""

from __future__ import annotations

GPT2 = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "ffn_hidden": "n_inner",
    "max_context": "n_positions",
}
STANDARD = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_hidden": "intermediate_size",
    "max_context": "max_position_embeddings",
    "top_k": "num_experts_per_tok",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "v_head_dim": "v_head_dim",
    "dense_layers": "first_k_dense_replace",
    "expert_ffn_hidden": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "mtp_layers": "num_nextn_predict_layers",
    "sliding_window": "sliding_window",
    "shared_expert_ffn_hidden": "shared_expert_intermediate_size",
    "index_heads": "index_n_heads",
    "index_head_dim": "index_head_dim",
    "index_topk": "index_topk",
}
QWEN4_INDEX = {
    "index_heads": "indexer_n_heads",
    "index_head_dim": "indexer_head_dim",
    "index_topk": "indexer_budget",
    "index_pool": "indexer_compress_ratio",
    "streams": "hc_count",
    "stream_rank": "hc_lowrank",
}
DELTA = {
    **STANDARD,
    "delta_key_heads": "linear_num_key_heads",
    "delta_value_heads": "linear_num_value_heads",
    "delta_key_dim": "linear_key_head_dim",
    "delta_value_dim": "linear_value_head_dim",
    "delta_conv": "linear_conv_kernel_dim",
    "mtp_layers": "mtp_num_hidden_layers",
}
KIMI = {
    **STANDARD,
    "top_k": "num_experts_per_token",
    "shared_experts": "num_shared_experts",
    "expert_hidden": "routed_expert_hidden_size",
    "residual_block": "attn_res_block_size",
}
LLAMA4 = {
    **STANDARD,
    "ffn_hidden": "intermediate_size_mlp",
    "expert_ffn_hidden": "intermediate_size",
    "moe_every_n": "interleave_moe_layer_step",
    "sliding_window": "attention_chunk_size",
}
NEMOTRON_H = {
    **STANDARD,
    "shared_expert_ffn_hidden": "moe_shared_expert_intermediate_size",
    "expert_hidden": "moe_latent_size",
    "mamba_heads": "mamba_num_heads",
    "mamba_head_dim": "mamba_head_dim",
    "mamba_state": "ssm_state_size",
    "mamba_groups": "n_groups",
}
GRANITE_HYBRID = {
    **STANDARD,
    "expert_ffn_hidden": "intermediate_size",
    "shared_expert_ffn_hidden": "shared_intermediate_size",
    "mamba_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "mamba_state": "mamba_d_state",
    "mamba_groups": "mamba_n_groups",
}
SPACES = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_heads"}
MINIMAX_M3 = {
    **STANDARD,
    "ffn_hidden": "dense_intermediate_size",
    "expert_ffn_hidden": "intermediate_size",
    "shared_expert_ffn_hidden": "shared_intermediate_size",
}
DEEPSEEK_V4 = {
    **STANDARD,
    "out_groups": "o_groups",
    "out_rank": "o_lora_rank",
    "streams": "hc_mult",
}
QWEN4 = {**DELTA, **QWEN4_INDEX}
EXPERTS_ONLY = {**STANDARD, "expert_ffn_hidden": "intermediate_size"}
"""Where every layer is a mixture, and the only width is that of an expert."""

OTHER_NAMES = {
    "top_k": ("num_experts_per_tok", "num_experts_per_token"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "layers": ("num_layers", "num_hidden_layers"),
    "ffn_hidden": ("ffn_hidden_size", "intermediate_size"),
}
"""Dimensions that files of one type state by either name: the class of transformers takes both, and
writes its own back."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

SARVAM = {**STANDARD, "shared_experts": "num_shared_experts"}
AFMOE = {**SARVAM, "dense_layers": "num_dense_layers"}
COHERE_MOE = {
    **SARVAM,
    "ffn_hidden": "prefix_dense_intermediate_size",
    "expert_ffn_hidden": "intermediate_size",
    "dense_layers": "first_k_dense_replace",
}
HUNYUAN_MOE = {
    **STANDARD,
    "top_k": "moe_topk",
    "shared_experts": "num_shared_expert",
}
LONGCAT = {
    **STANDARD,
    "layers": "num_layers",
    "ffn_hidden": "ffn_hidden_size",
    "expert_ffn_hidden": "expert_ffn_hidden_size",
    "shared_expert_ffn_hidden": "ffn_hidden_size",
    "top_k": "moe_topk",
}
LFM = {**STANDARD, "conv_taps": "conv_L_cache", "dense_layers": "num_dense_layers"}
BAILING_HYBRID = {
    **SARVAM,
    "dense_layers": "first_k_dense_replace",
    "mtp_layers": "num_nextn_predict_layers",
}
ARIA = {
    **EXPERTS_ONLY,
    "top_k": "moe_topk",
    "shared_experts": "moe_num_shared_experts",
}
PARAM2 = {**SARVAM, "shared_expert_ffn_hidden": "moe_shared_expert_intermediate_size"}
TELECHAT = {
    **STANDARD,
    "layers": "n_layer",
    "heads": "n_head",
    "ffn_hidden": "ffn_hidden_size",
}
XGLM = {
    "layers": "num_layers",
    "hidden": "d_model",
    "heads": "attention_heads",
    "ffn_hidden": "ffn_dim",
    "max_context": "max_position_embeddings",
}

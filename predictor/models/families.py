"""Types of HuggingFace's `config.json`: which keys hold the dimensions, what each architecture
implies, and which types are not predicted, by the name of what they have."""

from __future__ import annotations

from typing import Any

from predictor.models.keys import (
    AFMOE,
    ARIA,
    BAILING_HYBRID,
    COHERE_MOE,
    DEEPSEEK_V4,
    DELTA,
    EXPERTS_ONLY,
    GPT2,
    GRANITE_HYBRID,
    HUNYUAN_MOE,
    KIMI,
    LFM,
    LLAMA4,
    LONGCAT,
    MINIMAX_M3,
    NEMOTRON_H,
    PARAM2,
    QWEN4,
    SARVAM,
    SPACES,
    STANDARD,
    TELECHAT,
    XGLM,
)
from predictor.models.quantization import KEYS

_GPT = {"gated": False, "norm": "layernorm", "bias": True, "activation": "gelu"}
_LLAMA: dict[str, Any] = {}
_COHERE = {"norm": "layernorm", "parallel": "shared_norm"}

TYPES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "gpt2": (GPT2, {**_GPT, "positions": "learned"}),
    "gpt_neox": (STANDARD, {**_GPT}),
    "gptj": (GPT2, {**_GPT, "parallel": "shared_norm"}),
    "opt": ({**STANDARD, "ffn_hidden": "ffn_dim"}, {**_GPT, "positions": "learned"}),
    "bloom": ({**GPT2, "hidden": "hidden_size"}, {**_GPT, "positions": "alibi"}),
    "falcon": ({**STANDARD, "ffn_hidden": "ffn_hidden_size"}, {**_GPT, "bias": False}),
    "mpt": (
        {
            "layers": "n_layers",
            "hidden": "d_model",
            "heads": "n_heads",
            "max_context": "max_seq_len",
        },
        {**_GPT, "bias": False, "positions": "alibi"},
    ),
    "nemotron": (STANDARD, {**_GPT, "bias": False, "activation": "squared_relu"}),
    "phi": (STANDARD, {**_GPT, "parallel": "shared_norm"}),
    "cohere": (STANDARD, _COHERE),
    "cohere2": (STANDARD, _COHERE),
    "starcoder2": (STANDARD, {**_GPT}),
    "llama": (STANDARD, _LLAMA),
    "mistral": (STANDARD, _LLAMA),
    "mixtral": (STANDARD, _LLAMA),
    "qwen2": (STANDARD, {"qkv_bias": True}),
    "qwen2_moe": (STANDARD, {"qkv_bias": True}),
    "qwen3": (STANDARD, _LLAMA),
    "qwen3_moe": (STANDARD, _LLAMA),
    "qwen3_next": (DELTA, _LLAMA),
    "qwen3_5_text": (DELTA, _LLAMA),
    "lara_mini": (DELTA, _LLAMA),
    "qwen3_5_moe_text": (DELTA, _LLAMA),
    "qwen4_exp_text": (QWEN4, _LLAMA),
    "gemma": (STANDARD, {"activation": "geglu"}),
    "gemma2": (STANDARD, {"activation": "geglu"}),
    "gemma3_text": (STANDARD, {"activation": "geglu"}),
    "gemma3n_text": (
        {**STANDARD, "laurel_rank": "laurel_rank", "alternating_streams": "altup_num_inputs"},
        {"activation": "geglu"},
    ),
    "gemma4_text": ({**STANDARD, "top_k": "top_k_experts"}, {"activation": "geglu"}),
    "gemma4_unified_text": (STANDARD, {"activation": "geglu"}),
    "mimo_v2_flash": (STANDARD, _LLAMA),
    "mimo_v2": (STANDARD, _LLAMA),
    "step3p5": (STANDARD, _LLAMA),
    "step3p7": (STANDARD, _LLAMA),
    "phi3": (STANDARD, _LLAMA),
    "olmo": (STANDARD, _LLAMA),
    "olmo2": (STANDARD, _LLAMA),
    "deepseek_v2": (STANDARD, _LLAMA),
    "deepseek_v3": (STANDARD, _LLAMA),
    "deepseek_v32": (STANDARD, _LLAMA),
    "kimi_k2": (STANDARD, _LLAMA),
    "kimi_linear": (KIMI, _LLAMA),
    "glm4_moe": (STANDARD, _LLAMA),
    "glm_moe_dsa": (STANDARD, _LLAMA),
    "gpt_oss": (STANDARD, {**_LLAMA, "expert_bias": True}),
    "qwen2_vl_text": (STANDARD, {"qkv_bias": True}),
    "qwen2_5_vl_text": (STANDARD, {"qkv_bias": True}),
    "qwen3_vl_text": (STANDARD, _LLAMA),
    "qwen3_vl_moe_text": (STANDARD, _LLAMA),
    "minimax_m2": (EXPERTS_ONLY, _LLAMA),
    **dict.fromkeys(
        ("minimax", "minimax_text_01", "minimax_m1"),
        ({**EXPERTS_ONLY, "shared_expert_ffn_hidden": "shared_intermediate_size"}, _LLAMA),
    ),
    "minimax_m3_vl_text": (MINIMAX_M3, _LLAMA),
    "deepseek_v4": (DEEPSEEK_V4, _LLAMA),
    "deepseek_ref": (DEEPSEEK_V4, _LLAMA),  # as checkpoints in 8 bits call it (sgl-project)
    "deepseek_v41_text": (DEEPSEEK_V4, _LLAMA),
    "laguna": (STANDARD, _LLAMA),
    "mimo": (STANDARD, {"qkv_bias": True}),
    "ministral3": (STANDARD, _LLAMA),
    "glm4": (STANDARD, {"qkv_bias": True}),
    "glm4_moe_lite": (STANDARD, _LLAMA),
    "seed_oss": (STANDARD, {"qkv_bias": True}),
    "smollm3": (STANDARD, _LLAMA),
    "granite": (STANDARD, _LLAMA),
    "granitemoe": (EXPERTS_ONLY, _LLAMA),
    "exaone4": (STANDARD, _LLAMA),
    "olmo3": (STANDARD, _LLAMA),
    "olmoe": (EXPERTS_ONLY, _LLAMA),
    "hunyuan_v1_dense": (STANDARD, _LLAMA),
    "ernie4_5": (STANDARD, _LLAMA),
    "ernie4_5_moe": (
        {
            **STANDARD,
            "top_k": "moe_k",
            "dense_layers": "moe_layer_start_index",
            "shared_experts": "moe_num_shared_experts",
        },
        _LLAMA,
    ),
    "dots1": (STANDARD, _LLAMA),
    "afmoe": (AFMOE, {"output_gate": True}),
    "axk1": (STANDARD, _LLAMA),
    "beam": (STANDARD, {"output_gate": True}),
    "cohere2_moe": (COHERE_MOE, _COHERE),
    "flint": (STANDARD, _LLAMA),
    **dict.fromkeys(("glm4v_text", "glm_ocr_text"), (STANDARD, _LLAMA)),
    "glm4v_moe_text": (STANDARD, {"qkv_bias": True}),
    "granite_swa": (STANDARD, _LLAMA),
    "granitemoe_swa": (
        {**EXPERTS_ONLY, "shared_expert_ffn_hidden": "shared_intermediate_size"},
        _LLAMA,
    ),
    **dict.fromkeys(("hunyuan", "hunyuan_v1_moe"), (HUNYUAN_MOE, _LLAMA)),
    "hy_v3": (SARVAM, _LLAMA),
    **dict.fromkeys(("hy_v4", "hy_v4_vl_text"), ({**STANDARD, "streams": "hc_mult"}, _LLAMA)),
    "glm5_next_text": ({**STANDARD, "streams": "hc_mult"}, _LLAMA),
    "bailing_hybrid": (BAILING_HYBRID, _LLAMA),
    "grok1": (STANDARD, {"activation": "geglu"}),
    "iquest_q1": ({**EXPERTS_ONLY, "ffn_hidden": "dense_intermediate_size"}, _LLAMA),
    "spark2_5": (STANDARD, _LLAMA),
    "iquestcoder": (STANDARD, _LLAMA),
    "jais2": (STANDARD, {**_GPT, "activation": "squared_relu"}),
    "kolibri1": (STANDARD, _LLAMA),
    **dict.fromkeys(
        ("longcat_flash", "longcat_flash_ngram"),
        (LONGCAT, {"shared_experts": 1, "moe_every_n": 2}),
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), (LFM, _LLAMA)),
    "mellum": (STANDARD, _LLAMA),
    **dict.fromkeys(("mistral4", "mistral_large4_text"), (STANDARD, _LLAMA)),
    "molmo2_text": (STANDARD, _LLAMA),
    "muse_glimmer_text": (STANDARD, {"output_gate": True}),
    "muse_spark_text": ({**STANDARD, "expert_hidden": "moe_hidden_size"}, {"output_gate": True}),
    "paddleocr_vl_text": (STANDARD, _LLAMA),
    "qwen2_5_omni_text": (STANDARD, {"qkv_bias": True}),
    "qwen3_omni_moe_text": (STANDARD, _LLAMA),
    **dict.fromkeys(("sarvam_moe", "sarvam_mla"), (SARVAM, _LLAMA)),
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2"),
        ({**STANDARD, "shared_experts": "num_shared_experts"}, _LLAMA),
    ),
    "exaone_moe": ({**STANDARD, "shared_experts": "num_shared_experts"}, _LLAMA),
    "glm": (STANDARD, {"qkv_bias": True}),
    "phimoe": (EXPERTS_ONLY, {"norm": "layernorm"}),
    "stablelm": (STANDARD, {"norm": "layernorm"}),
    "granitemoeshared": (
        {**EXPERTS_ONLY, "shared_expert_ffn_hidden": "shared_intermediate_size"},
        _LLAMA,
    ),
    "flex_olmo": (EXPERTS_ONLY, _LLAMA),
    "vaultgemma": (STANDARD, {"activation": "geglu"}),
    **dict.fromkeys(
        (
            "ministral",
            "internlm2",
            "internlm3",
            "baichuan",
            "xverse",
            "phi3_v_text",
            "llava_text",
            "cwm",
            "helium",
            "solar_open",
            "hyperclovax",
            "youtu",
            "youtu_llm",
            "minicpm",
            "minicpm3",
            "deepseek",
            "Klear",
            "telechat3",
            "Yi",
            "aquila",
            "solar",
            "TeleFLM",
            "internlm",
            "PanguEmbedded",
            "pangu_ultra_moe",
            "plamo3",
            "emu3_text_model",
            "granite_docling_text",
            "molmo",
        ),
        (STANDARD, _LLAMA),
    ),
    **dict.fromkeys(("nemotron-nas", "deci"), (STANDARD, _LLAMA)),
    "orion": (STANDARD, {"norm": "layernorm"}),
    "step1": ({**STANDARD, "kv_heads": "num_attention_groups"}, {"positions": "alibi"}),
    **dict.fromkeys(("telechat", "telechat2"), (TELECHAT, _LLAMA)),
    "param2moe": (PARAM2, _LLAMA),
    **dict.fromkeys(("aria_text", "aria_moe_lm"), (ARIA, _LLAMA)),
    "jais": (GPT2, {"norm": "layernorm", "bias": True, "positions": "alibi"}),
    "xglm": (XGLM, {**_GPT, "positions": "none"}),  # computed ones, added to the embedding
    "biogpt": (STANDARD, {**_GPT, "positions": "learned"}),
    "openai-gpt": (GPT2, {**_GPT, "positions": "learned"}),
    **dict.fromkeys(
        ("arcee", "nanochat", "cosmos3_edge_text"),
        (STANDARD, {"gated": False, "activation": "squared_relu"}),
    ),
    "persimmon": (STANDARD, {**_GPT, "activation": "squared_relu"}),
    "gpt_bigcode": (GPT2, {**_GPT, "positions": "learned"}),
    "gpt_neo": (
        {**STANDARD, "layers": "num_layers", "heads": "num_heads"},
        {**_GPT, "positions": "learned"},
    ),
    "codegen": (GPT2, {**_GPT, "parallel": "shared_norm"}),
    "dbrx": (
        {
            "layers": "n_layers",
            "hidden": "d_model",
            "heads": "n_heads",
            "kv_heads": "kv_n_heads",
            "max_context": "max_seq_len",
            "top_k": "moe_top_k",
            "expert_ffn_hidden": "ffn_hidden_size",
            "ffn_hidden": "ffn_hidden_size",
        },
        {"norm": "layernorm"},
    ),
    "exaone": ({**STANDARD, "layers": "num_layers"}, _LLAMA),
    "chatglm": (
        {
            **STANDARD,
            "layers": "num_layers",
            "kv_heads": "multi_query_group_num",
            "head_dim": "kv_channels",
            "ffn_hidden": "ffn_hidden_size",
            "max_context": "seq_length",
        },
        {"qkv_bias": True},
    ),
    "qwen": (
        {**STANDARD, "head_dim": "kv_channels", "max_context": "seq_length"},
        {"qkv_bias": True},
    ),
    "llama4_text": (LLAMA4, {"shared_experts": 1}),
    **dict.fromkeys(  # xIELU: a pointwise function
        ("apertus", "apertus1p5_text"), (STANDARD, {"gated": False, "activation": "gelu"})
    ),
    "granitemoehybrid": (GRANITE_HYBRID, {"positions": "none"}),
    "bamba": (GRANITE_HYBRID, _LLAMA),
    "falcon_h1": ({**GRANITE_HYBRID, "mamba_chunk": "mamba_chunk_size"}, _LLAMA),
    "jamba": (STANDARD, {"positions": "none"}),
    "zamba2": (STANDARD, {"activation": "geglu"}),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), (SPACES, _LLAMA)),
    "olmo_hybrid": (DELTA, _LLAMA),
    "nemotron_h": (
        NEMOTRON_H,
        {"gated": False, "activation": "squared_relu", "positions": "none"},
    ),
}
"""By `model_type`: which keys hold the dimensions, and what the architecture implies."""

ENCODERS = (
    "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "bert-generation",
    "roberta-prelayernorm", "bert", "roberta", "deberta", "deberta-v2", "modernbert", "distilbert",
    "albert", "longformer", "nomic_bert", "clip", "clip_text_model", "clip_vision_model",
    "siglip_vision_model",
)  # fmt: skip
BOTH = (
    "t5", "mt5", "bart", "whisper", "blenderbot", "blenderbot-small", "bigbird_pegasus", "marian",
    "mbart", "pegasus", "plbart", "prophetnet", "mvp", "m2m_100", "umt5", "led", "nllb-moe",
    "switch_transformers", "t5gemma", "t5gemma2",
)  # fmt: skip

NOT_READ = {
    **dict.fromkeys(ENCODERS, "an encoder only"),
    **dict.fromkeys(BOTH, "an encoder and a decoder"),
    **dict.fromkeys(("xlstm",), "no attention at all"),
    **dict.fromkeys(
        ("delta_net", "gated_deltanet", "gla", "gsa", "hgrn2", "retnet", "rwkv6", "rwkv7", "kda"),
        "linear attention alone",
    ),
    **dict.fromkeys(("samba",), "state-space layers of Mamba 1"),
    **dict.fromkeys(
        ("llada", "llada2_moe", "sdar", "sdar_moe", "Dream", "diffusion_gemma_text"),
        "tokens that are drawn in blocks, several times over",
    ),
    "phi4flash": "state-space layers of Mamba 1, and layers that share keys",
    "openelm": "heads and widths of their own in each layer",
    **dict.fromkeys(("sba", "phi3small"), "attention over sparse blocks"),
    "zamba": "blocks that layers share, beside state spaces of heads that are Mamba 1's",
    **dict.fromkeys(("diffllama",), "differential attention"),
    "recurrent_gemma": "recurrent blocks",
    "mllama_text_model": "layers that attend to images",
    "jetmoe": "mixtures of attention heads",
    "bitnet": "weights of three values",
    "blt": "bytes in patches",
    "axk2": "gates of attention from latents, and norms with gates of their own",
    "cohere_compass_text": "an encoder only",
    "dory": "layers that run several times",
    "dots3_note_text": "windows whose latents have a size of their own",
    **dict.fromkeys(
        ("ernie4_5_vl_moe_text", "ernie4_5_moe_vl"), "experts for text and others for images"
    ),
    "gigachat3_5": "norms with gates of their own",
    "hrm_text": "layers that run several times",
    "iquestloopcoder": "layers that run several times",
    "inkling_text": "short convolutions behind every block",
    "inkling2_text": "short convolutions behind every block",
    "inkling2_loop_text": "layers that run several times",
    "jet_nemotron": "convolutions that depend on the token",
    **dict.fromkeys(("phi4_multimodal", "phi4mm"), "adapters for images and sound in every layer"),
    "step3_text": "queries that come from a rank of their own, without latents",
    "ouro": "layers that run several times",
    "unlimited_ocr_text": "windows beside tokens of an image that all see",
    "k2_horizon": "mixtures of values",
    "doge": "masks that depend on the token",
    "zaya": "attention in convolved latents, and a router of several layers",
    "rwkv": "no attention at all",
    "mistral-large-4": "layers that may share latents, as its config.json alone says",
    "nemotron-ultra-nas": "blocks of widths that its config.json alone says",
    "hymba": "heads of attention and of state spaces side by side, fed by tokens of its own",
    "griffin": "recurrent blocks",
    "hyena": "long convolutions",
    "bagel": "weights of their own for text and for images",
    "vit": "an encoder only",
    "seamless": "streams of sound beside text",
    "diffusion": "images that are drawn in steps of a diffusion, and no words",
    "no_language": "no language model",
    "mamba_ssm": "state spaces whose sizes its name alone does not say",
}
"""Types that are refused by the name of what is missing."""

TIED_BY_DEFAULT = (
    "gpt2", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3_text", "gemma3n_text",
    "cohere", "cohere2", "gemma4_text", "gemma4_unified_text", "cohere2_moe", "granite_swa",
    "lfm2", "lfm2_moe", "lfm3", "youtu_llm", "mamba", "falcon_mamba", "zamba2",
    "xglm", "biogpt", "openai-gpt", "granite_docling_text", "gpt_neo", "gpt_bigcode", "starcoder2",
    "smollm3", "ernie4_5", "ernie4_5_moe", "vaultgemma", "minicpm3", "youtu", "lara_mini",
)  # fmt: skip
"""Types whose configuration class ties input and output embeddings unless the file says no."""


ARCHITECTURES = {"Grok1ForCausalLM": "grok1", "Grok1ModelForCausalLM": "grok1"}
"""Types by `architectures`, where a file's `model_type` is that of another model ('git' of
Grok 2)."""

UNSAID = {
    "DeepseekV2ForCausalLM": "deepseek_v2", "DeepseekV3ForCausalLM": "deepseek_v3",
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}  # fmt: skip
"""Those of parts of files that state no type (DeepSeek-OCR's language model)."""

_FALCON = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
           "n_head_kv": "num_kv_heads"}  # fmt: skip
RENAMED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "RefinedWeb": (_FALCON, {"model_type": "falcon", "new_decoder_architecture": True}),
    "RefinedWebModel": (_FALCON, {"model_type": "falcon"}),
    "stablelm_epoch": ({}, {"model_type": "stablelm"}),
}
"""Earlier names of types: of their keys, and what they are today (tiiuae/falcon-40b before July
2023, configuration_RW.py; stabilityai/stablelm-3b-4e1t, configuration_stablelm_epoch.py)."""

INSIDE = {
    "minimax_m3_vl": "minimax_m3_vl_text", "minimax_m3": "minimax_m3_vl_text",
    "dots_ocr": "qwen2", "llava_llama": "llama", "llava_mistral": "mistral", "llava_qwen": "qwen2",
}  # fmt: skip
"""Type of the language model within a type whose files call it otherwise, or state it beside what
sees images: MiniMax-M3's say 'minimax_m2' (transformers, configuration_minimax_m3_vl.py @ 01a05aa,
which ignores it); dots.ocr is a Qwen2 (vLLM 0.33, configs/dotsocr.py), LLaVA's own files what their
type says."""

MINICPM = {"2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
"""That of MiniCPM-V and MiniCPM-o, by `version` (vLLM 0.33, minicpmv.py, minicpmo.py)."""

SHARED = ("tie_word_embeddings", "_name_or_path", *KEYS)
"""What a model that sees images too states beside its `text_config`."""

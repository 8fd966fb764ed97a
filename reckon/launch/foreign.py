"""Launch lines of models that are not predicted, told by the flags that show it: what is refused is
refused by its name.
"""

from __future__ import annotations

import re

from predictor.errors import InputError
from reckon.launch.table import Flags, truth


class ForeignLine(InputError):
    """A reader knows a line for one of what is not predicted."""


IMAGES = "a model that sees images"

SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        IMAGES,
        ("--language-model-type", "--vision-model-type", "--img-h", "--patch-dim", "--num-classes",
         "--freeze-ViT", "--freeze-LM", "--allow-missing-vision-projection-checkpoint",
         "--image-token-id", "--llm-tp", "--encoder-tp"),
    ),
    (
        "an encoder and a decoder (T5)",
        ("--decoder-seq-length", "--encoder-num-layers", "--decoder-num-layers",
         "model.encoder.arch", "model.decoder.arch"),
    ),
    (
        "an encoder with masked words (BERT)",
        ("--bert-no-binary-head", "--bert-load", "model.bert_binary_head"),
    ),
    (
        "a hybrid of Mamba and attention layers",
        ("--hybrid-override-pattern", "--hybrid-attention-ratio", "--hybrid-mlp-ratio",
         "--is-hybrid-model", "--hybrid-layer-pattern", "hybrid_override_pattern",
         "model.hybrid_layer_pattern", "model.hybrid_override_pattern"),
    ),
    (
        "layers of other attention than all keys or a window of them",
        ("--experimental-attention-variant", "--linear-attention-freq",
         "model.experimental_attention_variant"),
    ),
    (
        "a run that generates and does not train (reckon predict infer)",
        ("--num-tokens-to-generate", "--out-seq-length"),
    ),
    (
        "reinforcement learning, whose steps generate too (reckon predict rl)",
        ("--rollout-batch-size", "--num-rollout"),
    ),
    ("retrieval (RETRO)", ("--retro-project-dir", "--retro-add-retriever", "--ict-head-size")),
)  # fmt: skip
"""What a flag shows, of what is not read from launch lines."""

PROGRAMS: tuple[tuple[str, str], ...] = (
    (r"pretrain_t5\.py", SIGNS[1][0]),
    (r"pretrain_bert\.py", SIGNS[2][0]),
    (r"pretrain_(mamba|hybrid)\.py", SIGNS[3][0]),
    (r"pretrain_vlm\.py|\bmultimodal/train\w*\.py", IMAGES),
    (
        r"\bmimo/train\w*\.py|pretrain_mimo\.py|--(dataset|model)-provider[= ]\w*(vlm|avlm|bagel)",
        "a model that sees images or hears (MIMO)",
    ),
    (r"pretrain_(vision_\w+|ict|retro)\.py", "another model than a decoder of text"),
    (
        r"generate_samples\w*\.py|text_generation\w*\.py|gpt_(static|dynamic)_inference\w*\.py",
        "a run that generates and does not train (reckon predict infer)",
    ),
    (
        r"\btasks/(\w+/)?main\.py",
        "a task beside pretraining (evaluation, retrieval, classification)",
    ),
    (r"\banalyze_data\.py", "a pass over data that trains nothing"),
)
"""Programs that train such models, or none (NVIDIA/Megatron-LM `examples/multimodal` and
`examples/mimo` and their arguments, read November 2026)."""

WORDPIECE = r"BertWordPiece\w*"
"""Tokenizers of encoders, which Megatron-LM's other programs do not take."""


SECTIONS: tuple[tuple[str, str], ...] = (
    ("model.hyena.", "a model of long convolutions (Hyena)"),
    ("model.activations_checkpoint_recurrent", "a model of recurrent blocks (Griffin)"),
    ("model.retro", "retrieval (RETRO)"),
    ("model.vision.", IMAGES),
)
"""What beginnings of keys show."""


def foreign(flags: Flags, text: str) -> str | None:
    """What a launch line trains that is not a decoder of text with one kind of layer; None for one
    that does."""
    for what, signs in SIGNS:
        sign = next((flag for flag in signs if flag in flags and _on(flags[flag])), None)
        if sign is not None:
            return f"{what}, as {sign} shows"
    if (stage := str(flags.get("--stage", "")).lower()) in ("dpo", "orm", "prm", "ray_ppo", "ppo"):
        return f"a stage {stage}, whose steps are more than a pass forward and back"
    for beginning, what in SECTIONS:
        shown = next((flag for flag in flags if flag.startswith(beginning)), None)
        if shown is not None:
            return f"{what}, as {shown} shows"
    if str(flags.get("--position-embedding-type", "")).startswith("deepseek4"):
        return "attention over compressed keys (DeepSeek-V4), as --position-embedding-type shows"
    if (recipe := str(flags.get("--fp4-recipe", "nvfp4")).lower()) == "mxfp4":
        return f"products in {recipe}, of which training knows nvfp4 alone, as --fp4-recipe shows"
    told = str(flags.get("--tokenizer-type", ""))
    words = str(flags.get("--vocab-file", "")).endswith("vocab.txt") and not told
    if re.fullmatch(WORDPIECE, told) or (words and "--merge-file" not in flags):
        return f"{SIGNS[2][0]}, as {told or '--vocab-file vocab.txt'} shows"
    for pattern, what in PROGRAMS:
        if match := re.search(pattern, text):
            return f"{what}, as {match[0]} shows"
    return None


ENGINES: tuple[tuple[str, str], ...] = (
    (r"\bllama-(bench|cli|batched-bench)\b|\bollama\b", "llama.cpp"),
    (r"\bmlc_(llm|chat)\b|\bmlc-llm\b", "mlc-llm"),
    (r"nvcr\.io/nim/", "nim"),
    (r"\bexllamav?[23]\b|\btabbyapi\b", "exllamav2"),
    (r"use_hpu_graphs|optimum-habana|tgi-gaudi", "optimum-habana"),
    (r"optimum-cli neuron|transformers-neuronx|neuronx-distributed", "transformers-neuronx"),
    (r"\blightllm\b", "lightllm"),
    (r"\bmii\b|deepspeed-mii", "deepspeed-mii"),
)
"""Programs and images of engines whose lines are not read, and what the engines are called."""


READERS: tuple[tuple[str, str], ...] = (
    (r"\bvllm\b", "vllm"),
    (r"\bsglang\b", "sglang"),
    (r"\btrtllm-(serve|bench)\b|\btensorrt[_-]llm\b", "trtllm"),
    (r"text-generation-(inference|launcher)", "tgi"),
    (r"\blmdeploy\b", "lmdeploy"),
    (r"\bllama-server\b|\bllama\.cpp\b", "llama-cpp"),
)
"""Programs and images of engines, and who reads their lines."""


def reader_of(text: str) -> str:
    """Who reads a line without any known flag; empty where nobody is known to."""
    return next((name for pattern, name in READERS if re.search(pattern, text)), "")


def other_engine(text: str) -> str:
    """The engine that a line without any known flag is of; empty where it is not known."""
    return next((name for pattern, name in ENGINES if re.search(pattern, text)), "")


def _on(value: object) -> bool:
    if str(value).lower() in ("none", "null", "0"):
        return False
    return truth("", value) if isinstance(value, bool) else True

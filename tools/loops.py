"""How a training loop of `tools/real_models.py` is made, and what its row says of it.

A loop is named by words joined with `-`:

    single          plain PyTorch (`profiler.models`)
    transformers    HuggingFace's code
    autocast        weights in fp32, products in bf16 by `torch.autocast`
    compiled        the whole model by `torch.compile`
    regional        each layer by itself, as torchtitan does, and the loss
    float8, rowwise products in fp8 by torchao, one scale per tensor or per row; the head in bf16
    lora16          adapters of that rank beside every linear layer but the head, by peft; the
                    others are frozen. peft keeps adapters in fp32, where the loop has not `narrow`
    loraqv8         the same beside the projections of queries and values alone

and what `tools/asked.py` names.
"""

from __future__ import annotations

import re
from typing import Any

from tools import asked

QUERY_VALUE = ["q_proj", "v_proj"]


def words(whose: str) -> set[str]:
    """The words of a loop's name."""
    return set(whose.split("-"))


def _rank(whose: str) -> tuple[str, int] | None:
    """What is adapted ("" for every linear layer) and the rank, of a loop that trains adapters."""
    found = re.search(r"\b(?:q|int8)?lora(qv)?(\d+)", whose)
    return (found[1] or "", int(found[2])) if found else None


def _stored(whose: str) -> str:
    """How frozen weights are stored: "q", "int8", or "" as they are multiplied."""
    found = re.search(r"\b(q|int8)lora", whose)
    return found[1] if found else ""


def autocast(module: Any, widen: bool = True) -> Any:
    """A module that computes in bf16 by `torch.autocast`; its weights in fp32, if widened."""
    import torch

    module = module.float() if widen else module
    plain = module.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return plain(*inputs, **named)

    module.forward = forward
    return module


def _adapted(module: Any, kind: str, rank: int, narrow: bool) -> None:
    """Adapters in a model of transformers, by peft."""
    from peft import LoraConfig, get_peft_model

    targets = QUERY_VALUE if kind == "qv" else "all-linear"
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, lora_dropout=0.0,
                        task_type="CAUSAL_LM")  # fmt: skip
    module.model.enable_input_require_grads()
    module.model = get_peft_model(module.model, config, autocast_adapter_dtype=not narrow)
    if narrow:
        for name, one in module.model.named_parameters():
            one.data = one.data.bfloat16() if "lora_" in name else one.data


def _narrowed(module: Any, rowwise: bool) -> None:
    """Linear layers of the blocks in fp8, by torchao."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name("rowwise" if rowwise else "tensorwise")
    for block in module.blocks:
        convert_to_float8_training(block, config=config)


def made(check: Any, device: Any, whose: str, recompute: str) -> Any:
    """The module of a loop, which takes tokens and targets and returns the loss."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from profiler import huggingface, step

    said, adapters = words(whose), _rank(whose)
    if "transformers" in said:
        module: Any = huggingface.causal(check.model, check.seq_len, "bf16", device)
        if "liger" in said:
            asked.lighter(module)
        if _stored(whose):
            asked.quantised(module, _stored(whose))
            if "autocast" in said:
                from peft import prepare_model_for_kbit_training

                prepare_model_for_kbit_training(module.model, use_gradient_checkpointing=False)
        if adapters:
            _adapted(module, *adapters, narrow="narrow" in said)
        if recompute == "full":
            module.model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        module = step.module_of(check, device)
        if "float8" in said:
            _narrowed(module, "rowwise" in said)
        for block in module.blocks:
            if recompute == "full":
                plain = block.forward
                block.forward = lambda x, f=plain: checkpoint(f, x, use_reentrant=False)
            if "regional" in said:
                block.compile()
    if "autocast" in said:
        module = autocast(module, widen=adapters is None)
    return torch.compile(module) if "compiled" in said else module


def once(check: Any, device: Any, whose: str, recompute: str) -> Any:
    """A call that runs one whole step of a loop."""
    module = made(check, device, whose, recompute)
    return asked.step_of(check, device, module, words(whose),
                         lambda: made(check, device, "transformers", "none"))  # fmt: skip


def stated(whose: str, recompute: str) -> dict[str, object]:
    """What a loop's row says of its plan beside `profiler.step.row`."""
    said, adapters = words(whose), _rank(whose)
    found: dict[str, object] = {"recompute": recompute}
    if "transformers" in said:
        found |= {"framework": "huggingface", "fused_norm": 0, "windows_masked": 1}
    if said & {"compiled", "regional"}:
        found["fused"] = 1
    if "float8" in said:
        found["precision"] = "fp8_rowwise" if "rowwise" in said else "fp8"
        found["saves_narrow"] = 0  # torchao keeps what it casts as it was
    if adapters:
        kind, rank = adapters
        wide = "autocast" if "autocast" in said else "fp32"
        found["adapter_style"] = "apart" if "narrow" in said else wide
        found |= {"trained": "lora_qkv" if kind else "lora", "lora_rank": rank}
        if _stored(whose):
            found["frozen_precision"] = "nf4" if _stored(whose) == "q" else "int8"
    elif "autocast" in said:
        wide = ("weight_bytes", "gradient_bytes", "reduce_bytes")
        found |= {**dict.fromkeys(wide, 4.0), "optimizer_bytes": 8.0}
    return found | asked.stated(said, adapters is not None)

"""What a host takes for training loops whose arithmetic is next to nothing: the work of Python
around operators, which `predictor.training.calls` counts in operators.

    python -m tools.host_shares OUT.csv
    python -m tools.host_shares --windows OUT.csv

On a processor, by its own time of a thread; needs transformers and peft. Loops of `tools/loops.py`
without checkpoints, with reentrant and with other ones; and adapters that are switched off and on.
Or what one more window takes in a tower like Qwen2.5-VL's, whose windows attend one by one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from predictor.models import Model
from tools import loops

SMALL = Model(
    name="small", layers=8, hidden=64, heads=2, kv_heads=1, head_dim=32, ffn_hidden=64, vocab=64
)
TOKENS = (2, 8)
"""Sequences and their length."""

LOOPS = ("transformers", "transformers-lora16-narrow", "transformers-lora16-autocast")
CHECKPOINTS = {"none": None, "reentrant": True, "hooks": False}
CALLS = 24

PIXELS, IMAGES, DEPTH = 112, 4, 8
WINDOWS = (28, 56)
"""Pixels of a window's side, of a patch and of four: 64 and 16 windows of as many patches."""


def took(call: Callable[[], object]) -> float:
    """Time of a thread for a layer [ms]: the lower quartile of `CALLS`."""
    for _ in range(4):
        call()
    found = []
    for _ in range(CALLS):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return 1e3 * sorted(found)[CALLS // 4] / SMALL.layers


def rows() -> Iterator[dict[str, Any]]:
    """One for each loop and kind of checkpoint, and of adapters that are switched."""
    import torch

    from profiler import step
    from profiler.device import find

    torch.set_num_threads(1)
    check, device = step.Check(SMALL, TOKENS[1], TOKENS[0], "bf16"), find("cpu")
    tokens = torch.randint(SMALL.vocab, TOKENS)
    for whose in LOOPS:
        for kind, reentrant in CHECKPOINTS.items():
            module = loops.made(check, device, whose, "none").float()
            if reentrant is not None:
                module.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                module.model.enable_input_require_grads()

            def stepped(module: Any = module) -> None:
                module(tokens, tokens).backward()
                for one in module.parameters():
                    one.grad = None

            yield {"loop": whose, "checkpoints": kind, "what": "step", "layer_ms": took(stepped)}
        if hasattr(module.model, "disable_adapter"):

            def switched(module: Any = module) -> None:
                with module.model.disable_adapter():
                    pass

            yield {"loop": whose, "checkpoints": "none", "what": "switch",
                   "layer_ms": took(switched)}  # fmt: skip


def tower(window: int) -> Any:
    """A tower like Qwen2.5-VL's, of next to no width, and a call of it with its backward pass."""
    import torch
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as code
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

    config = Qwen2_5_VLVisionConfig(
        depth=DEPTH, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=32,
        window_size=window, fullatt_block_indexes=[],
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return code.Qwen2_5_VisionTransformerPretrainedModel(config).to(torch.float32).train()


def windows() -> Iterator[dict[str, Any]]:
    """What one more window takes [us]: what is between towers of more and of fewer windows."""
    import torch

    torch.set_num_threads(1)
    side = PIXELS // 14
    pixels = torch.randn(IMAGES * side * side, 3 * 2 * 14 * 14)
    grid = torch.tensor([[1, side, side]] * IMAGES)
    many = [IMAGES * (PIXELS // one) ** 2 for one in WINDOWS]
    for kind, reentrant in {"forward": None, **CHECKPOINTS}.items():
        found = []
        for size in WINDOWS:
            made = tower(size)
            if reentrant is not None:
                made.gradient_checkpointing_enable({"use_reentrant": reentrant})
                made.patch_embed.register_forward_hook(lambda *kept: kept[2].requires_grad_(True))

            def stepped(made: Any = made, alone: bool = kind == "forward") -> None:
                with torch.set_grad_enabled(not alone):
                    seen = made(pixels, grid).pooler_output
                if not alone:
                    seen.sum().backward()
                    made.zero_grad(set_to_none=True)

            found.append(took(stepped) * SMALL.layers / DEPTH)
        yield {"checkpoints": kind, "window_us": 1e3 * (found[0] - found[1]) / (many[0] - many[1])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", action="store_true")
    told = parser.parse_args()
    table = pd.DataFrame(windows() if told.windows else rows())
    table.round(4).to_csv(told.out, index=False)
    print(table.to_string())

"""Static batches through HuggingFace's `generate`, of weights in 16, 8 and 4 bits, and training
steps of a model that sees images, on one GPU: a check, to which nothing is fitted.

    python -m tools.generated --out FOLDER [--device auto] [--seconds 100]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from predictor import catalog
from tools import asked

NEW = 33
"""Tokens of an answer; the first is the prompt's."""

BATCHES = (
    ("llama3-8b", "bf16", ((1, 512), (16, 512), (4, 4096))),
    ("llama3-8b", "nf4", ((1, 512), (16, 512))),
    ("llama3-8b", "int8", ((1, 512), (16, 512))),
    ("llama3.2-1b", "bf16", ((1, 512), (64, 512))),
)
"""Model, how its weights are stored, and (sequences, tokens of a prompt)."""

SIDE = 448
"""Pixels of an image's side."""

SEEN = (
    (2, 2048, 4, "trained", "none"),
    (2, 2048, 4, "frozen", "full"),
    (4, 1024, 2, "trained", "full"),
)
"""Sequences, their tokens, images of each, whether the tower is trained, recomputation."""


def batches(device: Any, until: float) -> Iterator[dict[str, Any]]:
    """Time prompts, and what a further token takes, as `generate` has them."""
    import torch

    from profiler import huggingface, serving, step
    from profiler.timing import timed

    for name, stored, shapes in BATCHES:
        longest = max(length for _, length in shapes) + NEW
        check = step.Check(catalog.model(name), longest, 1, "bf16")
        module: Any = huggingface.causal(check.model, longest, "bf16", device).eval()
        if stored != "bf16":
            asked.quantised(module, "q" if stored == "nf4" else "int8")
        for sequences, length in shapes:
            if time.perf_counter() > until:
                return
            prompt = torch.randint(check.model.vocab, (sequences, length), device=device.torch)
            kept = {
                "attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0,
            }  # fmt: skip
            samples: dict[int, list[Any]] = {}
            for new in (1, NEW):
                call = partial(
                    module.model.generate, prompt, max_new_tokens=new, min_new_tokens=new, **kept
                )
                call()
                samples[new] = [timed(call, device) for _ in range(4)]
            one, all_ = (min(x.seconds for x in samples[new]) for new in (1, NEW))
            for metric, value in (("ttft_ms", one), ("tpot_ms", (all_ - one) / (NEW - 1))):
                row = serving.row(check, device, sequences, length, metric, samples[NEW])
                row["point_id"] += f"_{stored}"
                row |= {"framework": "huggingface", "weights_precision": stored,
                        "value": 1e3 * value, "output_len": NEW}  # fmt: skip
                yield row
        module = None
        gc.collect()
        if device.on_gpu:
            torch.cuda.empty_cache()


def seeing(layers: int = 36, depth: int = 32) -> Any:
    """The configuration of Qwen2.5-VL-3B (Qwen/Qwen2.5-VL-3B-Instruct, config.json)."""
    import transformers

    return transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": layers,
            "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 11008,
            "tie_word_embeddings": True, "max_position_embeddings": 128000,
            "rope_scaling": {
                "type": "default", "rope_type": "default", "mrope_section": [16, 24, 24],
            },
        },
        vision_config={
            "depth": depth, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        },
        tie_word_embeddings=True, image_token_id=151655, vision_start_token_id=151652,
        vision_end_token_id=151653,
    )  # fmt: skip


def seen(device: Any, config: Any, shape: tuple[int, int, int]) -> dict[str, Any]:
    """A batch of that many sequences, tokens and images of each."""
    import torch

    (sequences, length, count), patches = shape, SIDE // 14
    tokens = torch.randint(1000, (sequences, length), device=device.torch)
    for number in range(count):
        begin = 8 + number * (length // count)
        tokens[:, begin - 1] = config.vision_start_token_id
        tokens[:, begin : begin + patches**2 // 4] = config.image_token_id
    many = sequences * count
    grid = torch.tensor([[1, patches, patches]] * many, device=device.torch)
    pixels = torch.randn(many * patches**2, 3 * 2 * 14 * 14, device=device.torch)
    return {
        "input_ids": tokens,
        "labels": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": pixels.bfloat16(),
        "image_grid_thw": grid,
        "mm_token_type_ids": (tokens == config.image_token_id).int(),
    }


def images(device: Any, until: float, config: Any = None) -> Iterator[dict[str, Any]]:
    """Time steps of a model that sees images."""
    import torch
    import transformers

    from profiler.timing import timed

    config = config or seeing()
    for *shape, tower, recompute in SEEN:
        if time.perf_counter() > until:
            return
        sequences, length, count = shape
        torch.manual_seed(0)
        with torch.device(device.torch):
            made = transformers.Qwen2_5_VLForConditionalGeneration._from_config(
                config, attn_implementation="sdpa", dtype=torch.bfloat16
            )
        made = made.to(device.torch, torch.bfloat16).train()
        if tower == "frozen":
            made.model.visual.requires_grad_(False)
        if recompute == "full":
            made.gradient_checkpointing_enable({"use_reentrant": False})
        trained = [one for one in made.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        inputs = seen(device, config, (sequences, length, count))

        def step(made: Any = made, optimizer: Any = optimizer, inputs: Any = inputs) -> None:
            optimizer.zero_grad(set_to_none=True)
            made(**inputs, use_cache=False).loss.backward()
            optimizer.step()

        step()
        device.synchronize()
        if device.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = sorted(timed(step, device).seconds for _ in range(4))
        said = f"{sequences}x{length}_{count}x{SIDE}_{tower}_{recompute}"
        yield {
            "point_id": f"{device.name}_qwen2.5-vl-3b_{said}",
            "value": 0.5 * (seconds[1] + seconds[2]),
            "sequences": sequences, "seq_len": length, "images": count, "side": SIDE,
            "tower": tower, "recompute": recompute,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.on_gpu else None,
        }  # fmt: skip
        made = optimizer = trained = step = inputs = None
        gc.collect()
        if device.on_gpu:
            torch.cuda.empty_cache()


def main() -> None:
    """Write both tables, whole, as rows come."""
    from profiler.device import find

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=100.0)
    told = parser.parse_args()
    device = find(told.device)
    told.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    for what, share, name in ((images, 0.4, "images"), (batches, 1.0, "generated")):
        rows = []
        try:
            for row in what(device, begin + share * told.seconds):
                rows.append(row)
                print(f"{time.perf_counter() - begin:6.1f}", row["point_id"], row["value"],
                      flush=True)  # fmt: skip
                place = told.out / f"{name}.csv"
                pd.DataFrame(rows).to_csv(place.with_suffix(".part"), index=False)
                place.with_suffix(".part").replace(place)
        except Exception as why:  # of somebody else's code
            print("fails:", name, str(why).split("\n")[0][:300], flush=True)


if __name__ == "__main__":
    main()

"""Asks llm-analysis (run by the Python of its own environment): rows in, predictions out, as JSON.

Its defaults take the hardware at its peak; with `half`, half of the peak FLOP/s, which its own
source calls what Megatron-LM reaches.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from llm_analysis import analysis

GPUS = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm-80gb",
    "V100-SXM2-32GB": "v100-sxm-32gb",
}
RECOMPUTE = {"none": 0, "selective": 1, "full": 2}
SHARDING = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


def described(row, folder):
    """The model as a file of llm-analysis's own form."""
    length = row.get("seq_len") or row["input_len"] + row["output_len"]
    content = {
        "name": row["point_id"],
        "num_layers": int(row["layers"]),
        "n_head": int(row["heads"]),
        "hidden_dim": int(row["hidden"]),
        "vocab_size": int(row["vocab"]),
        "max_seq_len": int(length),
        "num_key_value_heads": int(row["kv_heads"]),
        "ffn_embed_dim": int(row["ffn_hidden"]),
        "expansion_ratio": row["ffn_hidden"] / row["hidden"],
    }
    path = Path(folder) / f"{row['point_id']}.json"
    path.write_text(json.dumps(content))
    return str(path)


def asked(row, folder, efficiency):
    """Seconds of a training step, of a prompt, or per token after it."""
    common = {
        "model_name": described(row, folder),
        "gpu_name": GPUS[row["accelerator"]],
        "tp_size": int(row["tp"]),
        "pp_size": int(row["pp"]),
        "dp_size": int(row["dp"]),
        "log_level": "ERROR",
        "flops_efficiency": efficiency,
    }
    if "global_batch" in row:
        found = analysis.train(
            batch_size_per_gpu=int(row["micro_batch"]),
            global_batch_size=int(row["global_batch"]),
            seq_len=int(row["seq_len"]),
            total_num_tokens=int(row["global_batch"] * row["seq_len"]),
            activation_recomputation=RECOMPUTE[row["recompute"]],
            ds_zero=SHARDING[row["dp_sharding"] or "none"],
            mlp_gated_linear_units=bool(row["gated"]),
            **common,
        )
        return found["latency_per_iter"]
    found = analysis.infer(
        batch_size_per_gpu=int(row["batch"]),
        seq_len=int(row["input_len"]),
        num_tokens_to_generate=int(row["output_len"]),
        dtype_name="w8a8e16" if row["precision"] == "fp8" else "w16a16e16",
        **common,
    )
    return found["prefill_latency" if row["metric"] == "ttft_ms" else "decode_latency"]


def main():
    """Rows on stdin; a list of [point_id, seconds or null, why not, seconds it took] on stdout."""
    efficiency = 0.5 if sys.argv[1:] == ["half"] else None
    told = []
    with tempfile.TemporaryDirectory() as folder:
        for row in json.load(sys.stdin):
            begin = time.perf_counter()
            try:
                value, why = float(asked(row, folder, efficiency)), ""
            except (Exception, SystemExit) as error:
                value, why = None, f"{type(error).__name__}: {error}"[:120]
            told.append([row["point_id"], value, why, time.perf_counter() - begin])
    print(json.dumps(told))


main()

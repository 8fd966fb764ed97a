"""Asks GenZ (run by the Python of its own environment): rows in, predictions out, as JSON."""

import contextlib
import io
import json
import sys
import time

from GenZ import decode_moddeling, prefill_moddeling
from GenZ.Models import ModelConfig

H100 = "H100_GPU"
SYSTEMS = {"A100-SXM4-80GB": "A100_80GB_GPU", "H100-SXM5-80GB": H100}


def asked(row):
    """Seconds of a prompt, or per token after it."""
    model = ModelConfig(
        model=row["model"],
        vocab_size=int(row["vocab"]),
        max_model_len=int(row["input_len"] + row["output_len"]),
        hidden_size=int(row["hidden"]),
        intermediate_size=int(row["ffn_hidden"]),
        num_ffi=2 if row["gated"] else 1,
        num_decoder_layers=int(row["layers"]),
        num_attention_heads=int(row["heads"]),
        num_key_value_heads=int(row["kv_heads"]),
    )
    common = {
        "model": model,
        "batch_size": int(row["batch"]),
        "input_tokens": int(row["input_len"]),
        "system_name": SYSTEMS[row["accelerator"]],
        "bits": "fp8" if row["precision"] == "fp8" else "bf16",
        "tensor_parallel": int(row["tp"]),
        "pipeline_parallel": int(row["pp"]),
        "parallelism_heirarchy": f"TP{{{int(row['tp'])}}}_EP{{1}}_PP{{{int(row['pp'])}}}",
    }
    if row["metric"] == "ttft_ms":
        found = prefill_moddeling(**common)
    else:
        found = decode_moddeling(**common, output_tokens=int(row["output_len"]), Bb=1)
    return found["Latency"] * 1e-3


def main():
    """Rows on stdin; a list of [point_id, seconds or null, why not, seconds it took] on stdout."""
    told = []
    for row in json.load(sys.stdin):
        begin = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                value, why = float(asked(row)), ""
        except (Exception, SystemExit) as error:
            value, why = None, f"{type(error).__name__}: {error}"[:120]
        told.append([row["point_id"], value, why, time.perf_counter() - begin])
    print(json.dumps(told))


main()

"""Asks aiconfigurator (run by the Python of its own environment): rows in, predictions out, as
JSON. Models are given as `config.json` files of the Llama form; batches are static."""

import contextlib
import io
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from aiconfigurator.cli.api import cli_estimate

SYSTEMS = {
    "A100-SXM4-80GB": "a100_sxm",
    "H100-SXM5-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
}
BACKENDS = {"sglang": "sglang", "vllm": "vllm"}
"""Whose tables; TensorRT-LLM's for every other engine."""


def described(row, folder):
    """A folder with the model's `config.json`."""
    if not row["gated"]:
        raise ValueError("only models of Llama's form can be described to it")
    place = Path(folder) / row["model"].replace("/", "-")
    place.mkdir(exist_ok=True)
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(row["hidden"]),
        "intermediate_size": int(row["ffn_hidden"]),
        "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]),
        "num_key_value_heads": int(row["kv_heads"]),
        "head_dim": int(row["hidden"] // row["heads"]),
        "vocab_size": int(row["vocab"]),
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }
    (place / "config.json").write_text(json.dumps(content))
    return str(place)


def asked(row, folder):
    """Seconds of a prompt, or per token after it."""
    eight = row["precision"] == "fp8"
    found = cli_estimate(
        described(row, folder),
        SYSTEMS[row["accelerator"]],
        mode="static",
        backend_name=BACKENDS.get(row["framework"], "trtllm"),
        isl=int(row["input_len"]),
        osl=max(int(row["output_len"]), 2),
        batch_size=int(row["batch"]),
        tp_size=int(row["tp"]),
        pp_size=int(row["pp"]),
        gemm_quant_mode="fp8" if eight else "bfloat16",
    )
    return (found.ttft if row["metric"] == "ttft_ms" else found.tpot) * 1e-3


def main():
    """Rows on stdin; a list of [point_id, seconds or null, why not, seconds it took] on stdout."""
    logging.disable(logging.CRITICAL)
    told = []
    with tempfile.TemporaryDirectory() as folder:
        for row in json.load(sys.stdin):
            begin = time.perf_counter()
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    value, why = float(asked(row, folder)), ""
            except (Exception, SystemExit) as error:
                value, why = None, f"{type(error).__name__}: {error}"[:120]
            told.append([row["point_id"], value, why, time.perf_counter() - begin])
    print(json.dumps(told))


main()

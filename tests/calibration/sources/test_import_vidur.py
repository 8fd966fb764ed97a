from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from calibration.sources import vidur
from calibration.sources.found import Found, Stated
from calibration.tables.kernel_table import check_kernels, gaps
from predictor import catalog
from predictor.errors import InputError

Cli = Callable[..., tuple[int, str, str]]

DGX = catalog.system("dgx-a100")
STATED = Stated(accelerator="A100-SXM4-80GB", tiers=DGX.tiers, per_node=8)

MLP = """,time_stats.emb.median,time_stats.input_layernorm.median,time_stats.attn_pre_proj.min,\
time_stats.attn_pre_proj.median,time_stats.attn_rope.median,time_stats.attn_post_proj.median,\
time_stats.mlp_up_proj.median,time_stats.mlp_act.median,time_stats.mlp_down_proj.median,\
time_stats.add.median,n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,\
num_tensor_parallel_workers
0,0.004,0.005,0.1,0.111,0.012,0.113,0.114,0.015,0.116,0.017,64,8,8192,28672,32000,True,512,1
1,0.004,0.005,0.1,0.211,0.022,0.213,0.214,0.025,0.216,0.027,64,8,8192,28672,32000,True,512,16
"""

ATTENTION = """time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,\
n_kv_head,block_size,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,\
attention_backend
0.5,,8192,64,8,16,2,1,256,1024,True,FLASHINFER
,0.125,8192,64,8,16,2,32,0,1023,False,FLASHINFER
"""

ALL_REDUCE = """time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node
0.10,0,2,1048576,all_reduce,2
0.20,1,2,1048576,all_reduce,2
0.12,2,2,1048576,all_reduce,2
0.50,0,16,1048576,all_reduce,8
0.01,0,1,1048576,all_reduce,1
"""


def read(folder: Path, name: str, text: str, stated: Stated = STATED) -> Found:
    path = folder / name
    path.write_text(text)
    return vidur.read(path, stated)


def test_shapes_of_a_layer(tmp_path: Path) -> None:
    """Medians in ms; grouped queries, a gated MLP, tensor parallel."""
    found = read(tmp_path, "mlp.csv", MLP)
    table = check_kernels(found.rows, "mlp")
    assert (gaps(table) == "").all()
    gemms = table[table["op"] == "gemm"].set_index("latency_us")
    for time, shape in {
        111: (512, 8192 + 2 * 1024, 8192),
        113: (512, 8192, 8192),
        114: (512, 2 * 28672, 8192),
        116: (512, 8192, 28672),
        211: (512, 512 + 2 * 128, 8192),  # fewer key heads than ranks: one each
        213: (512, 8192, 512),
        214: (512, 2 * 1792, 8192),
        216: (512, 8192, 1792),
    }.items():
        assert tuple(gemms.loc[time, ["m", "n", "k"]]) == shape
    streams = table[table["op"] != "gemm"].set_index("latency_us")["message_bytes"]
    assert streams[15] == 512 * 28672 * 3 * 2
    assert streams[12] == 512 * (8192 + 1024) * 2 * 2
    assert streams[17] == 512 * 8192 * 3 * 2
    assert list(streams[[5.0]]) == [512 * 8192 * 2 * 2] * 2
    assert (table["dtype"] == "fp16").all()
    assert found.left_out == {"embedding tables that are split over ranks": 1}


def test_attention_over_a_cache(tmp_path: Path) -> None:
    prefill, decode = read(tmp_path, "attention.csv", ATTENTION).rows.to_dict("records")
    assert (prefill["op"], prefill["latency_us"], prefill["causal"]) == (
        "attention_prefill",
        500,
        1,
    )
    assert (prefill["batch"], prefill["q_len"], prefill["kv_len"]) == (1, 256, 1280)
    assert (prefill["heads"], prefill["kv_heads"], prefill["head_dim"]) == (32, 4, 128)
    assert (decode["op"], decode["latency_us"]) == ("attention_decode", 125)
    assert (decode["batch"], decode["q_len"], decode["kv_len"]) == (32, 1, 1024)


def test_ranks_of_a_collective_become_their_median(tmp_path: Path) -> None:
    found = read(tmp_path, "all_reduce.csv", ALL_REDUCE)
    near, far = found.rows.to_dict("records")
    assert (near["latency_us"], near["num_gpus"], near["num_nodes"]) == (pytest.approx(120), 2, 1)
    assert (far["latency_us"], far["num_gpus"], far["num_nodes"]) == (500, 16, 2)
    assert (near["link"], far["link"]) == ("nvlink3", "infiniband-hdr")
    assert near["message_bytes"] == 1048576
    assert found.left_out == {"one rank alone": 1}
    sent = ALL_REDUCE.replace("all_reduce", "send_recv")
    assert set(read(tmp_path, "send_recv.csv", sent).rows["op"]) == {"p2p"}


@pytest.mark.parametrize(
    ("name", "text", "stated", "message"),
    [
        ("mlp.csv", MLP, Stated(), "do not name the device; give --accelerator"),
        ("mlp.csv", MLP.replace("n_embd", "width"), STATED, "column 'n_embd' is missing"),
        ("mlp.csv", MLP.replace(",0.213,", ",fast,"), STATED, "line 3: time_stats.attn_post_proj."),
        (
            "mlp.csv",
            MLP.replace("True,512,16", "True,512,0"),
            STATED,
            "line 3: num_tensor_parallel",
        ),
        ("mlp.csv", MLP.replace("True,512,16", "maybe,512,16"), STATED, "line 3: use_gated_mlp"),
        ("mlp.csv", MLP[:-8], STATED, "its last line is cut off"),
        ("attention.csv", "a,b\n1,2\n", STATED, "column 'n_embd' is missing"),
        ("all_reduce.csv", ALL_REDUCE, Stated(accelerator="T4-16GB"), "the link is not stated"),
        ("other.csv", "a,b\n1,2\n", STATED, "expected mlp.csv, attention.csv, all_reduce.csv"),
    ],
)
def test_bad_files_are_refused(
    tmp_path: Path, name: str, text: str, stated: Stated, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, name, text, stated)
    assert message in str(caught.value)


def test_import_a_folder_then_validate(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "compute" / "a100" / "llama"
    model.mkdir(parents=True)
    (model / "mlp.csv").write_text(MLP)
    (model / "attention.csv").write_text(ATTENTION)
    (model / "cpu_overheads.csv").write_text("a\n1\n")
    out = tmp_path / "vidur.csv.gz"
    status, text, _ = cli("import", "vidur", tmp_path, "--accelerator", "a100", "--out", out)
    assert status == 0
    assert "tables cpu_overheads.csv are not read" in text
    table = pd.read_csv(out)
    assert len(table) == 19
    assert set(table["accelerator"]) == {"A100-SXM4-80GB"}
    status, text, _ = cli("validate", out)
    assert status == 0
    assert "19 of 19 rows predicted" in text

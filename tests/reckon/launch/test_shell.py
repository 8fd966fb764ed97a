"""Shell scripts are read, not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import InputError
from reckon.launch import read_launch
from reckon.launch.arithmetic import arithmetic
from reckon.launch.shell import read_script


def test_the_shell_is_read_not_run(tmp_path: Path) -> None:
    script = f"""
A=3
B=$((A*2+1))   # a comment with 'quotes'
C="x $B"; D='$A'
rm -rf {tmp_path}; touch {tmp_path}/made
if [ "$A" -gt 2 ]; then E=big; elif [[ $A == 3 ]]; then E=three; else E=small; fi
for i in 1 2; do echo $i; done
run $A "$C" $D ${{F:-default}} $(hostname) {tmp_path} $E
"""
    found = read_script(script)
    assert found.commands[-1] == [
        "run",
        "3",
        "x 7",
        "$A",
        "default",
        "$(hostname)",
        str(tmp_path),
        "big",
    ]
    assert tmp_path.is_dir()
    assert not list(tmp_path.iterdir())
    assert any("for" in note for note in found.notes)
    assert arithmetic("8 * (3 - 1) / 4") == 4
    assert arithmetic("__import__('os')") is None
    assert arithmetic("1/0") is None


CALLED = """#!/bin/bash
SIZE=$1
TP=${TP:-2}
if [ $SIZE = 7B ]; then
LAYERS=28
elif [ $SIZE = 32B ]; then
LAYERS=64
fi
shift
pretrain_gpt.py --num-layers $LAYERS --hidden-size 5120 --num-attention-heads 40 \\
  --vocab-size 1000 --seq-length $1 --tensor-model-parallel-size $TP --train-iters $ITERS
"""


def test_a_script_is_read_as_it_is_called(tmp_path: Path) -> None:
    """Settings before its name, arguments behind it, as a shell takes them."""
    path = tmp_path / "run.sh"
    path.write_text(CALLED)
    for call, tp in ((f"bash {path} 32B 4096", 2), (f"TP=8 {path} 32B 4096", 8)):
        launch = read_launch("megatron", call)
        assert launch.model is not None
        assert (launch.model.layers, launch.fields["seq_len"], launch.fields["tp"]) == (
            64,
            4096,
            tp,
        )
        assert any("--train-iters $ITERS" in note for note in launch.notes)
    split = read_launch("megatron", f"sh {path} \\\n 7B \\\n 512")
    assert split.model is not None
    assert (split.model.layers, split.fields["seq_len"]) == (28, 512)


def test_all_that_a_script_leaves_open_is_told_at_once_with_how_to_say_it(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-8B --tensor-parallel-size $TP --max-num-seqs $SEQS\n")
    with pytest.raises(InputError) as refused:
        read_launch("vllm", str(path))
    told = str(refused.value)
    assert "--tensor-parallel-size $TP, --max-num-seqs $SEQS: the text does not set those" in told
    assert told.endswith("'TP=... SEQS=... FILE'")
    launch = read_launch("vllm", f"SEQS=64 {path}", beside={"tp": 4})
    assert (launch.fields["max_batch"], launch.fields.get("tp")) == (64, None)
    assert "--tensor-parallel-size $TP is not set in the text: given beside it" in launch.notes


def test_a_here_document_is_found_under_the_name_that_a_variable_holds() -> None:
    text = ('OPTIONS="extra.yml"\nTP=8\ncat > $OPTIONS << EOF\nkv_cache_config:\n  dtype: fp8\n'
            "tensor_parallel_size: $TP\nEOF\n"
            "trtllm-serve openai/gpt-oss-120b --extra_llm_api_options=$OPTIONS")  # fmt: skip
    launch = read_launch("trtllm", text)
    assert (launch.fields["kv_precision"], launch.fields["tp"]) == ("fp8", 8)


def test_texts_are_added_to_a_file_where_the_script_gets_there() -> None:
    head = "DP={}\nF=extra.yml\ncat > $F << EOF\nkv_cache_config:\n  dtype: fp8\nEOF\n"
    more = 'if [[ "$DP" == "true" ]]; then\n cat << EOF >> $F\nenable_attention_dp: $DP\nEOF\nfi\n'
    line = "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --extra_llm_api_options=$F"
    texts = [head.format(on) + more + line for on in ("true", "false")]
    found = [read_launch("trtllm", text).fields for text in texts]
    assert [(f["tp"], f["dp"], f["kv_precision"]) for f in found] == [(1, 8, "fp8"), (8, 1, "fp8")]
    assert read_script("@here-document 7 1 x").files == {}


def test_words_that_nobody_set_are_no_values() -> None:
    base = "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4"
    rest = "--vocab-size 100 --seq-length 512 ${more} --sequence-parallel $other"
    launch = read_launch("megatron", f"{base} {rest}")
    assert (launch.fields["seq_len"], launch.fields["sequence_parallel"]) == (512, True)


def test_arithmetic_chooses() -> None:
    assert arithmetic("64 < 4 ? 64 : 64 / 4") == 16
    assert arithmetic("3 > 2 ? 5 : 7") == 5
    assert arithmetic("1 < 2 < 3") is None

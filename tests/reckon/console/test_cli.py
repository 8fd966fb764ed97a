from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import reckon
from predictor import catalog
from reckon.verbs.figures import SCHEMA_VERSION

Cli = Callable[..., tuple[int, str, str]]
RUN = ["predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "64",
       "--tp", "2", "--pp", "1", "--global-batch", "128", "--seq-len", "8192"]  # fmt: skip


def test_a_prediction_is_printed(cli: Cli) -> None:
    status, out, err = cli(*RUN, "--tokens", "1e12")
    assert (status, err) == (0, "")
    for text in ("step time", "tokens/s", "MFU", "memory", "days", "GPU-hours", "assumed", "80%"):
        assert text in out


def test_the_json_is_the_contract(cli: Cli) -> None:
    status, out, _ = cli(*RUN, "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert found["schema_version"] == SCHEMA_VERSION
    assert {"inputs", "assumed", "step_time_s", "tokens_per_s", "mfu", "hfu", "breakdown_s",
            "memory", "operators", "calibration"} <= set(found)  # fmt: skip
    assert set(found["step_time_s"]) == {"value", "low", "high"}
    assert set(found["hidden_communication_s"]) == {"tp", "cp", "ep", "pp", "dp", "offload"}
    total = sum(found["breakdown_s"].values())
    assert total == pytest.approx(found["step_time_s"]["value"])
    memory = found["memory"]
    assert {"capacity_gb", "peak_gb", "fits", "p_oom", "stages"} <= set(memory)
    assert memory["peak_gb"] == pytest.approx(max(stage["total"] for stage in memory["stages"]))
    assert {"name", "phase", "count", "time_s", "bound", "pedigree"} <= set(found["operators"][0])
    products = [o for o in found["operators"] if o["op"] == "gemm"]
    assert {o["bound"] for o in products} <= {"compute", "memory", "launch"}


def test_operators_add_up_to_the_compute_terms(cli: Cli) -> None:
    found = json.loads(cli(*RUN, "--json", "-")[1])
    for phase in ("forward", "backward"):
        parts = sum(o["time_s"] for o in found["operators"] if o["phase"] == phase)
        assert parts == pytest.approx(found["breakdown_s"][phase])


def test_json_goes_to_a_file_whole(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert cli(*RUN, "--json", path)[0] == 0
    assert json.loads(path.read_text())["kind"] == "training"
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_comma_lists_give_a_row_each(cli: Cli) -> None:
    arguments = [*RUN]
    arguments[arguments.index("--tp") + 1] = "1,2,4,3"
    status, out, _ = cli(*arguments, "--recompute", "none,full", "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert len(found["predictions"]) == 6
    assert len(found["refused"]) == 2
    assert "multiple" in found["refused"][0]["reason"]
    tps = [p["inputs"]["tp"] for p in found["predictions"]]
    assert tps == [1, 1, 2, 2, 4, 4]
    alone = json.loads(cli(*RUN, "--recompute", "none", "--json", "-")[1])
    same = next(
        p for p in found["predictions"]
        if p["inputs"]["tp"] == 2 and p["inputs"]["recompute"] == "none"
    )  # fmt: skip
    assert same["step_time_s"]["value"] == pytest.approx(alone["step_time_s"]["value"], rel=1e-9)


def test_a_sweep_is_printed(cli: Cli) -> None:
    arguments = [*RUN]
    arguments[arguments.index("--tp") + 1] = "2,4"
    status, out, _ = cli(*arguments)
    assert status == 0
    assert len([line for line in out.splitlines() if ".." in line]) == 2


def test_flags_override_the_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: llama3-8b\nsystem: dgx-h100\ngpus: 64\ntp: 2\npp: 1\nglobal_batch: 128\n"
        "seq_len: 8192\ngrad_overlap: false\n"
    )
    found = json.loads(cli("predict", "train", path, "--tp", "4", "--json", "-")[1])
    assert found["inputs"]["tp"] == 4
    assert found["inputs"]["grad_overlap"] is False
    again = json.loads(
        cli("predict", "train", path, "--set", "grad_overlap=true", "--json", "-")[1]
    )
    assert again["inputs"]["grad_overlap"] is True


def test_what_does_not_fit_is_predicted_and_says_so(cli: Cli) -> None:
    arguments = ["predict", "train", "--model", "llama3-70b", "--system", "dgx-h100", "--gpus", "8",
                 "--tp", "1", "--pp", "1", "--global-batch", "8", "--seq-len", "8192"]  # fmt: skip
    status, out, _ = cli(*arguments)
    assert status == 2
    assert "does not fit" in out.splitlines()[1]
    assert "GiB too much" in out
    assert cli(*arguments, "--allow-oom")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama3-8c"], "unknown model 'llama3-8c'; did you mean 'llama3-8b'?"),
        (["--system", "dgx-h10"], "unknown system 'dgx-h10'; did you mean"),
        (["--tp", "3", "--gpus", "3"], "tp 3 does not divide the 32 attention heads"),
        (["--dp", "5"], "gpus 64 is not tp 2 x pp 1 x cp 1 x dp 5 = 10"),
        (["--tp", "-2"], "tp: must be at least 1"),
        (["--gpus", "x"], "gpus: must be a whole number"),
        (["--tokens", "-5"], "tokens: must be more than 0"),
        (["--tokens", "nan"], "tokens:"),
        (["--set", "tpp=3"], "unknown key 'tpp'; did you mean 'tp'"),
        (["--set", "tp"], "write KEY=VALUE"),
        (["--calibration", "defualt"], "unknown calibration 'defualt'; did you mean 'default'"),
        (["--precision", "fp9"], "'fp9' is not one of"),
        (["--global-batch", "100"], "global batch 100 is not a multiple"),
        (["--framework", "megatron-lmm"], "did you mean 'megatron-lm'"),
        (["--era", "soon"], "era 'soon' is not a date"),
        (["--ep", "8"], "needs a mixture of experts"),
        (["--json", "/no/such/folder/x.json"], "cannot write /no/such/folder/x.json"),
        (["--tpp", "3"], "No such option"),
        (["--seq-len", "99999999999999999999999"], "seq_len: must be at most"),
        (["--set", "weight_bytes=1e300"], "weight_bytes: must be less than"),
        (["--model", "missing.yaml"], "cannot read missing.yaml"),
    ],
)
def test_bad_input_gives_one_line_and_status_2(cli: Cli, arguments: list, message: str) -> None:
    status, out, err = cli(*RUN, *arguments)
    assert status == 2
    assert message in err
    assert err.startswith("reckon: ")
    assert err.count("\n") == 1
    assert out == ""


def test_an_unknown_yaml_key_is_named(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: llama3-8b\nsytem: dgx-h100\n")
    status, _, err = cli("predict", "train", path)
    assert status == 2
    assert "unknown key 'sytem'; did you mean 'system'" in err


def test_a_model_may_be_a_huggingface_config(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128256,
    }))  # fmt: skip
    arguments = [*RUN]
    arguments[arguments.index("--model") + 1] = str(path)
    own = json.loads(cli(*arguments, "--json", "-")[1])
    known = json.loads(cli(*RUN, "--json", "-")[1])
    assert own["step_time_s"] == known["step_time_s"]


@pytest.mark.parametrize("kind", ["accelerators", "systems", "models", "calibrations"])
def test_catalogs_are_shown(cli: Cli, kind: str) -> None:
    status, out, _ = cli("show", kind)
    assert status == 0
    assert len(out.splitlines()) > 2
    listed = json.loads(cli("show", kind, "--json", "-")[1])
    status, out, _ = cli("show", kind, listed[0]["name"])
    assert status == 0
    assert listed[0]["name"] in out


def test_a_word_lists_the_entries_that_have_it(cli: Cli) -> None:
    status, out, _ = cli("show", "models", "DeepSeek V", "--json", "-")
    names = [row["name"] for row in json.loads(out)]
    assert status == 0
    assert {"deepseek-v2", "deepseek-v3"} <= set(names)
    assert all(name.startswith("deepseek-v") for name in names)
    status, _, error = cli("show", "models", "no-such-word")
    assert (status, "unknown model 'no-such-word'" in error) == (2, True)


def test_a_file_is_shown_like_an_entry(cli: Cli, tmp_path: Path) -> None:
    for kind, name in (("models", "llama3-8b"), ("systems", "dgx-h100"), ("accelerators", "h100")):
        path = tmp_path / f"{kind}.yaml"
        status, text, _ = cli("show", kind, name, "--yaml")
        path.write_text(text)
        assert cli("show", kind, path, "--yaml") == (0, text, "")
    status, out, _ = cli("show", "accelerators", tmp_path / "systems.yaml")
    assert status == 0
    assert "H100-SXM5-80GB" in out


def test_a_shown_entry_can_be_passed_back(cli: Cli, tmp_path: Path) -> None:
    for kind, name, load in (
        ("systems", "DGX-H100", catalog.system),
        ("accelerators", "H100-SXM5-80GB", catalog.accelerator),
        ("models", "llama3-8b", catalog.model),
    ):
        path = tmp_path / f"{name}.yaml"
        path.write_text(cli("show", kind, name, "--yaml")[1])
        assert load(str(path)).name == name
    arguments = [*RUN]
    arguments[arguments.index("--system") + 1] = str(tmp_path / "DGX-H100.yaml")
    own = json.loads(cli(*arguments, "--json", "-")[1])
    known = json.loads(cli(*RUN, "--json", "-")[1])
    assert own["step_time_s"] == known["step_time_s"]


def test_a_mixture_of_experts_shows_its_terms(cli: Cli) -> None:
    status, out, _ = cli(
        *RUN[:2], "--model", "mixtral-8x7b", "--system", "dgx-h100", "--gpus", 64, "--tp", 1,
        "--pp", 4, "--ep", 8, "--global-batch", 256, "--seq-len", 4096,
    )  # fmt: skip
    assert status == 0
    assert "ep 8" in out
    assert "expert-parallel comm." in out
    assert "moe.up" in out


def test_every_term_has_a_name_to_show() -> None:
    from predictor.training.prediction import TERMS
    from reckon.views.terminal import TERM_NAMES

    assert tuple(TERM_NAMES) == TERMS


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version")[1].strip() == f"reckon {reckon.__version__}"
    for verb in (
        ["predict", "train"],
        ["predict", "infer"],
        ["sweep"],
        ["validate"],
        ["import", "runs"],
        ["import", "kineto"],
        ["calibrate"],
        ["profile"],
        ["show"],
    ):
        status, out, _ = cli(*verb, "--help")
        assert status == 0
        assert "Example: reckon" in out
        assert len(out.splitlines()) <= 60, "help fits a screen"


def test_unknown_verbs_and_kinds(cli: Cli) -> None:
    assert cli("predcit")[0] == 2
    status, _, err = cli("show", "gpus")
    assert status == 2
    assert "known: accelerators" in err


def test_validate_writes_the_contract(cli: Cli, tmp_path: Path) -> None:
    source = catalog.data_dir() / "reference" / "training.csv"
    small = tmp_path / "t.csv"
    pd.read_csv(source, low_memory=False).iloc[::40].to_csv(small, index=False)
    out = tmp_path / "o.json"
    status, text, _ = cli("validate", small, "--calibration", "kernels-only", "--json", out)
    found = json.loads(out.read_text())
    assert status == 0
    assert "macro over sources" in text
    assert found["n_points"] == found["n_predicted"] + len(
        {row["point_id"] for row in found["skipped"]}
    ) + found["n_points"] - found["n_predicted"] - len(found["skipped"])
    assert found["calibration"] == "kernels-only"
    folded = tmp_path / "f.json"
    pd.read_csv(small).iloc[::5].to_csv(small, index=False)
    assert cli("validate", small, "--folds", "source", "--json", folded)[0] == 0
    assert json.loads(folded.read_text())["folds"] == "source"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "no such file: missing.csv"),
        (["{tmp}/empty.csv"], "cannot be read as a table"),
        (["{tmp}/foreign.csv"], "is no table of points"),
        (["{tmp}/good.csv", "--folds", "planet"], "unknown folds 'planet'"),
        (["{tmp}/t.parquet"], "cannot be read as a table"),
    ],
)
def test_validate_refuses_bad_files(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "foreign.csv").write_text("a,b\n1,2\n")
    (tmp_path / "good.csv").write_text("point_id,global_batch\nx,1\n")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 truncated")
    status, _, err = cli("validate", *(a.format(tmp=tmp_path) for a in arguments))
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def measured(folder: Path) -> Path:
    """A small profile made by hand."""
    rng = np.random.default_rng(0)
    rows = []
    for m in (64, 128, 256, 512, 1024):
        for n in (64, 256, 1024):
            flop = 2.0 * m * n * 512
            rows.append({"accelerator": "my-cpu", "op": "gemm", "dtype": "fp32", "layout": "fwd",
                         "m": m, "n": n, "k": 512, "batch": 1, "schema_version": 1,
                         "latency_us": 5 + flop / 80e3 * (1 + 0.02 * rng.random())})  # fmt: skip
    folder.mkdir()
    pd.DataFrame(rows).to_parquet(folder / "kernels.parquet")
    (folder / "device.yaml").write_text(
        "name: local\naccelerators_per_node: 1\n"
        "accelerator: {name: my-cpu, architecture: cpu-x, sm_count: 2, fp32_tflops: 0.1, "
        "memory_gb: 16, memory_bandwidth_gbs: 20}\n"
        "tiers: [{link: gloo, size: 1, bandwidth_gbs: 1}]\n"
    )
    return folder


def test_calibrate_and_predict_on_a_local_device(cli: Cli, tmp_path: Path) -> None:
    folder = measured(tmp_path / "p")
    out = tmp_path / "c"
    status, text, _ = cli("calibrate", folder, "--out", out)
    assert status == 0
    assert "gemm/fp32/my-cpu" in text
    status, text, _ = cli(
        "predict", "train", "--model", "gpt2-124m", "--system", folder / "device.yaml", "--gpus", 1,
        "--tp", 1, "--pp", 1, "--global-batch", 1, "--seq-len", 512, "--precision", "fp32",
        "--framework", "pytorch", "--calibration", out, "--json", "-",
    )  # fmt: skip
    assert status == 0
    found = json.loads(text)
    kinds = {o["pedigree"] for o in found["operators"] if o["op"] == "gemm"}
    assert kinds <= {"measured", "interpolated"}
    # The base is still there for other machines.
    assert cli(*RUN, "--calibration", out)[0] == 0


def test_calibrate_with_reference_runs_sets_the_interval(cli: Cli, tmp_path: Path) -> None:
    folder = measured(tmp_path / "p")
    table = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", dtype=str)
    few = ("megatron_sc21", "torchtitan_h100_202412", "fms_fsdp_readme", "kempnerforge_mfu")
    runs, out = tmp_path / "runs.csv", tmp_path / "c"
    table[table["source"].isin(few)].to_csv(runs, index=False)
    status, text, _ = cli(
        "calibrate", folder, "--base", "kernels-only", "--reference", runs, "--out", out,
        "--json", "-",
    )  # fmt: skip
    assert status == 0
    assert json.loads(text)["run_sigma"] > 1.02 * catalog.load("kernels-only").run.sigma


@pytest.mark.parametrize("name", ["notes.txt", "kernels.parquet"])
def test_a_calibration_takes_no_folder_that_holds_something_else(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / name).write_text("precious")
    status, _, err = cli("calibrate", measured(tmp_path / "m"), "--out", out)
    assert status == 2
    assert f"mine holds other files ({name}); give a folder of its own" in err
    assert (out / name).read_text() == "precious"
    status, _, err = cli("calibrate", tmp_path / "m", "--out", out / name)
    assert (status, "is a file; give a folder" in err) == (2, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "holds no kernels.parquet"),
        ("runs.csv", "is no kernel table"),
        ("old", "schema_version is not 1"),
        ("cut", "cannot be read as a table"),
    ],
)
def test_calibrate_refuses_bad_measurements(
    cli: Cli, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "runs.csv").write_text("point_id,global_batch\nx,1\n")
    old = measured(tmp_path / "old")
    table = pd.read_parquet(old / "kernels.parquet").assign(schema_version=7)
    table.to_parquet(old / "kernels.parquet")
    cut = measured(tmp_path / "cut")
    path = cut / "kernels.parquet"
    path.write_bytes(path.read_bytes()[:100])
    status, _, err = cli("calibrate", tmp_path / name, "--out", tmp_path / "c")
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "c").exists()


def test_a_prediction_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from reckon.console.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('torch', 'pandas', 'sklearn', 'scipy', 'rich.table') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *RUN], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_prediction_explains_itself(cli: Cli) -> None:
    status, out, _ = cli(*RUN, "--explain")
    assert status == 0
    for text in ("without", "saves", "of peak", "time rests on", "measurements"):
        assert text in out
    assert out.count("longest operators") == 1
    status, out, _ = cli(*RUN, "--explain", "--json", "-")
    told = json.loads(out)["explain"]
    assert {"terms", "longest_operators", "would_help", "pedigree", "worth_stating",
            "taxes"} == set(told)  # fmt: skip
    assert len(told["longest_operators"]) == 5
    assert sum(ground["share"] for ground in told["pedigree"]) == pytest.approx(1.0)
    status, _, err = cli(*RUN, "--tp", "2,4", "--explain")
    assert (status, err.count("\n")) == (2, 1)
    assert "--explain is of one plan" in err


def test_new_flags_are_refused_in_one_line(cli: Cli) -> None:
    for flags, message in (
        (["--price-per-gpu-hour", "2"], "give --tokens too"),
        (["--price-per-gpu-hour", "0", "--tokens", "1e9"], "must be more than 0"),
        (["--set", "schedule=dualpip"], "did you mean 'dualpipe'"),
        (["--set", "first_layers=0"], "first_layers"),
        (["--set", "recompute_method=blocks"], "did you mean 'block'"),
        (["--set", "recompute_modules=moe_act,atn"], "'atn' is not one of"),
    ):
        status, _, err = cli(*RUN, *flags)
        assert status == 2, flags
        assert message in err
        assert err.count("\n") == 1


def test_a_host_that_is_too_small_is_told(cli: Cli) -> None:
    request = ["predict", "train", "--model", "llama3-70b", "--system", "dgx-h100", "--gpus", "8",
               "--tp", "8", "--pp", "1", "--global-batch", "8", "--seq-len", "4096", "--recompute",
               "full", "--set", "offload_optimizer=1"]  # fmt: skip
    status, out, _ = cli(*request)
    assert (status, "does not fit" in out) == (0, False)
    status, out, _ = cli(*request, "--set", "host_memory_gb=512")
    assert status == 2
    assert "does not fit the host: it would keep 131.5 GiB" in out
    assert "has 53.6 GiB" in out
    status, out, _ = cli(*request, "--set", "host_memory_gb=512", "--set", "offload_to=nvme")
    assert status == 0


def test_lines_of_memory_and_limits_are_not_overlong(cli: Cli) -> None:
    """A mixture over stages filled 200 letters, the limit of power 130."""
    words = "--model qwen3-235b-a22b --system mi300x --gpus 64 --seq-len 4096 --global-batch 64"
    status, out, _ = cli("predict", "train", *words.split())
    assert status == 0
    told = [line for line in out.splitlines() if "GiB" in line or "--power-limit" in line]
    assert len(told) >= 3
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "helps", "never"),
    [
        ("--gpus 1 --accelerator RTX-4090-24GB --micro-batch 1 --recompute full",
         "more GPUs or training adapters alone",
         ("tp", "micro-batch", "recomputation", "sharding")),
        ("--gpus 8 --system dgx-h100 --tp 1 --micro-batch 1 --recompute full --sharding fsdp "
         "--seq-len 524288", "more tp or pp", ("micro-batch", "recomputation", "more sharding")),
        ("--gpus 8 --system dgx-h100 --tp 1 --pp 1 --micro-batch 4 --recompute none "
         "--sharding none", "a smaller micro-batch, more recomputation, more sharding",
         ("GPUs",)),
    ],
)  # fmt: skip
def test_what_would_help_is_not_done_yet(
    cli: Cli, words: str, helps: str, never: tuple[str, ...]
) -> None:
    """One accelerator was told to take more tp, and full recomputation to recompute more."""
    base = "--model llama3-8b --seq-len 8192 --global-batch 64"
    if "--seq-len" in words:
        base = base.replace(" --seq-len 8192", "")
    status, out, _ = cli("predict", "train", *base.split(), *words.split())
    assert status == 2
    line = next(line for line in out.splitlines() if "does not fit" in line)
    advice = line.split("too much; ")[1]
    assert helps in advice
    assert not [word for word in never if f"more {word}" in advice or f"smaller {word}" in advice]

"""The profiler on the CPU at hand. No test looks at how long anything took."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")


from calibration.tables.kernel_table import check_kernels, kinds  # noqa: E402
from calibration.tables.profiles import read_measurements  # noqa: E402
from predictor import catalog  # noqa: E402
from predictor.errors import InputError  # noqa: E402
from predictor.models.flops import model_flop_per_token  # noqa: E402
from predictor.schema import COLLECTIVE_OPS, KERNEL_COLUMNS  # noqa: E402
from predictor.work.primitives import Operator  # noqa: E402
from predictor.work.training import step_operators  # noqa: E402
from profiler import journal, models, output, parallel, ranks, step, suite  # noqa: E402
from profiler.cases import (  # noqa: E402
    ALWAYS,
    WIDTHS,
    cases,
    eager_plan,
    ladder_model,
    named_models,
)
from profiler.device import cores, find  # noqa: E402
from profiler.operators import Place, build  # noqa: E402
from profiler.timing import measure  # noqa: E402
from reckon.verbs.checking import NAMES, check, errors  # noqa: E402
from reckon.verbs.profiling import profile, seconds_of  # noqa: E402
from tests.profiler import short  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    """What is measured is short, of ranks too, which may share few seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in short.SHORT:
            patch.setattr(module, name, value)
        patch.setattr(ranks, "_rank", short.rank)
        patch.setattr("reckon.verbs.profiling.LEAST_RANK_BUDGET", 1.0)
        patch.setattr("reckon.verbs.profiling.HOST_SHARE", 1e-3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, _short: None) -> Path:
    """One small profile that the tests of this file look at."""
    out = tmp_path_factory.mktemp("profile")
    profile(out, device="cpu", budget=2.0, ranks=min(2, cores()), threads=1, quiet=True)
    return out


def test_the_tables_are_whole(folder: Path) -> None:
    table = pd.read_parquet(folder / "kernels.parquet")
    assert list(table.columns) == list(KERNEL_COLUMNS)
    checked = check_kernels(table, "kernels.parquet")
    assert {"gemm", "memcpy", "launch", "norm", "elementwise"} <= set(checked["op"])
    assert {"fwd", "dgrad", "wgrad"} <= set(checked["layout"])
    middle = table[table["op"] != "waiting"]  # waits are means, which few long ones move
    assert (middle["latency_p10_us"] <= middle["latency_us"]).all()
    assert (middle["latency_us"] <= middle["latency_p90_us"]).all()
    assert set(table["cache"].dropna()) <= {"cold", "warm"}


def test_the_device_is_an_accelerator_and_a_system(folder: Path) -> None:
    table = pd.read_parquet(folder / "kernels.parquet")
    for path in folder.glob("device*.yaml"):
        cluster = catalog.system(path)
        own = table[(table["accelerator"] == cluster.accelerator.name) & (table["op"] == "gemm")]
        rate = 2 * own["m"] * own["n"] * own["k"] / own["latency_us"] * 1e6
        fp32 = rate[own["dtype"] == "fp32"].max()
        assert fp32 <= cluster.accelerator.peak["fp32"], "the peak is the best that was measured"
        assert cluster.accelerator.is_host


def test_steps_have_the_form_of_the_training_table(folder: Path) -> None:
    steps = pd.read_csv(folder / "steps.csv")
    assert {"single1"} <= {name.split("_")[-1] for name in steps["point_id"]}
    assert (steps["step_time_s"] > 0).all()


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_collectives_between_ranks(folder: Path) -> None:
    table = pd.read_parquet(folder / "kernels.parquet")
    own = table[table["link"] == "gloo"]
    overlaps = own["op"] == "overlap"
    waits = own["op"] == "waiting"
    assert set(own[~overlaps & ~waits]["op"]) == set(COLLECTIVE_OPS)
    assert own[~overlaps & ~waits]["link_gbs"].notna().all()
    by = own[waits].pivot_table(index="batch", columns="kernel", values="latency_us")
    assert len(by) >= 2
    assert (by["slowest"] >= by["own"]).all()
    assert own[overlaps]["notes"].str.contains("times the all-reduce alone").all()
    steps = pd.read_csv(folder / "steps.csv")
    kinds = {"dp2": (2, 1, "none"), "fsdp2": (2, 1, "fsdp"), "tp2": (1, 2, "none")}
    found = {name.split("_")[-1]: row for name, row in steps.set_index("point_id").iterrows()}
    for kind, (dp, tp, sharding) in kinds.items():
        row = found[kind]
        assert (row["dp"], row["tp"], row["dp_sharding"]) == (dp, tp, sharding)


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_what_is_built_from_messages_is_right() -> None:
    """Two ranks exchange known numbers; the result is that of the collective."""
    found = ranks.spawn(short.exchange, 2, ranks._free_port())
    assert found == [[[0, 1], [10, 11]], [[2, 3], [12, 13]]]


@pytest.mark.parametrize("style", ["gpt", "llama"])
def test_every_operator_of_an_eager_step_can_be_built(style: str) -> None:
    model, plan = ladder_model(128, style), eager_plan(32, 2, "fp32")
    for operator in step_operators(model, plan):
        build(operator, "cpu", model.heads)()


def test_products_compute_what_they_claim() -> None:
    """Each layout's call returns C[m, n]."""
    for layout in ("fwd", "dgrad", "wgrad", "bmm"):
        operator = Operator(
            name="x", op="gemm", variant=layout, phase="forward", module="layer", dtype="fp32",
            m=6.0, n=10.0, k=4.0, batch=3.0,
        )  # fmt: skip
        result = build(operator, "cpu", 1)()
        expected = (3, 6, 10) if layout == "bmm" else (6, 10)
        assert tuple(result.shape) == expected  # type: ignore[attr-defined]


def test_cases_are_distinct_and_cover_every_kind() -> None:
    device = find("cpu")
    first = cases(device)
    assert len({case.key for case in first}) == len(first) > 1000
    rows = [suite.row(case, suite.Measured(1e-3, 1e-3, 1e-3, 5), device, "warm") for case in first]
    assert len({suite.identity(row) for row in rows}) == len(rows)
    found = set(kinds(check_kernels(pd.DataFrame(rows), "x")))
    wanted = "gemm attention_prefill attention_backward norm.fwd norm.bwd loss.fwd optimizer"
    assert {*wanted.split(), "elementwise.gelu_bwd", "elementwise.swiglu"} <= found


def test_check_models_are_not_on_the_ladder() -> None:
    device = find("cpu")
    ladder = set(WIDTHS)
    every = [*step.checks(device), *parallel.even_checks(device)]
    assert not {check.model.hidden for check in every} & ladder


@pytest.mark.parametrize("check", step.checks(find("cpu")), ids=lambda c: c.model.name)
def test_the_real_model_has_the_predicted_parameters(check: step.Check) -> None:
    module = models.Transformer(check.model, check.seq_len)
    real = sum(p.numel() for p in module.parameters())
    positions = check.model.max_context if check.model.positions == "learned" else 0
    unused = (positions - check.seq_len) * check.model.hidden if positions else 0
    assert real == check.model.parameters - unused


def test_a_real_step_trains() -> None:
    device = find("cpu", threads=1)
    check = step.Check(ladder_model(64, "llama"), 16, 2, "fp32")
    torch.manual_seed(0)
    module = models.Transformer(check.model, check.seq_len)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
    tokens = torch.randint(check.model.vocab, (2, 16))
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = module(tokens, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model_flop_per_token(check.model, 16, "megatron") > 0
    call = step.step_of(check, device, step.module_of(check, device))
    assert len(step.time_step(call, device, 0.0, 3)) == 3


def called(calls: Sequence[Callable[[], object]], *_: object, **more: object) -> suite.Measured:
    """In place of `measure`: the first call alone, and no time."""
    calls[0]()
    return short.TOLD


def test_timing_takes_medians_of_enough_samples() -> None:
    found = measure([lambda: sum(range(50))], find("cpu"), 0.01)
    assert found.samples >= 5
    assert found.p10 <= found.median <= found.p90


@pytest.mark.parametrize("by", ["the keyboard", "a signal"])
def test_an_interrupt_ends_the_profile_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    calls = []

    def interrupted(*arguments: object, **more: object) -> suite.Measured:
        calls.append(1)
        if len(calls) > 20 + len(suite.COPY_BYTES):
            if by == "a signal":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            raise KeyboardInterrupt
        return short.TOLD

    monkeypatch.setattr(suite, "measure", interrupted)
    found = profile(tmp_path / "out", "cpu", 600.0, threads=1, quiet=True)
    assert (found.kernels["op"] != "dispatch").sum() == len(calls) - 1
    assert found.steps == []
    assert found.problems == ("interrupted; wrote what had been measured",)
    assert len(pd.read_parquet(tmp_path / "out/kernels.parquet")) == len(found.kernels)


def test_a_killed_profile_loses_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL leaves no table but every row; a new profile does not lose them, a resumed one has
    them, and a line that was cut is none."""
    out = tmp_path / "out"
    after = 20 + len(suite.COPY_BYTES)
    process = ranks._context().Process(target=short.killed, args=(str(out), after))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "kernels.parquet").exists()
    rows = [row for row in journal.left(out).kernels if row["op"] != "dispatch"]
    assert len(rows) == after
    with open(out / journal.NAME, "a") as file:
        file.write('["kernels", {"op": "ge')
    with pytest.raises(InputError, match="--resume goes on from them"):
        profile(out, "cpu", 600.0, threads=1, quiet=True)
    with pytest.raises(InputError, match="reckon profile --resume"):
        read_measurements([out])

    def interrupted(*arguments: object, **more: object) -> suite.Measured:
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "measure", interrupted)
    found = profile(out, "cpu", 600.0, threads=1, quiet=True, resume=True)
    assert found.kernels is not None
    assert {suite.identity(row) for row in rows} <= {
        suite.identity(row) for row in found.kernels.to_dict("records")
    }
    assert not (out / journal.NAME).exists()
    (out / journal.NAME).write_text("no journal\n")
    with pytest.raises(InputError, match="no journal of a profile"):
        profile(out, "cpu", 600.0, threads=1, quiet=True, resume=True)


def test_a_failed_rank_costs_only_what_the_ranks_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise ChildProcessError("a rank failed")

    monkeypatch.setattr(ranks, "run", failing)
    monkeypatch.setattr(suite, "measure", called)
    found = profile(tmp_path, "cpu", 1.0, ranks=min(2, cores()), threads=1, quiet=True)
    assert len(found.kernels) > 0
    failed = [text for text in found.problems if text.startswith("a rank failed")]
    assert len(failed) == (cores() > 1)


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("mine")
    with pytest.raises(InputError, match="cannot write to folder"):
        profile(taken, "cpu", 600.0, threads=1, quiet=True)
    assert taken.read_text() == "mine"


def test_what_was_timed_for_checking_is_predicted(folder: Path) -> None:
    """Every step and pass of the profile, by any calibration; the error is a plain mean. Passes of
    serving are in 32 bits where a processor does not compute in 16."""
    found = check(folder, "default")
    kinds_found = {one["kind"] for one in found}
    assert {"single", "ttft_ms", "tpot_ms"} <= kinds_found <= set(NAMES)
    assert all(one["predicted_s"] > 0 and one["measured_s"] > 0 for one in found)
    prompts = {one["name"]: one for one in found if one["kind"] == "ttft_ms"}
    decoding = {one["name"]: one for one in found if one["kind"] == "tpot_ms"}
    for name, one in prompts.items():
        assert one["predicted_s"] > decoding[name.replace("ttft", "tpot")]["predicted_s"]
    made = [
        {"kind": "dp", "measured_s": 2.0, "predicted_s": 3.0},
        {"kind": "dp", "measured_s": 2.0, "predicted_s": 1.8},
        {"kind": "single", "measured_s": 1.0, "predicted_s": 1.0},
    ]
    assert errors(made) == pytest.approx({"single": 0.0, "dp": 0.3})
    with pytest.raises(InputError, match="no such file"):
        check(folder / "none", "default")


def test_a_resumed_profile_measures_only_what_is_not_there(folder: Path) -> None:
    table = pd.read_parquet(folder / "kernels.parquet")
    device = find("cpu")
    known = table[table["accelerator"] == device.name].to_dict("records")
    before = {suite.identity(row) for row in known}
    rows = list(islice(suite.run(device, suite.Allowance(600.0), known), 3))
    assert len(rows) == 3
    assert not {suite.identity(row) for row in rows} & before


def test_resuming_keeps_what_the_folder_holds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt before anything new leaves every row; a damaged table is refused."""

    def interrupted(*arguments: object, **more: object) -> suite.Measured:
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "measure", interrupted)
    table = pd.read_parquet(folder / "kernels.parquet")
    table.to_parquet(tmp_path / "kernels.parquet", index=False)
    found = profile(tmp_path, "cpu", 600.0, threads=1, quiet=True, resume=True)
    assert found.kernels is not None
    assert list(found.kernels["latency_us"]) == list(table["latency_us"])
    assert "interrupted" in found.problems[0]
    (tmp_path / "kernels.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match="cannot be read"):
        profile(tmp_path, "cpu", 600.0, threads=1, quiet=True, resume=True)


def test_the_kernels_of_a_named_model(monkeypatch: pytest.MonkeyPatch) -> None:
    device = find("cpu")
    own = named_models(["llama3-8b"])
    widths = {case.width for case in cases(device, own, ["fp32"])}
    assert widths == {4096}


def test_compiled_kernels_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device or PyTorch that cannot compile leaves them out; graphs need a GPU."""
    monkeypatch.setitem(suite.MODES, "compiled", lambda calls, device: calls)
    monkeypatch.setattr(suite, "measure", called)
    device = find("cpu")
    found = list(suite.run(device, suite.Allowance(0.0), [], modes=["eager", "compiled", "graph"]))
    assert [row["mode"] for row in found] == ["eager", "compiled"] * (len(found) // 2)
    assert len(found) >= 2 * ALWAYS
    table = check_kernels(pd.DataFrame(found), "x")
    assert (kinds(table)[table["mode"] == "compiled"] == "").all()


def test_a_spent_budget_ends_the_suite_after_what_a_device_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "measure", called)
    device = find("cpu")
    rows = list(suite.run(device, suite.Allowance(0.0), []))
    assert ALWAYS <= len(rows) < ALWAYS + len(device.dtypes)
    found = output.accelerator_mapping(pd.DataFrame(rows), device)
    assert all(found[output.rate_key(dtype)] > 0 for dtype in device.dtypes)
    assert found["memory_bandwidth_gbs"] > 0


def test_output_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = find("cpu")
    case = cases(device)[0]
    rows = [suite.row(case, suite.Measured(1e-3, 1e-3, 1e-3, 5), device, "warm")]
    rows.append({**rows[0], "op": "gemm", "m": 8.0, "n": 8.0, "k": 8.0, "layout": "fwd"})
    output.write(tmp_path, rows, [], [device], [])
    before = (tmp_path / "kernels.parquet").read_bytes()

    def fail(*arguments: object, **keywords: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", fail)
    with pytest.raises(InputError, match="disk full"):
        output.write(tmp_path, rows, [], [device], [])
    assert (tmp_path / "kernels.parquet").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("text", "seconds"), [("120s", 120), ("2m", 120), ("90", 90), ("1.5 min", 90)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"budget": "soon"}, "write seconds or minutes"),
        ({"budget": "1s"}, "at least 5s"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"ranks": 0}, "--ranks 0"),
        ({"threads": 0}, "--threads 0: needs 1 to"),
        ({"threads": 10_000}, "--threads 10000: needs 1 to"),
        ({"ranks": 2, "budget": 0.5}, "needs a --budget"),
        ({"ranks": 10_000}, "--ranks 10000"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"modes": ["jitted"]}, "unknown mode 'jitted'"),
        ({"models": ["gpt22"]}, "unknown model 'gpt22'; did you mean"),
        ({"backend": "ucx"}, "unknown backend 'ucx'"),
        ({"backend": "nccl", "device": "cpu"}, "nccl needs GPUs"),
        ({"trace": "t.txt"}, "expected a .json or .json.gz"),
    ],
)
def test_bad_requests(tmp_path: Path, keywords: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile(tmp_path, quiet=True, **keywords)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said_so() -> None:
    for name in ("cuda", "cuda:1", "rocm", "mps"):
        with pytest.raises(InputError, match="sees no GPU"):
            find(name)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.5])
def test_keys_and_values_of_one_call_never_lie_upon_each_other(share: float) -> None:
    """Else half of a cache larger than the last level's would be read twice from there: decoding of
    134 MB seemed to run at 4.4 TB/s on an H100 whose memory gives 3.35."""
    cold = 2.0**20
    place = Place("cpu", torch.float32, cold)
    size = int(share * cold / 8)
    for _ in range(7):
        place.next_call()
        keys, values = place.stored(size), place.stored(size)
        begin, other = keys.data_ptr(), values.data_ptr()
        assert abs(begin - other) >= 4 * size or begin == 0


def test_data_is_random() -> None:
    made = Place("cpu", torch.float32).random(64, 64)
    assert np.unique(made.numpy()).size > 4000

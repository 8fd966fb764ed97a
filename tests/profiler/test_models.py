"""The models that are timed compute what they should: laws between ways to run them."""

from __future__ import annotations

import gc
import signal
import warnings
import weakref
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: E402

from calibration.sources.found import Stated  # noqa: E402
from calibration.sources.kineto import read_steps  # noqa: E402
from predictor.models.model import Model  # noqa: E402
from predictor.schema import COLLECTIVE_OPS  # noqa: E402
from profiler import collectives, huggingface, ranks, serving, step, suite  # noqa: E402
from profiler.collectives import Member  # noqa: E402
from profiler.device import cores, find  # noqa: E402
from profiler.models import Mixture, Transformer  # noqa: E402
from profiler.timing import MOST_AHEAD, NOISY, Measured, _EventClock, measure  # noqa: E402
from profiler.trace import STEPS, record  # noqa: E402
from tests.profiler.short import LLAMA, commanded, groups, losses  # noqa: E402

GPT = Model(
    name="gpt", layers=2, hidden=128, heads=2, kv_heads=2, head_dim=64, ffn_hidden=256, vocab=500,
    gated=False, activation="gelu", norm="layernorm", positions="learned", max_context=64,
    bias=True,
)  # fmt: skip
MOE = Model(
    name="moe", layers=1, hidden=64, heads=1, kv_heads=1, head_dim=64, ffn_hidden=96, vocab=100,
    num_experts=4, top_k=2, expert_ffn_hidden=96,
)  # fmt: skip


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda m: m.name)
def test_a_cache_changes_no_answer(model: Model) -> None:
    """Tokens generated with a cache are those of the whole sequence read anew each time."""
    device = find("cpu", 1)
    check = step.Check(model, 40, 2, "fp32")
    module = step.module_of(check, device)
    prompt = torch.randint(model.vocab, (2, 24))
    caches = serving.empty_cache(model, 2, 36, check, device)
    found, seconds = serving.generate(module, prompt, caches, 12, device)
    assert len(seconds) == 12
    tokens = prompt
    with torch.no_grad():
        for _ in range(12):
            fresh = serving.empty_cache(model, 2, tokens.shape[1], check, device)
            logits = module.serve(tokens, fresh, 0)
            tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(found, tokens)


def test_a_mixture_is_the_sum_of_its_chosen_experts() -> None:
    torch.manual_seed(0)
    mixture = Mixture(MOE)
    x = torch.randn(2, 5, 64)
    flat = x.flatten(0, 1)
    weight, chosen = torch.softmax(mixture.router(flat), -1).topk(2, -1)
    expected = torch.zeros_like(flat)
    for token in range(len(flat)):
        for share, one in zip(weight[token], chosen[token], strict=True):
            gate, up = mixture.up[one](flat[token]).chunk(2, -1)
            inner = torch.nn.functional.silu(gate) * up
            expected[token] += share * mixture.down[one](inner)
    assert torch.allclose(mixture(x), expected.view_as(x), atol=1e-6)


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_every_layout_has_the_loss_of_one_process() -> None:
    found = ranks.spawn(losses, 2, ranks._free_port())
    assert set(found) == {"single", "dp", "fsdp", "tp"}
    for kind, loss in found.items():
        assert loss == pytest.approx(found["single"], rel=1e-5), kind


def test_groups_of_several_sizes_alone_and_together() -> None:
    """Four processes; nothing is left of the budget, so only what all ranks need to tell a
    latency and a rate."""
    rows = pd.DataFrame(ranks.spawn(groups, 4, ranks._free_port()))
    assert set(rows["op"]) == set(COLLECTIVE_OPS)
    assert set(rows["num_gpus"]) == {4}
    assert set(rows["message_bytes"]) == {256.0, 2.0**20}
    assert sorted(collectives.sizes_in_turn()) == list(collectives.SIZES)
    member = Member(find("cpu", 1, 4), 3, 4, 2, "gloo")
    made: list[list[int]] = []
    original = dist.new_group
    try:
        dist.new_group = lambda members: made.append(members) or len(made)  # type: ignore
        found = collectives.rings(member)
    finally:
        dist.new_group = original
    assert made == [[0, 1], [2, 3]]
    assert [(ring.size, ring.position, ring.crowd) for ring in found] == [
        (4, 3, 1),
        (2, -1, 1),
        (2, 1, 2),
    ]


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_under_torchrun(tmp_path: Path) -> None:
    """Two processes that torchrun's agent starts measure together; the first writes."""
    ranks._context()  # PyTorch is imported once, for both
    job = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="tests", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, start_method="forkserver",
    )  # fmt: skip
    asked = ["profile", "--device", "cpu", "--threads", "1", "--budget", "1s",
             "--out", str(tmp_path)]  # fmt: skip
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        statuses = elastic_launch(job, commanded)(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert statuses == {0: 0, 1: 0}
    table = pd.read_parquet(tmp_path / "kernels.parquet")
    assert set(COLLECTIVE_OPS) <= set(table["op"])
    assert set(table["ranks_per_host"]) == {2}
    steps = pd.read_csv(tmp_path / "steps.csv")
    assert {"dp2", "fsdp2", "tp2"} == {name.split("_")[-1] for name in steps["point_id"]}


def test_a_recorded_step_is_read_back(tmp_path: Path) -> None:
    device = find("cpu", 1)
    check = step.Check(LLAMA, 32, 2, "fp32")
    call = step.step_of(check, device, step.module_of(check, device))
    path = tmp_path / "t.json.gz"
    record(call, device, path)
    found, steps = read_steps(path, Stated(accelerator="mine"))
    assert steps.steps == STEPS
    assert steps.on_host
    whole = steps.kernel_time + steps.host_idle
    assert whole == pytest.approx(steps.step_time, rel=0.05)
    rows = found.rows
    products = rows[rows["op"] == "gemm"]
    flop = 2 * products["m"] * products["n"] * products["k"] * products["samples"]
    tokens = 64
    matrices = LLAMA.matrix_parameters() + LLAMA.vocab * LLAMA.hidden
    attended = flop.sum() / STEPS / (6 * tokens)
    assert attended == pytest.approx(matrices, rel=0.02)
    assert set(rows[rows["op"] == "attention_prefill"]["heads"]) == {4}


class _Event:
    """A device's clock in milliseconds, five apart."""

    now = 0.0

    def record(self) -> None:
        _Event.now += 5.0
        self.at = _Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: _Event) -> float:
        return other.at - self.at


def test_events_are_read_in_milliseconds() -> None:
    clock = _EventClock(SimpleNamespace(event=_Event), 0.0)  # type: ignore[arg-type]
    clock.start()
    assert clock.stop() == pytest.approx(5e-3)


class _Queue:
    """A GPU whose clock shows what waits in its queue: kernels of 3 us that a host launches in 20,
    ahead of the device while that is kept busy."""

    on_gpu, torch = True, "cuda:0"

    def __init__(self) -> None:
        self.device, self.host, self.kept = 0.0, 0.0, 0.0

    def synchronize(self) -> None:
        self.host = self.device = max(self.host, self.device)

    def waited(self) -> float:
        return 0.0

    def keep_busy(self, seconds: float) -> None:
        self.kept = max(self.kept, seconds)
        self.device = max(self.device, self.host) + seconds

    def kernel(self) -> None:
        self.host += 20e-6
        self.device = max(self.device, self.host) + 3e-6

    def event(self) -> SimpleNamespace:
        mark = SimpleNamespace(at=0.0, synchronize=self.synchronize)
        mark.record = lambda: setattr(mark, "at", max(self.device, self.host))
        mark.elapsed_time = lambda other: (other.at - mark.at) * 1e3
        return mark


def test_a_gpu_is_timed_without_its_hosts_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three microseconds of the device, not the twenty of the host; those where they are asked for.
    The host's own time is read off its clock, which counts here what it does."""
    gpu = _Queue()
    monkeypatch.setattr("profiler.timing.time", SimpleNamespace(perf_counter=lambda: gpu.host))
    alone = measure([gpu.kernel], gpu, 1.0)  # type: ignore[arg-type]
    assert alone.median == pytest.approx(3e-6)
    assert 0.0 < gpu.kept <= MOST_AHEAD
    launched = measure([gpu.kernel], _fresh(gpu), 1.0, launched=True)  # type: ignore[arg-type]
    assert launched.median == pytest.approx(20e-6, rel=0.2)


def _fresh(gpu: _Queue) -> _Queue:
    gpu.synchronize()
    return gpu


def test_a_captured_graph_keeps_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph knows its tensors by their addresses: the call that holds them lives as long."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fake = SimpleNamespace(
        Stream=lambda: stream, current_stream=lambda: stream, stream=lambda one: nullcontext(),
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: None), graph=lambda one: nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr("profiler.suite.torch", SimpleNamespace(cuda=fake))
    gpu = SimpleNamespace(kind="cuda")
    call = partial(list)
    kept = weakref.ref(call)
    (replay,) = suite._captured([call], gpu)  # type: ignore[arg-type]
    del call
    gc.collect()
    assert kept() is not None
    del replay
    gc.collect()
    assert kept() is None

    def empty(graph: object) -> Any:
        warnings.warn("The CUDA Graph is empty. This usually means ...", UserWarning, stacklevel=1)
        return nullcontext()

    fake.graph = empty
    with pytest.raises(NotImplementedError, match="nothing was captured"):
        suite._captured([list], gpu)  # type: ignore[arg-type]


def test_what_was_disturbed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Measured(1.0, 0.5, 2.0, 5), Measured(1.1, 1.0, 1.2, 5), Measured(9.0, 1.0, 9.0, 5)]
    monkeypatch.setattr("profiler.timing._measure", lambda *arguments: made.pop(0))
    found = measure([lambda: None], find("cpu"), 0.1)
    assert found.median == 1.1
    assert not found.noisy
    assert len(made) == 1
    assert Measured(1.0, 1.0, NOISY * 1.01, 5).noisy


@pytest.mark.skipif(not huggingface.available(), reason="HuggingFace transformers is not installed")
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda m: m.name)
def test_a_strangers_model_has_the_predicted_parameters_and_trains(model: Model) -> None:
    device = find("cpu", 1)
    module = huggingface.causal(model, 32, "fp32", device)
    own = Transformer(model, 32)
    count = sum(p.numel() for p in own.parameters())
    assert sum(p.numel() for p in module.parameters()) == count
    check = step.Check(model, 32, 2, "fp32")
    assert len(step.time_step(step.step_of(check, device, module), device, 0.0, 2)) == 2

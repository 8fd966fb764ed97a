"""The device at hand: what it is, and how it describes itself to the predictor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from predictor.errors import InputError


@dataclass(frozen=True, slots=True)
class Device:
    """A device to measure.

    name      of the accelerator in tables and files
    torch     device string for PyTorch
    threads   CPU threads of one process
    ranks     processes that share the device (1: it is ours alone)
    facts     what was read of it, for `device.yaml`
    """

    name: str
    torch: str
    threads: int
    ranks: int
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What PyTorch calls such devices: 'cpu', 'cuda' (also for ROCm) or 'mps'."""
        return self.torch.partition(":")[0]

    @property
    def on_gpu(self) -> bool:
        """Whether kernels run asynchronously, on a device of their own."""
        return self.kind != "cpu"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types that the device computes products in at a useful speed."""
        return tuple(self.facts["dtypes"])

    @property
    def cache_bytes(self) -> float:
        """Size of the last-level cache."""
        return float(self.facts["l2_mb"]) * 1e6

    @property
    def architecture(self) -> str:
        """Name that relates it to others of its kind."""
        return str(self.facts["architecture"])

    @property
    def fuses_norms(self) -> bool:
        """Whether PyTorch's RMS norm is one kernel here."""
        return self.on_gpu and hasattr(torch.ops.aten, "_fused_rms_norm")

    @property
    def most_ranks(self) -> int:
        """Ranks that this host has room for: a core, or a GPU, for each."""
        return torch.cuda.device_count() if self.kind == "cuda" else cores()

    def of_rank(self, rank: int) -> Device:
        """The device of one of several ranks on this host."""
        return replace(self, torch=f"cuda:{rank}") if self.kind == "cuda" else self

    def activate(self) -> None:
        """Make this process compute on it."""
        torch.set_num_threads(self.threads)
        if self.kind == "cuda":
            torch.cuda.set_device(self.torch)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.get_device_module(self.kind).synchronize()

    def event(self) -> Any:
        """A mark on the device's own clock, None for devices that have none."""
        if not self.on_gpu:
            return None
        return torch.get_device_module(self.kind).Event(enable_timing=True)

    def keep_busy(self, seconds: float) -> None:
        """Let a GPU do nothing for about so long before what is queued after: CUDA's clocks count
        (`CYCLES` a second), other devices are not kept."""
        if self.kind == "cuda":
            with contextlib.suppress(AttributeError):  # of PyTorch's own tests: it may go
                torch.cuda._sleep(int(seconds * CYCLES))

    def waited(self) -> float:
        """Seconds that threads of this process have waited for a processor since they began, as
        Linux counts them; 0 on GPUs, whose kernels wait for no processor, and elsewhere."""
        return 0.0 if self.on_gpu else _run_delay()

    def conditions(self) -> dict[str, float]:
        """What may disturb a measurement, as far as it can be read: the load of the host
        (`load_average`), and of the device its clock (`clock_mhz`), power (`power_w`) and
        temperature (`temperature_c`), by NVML or ROCm SMI through PyTorch."""
        found = {"load_average": round(os.getloadavg()[0], 2)}
        if self.kind == "cuda":
            readings = (
                ("clock_mhz", torch.cuda.clock_rate, 1.0),
                ("power_w", torch.cuda.power_draw, 1e-3),
                ("temperature_c", torch.cuda.temperature, 1.0),
            )
            for name, read, scale in readings:
                with contextlib.suppress(Exception):  # no management library, or no right to ask
                    found[name] = float(read(self.torch)) * scale
        elif not self.on_gpu:
            found |= _cpu_conditions()
        return found


CYCLES = 2e9
"""Clock cycles of a second, about."""

CUDA_ARCHITECTURES = {
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 6): "ampere-rtx",
    (8, 9): "ada",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (10, 3): "blackwell-ultra",
    (12, 0): "blackwell-rtx",
}
"""Compute capability -> architecture as the catalog names it."""

ROCM_ARCHITECTURES = {"gfx908": "cdna1", "gfx90a": "cdna2", "gfx942": "cdna3", "gfx950": "cdna4"}
"""The same for AMD, by the name of the instruction set."""

NARROW = ("fp8", "int8")
"""Types that a device must show it can multiply: a small product is tried."""


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Let the C allocator keep freed memory, as the caching allocators of GPUs do.

    Without it every step of a training loop pays for fresh pages again, at a cost that depends on
    what ran before in the same process. Returns whether the allocator took the setting.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
        return bool(library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1) and library.mallopt(M_MMAP_MAX, 0))
    except (OSError, AttributeError):
        return False


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find(spec: str, threads: int | None = None, ranks: int = 1, index: int = 0) -> Device:
    """The device a user asked for: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1' (a ROCm
    build of PyTorch calls its GPUs so too; 'rocm' is the same), 'mps'.

    threads  of one process; its share of the cores unless stated, and at most that
    ranks   processes that share the host
    index   of the GPU, where the name says none and each rank has its own

    Raises InputError where there is no such device.
    """
    if spec == "auto":
        spec = next((kind for kind in ("cuda", "mps") if _available(kind)), "cpu")
    if spec == "cpu":
        most = max(cores() // ranks, 1)
        if threads is not None and not 1 <= threads <= most:
            shared = f", the cores of this machine for {ranks} ranks"
            raise InputError(
                f"--threads {threads}: needs 1 to {most}"
                + (shared if ranks > 1 else ", the cores of this machine")
            )
        return _cpu(threads or most, ranks)
    named = re.fullmatch(r"(cuda|rocm|mps)(?::(\d+))?", spec)
    if not named:
        raise InputError(f"unknown device {spec!r}; use auto, cpu, cuda, cuda:N, rocm or mps")
    kind = "mps" if named[1] == "mps" else "cuda"
    if not _available(kind):
        raise InputError(f"PyTorch sees no GPU here ({spec}); use --device cpu")
    if named[1] == "rocm" and not torch.version.hip:
        raise InputError("this PyTorch is built for CUDA, not for ROCm; use --device cuda")
    if kind == "mps":
        return _mps()
    number = int(named[2]) if named[2] else index
    if number >= torch.cuda.device_count():
        raise InputError(f"{spec}: this machine has {torch.cuda.device_count()} GPUs")
    return _cuda(number, ranks)


def _available(kind: str) -> bool:
    if kind == "mps":
        return bool(torch.backends.mps.is_available())
    return bool(torch.cuda.is_available())


def _proved(names: tuple[str, ...], device: str) -> list[str]:
    """Those of the narrow types in which a small product runs."""
    from profiler.operators import Place, narrow_product

    found = []
    for name in names:
        with contextlib.suppress(Exception):  # PyTorch refuses in many ways
            narrow_product(name, Place(device, torch.bfloat16), 32, 32, 32)()
            found.append(name)
    return found


def _run_delay() -> float:
    """Seconds on a run queue of all threads of this process."""
    total = 0
    try:
        with os.scandir("/proc/self/task") as threads:
            for thread in threads:
                with open(f"{thread.path}/schedstat", "rb") as file:
                    total += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return total * 1e-9


def _cpu_conditions() -> dict[str, float]:
    """Clock [MHz] and temperature, where the system shows them."""
    found = {}
    for name, pattern, scale in (
        ("clock_mhz", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 1e-3),
        ("temperature_c", "/sys/class/thermal/thermal_zone0/temp", 1e-3),
    ):
        with contextlib.suppress(OSError, ValueError):
            found[name] = float(Path(pattern).read_text(encoding="utf-8")) * scale
    return found


def _numa_nodes() -> int:
    return max(len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))), 1)


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    return set(found.group(1).split()) if found else set()


def _last_level_cache() -> float:
    """Bytes of the largest cache of processor 0, 8 MB if it cannot be read."""
    sizes = [8e6]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KM])", path.read_text(encoding="utf-8").strip())
        if found:
            sizes.append(float(found.group(1)) * (1024 if found.group(2) == "K" else 1024**2))
    return max(sizes)


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):
        return 8e9


def _cpu(threads: int, ranks: int) -> Device:
    model, flags = _cpu_model(), _cpu_flags()
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    shared = f"-of-{ranks}" if ranks > 1 else ""
    fast = bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    half = bool(flags & {"amx_fp16", "avx512_fp16", "fphp"})
    dtypes = ["fp32", *(["bf16"] if fast else []), *(["fp16"] if half else [])]
    if flags & {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"}:
        dtypes += _proved(("int8",), "cpu")
    facts = {
        "cpu": model,
        "architecture": f"cpu-{platform.machine().lower()}",
        "dtypes": dtypes,
        "cores": cores(),
        "numa_nodes": _numa_nodes(),
        "threads": threads,
        "ranks_per_host": ranks,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "l2_mb": _last_level_cache() / 1e6 / ranks,
        "memory_gb": _memory() / 1e9 / ranks,
        "sm_count": threads,
        "load_average": round(os.getloadavg()[0], 2),
        "memory_kept": keep_memory(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
    return Device(f"cpu-{slug}-{threads}t{shared}", "cpu", threads, ranks, facts)


def _cuda(index: int, ranks: int = 1) -> Device:
    found = torch.cuda.get_device_properties(index)
    name = f"cuda:{index}"
    if torch.version.hip:
        code = str(getattr(found, "gcnArchName", "")).partition(":")[0]
        architecture = ROCM_ARCHITECTURES.get(code, code or "rocm")
        wide = ["bf16", "fp16", "fp32"]
    else:
        code = f"sm{found.major}{found.minor}"
        architecture = CUDA_ARCHITECTURES.get((found.major, found.minor), code)
        wide = ["bf16", "fp16", "tf32", "fp32"] if found.major >= 8 else ["fp16", "fp32"]
    facts = {
        "gpu": found.name,
        "architecture": architecture,
        "dtypes": wide + _proved(NARROW, name),
        "sm_count": found.multi_processor_count,
        "memory_gb": found.total_memory / 1e9,
        "l2_mb": getattr(found, "L2_cache_size", 32e6) / 1e6,
        "capability": code,
        "threads": 1,
        "ranks_per_host": ranks,
        "torch": str(torch.__version__),
        "driver": torch.version.cuda or torch.version.hip,
        "system": platform.platform(),
    }
    slug = re.sub(r"[^A-Za-z0-9]+", "-", found.name).strip("-")
    shared = f"-of-{ranks}" if ranks > 1 else ""
    return Device(f"local-{slug}{shared}", name, 1, ranks, facts)


MPS_CACHE, MPS_CORES = 24e6, 16
"""Last-level cache and cores of an Apple GPU, which the system does not tell: M1 to M3 Pro."""


def _mps() -> Device:
    facts = {
        "gpu": platform.processor() or "Apple GPU",
        "architecture": "apple",
        "dtypes": ["fp16", "bf16", "fp32"],
        "sm_count": MPS_CORES,
        "memory_gb": torch.mps.recommended_max_memory() / 1e9,
        "l2_mb": MPS_CACHE / 1e6,
        "threads": 1,
        "ranks_per_host": 1,
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
    return Device("local-apple-gpu", "mps", 1, 1, facts)

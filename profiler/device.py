"""The device at hand: what it is, and how it describes itself to the predictor."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from dataclasses import dataclass, field
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
    def is_cuda(self) -> bool:
        """Whether kernels run asynchronously on a GPU."""
        return self.torch.startswith("cuda")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types that the device computes products in at a useful speed."""
        if not self.is_cuda:
            fast = self.facts.get("bf16_instructions", False)
            return ("fp32", "bf16") if fast else ("fp32",)
        major, _ = torch.cuda.get_device_capability(self.torch)
        return ("bf16", "fp16", "tf32", "fp32") if major >= 8 else ("fp16", "fp32")

    @property
    def cache_bytes(self) -> float:
        """Size of the last-level cache."""
        return float(self.facts["l2_mb"]) * 1e6

    @property
    def architecture(self) -> str:
        """Name that relates it to others of its kind."""
        if not self.is_cuda:
            return f"cpu-{platform.machine().lower()}"
        major, minor = torch.cuda.get_device_capability(self.torch)
        return CUDA_ARCHITECTURES.get((major, minor), f"sm{major}{minor}")


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


def find(spec: str, threads: int | None = None, ranks: int = 1) -> Device:
    """The device a user asked for: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.

    Raises InputError where there is no such device.
    """
    if spec == "auto":
        spec = "cuda" if torch.cuda.is_available() else "cpu"
    if spec == "cpu":
        own = threads or max(cores() // ranks, 1)
        if own < 1:
            raise InputError(f"threads {threads} must be at least 1")
        return _cpu(own, ranks)
    if re.fullmatch(r"cuda(:\d+)?", spec):
        if not torch.cuda.is_available():
            raise InputError("PyTorch sees no GPU here; use --device cpu")
        index = int(spec.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise InputError(f"{spec}: this machine has {torch.cuda.device_count()} GPUs")
        return _cuda(index)
    raise InputError(f"unknown device {spec!r}; use auto, cpu, cuda or cuda:N")


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
    facts = {
        "cpu": model,
        "cores": cores(),
        "threads": threads,
        "ranks_per_host": ranks,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16_instructions": bool(flags & {"avx512_bf16", "amx_bf16", "bf16"}),
        "l2_mb": _last_level_cache() / 1e6 / ranks,
        "memory_gb": _memory() / 1e9 / ranks,
        "sm_count": threads,
        "load_average": round(os.getloadavg()[0], 2),
        "memory_kept": keep_memory(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
    return Device(f"cpu-{slug}-{threads}t{shared}", "cpu", threads, ranks, facts)


def _cuda(index: int) -> Device:
    found = torch.cuda.get_device_properties(index)
    facts = {
        "gpu": found.name,
        "sm_count": found.multi_processor_count,
        "memory_gb": found.total_memory / 1e9,
        "l2_mb": getattr(found, "L2_cache_size", 32e6) / 1e6,
        "capability": f"{found.major}.{found.minor}",
        "threads": 1,
        "ranks_per_host": 1,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or torch.version.hip,
        "system": platform.platform(),
    }
    slug = re.sub(r"[^A-Za-z0-9]+", "-", found.name).strip("-")
    return Device(f"local-{slug}", f"cuda:{index}", 1, 1, facts)

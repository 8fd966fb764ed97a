"""What linear attention takes on a GPU: delta rules, lightning attention, state-space scans.

    python tools/linear_sweep.py --out linear.csv [--seconds 150]

The kernels of flash-linear-attention (gated delta rule, Kimi's, lightning attention, the short
convolution) and of mamba_ssm (Mamba-2's scan and its step; Mamba-1's where its extension is
built), as far as they are installed: prompts forward and backward, and one new token of many
sequences. Rows in the form of the kernel table, with `value_heads` and `value_dim`. Kernels are
tuned first, which is kept on disk: LINEAR_KINDS (`gated_delta,kda`) and LINEAR_AT (which of a
kind's sizes) let several processes do so side by side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

os.environ.setdefault("FLA_CACHE_RESULTS", "1")
os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")

import torch

from profiler.device import find
from profiler.sweeps import sweep
from profiler.timing import measure

KINDS = {
    "gated_delta": ((16, 32, 128, 128), (2, 4, 128, 128), (16, 64, 128, 128)),
    "kda": ((32, 32, 128, 128), (4, 4, 128, 128)),
    "lightning": ((64, 64, 128, 128), (8, 8, 128, 128)),
    "mamba2": ((8, 128, 128, 64), (1, 16, 128, 64), (1, 128, 128, 64)),
    "mamba1": ((1, 8192, 16, 1), (1, 1024, 16, 1)),
    "conv": ((1, 8192, 4, 1), (1, 1024, 4, 1)),
}
"""Rules, and for each the key heads (or groups), value heads, key size (or state), value size; of
Mamba-1 and the convolution, channels in place of value heads."""

PROMPTS = ((1, 2048), (1, 8192), (4, 8192), (1, 512), (8, 2048), (16, 512), (1, 32768))
"""Sequences and their tokens."""

SEQUENCES = (1, 8, 32, 64, 128, 256)
"""That get one new token each."""

EACH = 0.03
"""Time that a measurement may take [s]."""

Call = Callable[[], object]
Sizes = tuple[int, int, int, int]


def _random(*shape: int, wide: bool = False, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, device="cuda", dtype=torch.float32 if wide else torch.bfloat16)
    return made.requires_grad_(grad)


def _rates(*shape: int, grad: bool = False) -> torch.Tensor:
    """Logarithms of decays, which are below 0."""
    return (-torch.rand(*shape, device="cuda") * 0.2).requires_grad_(grad)


def _both(inputs: tuple[torch.Tensor, ...], call: Callable[[], Any], back: bool) -> Call:
    """A call forward, or the gradients of what it gave."""
    if not back:
        return call
    out = call()
    out = out[0] if isinstance(out, tuple) else out
    given = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, given, retain_graph=True)


def _delta(kind: str, sizes: Sizes, batch: int, tokens: int, back: bool) -> Call:
    keys, values, size, wide = sizes
    q, k = (_random(batch, tokens, keys, size, grad=back) for _ in range(2))
    v = _random(batch, tokens, values, wide, grad=back)
    if kind == "lightning":
        from fla.ops.lightning_attn import chunk_lightning_attn

        call = lambda: chunk_lightning_attn(q, k, v, layer_idx=4, num_layers=80)  # noqa: E731
        return _both((q, k, v), call, back)
    beta = torch.rand(batch, tokens, values, device="cuda").bfloat16().requires_grad_(back)
    if kind == "kda":
        from fla.ops.kda import chunk_kda as rule

        g = _rates(batch, tokens, values, size, grad=back)
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as rule

        g = _rates(batch, tokens, values, grad=back)
    call = lambda: rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)  # noqa: E731
    return _both((q, k, v, g, beta), call, back)


def _delta_step(kind: str, sizes: Sizes, batch: int) -> Call:
    keys, values, size, wide = sizes
    q, k = (_random(batch, 1, keys, size) for _ in range(2))
    v, beta = (
        _random(batch, 1, values, wide),
        torch.rand(batch, 1, values, device="cuda").bfloat16(),
    )
    state = _random(batch, values, size, wide, wide=True)
    kept = {"initial_state": state, "output_final_state": True}
    if kind == "lightning":
        from fla.ops.lightning_attn import fused_recurrent_lightning_attn

        return lambda: fused_recurrent_lightning_attn(q, k, v, layer_idx=4, num_layers=80, **kept)
    kept["use_qk_l2norm_in_kernel"] = True
    if kind == "kda":
        from fla.ops.kda import fused_recurrent_kda

        g = _rates(batch, 1, values, size)
        return lambda: fused_recurrent_kda(q, k, v, g, beta, **kept)
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    g = _rates(batch, 1, values)
    return lambda: fused_recurrent_gated_delta_rule(q, k, v, g=g, beta=beta, **kept)


def _mamba2(sizes: Sizes, batch: int, tokens: int, back: bool) -> Call:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    groups, heads, state, wide = sizes
    x = _random(batch, tokens, heads, wide, grad=back)
    dt = torch.rand(batch, tokens, heads, device="cuda").bfloat16().requires_grad_(back)
    a = (-torch.rand(heads, device="cuda") - 0.1).requires_grad_(back)
    b, c = (_random(batch, tokens, groups, state, grad=back) for _ in range(2))
    d, bias = _random(heads, wide=True, grad=back), _random(heads, wide=True, grad=back)
    call = lambda: mamba_chunk_scan_combined(  # noqa: E731
        x, dt, a, b, c, 128, D=d, dt_bias=bias, dt_softplus=True
    )
    return _both((x, dt, a, b, c, d, bias), call, back)


def _mamba2_step(sizes: Sizes, batch: int) -> Call:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    groups, heads, state, wide = sizes
    kept = _random(batch, heads, wide, state)
    x, each = _random(batch, heads, wide), torch.rand(batch, heads, device="cuda").bfloat16()
    dt = each[..., None].expand(batch, heads, wide)
    a = (-torch.rand(heads, device="cuda"))[:, None, None].expand(heads, wide, state)
    b, c = (_random(batch, groups, state) for _ in range(2))
    d = _random(heads, wide=True)[:, None].expand(heads, wide)
    return lambda: selective_state_update(kept, x, dt, a, b, c, D=d, dt_bias=d, dt_softplus=True)


def _mamba1(sizes: Sizes, batch: int, tokens: int, back: bool) -> Call:
    """The fused kernel, which keeps states at the ends of its chunks."""
    import selective_scan_cuda  # type: ignore[import-not-found]

    _, channels, state, _ = sizes
    x, dt, z = (_random(batch, channels, tokens) for _ in range(3))
    a = -torch.rand(channels, state, device="cuda")
    b, c = (_random(batch, 1, state, tokens) for _ in range(2))
    d, bias = (_random(channels, wide=True) for _ in range(2))
    inputs = (x, dt, a, b, c, d, z, bias)
    forward = lambda: selective_scan_cuda.fwd(*inputs, True)  # noqa: E731
    if not back:
        return forward
    out, kept, *_ = forward()
    after = (torch.randn_like(x), kept, out, None, True, False)
    return lambda: selective_scan_cuda.bwd(*inputs, *after)


def _mamba1_step(sizes: Sizes, batch: int) -> Call:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    _, channels, state, _ = sizes
    kept, x = _random(batch, channels, state), _random(batch, channels)
    dt, z = _random(batch, channels), _random(batch, channels)
    a = -torch.rand(channels, state, device="cuda")
    b, c = _random(batch, state), _random(batch, state)
    d = _random(channels, wide=True)
    return lambda: selective_state_update(
        kept, x, dt, a, b, c, D=d, z=z, dt_bias=d, dt_softplus=True
    )


def _conv(sizes: Sizes, batch: int, tokens: int, back: bool) -> Call:
    from fla.modules.causal_conv1d.ops import causal_conv1d

    _, channels, taps, _ = sizes
    x, weight = _random(batch, tokens, channels, grad=back), _random(channels, taps, grad=back)
    call = lambda: causal_conv1d(x, weight, activation="silu")  # noqa: E731
    return _both((x, weight), call, back)


def call_of(kind: str, sizes: Sizes, batch: int, tokens: int, back: bool) -> Call:
    """What is timed: a prompt of `tokens`, its gradients, or one new token of each sequence."""
    if tokens == 1:
        steps = {"mamba2": _mamba2_step, "mamba1": _mamba1_step}
        return steps[kind](sizes, batch) if kind in steps else _delta_step(kind, sizes, batch)
    scans = {"mamba2": _mamba2, "mamba1": _mamba1, "conv": _conv}
    if kind in scans:
        return scans[kind](sizes, batch, tokens, back)
    return _delta(kind, sizes, batch, tokens, back)


def cases(kinds: list[str]) -> Iterator[tuple[str, Sizes, int, int, bool]]:
    """Kind, sizes, sequences, tokens and direction, the most telling first."""
    only = os.environ.get("LINEAR_AT")
    for at in range(3) if only is None else (int(only),):
        for kind in kinds:
            for sizes in KINDS[kind][at : at + 1]:
                for batch, tokens in PROMPTS if at < 2 else PROMPTS[:3]:
                    yield kind, sizes, batch, tokens, False
                    yield kind, sizes, batch, tokens, True
                for batch in SEQUENCES if kind != "conv" else ():
                    yield kind, sizes, batch, 1, False


def rows(seconds: float) -> Iterator[dict[str, Any]]:
    """Measure while the time lasts, of the kinds that LINEAR_KINDS names or of all."""
    import triton.testing

    triton.testing.do_bench = partial(triton.testing.do_bench, warmup=5, rep=10)  # while it tunes
    device = find("auto")
    until = time.perf_counter() + seconds
    named = os.environ.get("LINEAR_KINDS")
    for kind, sizes, batch, tokens, back in cases(
        tuple(named.split(",")) if named else tuple(KINDS)
    ):
        if time.perf_counter() > until:
            return
        keys, values, size, wide = sizes
        try:
            found = measure(
                [call_of(kind, sizes, batch, tokens, back) for _ in range(2)], device, EACH
            )
        except Exception as why:  # of somebody else's code: what it costs is this row
            told = f"{type(why).__name__} {why}".split("\n")[0][:160]
            print(kind, sizes, batch, tokens, back, told, flush=True)
            continue
        row = {
            "accelerator": device.name,
            "op": f"{kind}_step" if tokens == 1 else kind + "_backward" * back,
            "dtype": "bf16", "batch": batch, "q_len": tokens, "heads": keys, "value_heads": values,
            "head_dim": size, "value_dim": wide,
            "latency_us": round(found.median * 1e6, 4), "latency_p10_us": round(found.p10 * 1e6, 4),
            "latency_p90_us": round(found.p90 * 1e6, 4), "samples": found.samples,
            "framework": "pytorch", "framework_version": str(torch.__version__),
        }  # fmt: skip
        print(row["op"], sizes, batch, tokens, row["latency_us"], flush=True)
        yield row


if __name__ == "__main__":
    sweep(__doc__, rows, 150.0)

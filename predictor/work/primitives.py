"""What a work list consists of: operators, how their arithmetic and traffic are counted, and
collectives with the ranks that take part."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from predictor.arrays import Numeric
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One kernel: what it computes, how often, and what it leaves behind.

    op       'gemm', 'moe_gemm', 'attention_prefill', 'attention_backward', 'norm', 'elementwise',
             'softmax', 'embedding', 'loss', 'optimizer'
    variant  of the op: layout of a product ('fwd', 'dgrad', 'wgrad', 'bmm', 'bmm_bwd'), kind of
             an elementwise kernel ('gelu', 'add', ...), direction of the others
    phase    'forward', 'recompute', 'backward' or 'update'
    module   what `count` is per, and micro-batch: 'layer' (all layers: attention), 'dense' and
             'moe' (the two kinds of feed-forward block), 'embedding', 'head', 'mtp' (an extra
             prediction layer); or 'update' (per step)
    m, n, k, batch   product: C[m,n] = A[m,k] B[k,n], `batch` of them; experts: tokens of one, inner
             size, width of a token, experts; attention: query length, key length, head size,
             sequences x heads; the rest: rows, columns
    flop     arithmetic [FLOP]
    bytes    least traffic to and from memory [bytes]
    count    executions per unit of `module`
    saved    bytes that one execution keeps from the forward to the backward pass
    remade   of attention: share of them that projections from latents make again, 0..1
    core     belongs to the attention core, which selective recomputation repeats
    idle     keys outside the window per key within it
    windowed 1 where the kernel is one for windows, whether the window binds or not
    sharing  query heads of a prompt that share a key and value head
    joined   1 where a kernel before it narrows its input on the way, which kernel tables time with
             the product; below zero where it moves that share more than tables time. Of attention
             1 where keys and values are written to no cache, which tables of engines time with it
    kernels  of one execution, which the host launches one after the other
    exponentials  of one that streams and whose arithmetic counts: beside them `flop` in 32 bits
    stretch  its time over that of the kernel that is timed in its stead
    chain    no less than steps of it take that wait for each other [s]
    """

    name: str
    op: str
    variant: str
    phase: str
    module: str
    dtype: str
    m: Numeric
    n: Numeric
    k: Numeric = 1.0
    batch: Numeric = 1.0
    flop: Numeric = 0.0
    bytes: Numeric = 0.0
    count: Numeric = 1.0
    saved: Numeric = 0.0
    remade: Numeric = 0.0
    core: bool = False
    idle: Numeric = 0.0
    windowed: Numeric = 0.0
    sharing: Numeric = 1.0
    joined: Numeric = 0.0
    kernels: Numeric = 1.0
    exponentials: Numeric = 0.0
    stretch: Numeric = 1.0
    chain: Numeric = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Small:
    """A small kernel beside a linear layer, or one for each of several matrices.

    label    what its name adds to the layer's
    streams  bytes per element of rows x columns, read and written together
    times    executions per block
    stretch  as of an operator
    worked   as of `streaming`
    """

    label: str
    variant: str
    phase: str
    rows: Numeric
    columns: Numeric
    streams: Numeric
    saved: Numeric = 0.0
    times: Numeric = 1.0
    stretch: float = 1.0
    worked: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective call.

    op       'allreduce', 'allgather', 'reducescatter', 'alltoall', 'p2p'
    phase    'forward', 'recompute', 'backward' or 'update'
    module   as of an operator (per micro-batch), 'stage' (per micro-batch and virtual stage),
             'update' (per step), 'pass' (of a served model)
    group    'tp', 'cp', 'ep', 'etp', 'pp', 'dp', 'shard', 'replicate', their like for the experts
             ('edp', 'eshard', 'ereplicate'), 'ends': the ranks that take part, which
             `communication.groups` and `serving.pass_groups` place
    bytes    message size in nccl-tests' convention [bytes]
    count    executions per unit of `module`
    behind   name of the operator it overlaps with, or `PASSES`; '' if nothing hides it
    calls    calls per execution, which hide behind that operator together
    copies   of each element in the message, of which those to one domain share the way
    reach    domains to which the copies of an element go at most; NaN: any
    turn     targets that are dealt in turn, so that its copies go to neighbours; NaN: any
    least    time of a call that its kernel's processors take, however fast the links [s]
    """

    name: str
    op: str
    phase: str
    module: str
    group: str
    bytes: Numeric
    count: Numeric = 1.0
    behind: str = ""
    calls: Numeric = 1.0
    copies: Numeric = 1.0
    reach: Numeric = np.nan
    turn: Numeric = np.nan
    least: Numeric = 0.0

    @property
    def call(self) -> Hashable:
        """Equal for collectives one call of which is the same to the network."""
        values = (self.bytes, self.copies, self.reach, self.turn, self.least)
        return self.op, self.group, *map(_exact, values)


def _exact(value: Numeric) -> Hashable:
    """Equal for numbers, or arrays of them, that are the same to the last bit."""
    if type(value) is float and value == value:
        return value
    array = np.asarray(value, float)
    return array.shape, array.tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Ranks of one parallel dimension: how many, and how far apart in rank order."""

    size: Numeric
    stride: Numeric


def gemm(
    name: str,
    layout: str,
    phase: str,
    module: str,
    dtype: str,
    m: Numeric,
    n: Numeric,
    k: Numeric,
    *,
    batch: Numeric = 1.0,
    out_bytes: float = 2.0,
    count: Numeric = 1.0,
    saved: Numeric = 0.0,
    core: bool = False,
    kernels: Numeric = 1.0,
    joined: Numeric = 0.0,
) -> Operator:
    """A matrix product C[m,n] = A[m,k] B[k,n], `batch` times, `out_bytes` per element of C; B is as
    narrow as weights of that data type are stored. The host launches `kernels` of them."""
    flop = 2.0 * m * n * k * batch
    moved = (ELEMENT_BYTES[dtype] * m * k + WEIGHT_BYTES[dtype] * k * n + out_bytes * m * n) * batch
    return Operator(
        name=name,
        op="gemm",
        variant=layout,
        phase=phase,
        module=module,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        batch=batch,
        flop=flop,
        bytes=moved,
        count=count,
        saved=saved,
        core=core,
        kernels=kernels,
        joined=joined,
    )


def grouped(
    name: str,
    module: str,
    dtype: str,
    m: Numeric,
    n: Numeric,
    k: Numeric,
    experts: Numeric,
    *,
    gated: bool,
    size: float,
    count: Numeric = 1.0,
    idle: Numeric = 0.0,
) -> Operator:
    """Both products of `experts` experts and the activation between them in one fused kernel, as
    engines of inference run them: op 'moe_gemm'. (Training runs products of dense layers instead.)

    m, n, k     tokens of one expert; its inner size on this device; width of a token
    size        bytes of an activation element
    idle        rows of experts elsewhere that the kernel walks over, per row of its own

    Traffic: the weights (3 n k elements where gated, else 2) as narrow as they are stored, input
    and output (m k each), and the inner activations written and read between the products.
    """
    sides = 3.0 if gated else 2.0
    weights = sides * n * k * WEIGHT_BYTES[dtype]
    activations = size * m * (2.0 * k + 2.0 * sides * n)
    return Operator(
        name=name,
        op="moe_gemm",
        variant="fwd",
        phase="forward",
        module=module,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        batch=experts,
        flop=2.0 * sides * m * n * k * experts,
        bytes=(weights + activations) * experts,
        count=count,
        idle=idle,
    )


def lookup(
    *,
    name: str,
    variant: str,
    module: str,
    dtype: str,
    rows: Numeric,
    columns: Numeric,
    table: Numeric,
    moved: Numeric,
    count: Numeric = 1.0,
    saved: Numeric = 0.0,
) -> Operator:
    """Rows of a table that tokens find, or the sums of their gradients.

    variant   'fwd' or 'bwd'
    table     rows that there are
    moved     bytes read and written
    """
    return Operator(
        name=name,
        op="embedding",
        variant=variant,
        phase="backward" if variant == "bwd" else "forward",
        module=module,
        dtype=dtype,
        m=rows,
        n=columns,
        k=table,
        bytes=moved,
        count=count,
        saved=saved,
    )


def streaming(
    name: str,
    op: str,
    variant: str,
    phase: str,
    module: str,
    dtype: str,
    rows: Numeric,
    columns: Numeric,
    bytes_per_element: Numeric,
    *,
    count: Numeric = 1.0,
    saved: Numeric = 0.0,
    core: bool = False,
    kernels: Numeric = 1.0,
    stretch: Numeric = 1.0,
    worked: float = 0.0,
) -> Operator:
    """A kernel that streams rows x columns elements, reads and writes together
    `bytes_per_element`, and works on each for as long as so many exponentials take (`worked`)."""
    moved = rows * columns * bytes_per_element
    return Operator(
        name=name,
        op=op,
        variant=variant,
        phase=phase,
        module=module,
        dtype=dtype,
        m=rows,
        n=columns,
        bytes=moved,
        count=count,
        saved=saved,
        core=core,
        kernels=kernels,
        stretch=stretch,
        exponentials=rows * columns * worked,
    )

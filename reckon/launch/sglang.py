"""SGLang: `sglang.launch_server` with its benchmark client, or `sglang.bench_one_batch`.

With `--enable-dp-attention` the tensor-parallel size counts all ranks of a stage, which attention
divides into replicas; without it replicas are whole engines behind a router.
"""

from __future__ import annotations

from pathlib import Path

from predictor.errors import InputError
from reckon.launch.apart import APART, Roles
from reckon.launch.dialect import Dialect, Source
from reckon.launch.engines import (
    ALLREDUCE,
    BATCH,
    CLIENT_IGNORED,
    LOAD,
    MODEL,
    NAMED,
    NARROWS,
    OF_CHECKPOINT,
    RELEASED,
    Largest,
    cache,
    client,
    engine_flags,
    released,
    split_load,
    static,
    weights,
    whole_world,
)
from reckon.launch.launcher import quoted, rendered
from reckon.launch.manifest import read_lines
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    number,
    truth,
    whole_number,
)

A2A = "--moe-a2a-backend"
WITHIN = ("none", "ascend_tp")
"""Exchanges that leave open how experts are divided; with all others each rank has its own
(srt/server_args.py, _handle_a2a_moe: the expert parallel size is that of tensor parallelism)."""

TP, DP, EP, SHARED = "--tp-size", "--dp-size", "--ep-size", "--enable-dp-attention"


def _ranks_says(facts: Facts) -> Flags:
    dp = facts["dp"]
    if facts.get("model.num_experts") and dp > 1:
        found: Flags = {TP: whole_world(facts), DP: dp, SHARED: True}
    else:
        found = {TP: facts["tp"], **({DP: dp} if dp > 1 else {})}
    return {**found, **({EP: facts["ep"]} if facts["ep"] > 1 else {})}


def _ranks_means(flags: Flags, facts: Facts) -> Facts:
    ranks, dp = (whole_number(f, flags.get(f, 1)) for f in (TP, DP))
    whole = truth("--enable-ep-moe", flags.get("--enable-ep-moe", False))
    deepep = truth("--enable-deepep-moe", flags.get("--enable-deepep-moe", False))
    spans = deepep or flags.get(A2A, "none") not in WITHIN
    ep = ranks if spans else whole_number(EP, flags.get(EP, ranks if whole else 1))
    tp = ranks
    if truth(SHARED, flags.get(SHARED, False)):
        if dp < 1 or ranks % dp:
            raise InputError(f"{DP} {dp} does not divide {TP} {ranks}, as {SHARED} asks")
        tp = ranks // dp
    return {"tp": tp, "dp": dp, "ep": ep}


def _shared(flag: str, field: str) -> Derived:
    """A number that replicas of the attention share, which a plan states of one of them
    (srt/server_args.py, _handle_data_parallelism: chunked_prefill_size // dp_size; requests
    likewise, srt/managers/tp_worker.py, from memory)."""

    def says(facts: Facts) -> Flags:
        value = facts.get(field)
        replicas = facts["dp"] if SHARED in _ranks_says(facts) else 1
        return {} if value is None else {flag: value * replicas}

    def means(flags: Flags, facts: Facts) -> Facts:
        if flag not in flags:
            return {}
        value = number(flag, flags[flag])
        if value < 0:  # prompts are never cut (srt/server_args.py: chunked_prefill_size, -1)
            return {field: UNCUT}
        if value > 0 and truth(SHARED, flags.get(SHARED, False)):
            value = max(value // whole_number(DP, flags.get(DP, 1)), 1)
        return {field: value}

    return Derived((flag,), says, means, fields=(field,), needs=("dp",))


UNCUT = 2**20
"""Tokens beyond any prompt."""

QUANTIZED: dict[str | None, tuple[str, ...]] = {
    "fp8": ("fp8", "w8a8_fp8", "modelopt", "modelopt_fp8"),
    "sq": ("w8a8_int8",),
    "int4_wo": ("awq_marlin", "awq", "gptq_marlin", "gptq", "marlin", *NARROWS),
    "nvfp4": ("modelopt_fp4",),
    "mxfp4": ("mxfp4",),
    None: (*OF_CHECKPOINT[None], "moe_wna16", "qoq", "w4afp8"),
}
"""Data types of the weights, and SGLang's methods (srt/server_args.py, QUANTIZATION_CHOICES)."""

STEPS, TOKENS = "--speculative-num-steps", "--speculative-num-draft-tokens"
ALGORITHM = "--speculative-algorithm"


def _guesses_says(facts: Facts) -> Flags:
    """A chain of guesses: as many steps as guesses, which are checked with one token more."""
    if not facts.get("drafted"):
        return {}
    return {
        ALGORITHM: "EAGLE",
        STEPS: facts["drafted"],
        "--speculative-eagle-topk": 1,
        TOKENS: facts["drafted"] + 1,
    }


CHAINS = ("deepseek",)
GUESSED = {True: 3, False: 5}
"""Families whose guesses are chains unless told otherwise, and guesses one after the other of these
and of all others (srt/server_args.py of 0.4.6 to 0.5, `auto_choose_speculative_params`)."""


def _guesses_means(flags: Flags, facts: Facts) -> Facts:
    """Guesses one after the other; of an algorithm without numbers, those that it chooses."""
    asked = str(flags.get(ALGORITHM, "none")).lower() not in ("none", "ngram", "lookahead")
    if STEPS not in flags and asked:
        name = str(facts.get("model.name", "")).lower()
        return {"drafted": GUESSED[name.startswith(CHAINS)]}
    return {"drafted": whole_number(STEPS, flags.get(STEPS, 0))}


PIECES, WITHOUT = "--piecewise-cuda-graph-max-tokens", "--disable-piecewise-cuda-graph"


def _pieces_means(flags: Flags, facts: Facts) -> Facts:
    """Passes over prompts in captured pieces: none, or up to a size."""
    if truth(WITHOUT, flags.get(WITHOUT, False)):
        return {"prompt_graphs": 0}
    return {"prompt_graphs": whole_number(PIECES, flags[PIECES])} if PIECES in flags else {}


FRONTS, EVERY = "--tokenizer-worker-num", "--stream-interval"


def _front_means(flags: Flags, facts: Facts) -> Facts:
    """Several processes, or several tokens to an event, send as many times the tokens; the first
    leaves at once in any case (len(output_ids) % N == 1)."""
    most = max(whole_number(flag, flags.get(flag, 1)) for flag in (FRONTS, EVERY))
    return {"front_end": "beside"} if most > 1 else {}


TORCHAO = "--torchao-config"
NARROWED = (("int4wo", "int4_wo"), ("int8wo", "int8_wo"), ("int8dq", "sq"), ("fp8dq", "fp8"))
"""Beginnings of torchao's configurations that SGLang takes (srt/layers/torchao_utils.py)."""


def _torchao_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(TORCHAO, "")).lower()
    found = [name for begins, name in NARROWED if said.startswith(begins)]
    return {"weights": found[0]} if found else {}


ENTRIES: tuple[Entry, ...] = (
    Derived(
        (TP, DP, EP, SHARED, "--enable-ep-moe"),
        _ranks_says,
        _ranks_means,
        fields=("tp", "dp", "ep"),
    ),
    Number("--pp-size", "pp", absent=1),
    weights(QUANTIZED),
    Derived((TORCHAO,), lambda facts: {}, _torchao_means),
    cache(("fp8_e4m3", "fp8_e5m2"), "bf16"),
    _shared("--max-running-requests", "max_batch"),
    _shared("--chunked-prefill-size", "chunk"),
    Cases(
        ("execution",),
        (
            (("eager",), {"--disable-cuda-graph": True}),
            (("graph",), {"--disable-cuda-graph": False}),
        ),
    ),
    ALLREDUCE,
    Number("--mem-fraction-static", "memory_fraction"),
    Largest("--cuda-graph-max-bs", "graph_limit", also=("--cuda-graph-bs",)),
    Derived(
        (PIECES, WITHOUT),
        lambda facts: {WITHOUT: True} if facts.get("prompt_graphs") == 0 else {},
        _pieces_means,
    ),
    Derived((FRONTS, EVERY), lambda facts: {}, _front_means),
    Number("--scheduler-recv-interval", "polling", absent=1),
    Cases(
        ("scheduling",),
        (
            (("serial",), {"--disable-overlap-schedule": True}),
            ((None,), {}),
        ),
    ),
    Cases(
        ("batching",),
        (
            (("mixed",), {"--enable-mixed-chunk": True}),
            (("apart",), {"--enable-mixed-chunk": False}),
        ),
    ),
    Cases(
        ("exchange",),
        (
            (("deepep",), {A2A: ("deepep", "deepep_v2", "mooncake", "nixl")}),
            (("nvlink",), {A2A: "flashinfer"}),
            (("alltoall",), {A2A: ("mori", "megamoe", "ascend_fuseep")}),
            (("deepep",), {"--enable-deepep-moe": True}),
            (("gather",), {A2A: "none"}),
            ((None,), {}),
        ),
    ),
    Cases(
        ("reductions",),
        (
            (("joined",), {"--enable-flashinfer-allreduce-fusion": True}),
            ((None,), {}),
        ),
    ),
    Cases(
        ("prefix_cache",),
        (
            (("off",), {"--disable-radix-cache": True}),
            (("on",), {"--disable-radix-cache": False}),
        ),
    ),
    Derived(
        (ALGORITHM, STEPS, "--speculative-eagle-topk", TOKENS),
        _guesses_says,
        _guesses_means,
        fields=("drafted",),
    ),
    APART,
    RELEASED,
    LOAD,
)

ROLES = Roles(
    "--disaggregation-mode",
    "prefill",
    "decode",
    "prefill",
    (TP, "--tensor-parallel-size", "--tp"),
    "python -m sglang_router.launch_router --pd-disaggregation",
)
"""SGLang's own split of prompts and decoding, and its router."""


def _render(flags: Flags, facts: Facts) -> str:
    engine, load = split_load(flags)
    name = quoted(flags[MODEL])
    if BATCH in load:
        head = f"python -m sglang.bench_one_batch --model-path {name}"
        return rendered(head, {**engine, **static(load)})
    head = f"python -m sglang.launch_server --model-path {name}"
    served = ROLES.lines(head, engine, facts, ENTRIES, flags)
    return served + client(
        f"python -m sglang.bench_serving --backend sglang --model {name} --dataset-name random",
        load,
    )


SHORT = {"--tensor-parallel-size": TP, "--tp": TP, "--data-parallel-size": DP, "--dp": DP,
         "--expert-parallel-size": EP, "--ep": EP, "--pipeline-parallel-size": "--pp-size",
         "--pp": "--pp-size", "--speculative-algo": ALGORITHM}  # fmt: skip


def _parse(text: str, folder: Path) -> Source:
    script, apart = ROLES.taken(read_lines(text, folder, "sglang"))
    found, notes = engine_flags(script, lambda command: "sglang" in command, "serve")
    found |= apart
    flags = {SHORT.get(f, f): v for f, v in found.items()}
    return Source(flags | released(text, r"lmsysorg/sglang|\bsglang(?=\[|==)"), notes)


SGLANG = Dialect(
    name="sglang",
    framework="sglang",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(
        *CLIENT_IGNORED,
        "--attention-backend",
        "--schedule-",
        "--disaggregation",
    ),
    render=_render,
    parse=_parse,
)

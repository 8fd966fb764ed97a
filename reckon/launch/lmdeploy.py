"""LMDeploy: `lmdeploy serve api_server`, and a client that asks as OpenAI's do
(InternLM/lmdeploy, lmdeploy/cli/utils.py, cli/serve.py @ 1263d5cd8, read 2026-11-27).

TurboMind, which launches from C++, divides attention and experts by `--tp`, `--dp`, `--ep`; the
PyTorch engine counts the ranks of a mixture by the largest of them.
"""

from __future__ import annotations

from pathlib import Path

from predictor.errors import InputError
from reckon.launch.dialect import Dialect, Source
from reckon.launch.engines import (
    CLIENT_IGNORED,
    LOAD,
    MODEL,
    NAMED,
    OF_CHECKPOINT,
    RELEASED,
    Largest,
    openai_client,
    released,
    served_flags,
    split_load,
    weights,
    whole_world,
)
from reckon.launch.launcher import quoted, rendered
from reckon.launch.manifest import read_lines
from reckon.launch.replicas import SERVERS, as_servers, servers_mean, servers_of, servers_say
from reckon.launch.table import Cases, Derived, Entry, Facts, Flags, Number, truth, whole_number

TP, DP, EP, BACKEND = "--tp", "--dp", "--ep", "--backend"
FORMAT, POLICY = "--model-format", "--quant-policy"
EAGER, ALGORITHM = "--eager-mode", "--speculative-algorithm"
GUESSES = "--speculative-num-draft-tokens"
PORT = 23333


def _ranks_says(facts: Facts) -> Flags:
    """Experts on all ranks where attention is replicated and what is left of them does not divide
    its tensor parallel, as TurboMind asks; replicas of a dense model that PyTorch runs are servers
    of their own."""
    tp, dp, ep, whole = facts["tp"], facts["dp"], facts["ep"], whole_world(facts)
    if not facts.get("model.num_experts"):
        if facts["execution"] == "native":
            return {TP: tp, **({DP: dp} if dp > 1 else {})}
        return {TP: tp, **servers_say(facts)}
    if facts["execution"] == "native":
        ep = ep if dp == 1 or _one_island(tp, dp, ep) else whole
    elif ep not in (1, whole):
        ep = whole
    elif ep == 1:
        tp = whole
    return {TP: tp, **({DP: dp} if dp > 1 else {}), **({EP: ep} if ep > 1 else {})}


def _one_island(tp: int, dp: int, ep: int) -> bool:
    """Whether TurboMind's replicas share all experts (turbomind/parallel_config.py)."""
    return tp * dp % ep == 0 and tp % (tp * dp // ep) == 0


def _ranks_means(flags: Flags, facts: Facts) -> Facts:
    tp, dp, ep = (whole_number(flag, flags.get(flag, 1)) for flag in (TP, DP, EP))
    mixture, torch = bool(facts.get("model.num_experts")), flags.get(BACKEND) == "pytorch"
    if not mixture and dp > 1 and torch:
        raise InputError(f"{DP} {dp} of the PyTorch engine divides the attention of a dense model "
                         "alone, which is not predicted")  # fmt: skip
    if not mixture:
        return {"tp": tp, "dp": dp * servers_mean(flags, facts), "pp": 1, "ep": 1}
    servers_mean(flags, facts)
    if torch and (dp > 1 or ep > 1):  # pytorch/config.py, DistConfig: world_size, attn_tp
        world = ep if ep > 1 else tp
        if world % dp:
            raise InputError(f"{DP} {dp} does not divide the {world} ranks of {TP} {tp} {EP} {ep}")
        tp = world // dp
    elif dp > 1 and not _one_island(tp, dp, ep):
        raise InputError(
            f"{TP} {tp} {DP} {dp} {EP} {ep}: TurboMind makes islands of it, each with all experts; "
            "give the line of one of them, and what it gets of the load"
        )
    return {"tp": tp, "dp": dp, "pp": 1, "ep": ep}


POLICIES = {
    "int4": (4, "int4"),
    "int8": (8, "int8"),
    "fp8": (16, "fp8", "fp8_e4m3", 17, "fp8_e5m2"),
}
"""Data types of the cache, and the numbers and names of policies (lmdeploy/messages.py)."""


def _policy_means(flags: Flags, facts: Facts) -> Facts:
    said = str(flags.get(POLICY, 0)).lower()
    if said in ("0", "none"):
        return {}
    found = next((kv for kv, own in POLICIES.items() if said in map(str, own)), None)
    if found is None:
        known = ", ".join(str(one) for own in POLICIES.values() for one in own)
        raise InputError(f"{POLICY} {said}: known are 0, {known}")
    return {"kv": found}


def _guesses_says(facts: Facts) -> Flags:
    if not facts.get("drafted"):
        return {}
    return {ALGORITHM: "eagle3", GUESSES: facts["drafted"]}


def _guesses_means(flags: Flags, facts: Facts) -> Facts:
    on = str(flags.get(ALGORITHM, "none")).lower() != "none"
    return {"drafted": whole_number(GUESSES, flags.get(GUESSES, 1)) if on else 0}


QUANTIZED: dict[str | None, tuple[str, ...]] = {
    "int4_wo": ("awq", "gptq"),
    "fp8_block": ("fp8",),
    "mxfp4": ("mxfp4",),
    None: (*OF_CHECKPOINT[None], "hf", "llama"),
}
"""Data types of the weights, and formats of checkpoints."""

ENTRIES: tuple[Entry, ...] = (
    Cases(
        ("execution",),
        (
            (("graph",), {BACKEND: "pytorch", EAGER: False}),
            (("eager",), {BACKEND: "pytorch", EAGER: True}),
            (("native",), {BACKEND: "turbomind"}),
            ((None,), {EAGER: True}),
            ((None,), {}),
        ),
    ),
    Derived(
        (TP, DP, EP, SERVERS),
        _ranks_says,
        _ranks_means,
        fields=("tp", "pp", "dp", "ep"),
        needs=("execution",),
    ),
    weights(QUANTIZED),
    Derived(
        (POLICY,),
        lambda facts: {POLICY: POLICIES[facts["kv"]][0]} if facts["kv"] in POLICIES else {},
        _policy_means,
        fields=("kv",),
    ),
    Number("--max-batch-size", "max_batch"),
    Number("--max-prefill-token-num", "chunk"),
    Number("--cache-max-entry-count", "memory_fraction"),
    Cases(
        ("prefix_cache",),
        (
            (("on",), {"--enable-prefix-caching": True}),
            (("off",), {"--enable-prefix-caching": False}),
        ),
    ),
    Cases(
        ("scheduling",),
        ((("overlapped",), {"--async": "1"}), (("serial",), {"--async": "0"}), ((None,), {})),
    ),
    Cases(
        ("allreduce",),
        (
            (("nccl",), {"--communicator": "nccl"}),
            (("custom",), {"--communicator": ("cuda-ipc", "native")}),
            (("nccl",), {}),
        ),
    ),
    Largest("--cudagraph-capture-batch-sizes", "graph_limit"),
    Derived((ALGORITHM, GUESSES), _guesses_says, _guesses_means, fields=("drafted",)),
    RELEASED,
    LOAD,
)


def _render(flags: Flags, facts: Facts) -> str:
    engine, load = split_load(flags)
    name = quoted(flags[MODEL])
    own = {FORMAT if f == "--quantization" else f: v for f, v in engine.items() if f != SERVERS}
    line = rendered(f"lmdeploy serve api_server {name}", own)
    return as_servers(line, flags, PORT) + openai_client(name, PORT, load)


def _parse(text: str, folder: Path) -> Source:
    script = read_lines(text, folder, "lmdeploy")
    found, notes = served_flags(script, "lmdeploy", "api_server")
    flags = {"--quantization" if f == FORMAT else f: v for f, v in found.items()}
    if truth(EAGER, flags.get(EAGER, False)) and BACKEND not in flags:
        notes.append(f"{EAGER} is of the PyTorch engine: without {BACKEND} pytorch TurboMind runs")
    return Source(flags | servers_of(script) | released(text, r"openmmlab/lmdeploy|\blmdeploy"),
                  notes)  # fmt: skip


LMDEPLOY = Dialect(
    name="lmdeploy",
    framework="lmdeploy",
    serving=True,
    model=NAMED,
    entries=ENTRIES,
    ignored=(*CLIENT_IGNORED, "--server-name", "--server-port", "--session-len", "--model-name",
             "--allow-", "--proxy-url", "--max-concurrent-requests", "--ssl", "--api-keys",
             "--max-log-len", "--rope-scaling-factor", "--hf-overrides", "--device",
             "--disable-metrics", "--disable-fastapi-docs", "--generation-config",
             "--cache-block-seq-len", "--enable-abort-handling", "--vision-max-batch-size"),
    render=_render,
    parse=_parse,
)  # fmt: skip

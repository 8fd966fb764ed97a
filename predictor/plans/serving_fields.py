"""The table of what a request may state of a serving plan."""

from __future__ import annotations

from dataclasses import replace

from predictor.plans.client_fields import CLIENT_FIELDS, FLEET_FIELDS
from predictor.plans.extra_fields import ADAPTER_FIELDS, GUESS_FIELDS, HOST_FIELDS
from predictor.plans.fields import (
    ALL,
    BOTH,
    CLUSTER_FIELDS,
    COUNT,
    ENTRY,
    EVERYWHERE,
    LENGTH,
    LOAD,
    NATURAL,
    PART,
    PLAN,
    POSITIVE,
    PREDICT,
    SHARE,
    SWITCH,
    TEXT,
    WORD,
    PlanField,
    Table,
    era_fields,
    expert_fields,
    image_fields,
    table,
)
from predictor.plans.power_fields import POWER_FIELDS
from predictor.plans.serving import (
    ACCUMULATIONS,
    ADMISSIONS,
    ALLREDUCES,
    BATCHINGS,
    BLOCK_TABLES,
    CASTS,
    CONTROLS,
    EXCHANGES,
    EXECUTIONS,
    FRONT_ENDS,
    FUSIONS,
    HEADWISE,
    KV_BYTES,
    LAST_TOKENS,
    LIBRARIES,
    MATVECS,
    MODULES,
    NARROW_EXPERTS,
    NARROWED,
    PIPELININGS,
    POOLS,
    PREFIX_CACHES,
    PRODUCT_UNITS,
    REACHES,
    REDUCTIONS,
    REPLICA_PASSES,
    SAMPLERS,
    SAMPLINGS,
    SCHEDULINGS,
    SESSIONS,
    SHARED_EXPERTS,
    SHORT_PROMPTS,
    SPLITTINGS,
    STATES,
    SUMMED,
    WEIGHTS,
    WINDOWS,
)
from predictor.plans.words import CACHE_WORDS, WEIGHT_WORDS

ENGINE = "as the engine does"
FITS = "the smallest tp x pp that holds the weights and a sequence, tp first, inside the node"

_SEVERAL = {"system": "To choose among: NAME,...", "accelerator": "Instead of systems: NAME,..."}

_WHERE = tuple(replace(one, planned=_SEVERAL.get(one.name, "")) for one in CLUSTER_FIELDS)

_PARALLEL = (
    PlanField(
        "gpus", COUNT, "Accelerators in all.", ALL, flags=(PREDICT,),
        default="tp x pp x dp, and those that read prompts apart", held="",
    ),
    PlanField(
        "tp", COUNT, "Tensor parallel.", ALL, default="the smallest that fits", reason=FITS,
        flags=EVERYWHERE,
    ),
    PlanField(
        "pp", COUNT, "Pipeline parallel.", ALL, default="the smallest that fits", reason=FITS,
        flags=EVERYWHERE,
    ),
    PlanField(
        "dp", COUNT, "Replicas of the attention (dense: of all).", ALL,
        default="gpus / (tp x pp)", flags=EVERYWHERE, planned="Attention replicas of a mixture.",
        more="Replicas of the attention share the experts of a mixture (attention data "
        "parallelism).",
    ),
    PlanField(
        "ep", COUNT, "Expert parallel.", ALL, flags=EVERYWHERE,
        default="all ranks where attention is replicated, else 1",
        reason="as engines divide a mixture's experts; the rest of a stage's ranks split each",
    ),
    PlanField(
        "expert_load", LOAD, "Tokens of the busiest rank's experts over the mean.",
        (*BOTH, "communication"), default="1",
        reason="tokens spread evenly over experts unless stated",
    ),
    *expert_fields((*BOTH, "communication")),
    PlanField(
        "prefill_workers", NATURAL, "Engines that read prompts apart.", ALL, flags=(PLAN,),
        planned="That read prompts apart; 0: none.",
        reason="the accelerators that decode read prompts too, unless stated",
        more="They read prompts and nothing else, for all replicas together.",
    ),
    PlanField(
        "prefill_tp", COUNT, "Tensor parallel of one such engine.", ALL,
        default="that of the engine that decodes, where it is stated, else 1",
    ),
    PlanField(
        "prefill_dp", COUNT, "Replicas of the attention in one such engine.", ALL, default="1",
        reason="its ranks split the attention unless stated",
        more="Of a mixture: each reads prompts of its own, and they share the experts.",
    ),
    PlanField(
        "prefill_power_limit", POSITIVE, "Watts that an accelerator of such an engine may draw.",
        ALL, unit="W", default="`power_limit`", held="",
        more="`power_limit` is then that of the accelerators which decode.",
    ),
    PlanField(
        "prefill_system", ENTRY, "System whose accelerators read prompts apart.", ALL,
        default="the one that decodes", held="", flags=(PLAN,), metavar="NAME",
        planned="Where prompts may be read apart: NAME,...",
        more="Caches go over the outermost networks of both, or as fast as `kv_gbs` says.",
    ),
    PlanField(
        "kv_gbs", POSITIVE, "Rate at which one of its accelerators sends its part of a cache.",
        ("communication",), unit="GB/s", default="that of the network", held="kv_rate",
    ),
)  # fmt: skip

_LOAD = (
    PlanField(
        "batch", COUNT, "Requests that start together.", ALL, unit="sequences", default="1",
        reason="one request unless a load is stated", flags=(PREDICT,),
    ),
    PlanField(
        "concurrency", COUNT, "Or clients, one request each.", ALL, default="a static batch",
        flags=(PREDICT,), held="",
    ),
    PlanField(
        "saturated", SWITCH, "Or as many requests as fit.", ALL, default="no", flags=(PREDICT,),
        lists=False, held="",
    ),
    PlanField(
        "rate", POSITIVE, "Or requests per second, at random.", ALL, unit="1/s",
        default="a static batch", flags=(PREDICT,), metavar="X", held="",
    ),
    PlanField(
        "simulate", COUNT, "Also serve N requests one by one.", ("load",), default="no",
        flags=(PREDICT,), lists=False, held="",
    ),
    PlanField(
        "variation", SHARE, "Of lengths: uniform within so much of their mean.", ("load",),
        default="0.1", reason="benchmarks draw lengths within a tenth of the mean",
        more="Where requests are served one by one; 0, all of one length: those that are read "
        "together end together, in closed forms, too.",
    ),
    PlanField(
        "synchrony", SHARE, "Of the clients that send together.", ("load",),
        reason="lengths vary, and ten requests of a client are averaged: the first meets all "
        "others'",
        more="1 where all start at once and get answers of one length.",
    ),
    PlanField(
        "rounds", POSITIVE, "Requests that each client sends.", ("load",), default="10",
        reason="public bench clients send ten times as many as there are clients",
        more="All clients' first come at once; later ones as clients are answered.",
    ),
    PlanField(
        "input_len", LENGTH, "Tokens of a prompt.", ALL, unit="tokens",
        default="none: must be stated", flags=EVERYWHERE,
    ),
    PlanField(
        "output_len", LENGTH, "Tokens of an answer.", ALL, unit="tokens",
        default="none: must be stated", flags=EVERYWHERE,
    ),
    *image_fields("request"),
    PlanField(
        "cached", SHARE, "Of the prompt whose keys and values are cached already.",
        ("prefill", "load"), reason="no prefix is cached unless stated",
    ),
    PlanField(
        "sampling", WORD, "How the next token is drawn.", ("decode",), choices=SAMPLINGS,
        reason="the likeliest, or from all, unless stated",
        more="`filtered`: from the likeliest alone (top_k, top_p); `penalised`: the same with "
        "penalties on earlier tokens (repetition_penalty and the like), for which the host needs "
        "the last ones: its work per sequence is not hidden then.",
    ),
)  # fmt: skip

_RECIPE = (
    PlanField(
        "precision", WORD, "Of the weights of linear projections.", ALL, choices=WEIGHTS,
        words=WEIGHT_WORDS, default="its checkpoint's, its engine's, else bf16, fp16 or fp32",
        flags=EVERYWHERE, metavar="P", held="weights", reason="what was released in one narrow "
        "form only is served so; llama.cpp, exllamav2, MLC and NIM have formats of their own; else "
        "bf16 where the accelerator has it, else fp16, else fp32",
        more="16 bits; weight-only (..._wo, w4a16_...); weights and "
        "activations (fp8, fp8_block, sq, nvfp4). What an accelerator does not multiply is widened "
        "as it is read (Frantar et al. 2024, Marlin).",
    ),
    PlanField(
        "kv_precision", WORD, "Of cached keys and values.", ("decode", "load", "memory"),
        choices=tuple(KV_BYTES), words=CACHE_WORDS, default="as the rest of the attention",
        flags=EVERYWHERE, metavar="P", held="kv",
        reason="engines that keep an fp8 cache beside such weights do",
    ),
    *era_fields("Engine: vllm sglang ...", "engine"),
    PlanField(
        "version", TEXT, "Release of the engine, as in 0.11.2.", ("all",),
        default="the newest of its era", flags=(PREDICT,), metavar="X", held="", lists=True,
        more="Decides what the engine does by default, and the era.",
    ),
    PlanField(
        "in_doubt", WORD, "What of the engine is taken as a distribution.", ("all",),
        choices=("nothing", "release"), default="nothing", held="", lists=False,
        reason="one release, that of the era",
        more="release: those of half a year until the era (of the usual engines, where none is "
        "named), each with its facts; value and interval are the mixture's, and the facts that "
        "move it most are told.",
    ),
    PlanField(
        "narrowed", WORD, "Which matrices have the weights' data type.", (*BOTH, "memory"),
        choices=NARROWED, reason="`experts` of formats that only such checkpoints have",
        more="All linear projections, those of feed-forward blocks (Meta's fp8 checkpoint of Llama "
        "3.1 405B), or the experts alone (checkpoints of gpt-oss and Kimi), the rest being in 16 "
        "bits, or in 8-bit floats by blocks (experts_below_fp8: DeepSeek-V4).",
    ),
)  # fmt: skip

_ENGINE = (
    PlanField(
        "execution", WORD, "How the kernels of a decode pass are launched.", BOTH,
        choices=EXECUTIONS, default=ENGINE,
        more="Replayed from a captured graph, one by one from C++, or one by one from Python. "
        "Prefill passes are launched one by one in any case.",
    ),
    PlanField(
        "allreduce", WORD, "Small all-reduces among ranks near each other.", ("communication",),
        choices=ALLREDUCES, default=ENGINE,
        more="One-kernel implementations of serving engines, or NCCL's.",
    ),
    PlanField(
        "narrow_experts", WORD, "Kernels of experts in fewer than 16 bits.", BOTH,
        choices=NARROW_EXPERTS,
        default=ENGINE,
        more="Those that the engine's library was timed with; Triton's, which in fp8 with one "
        "scale a matrix are as efficient as in 16 bits (vLLM before 0.17); with one for each "
        "block, DeepGEMM's over buffers for the most copies that could come (vLLM 0.11 to "
        "0.15); CUTLASS's, tuned as the engine starts (vLLM from 0.17 on Hopper); OpenAI's for "
        "the 4-bit experts of gpt-oss (SGLang); those that NVIDIA generates for Blackwell "
        "(TensorRT-LLM's backend TRTLLM); or all experts for all tokens (optimum-habana).",
    ),
    PlanField(
        "summed", WORD, "Where an engine's own all-reduce adds up.", ("communication",),
        choices=SUMMED, default=ENGINE,
        more="On the cards, up to 8 MB; or in the switch, up to 128 MB (vLLM from 0.11 on Hopper "
        "and Blackwell).",
    ),
    PlanField(
        "reach", WORD, "How far an engine's own all-reduce reaches.", ("communication",),
        choices=REACHES, default=ENGINE,
        more="Ranks of one node; or all that NVLink reaches, as in a rack of GB200 (TensorRT-LLM "
        "from 1.0, vLLM from 0.19), and chips of several hosts that share their links (TPU).",
    ),
    PlanField(
        "states", WORD, "Elements of the states of scans and delta rules.", BOTH,
        choices=STATES, default=ENGINE,
        more="In 32 bits (SGLang, and checkpoints that ask for it: Nemotron-H, Qwen3.5); or in 16 "
        "(vLLM where they do not: Qwen3-Next, Granite 4).",
    ),
    PlanField(
        "exchange", WORD, "How a mixture's tokens travel among attention replicas.",
        ("communication",), choices=EXCHANGES, default=ENGINE,
        more="All tokens to all ranks and sums back (`gather`); each to the ranks of its experts "
        "by NCCL (`alltoall`), TensorRT-LLM's kernels within an NVLink domain (`nvlink`) or "
        "DeepEP's (`deepep`).",
    ),
    PlanField(
        "admission", WORD, "When a request is let in.", ("load", "memory"), choices=ADMISSIONS,
        default=ENGINE,
        more="When there is cache for its whole length, or when there is for its prompt and the "
        "others are, on average, half way.",
    ),
    PlanField(
        "windows", WORD, "Whether attention stops at the model's sliding window.", ("load",),
        choices=WINDOWS, default=ENGINE, held="",
        more="unset: it sees all that is cached, as engines do whose window is a flag of its own.",
    ),
    PlanField(
        "pool", WORD, "Of what an engine takes its share for itself.", ("load", "memory"),
        choices=POOLS, default=ENGINE,
        more="Of the device's memory (vLLM); for the cache, of what weights, activations and "
        "runtime leave (TensorRT-LLM); of the device's memory for weights and cache alone "
        "(SGLang).",
    ),
    PlanField(
        "memory_fraction", PART, "That share.", ("load", "memory"), default=ENGINE,
        more="gpu_memory_utilization, mem_fraction_static, free_gpu_memory_fraction.",
    ),
    PlanField(
        "library", WORD, "Whose kernels run, where they were timed apart.", BOTH,
        choices=LIBRARIES, default=ENGINE,
    ),
    PlanField(
        "matvec", WORD, "What multiplies a few rows by a matrix.", ("decode",), choices=MATVECS,
        default=ENGINE,
        more="Those that also do many rows; ones that stream the matrix with loads enough under "
        "way to fill the memory; plain ones; a compiler's, which widen narrow weights one by one; "
        "or, of narrow weights alone, ones that widen them as they stream in (Marlin).",
    ),
    PlanField(
        "accumulation", WORD, "In what many rows of 16-bit products are added up.", ("prefill",),
        choices=ACCUMULATIONS, default=ENGINE,
    ),
    PlanField(
        "product_units", WORD, "Which units multiply matrices.", BOTH,
        choices=PRODUCT_UNITS, default=ENGINE,
        more="Those made for it, or the others where a library has no kernels for these (rocBLAS "
        "on MI300X in 2024), or, of 8 bits scaled row by row there, those of 32 (`single`).",
    ),
    PlanField(
        "fusion", WORD, "Whether attention keeps its scores on the chip.", BOTH, choices=FUSIONS,
        default=ENGINE,
        more="And small kernels are joined; else scores go through memory and activations between "
        "kernels are 32 bits wide (eager PyTorch); `converted`: and what 16-bit products of many "
        "rows read and write is converted by kernels of its own (ggml); `integers`: the same, but "
        "narrow weights are multiplied as they are (its mul_mat_q).",
    ),
    PlanField(
        "modules", WORD, "Whether norms, rotations, activations are single kernels.", BOTH,
        choices=MODULES, default=ENGINE,
        more="Or as many as eager modules of PyTorch compose them of (transformers).",
    ),
    PlanField(
        "casts", WORD, "What narrows the inputs of fp8 and fp4 products.", BOTH, choices=CASTS,
        default=ENGINE,
        more="A kernel of its own before each product, as tables of kernels time it; or the norm "
        "or activation before.",
    ),
    PlanField(
        "splitting", WORD, "How attention is cut while decoding.", ("decode",), choices=SPLITTINGS,
        default=ENGINE,
        more="Keys of a head split among thread blocks (Flash-Decoding), or one walks over all; "
        "`few`, `few_8k`: split up to 512 heads of all sequences, beyond that one block keeps "
        "4,096 or 8,192 scores (vLLM's paged attention).",
    ),
    PlanField(
        "headwise", WORD, "Heads that attention works through one by one while decoding.",
        ("decode",), choices=HEADWISE, default=ENGINE,
        more="None, all, those that share a key head with other than seven more (`but8`), with "
        "none or more than seven (`to8`), none (`single`); `copied`: the cache is repeated for "
        "each head in memory (transformers).",
    ),
    PlanField(
        "pipelining", WORD, "What pipeline stages do at a time.", ALL, choices=PIPELININGS,
        default=ENGINE,
        more="Each a part of the running sequences, or one after the other all of them (layers "
        "dealt out to devices: llama.cpp, device_map of transformers); `rows`: one does all but "
        "the products, of whose rows each has a part (llama.cpp before 2024, --split-mode row).",
    ),
    PlanField(
        "scheduling", WORD, "When the host prepares the next pass.", BOTH, choices=SCHEDULINGS,
        default=ENGINE, more="After the one before it, or while that runs.",
    ),
    PlanField(
        "batching", WORD, "How prompts and decoding share passes.", ("prefill", "decode", "load"),
        choices=BATCHINGS, default=ENGINE,
        more="Parts of prompts ride along with decoding (vLLM V1, TensorRT-LLM); prompts have "
        "passes of their own, first (SGLang, vLLM V0); the same, but not before enough of them "
        "wait (TGI).",
    ),
    PlanField(
        "polling", COUNT, "Passes between two looks for new requests.", ("load",), default=ENGINE,
        unit="passes",
        more="scheduler-recv-interval, batch_wait_timeout_iters, max_waiting_tokens.",
    ),
    PlanField(
        "graph_limit", NATURAL, "Most sequences of a captured pass.", ("decode",), default=ENGINE,
        unit="sequences", more="Larger ones are launched kernel by kernel.",
    ),
    PlanField(
        "prompt_graphs", NATURAL, "Most tokens of a captured pass with prompts.", ("prefill",),
        default=f"{ENGINE}, else none", unit="tokens",
        more="In pieces, between which attention is launched; larger ones kernel by kernel.",
    ),
    PlanField(
        "padded", NATURAL, "Sequences beyond which captured passes are of powers of two.",
        ("decode",), default=f"{ENGINE}, else no limit", unit="sequences",
        more="Smaller ones are filled up.",
    ),
    PlanField(
        "reductions", WORD, "Whether the norm after an all-reduce is part of its kernel.", BOTH,
        choices=REDUCTIONS, default=ENGINE,
    ),
    PlanField(
        "shared_experts", WORD, "When experts run that every token goes to.", ("decode",),
        choices=SHARED_EXPERTS, default=ENGINE,
        more="after those that tokens are routed to, or beside them on a stream of their own "
        "(in passes of up to 256 tokens).",
    ),
    PlanField(
        "prefix_cache", WORD, "Whether prompts find the cache of those that began alike.",
        ("load",), choices=PREFIX_CACHES, default=ENGINE,
        more="Matters where requests are served one by one in sessions.",
    ),
    PlanField(
        "sampler", WORD, "What finds the likeliest tokens, where draws are filtered.", ("decode",),
        choices=SAMPLERS, default=ENGINE,
        more="A sort of all logits and PyTorch's operators after it, or a kernel that reads them a "
        "few times (FlashInfer).",
    ),
    PlanField(
        "block_tables", WORD, "Whether the host keeps the blocks of caches or lists them anew.",
        ("decode",), choices=BLOCK_TABLES, default=ENGINE,
        more="Listing them in every pass takes host time in proportion to what is cached (vLLM "
        "before 0.8).",
    ),
    PlanField(
        "short_prompts", WORD, "How prompts are read that are no longer than what may be chosen.",
        ("prefill",), choices=SHORT_PROMPTS, default=ENGINE,
        more="Of models with latents and chosen keys: as any other attention, over expanded keys "
        "(dense; SGLang since 0.5.5), longer ones too, behind a mask, as far as that is less "
        "arithmetic (masked; vLLM since 0.28), or on the latents, as longer ones (chosen; before).",
    ),
    PlanField(
        "replica_passes", WORD, "How replicas that share experts make their passes.",
        ("decode", "load"), choices=REPLICA_PASSES, default=ENGINE,
        more="Padded to the longest, each computes as much as the one that reads most prompts "
        "(vLLM before 0.17); waiting, each computes its own and waits for that one; apart, each is "
        "as long as its own prompts make it.",
    ),
    PlanField(
        "front_end", WORD, "Whether clients are answered beside the loop of passes or in it.",
        ("decode", "load"), choices=FRONT_ENDS, default=ENGINE,
        more="Inside, each pass waits until the text of every sequence is made and handed over "
        "(vLLM before 0.6); a single process of Python sends so many tokens, fewer with texts.",
    ),
    PlanField(
        "control", WORD, "How workers learn what a pass does.", ("decode",),
        choices=CONTROLS, default=ENGINE,
        more="Pickled, each tensor-parallel worker is sent all tokens of all sequences in every "
        "pass (vLLM before 0.2.7).",
    ),
    PlanField(
        "last_token", WORD, "Whether a prompt's last token is read with it or decoded.",
        ("prefill", "load"), choices=LAST_TOKENS, default=ENGINE,
        more="Decoded, the first new token takes a pass that decodes after those over the prompt "
        "(TurboMind before 0.2). Requests served one by one do not wait for it.",
    ),
    PlanField(
        "session", WORD, "Whether a static batch has its buffers made and bound first.",
        ("prefill",), choices=SESSIONS, default=ENGINE,
        more="Where it has, some ms on the host are part of its time (TensorRT-LLM's benchmark in "
        "Python, before 0.10).",
    ),
    PlanField(
        "chunk", COUNT, "Most tokens of prompts that one pass takes.",
        ("prefill", "load", "memory"),
        unit="tokens", default=ENGINE,
    ),
    PlanField(
        "window", COUNT, "Passes over one prompt that follow each other through stages.",
        ("prefill",), default=f"{ENGINE}, else no limit",
        more="Before the pipeline drains.",
    ),
    PlanField(
        "max_batch", COUNT, "Most sequences that one replica decodes at a time.",
        ("load", "memory"), unit="sequences", default=ENGINE,
    ),
)  # fmt: skip

SERVING_FIELDS: Table = table(
    (
        *_WHERE, *_PARALLEL, *_LOAD, *CLIENT_FIELDS, *FLEET_FIELDS, *_RECIPE, *_ENGINE,
        *GUESS_FIELDS, *ADAPTER_FIELDS, *POWER_FIELDS, *HOST_FIELDS,
    )
)  # fmt: skip
"""What a request may state of a serving plan."""

SERVING_DERIVED = {
    "serving": "batch, concurrency, saturated and rate",
    "tiles": "images and image_tiles",
    "wide": "the accelerator",
}
"""Fields of the plan that follow from others of the request: field -> from which."""

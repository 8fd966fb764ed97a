"""What a request may state of a serving plan's clients, and of the fleet that answers them."""

from __future__ import annotations

from predictor.plans.fields import AMOUNT, COUNT, NATURAL, POSITIVE, PREDICT, TEXT, WORD, PlanField

LENGTHS = ("uniform", "lognormal", "exponential")
"""Distributions of lengths."""

ROUTERS = ("round-robin", "least-loaded", "prefix")
"""Which replica gets a request."""

CLIENT_FIELDS = (
    PlanField(
        "client", TEXT, "Benchmark client, as in vllm-0.8.5 or sglang.", ("load",),
        default="none", held="", lists=False,
        more="Sets lengths, burstiness and warm-up as it does by default "
        "(data/software/clients.yaml).",
    ),
    PlanField(
        "lengths", WORD, "Distribution of lengths, one by one.", ("load",), choices=LENGTHS,
        default="uniform", held="", reason="as benchmark clients draw them",
        more="uniform within `variation` of the mean; lognormal with that standard deviation over "
        "the mean; exponential.",
    ),
    PlanField(
        "burstiness", POSITIVE, "Shape of the times between arrivals.", ("load",), default="1",
        held="", reason="random arrivals (Poisson)",
        more="Gamma-distributed: below 1 bursts, above 1 an even stream. Where requests are served "
        "one by one.",
    ),
    PlanField(
        "think_s", AMOUNT, "Between an answer and the client's next request.", ("load",),
        unit="s", default="0", held="", reason="benchmark clients send at once",
    ),
    PlanField(
        "spacing_s", AMOUNT, "Between the requests of a static batch.", ("prefill",), unit="s",
        default="0", held="spacing", reason="a batch is handed over at once unless stated",
        more="Clients that are threads send one after the other: the engine begins with the first.",
    ),
    PlanField(
        "warmup", NATURAL, "Requests at the start that are not counted.", ("load",), default="0",
        held="", reason="all are counted unless stated",
    ),
    PlanField(
        "trace", TEXT, "File of requests to replay.", ("load",), default="none", held="",
        flags=(PREDICT,), metavar="FILE", lists=False,
        more="Azure, BurstGPT, Mooncake, results of vLLM's and SGLang's bench clients; lengths and "
        "arrivals are the file's.",
    ),
    PlanField(
        "slo_ttft_ms", POSITIVE, "Promised first token.", ("load",), unit="ms", default="none",
        held="",
    ),
    PlanField(
        "slo_tpot_ms", POSITIVE, "Promised time per token.", ("load",), unit="ms", default="none",
        held="",
    ),
    PlanField(
        "turns", COUNT, "Requests of a session, each after the answer to the last.", ("load",),
        default="1", held="", reason="single requests unless stated",
        more="input_len and output_len are what every turn adds.",
    ),
    PlanField(
        "shared_prefix", NATURAL, "Tokens with which all prompts begin.", ("load",), default="0",
        unit="tokens", held="", reason="random prompts share nothing",
    ),
)  # fmt: skip
"""Of those who send requests, and what they are promised."""

FLEET_FIELDS = (
    PlanField(
        "replicas", COUNT, "Such engines behind a router, one by one.", ("load",), default="1",
        held="", reason="one unless stated", more="`rate` and `concurrency` are of all.",
    ),
    PlanField(
        "router", WORD, "Which replica gets a request.", ("load",), choices=ROUTERS,
        default="round-robin", held="",
        more="In turn; that with the fewest; that which has most of the prompt.",
    ),
    PlanField(
        "most_replicas", COUNT, "That are started as the load asks.", ("load",),
        default="as many as replicas", held="",
    ),
    PlanField(
        "replica_target", POSITIVE, "Requests of a replica above which another is started.",
        ("load",), default="none is started", held="",
    ),
    PlanField(
        "cold_start_s", AMOUNT, "From that to its first request.", ("load",), unit="s",
        default="60", held="",
        reason="weights of a node are loaded and graphs captured in about a minute (from memory)",
    ),
    PlanField(
        "cache_host_gb", AMOUNT, "Host memory of a replica for caches of earlier prompts.",
        ("load",), unit="GB", default="0", held="", reason="none unless stated",
    ),
    PlanField(
        "cache_drive_gb", AMOUNT, "The same of drives.", ("load",), unit="GB", default="0",
        held="", reason="none unless stated",
    ),
    PlanField(
        "cache_drive_gbs", POSITIVE, "Rate at which they are read.", ("load",), unit="GB/s",
        default="6", held="", reason="one PCIe 4.0 drive (from memory)",
    ),
)  # fmt: skip
"""Of several engines behind a router, and where they keep earlier prompts."""

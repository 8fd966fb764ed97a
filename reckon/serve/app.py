"""The server: a page, its files, and the requests that it makes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from predictor.catalog import calibration_dir, load
from predictor.errors import InputError
from predictor.timing import Calibration
from reckon import __version__
from reckon.serve import answers, measured
from reckon.serve.bodies import Body, checked
from reckon.serve.searches import Searches
from reckon.vendored import PLOTLY

STATIC = Path(__file__).resolve().parent / "static"
HOSTS = ["127.0.0.1", "localhost", "[::1]", "testserver"]
"""Names under which a browser on this machine asks; others are refused (rebound names)."""

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}  # fmt: skip

POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"


def _fastapi() -> Any:
    try:
        import fastapi
    except ImportError:
        raise InputError(
            "reckon serve needs FastAPI, which is not installed: pip install 'reckon[serve]'"
        ) from None
    return fastapi


def application(calibration: str = "default") -> Any:
    """The application, as ASGI servers take it.

    Raises InputError where FastAPI is not installed, or the calibration is not there.
    """
    fastapi = _fastapi()
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from fastapi.responses import JSONResponse

    known = load(calibration)
    searches = Searches(calibration)

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        threading.Thread(target=_warm, args=(searches, known), daemon=True).start()
        yield
        searches.close()

    app = fastapi.FastAPI(title="reckon", version=__version__, lifespan=life, docs_url=None,
                          redoc_url=None)  # fmt: skip
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)

    @app.exception_handler(InputError)
    async def refused(_: Any, error: InputError) -> Any:
        return JSONResponse({"detail": str(error)}, status_code=422)

    @app.exception_handler(OverflowError)
    async def beyond(_: Any, error: OverflowError) -> Any:
        return JSONResponse({"detail": f"a number is too large: {error}"}, status_code=422)

    @app.exception_handler(Exception)
    async def ours(_: Any, error: Exception) -> Any:
        told = f"internal error, which is reckon's fault: {type(error).__name__}: {error!s:.200}"
        return JSONResponse({"detail": told}, status_code=500)

    _files(app)
    _predictions(app, known)
    _measured(app, known, calibration_dir(calibration))
    _searching(app, searches, fastapi)
    return app


FIRST = {"model": "llama3-70b", "system": "dgx-h100", "gpus": 64}
"""What is predicted before anyone asks, so that catalogs, tables and methods are there."""


def _warm(searches: Searches, known: Calibration) -> None:
    """Have ready what predictions and searches need before the first is asked for."""
    answers.train({**FIRST, "tp": 8, "global_batch": 64, "seq_len": 8192}, known)
    answers.infer(
        {**FIRST, "gpus": 8, "concurrency": 64, "input_len": 1024, "output_len": 64}, known
    )
    searches.ready()


def _files(app: Any) -> None:
    """The page and what it brings along."""
    from fastapi.responses import Response

    places = {"/": STATIC / "index.html", "/plotly.js": PLOTLY,
              **{f"/{n}": STATIC / n for n in ("app.js", "style.css", "icon.svg")}}  # fmt: skip

    @cache
    def content(path: str) -> bytes:
        return places[path].read_bytes()

    def answer(path: str) -> Callable[[], Any]:
        kind = TYPES[places[path].suffix]
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}

        def give() -> Any:
            return Response(content(path), media_type=kind, headers=headers)

        return give

    for path in places:
        app.get(path, include_in_schema=False)(answer(path))


def _predictions(app: Any, known: Calibration) -> None:
    """Requests that are answered at once."""
    lock = threading.Lock()  # numpy gains nothing by several at a time

    @app.get("/api/names")
    def names() -> dict[str, Any]:
        return {**answers.names(), "version": __version__, "calibration": known.name}

    def timed(answer: Callable[..., dict[str, Any]], body: Body) -> dict[str, Any]:
        start = time.perf_counter()
        with lock:
            found = answer(checked(body), known)
        return {**found, "answered_ms": 1e3 * (time.perf_counter() - start)}

    @app.post("/api/train")
    def train(body: Body) -> dict[str, Any]:
        return timed(answers.train, body)

    @app.post("/api/infer")
    def infer(body: Body) -> dict[str, Any]:
        return timed(answers.infer, body)


def _measured(app: Any, known: Calibration, folder: Path) -> None:
    """Requests about power limits, and about how good such predictions were."""

    @app.post("/api/limits/train")
    def train(body: Body) -> dict[str, Any]:
        return measured.limits(answers.train, checked(body), known)

    @app.post("/api/limits/infer")
    def infer(body: Body) -> dict[str, Any]:
        return measured.limits(answers.infer, checked(body), known)

    @app.post("/api/accuracy")
    def accuracy(body: Body) -> dict[str, Any]:
        return measured.accuracy(checked(body), known, folder)


def _searching(app: Any, searches: Searches, fastapi: Any) -> None:
    """Requests about searches."""
    layout = ("tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "recompute", "sharding",
              "schedule", "dp")  # fmt: skip

    @app.post("/api/search", status_code=202)
    def start(body: Body) -> dict[str, Any]:
        fields = checked(body)
        for needed in ("gpus", "seq_len", "global_batch"):
            if needed not in fields:
                raise InputError(f"give {needed}: a search needs it")
        own = {name: fields.pop(name) for name in layout if name in fields}
        return searches.start(fields, own).to_dict()

    @app.get("/api/search/{identity}")
    def state(identity: str) -> dict[str, Any]:
        search = searches.state(identity)
        if search is None:
            raise fastapi.HTTPException(404, "there is no such search")
        return search.to_dict()

    @app.delete("/api/search/{identity}")
    def cancel(identity: str) -> dict[str, Any]:
        search = searches.cancel(identity)
        if search is None:
            raise fastapi.HTTPException(404, "there is no such search")
        return search.to_dict()


def serve(port: int = 8717, calibration: str = "default", browser: bool = False) -> None:
    """Serve the page on the loopback interface until interrupted.

    Raises InputError where FastAPI or uvicorn is not installed, or the port is taken.
    """
    _fastapi()
    try:
        import uvicorn
    except ImportError:
        raise InputError(
            "reckon serve needs uvicorn, which is not installed: pip install 'reckon[serve]'"
        ) from None
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used ({error.strerror}); give another, --port {port + 1}"
            ) from None
    app = application(calibration)
    address = f"http://127.0.0.1:{port}/"
    print(f"reckon {__version__} on {address}  (ctrl-c ends it)", file=sys.stderr)
    if browser:
        import webbrowser

        threading.Timer(0.5, webbrowser.open, (address,)).start()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")

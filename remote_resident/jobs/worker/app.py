"""The routes of a job worker; the only file that knows the web framework."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, cast
from urllib.parse import parse_qsl

from litestar import Litestar, Request, Response, get, post
from litestar.enums import MediaType
from litestar.exceptions import HTTPException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.spec import (
    Components,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    SecurityScheme,
)
from litestar.params import Parameter as Described
from litestar.types import ASGIApp

from . import entry, gpu, tags
from .answers import (
    Busy,
    Cancelled,
    CancelledAll,
    Failure,
    Health,
    Reclaimed,
    Status,
    status_of,
)
from .asgi import App
from .encoding import error_text, text_of
from .ids import ROUTES, refused_id
from .paths import refusing_ids
from .request import MOST_BYTES, request_of
from .runner import JobExists, Runner, Stopping
from .runtime import Runtime
from .stream import EventStream

PROTOCOL = 1
"""Version of the routes and events."""
EARLIER_TURNS = 10
"""Turns of the loop in which what arrived before is accepted, read and done."""
JobId = Annotated[
    str,
    Described(
        pattern=f"^(?!({'|'.join(sorted(ROUTES))})$)[A-Za-z0-9_-]{{1,64}}$",
        description="A name of the caller's choice, free while no job of it lives",
    ),
]
RESERVED = ("/health", "/busy", "/reclaim", "/ui", "/compute", "/jobs")
REASONS = {404: "unknown_name", 413: "too_large", 500: "internal"}


@dataclass(frozen=True)
class Parts:
    """What the routes answer for."""

    plugin_id: str
    plugin: Any
    runner: Runner
    runtime: Runtime
    keepalive_s: float | None = None


def application(parts: Parts) -> App:
    """Put the routes together, the plugin's own with them; raises BadEntry."""
    handlers = [*_about(parts), *_jobs(parts), *_own_handlers(parts.plugin)]
    app: Any = Litestar(
        handlers,
        openapi_config=None,
        logging_config=None,
        request_max_body_size=MOST_BYTES,
        exception_handlers={HTTPException: _refusal, Exception: _bug},
    )
    return refusing_ids(app)


def document(parts: Parts) -> dict[str, Any]:
    """Give the OpenAPI document of the routes; raises BadEntry."""
    handlers = [*_about(parts), *_jobs(parts), *_own_handlers(parts.plugin)]
    token = SecurityScheme(type="http", scheme="bearer")
    config = OpenAPIConfig(
        title=f"Job worker {parts.plugin_id}".rstrip(),
        version=str(PROTOCOL),
        components=Components(security_schemes={"token": token}),
        # where the worker was started without a token, none is needed
        security=[{"token": []}, {}],
        use_handler_docstrings=True,
    )
    return Litestar(
        handlers,
        openapi_config=config,
        logging_config=None,
    ).openapi_schema.to_schema()


# --- about the worker ---------------------------------------------------------------


def _about(parts: Parts) -> list[Any]:
    # a call that never comes back must not keep /reclaim from its thread
    calls = ThreadPoolExecutor(8, "call")
    releases = ThreadPoolExecutor(1, "reclaim")

    @get("/health", operation_id="health", responses=_ALWAYS)
    async def health() -> Health:
        """Tell how the worker stands."""
        runtime = parts.runtime
        state = "stopping" if parts.runner.stopping else runtime.state
        ok, detail = runtime.fault is None, runtime.fault or ""
        return Health(ok, parts.plugin_id, PROTOCOL, state, detail)

    @get("/busy", operation_id="busy", responses=_ALWAYS)
    async def busy() -> Busy:
        """Count the jobs that live."""
        return Busy(parts.runner.count())

    @post("/reclaim", status_code=200, operation_id="reclaim", responses=_ALWAYS)
    async def reclaim() -> Reclaimed:
        """Give cached GPU memory back."""
        released = await _in_thread(
            releases, gpu.release_caches, parts.runner.count() == 0
        )
        return Reclaimed(released, parts.plugin_id)

    @get("/ui", media_type=MediaType.HTML, operation_id="ui", responses=_MAYBE)
    async def ui() -> str:
        """Give the plugin's fragment of a page."""
        fragment = _hook(parts.plugin, "get_ui_fragment")
        return str(await _in_thread(calls, entry.call, fragment))

    @get("/compute", operation_id="compute", responses=_MAYBE)
    async def compute(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        """Ask the plugin for a small answer, query values as strings."""
        ask = _hook(parts.plugin, "compute")
        query = request.scope["query_string"].decode("latin-1")
        params = dict(parse_qsl(query, keep_blank_values=True))
        text = await _in_thread(calls, _computed, ask, params)
        return Response(text.encode(), media_type=MediaType.JSON)

    return [health, busy, reclaim, ui, compute]


async def _in_thread(
    pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any
) -> Any:
    context = contextvars.copy_context()
    call = functools.partial(context.run, function, *args)
    return await asyncio.get_running_loop().run_in_executor(pool, call)


def _hook(plugin: Any, name: str) -> Callable[..., Any]:
    found = getattr(plugin, name, None)
    if not callable(found):
        raise _Refused(404, "unknown_name", f"{name}: the plugin has none")
    hook: Callable[..., Any] = found
    return hook


def _computed(ask: Callable[..., Any], params: dict[str, str]) -> str:
    answer = entry.call(ask, params)
    if not isinstance(answer, dict):
        raise TypeError(f"compute: {type(answer).__name__} found, a dict wanted")
    return text_of(answer, "answer")[0]


# --- jobs ---------------------------------------------------------------------------


def _jobs(parts: Parts) -> list[Any]:
    runner = parts.runner
    kept: dict[str, Any] = {"keepalive_s": parts.keepalive_s}

    @post("/jobs/{job_id:str}/run", operation_class=RunOperation, responses=_RUN)
    async def run(job_id: JobId, request: Request[Any, Any, Any]) -> ASGIApp:
        """Run a job and stream its events, the last one terminal."""
        _refuse_id(job_id)
        _refuse_live(runner, job_id)
        try:
            wanted = request_of(await request.body())
        except ValueError as exc:
            raise _Refused(400, "bad_request", f"body: {exc}") from None
        if runner.was_known(job_id):
            await _let_earlier_requests_be_done()
        try:
            job = runner.begin(job_id, wanted)
        except JobExists:
            raise _exists(job_id) from None
        except Stopping:
            raise _Refused(503, "stopping", "the worker is leaving") from None
        stream = EventStream(job.events, status=201, after=0, **kept)
        runner.start(job)
        return cast(ASGIApp, stream)

    @get("/jobs/{job_id:str}", operation_id="job", responses=_JOB)
    async def status(job_id: JobId) -> Status:
        """Tell how a job stands, or how it ended."""
        return status_of(_found(runner, job_id))

    @get("/jobs/{job_id:str}/events", operation_class=EventsOperation, responses=_JOB)
    async def events(job_id: JobId, request: Request[Any, Any, Any]) -> ASGIApp:
        """Stream what is buffered after an event's number, then what comes."""
        job = _found(runner, job_id)
        after = _after(request.query_params.get("after"))
        stream = EventStream(job.events, status=200, after=after, **kept)
        return cast(ASGIApp, stream)

    @post(
        "/jobs/{job_id:str}/cancel",
        status_code=200,
        operation_id="cancel",
        responses={**_JOB, 404: ResponseSpec(Cancelled, description="Not live")},
    )
    async def cancel(job_id: JobId) -> Response[Cancelled]:
        """Ask a job to end."""
        _refuse_id(job_id)
        done = runner.cancel(job_id)
        return Response(Cancelled(done, job_id), status_code=200 if done else 404)

    @post(
        "/jobs/cancel-all",
        status_code=200,
        operation_id="cancel_all",
        responses=_ALWAYS,
    )
    async def cancel_all() -> CancelledAll:
        """Ask every job to end."""
        return CancelledAll(runner.cancel_all())

    return [run, status, events, cancel, cancel_all]


async def _let_earlier_requests_be_done() -> None:
    """Let what had arrived first be done first.

    A cancel of the job that had this id before may still wait on a connection that was
    not even accepted; it must not hit the job that comes.
    """
    for _ in range(EARLIER_TURNS):
        await asyncio.sleep(0)


def _found(runner: Runner, job_id: str) -> Any:
    _refuse_id(job_id)
    job = runner.find(job_id)
    if job is None:
        raise _Refused(404, "unknown_name", f"job {job_id}: none found of that id")
    return job


def _refuse_id(job_id: str) -> None:
    fault = refused_id(job_id)
    if fault is not None:
        raise _Refused(400, "bad_job_id", fault)


def _refuse_live(runner: Runner, job_id: str) -> None:
    if runner.is_live(job_id):
        raise _exists(job_id)


def _exists(job_id: str) -> _Refused:
    return _Refused(409, "job_exists", f"job {job_id}: one of that id lives")


def _after(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _Refused(400, "bad_request", f"after: {text!r} found, a number wanted")
    return int(text)


# --- refusals -----------------------------------------------------------------------


class _Refused(HTTPException):
    def __init__(self, status: int, reason: str, error: str) -> None:
        super().__init__(error, status_code=status)
        self.reason = reason


def _refusal(_: object, exc: HTTPException) -> Response[Failure]:
    reason = getattr(exc, "reason", REASONS.get(exc.status_code, "bad_request"))
    error = str(exc.detail)
    if isinstance(exc, RequestEntityTooLarge):
        error = f"body: more than {MOST_BYTES} bytes found, at most those wanted"
    failure = Failure(False, reason, error)
    return Response(
        failure,
        status_code=exc.status_code,
        headers=exc.headers,
        media_type="application/json",
    )


def _bug(_: object, exc: Exception) -> Response[Failure]:
    """Answer what the plugin raised; its traceback goes to the log."""
    tags.print_exception(exc)
    failure = Failure(False, "internal", error_text(exc))
    return Response(failure, status_code=500, media_type="application/json")


# --- the plugin's own routes --------------------------------------------------------


def _own_handlers(plugin: Any) -> Sequence[Any]:
    hook = getattr(plugin, "get_route_handlers", None)
    if hook is None:
        return ()
    handlers = list(entry.call(hook))
    name = type(plugin).__name__
    try:
        routes = Litestar(handlers, openapi_config=None, logging_config=None).routes
    except Exception as exc:  # whatever the framework has against them
        text = f"{name}.get_route_handlers: {error_text(exc)}"
        raise entry.BadEntry(" ".join(text.split())) from None
    for route in routes:
        first = f"/{route.path.strip('/').split('/')[0]}"
        if first in RESERVED:
            raise entry.BadEntry(
                f"{name}.get_route_handlers: {route.path} found, {first} is the worker's"
            )
    return handlers


# --- the document -------------------------------------------------------------------


def _failures(*codes: int) -> dict[int, ResponseSpec]:
    return {
        code: ResponseSpec(Failure, description=_WHY[code], generate_examples=False)
        for code in (401, *codes)
    }


_WHY = {
    401: "Without the token",
    400: "A bad job id, body or number",
    404: "Not there",
    409: "A job of that id lives",
    413: f"A body of more than {MOST_BYTES} bytes",
    500: "The plugin raised",
    503: "The worker is leaving",
}
_ALWAYS = _failures()
_MAYBE = _failures(404, 500)
_JOB = _failures(400, 404)
_RUN = _failures(400, 409, 413, 503)


def _lines() -> OpenAPIResponse:
    return OpenAPIResponse(
        description="One JSON event a line, the last one done or error",
        content={
            "application/x-ndjson": OpenAPIMediaType(
                schema=Schema(type=OpenAPIType.STRING)
            )
        },
    )


@dataclass
class RunOperation(Operation):
    """The run of a job, which the framework cannot read from its handler."""

    def __post_init__(self) -> None:
        self.operation_id = "run"
        self.request_body = RequestBody(
            required=False,
            content={
                "application/json": OpenAPIMediaType(
                    schema=Schema(type=OpenAPIType.OBJECT)
                )
            },
        )
        self.responses = {**(self.responses or {}), "201": _lines()}


@dataclass
class EventsOperation(Operation):
    """The re-attach to a job, likewise."""

    def __post_init__(self) -> None:
        self.operation_id = "events"
        after = Parameter(
            name="after",
            param_in="query",
            required=False,
            schema=Schema(type=OpenAPIType.INTEGER, minimum=0),
        )
        self.parameters = [*(self.parameters or []), after]
        self.responses = {**(self.responses or {}), "200": _lines()}

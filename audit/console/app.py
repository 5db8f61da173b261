"""The console and its HTTP API: reads only, no script, nothing from elsewhere.

Every page is built from the same `History` as `kvtrail investigate`; `/api/...` gives the same documents as
`--json`.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ...schemas.errors import KvtrailError, StoreError, StoreUnavailable
from ..archive import AmbiguousQuestion, Archive, NothingFound, Wanted
from ..asking import BadQuestion, question, wanted
from ..document import FINDINGS, INCIDENTS, finding_document, history_document, incident_document
from ..history import Question
from .access import SESSION_LIFE_S, Access, local_path
from .gate import Gate, Hosts, cookie_name
from .pages import Pages, question_path

log = logging.getLogger("kvtrail.audit")

_STATUS: tuple[tuple[type[KvtrailError], int], ...] = (
    (NothingFound, 404),
    (AmbiguousQuestion, 409),
    (BadQuestion, 400),
    (StoreUnavailable, 503),
    (StoreError, 502),
)

_HEADINGS = {
    400: "That cannot be answered",
    404: "Not found",
    502: "The store refused",
    503: "The store does not answer",
}


def console(
    archive: Archive, access: Access, hosts: Hosts, *, secure: bool = False, now_s: Callable[[], float] = time.time
) -> ASGIApp:
    """The ASGI application. `secure`: it is reached over TLS, so its cookie must never travel without."""
    views = _Views(archive, access, secure, now_s)
    app = Starlette(
        routes=[
            Route("/", views.findings),
            Route("/find", views.find),
            Route("/incidents", views.incidents),
            Route("/incidents/{cause_id}", views.incident),
            Route("/investigate", views.investigate),
            Route("/health", views.health),
            Route("/api/findings", views.api_findings),
            Route("/api/incidents", views.api_incidents),
            Route("/api/investigate", views.api_investigate),
            Route("/api/health", views.api_health),
            Route("/enter", views.enter, methods=["GET", "POST"]),
            Route("/healthz", views.healthz),
            Route("/readyz", views.readyz),
            Route("/static/console.css", views.style),
        ],
        exception_handlers={KvtrailError: views.on_error, HTTPException: views.on_http_error},
    )
    return Gate(app, access=access, hosts=hosts, refuse=views.refused, misdirected=views.misdirected, now_s=now_s)


class _Views:
    """The endpoints. Those that ask the archive are plain functions: Starlette runs them beside its loop."""

    def __init__(self, archive: Archive, access: Access, secure: bool, now_s: Callable[[], float]) -> None:
        self._archive = archive
        self._access = access
        self._secure = secure
        self._now_s = now_s
        self._pages = Pages(now_s)

    def findings(self, request: Request) -> Response:
        asked = self._wanted(request)
        found = self._archive.findings(asked)
        return self._page("findings.html", findings=found, asked=asked, query=dict(request.query_params))

    def incidents(self, request: Request) -> Response:
        asked = self._wanted(request)
        return self._page("incidents.html", incidents=self._archive.incidents(asked), asked=asked)

    def incident(self, request: Request) -> Response:
        cause_id = request.path_params["cause_id"]
        asked = Wanted(cause_id=cause_id, status="", limit=500)
        found = self._archive.findings(asked)
        folded = self._archive.incidents(Wanted(cause_id=cause_id, limit=1))
        if not found:
            raise NothingFound("no finding belongs to an incident of this id.", remedy="See the list of incidents.")
        return self._page("incident.html", incident=folded[0] if folded else None, findings=found)

    def investigate(self, request: Request) -> Response:
        told = self._archive.investigate(self._question(request))
        return HTMLResponse(self._pages.investigation(told))

    def find(self, request: Request) -> Response:
        text = request.query_params.get("q", "").strip()
        if not text:
            return RedirectResponse("/", status_code=303)
        return RedirectResponse(question_path(self._archive.look_up(text)), status_code=303)

    def health(self, request: Request) -> Response:
        return self._page("health.html", health=self._archive.health())

    def api_findings(self, request: Request) -> Response:
        found = self._archive.findings(self._wanted(request))
        return _json({"schema": FINDINGS, "findings": [finding_document(finding) for finding in found]})

    def api_incidents(self, request: Request) -> Response:
        found = self._archive.incidents(replace(self._wanted(request), names=True))
        return _json({"schema": INCIDENTS, "incidents": [incident_document(incident) for incident in found]})

    def api_investigate(self, request: Request) -> Response:
        return _json(history_document(self._archive.investigate(self._question(request))))

    def api_health(self, request: Request) -> Response:
        return _json(msgspec.to_builtins(self._archive.health()))

    async def healthz(self, request: Request) -> Response:
        return PlainTextResponse("alive\n")

    def readyz(self, request: Request) -> Response:
        try:
            self._archive.check()
        except KvtrailError as error:
            return PlainTextResponse(f"not ready: {error}\n", status_code=503)
        return PlainTextResponse("ready\n")

    async def style(self, request: Request) -> Response:
        return FileResponse(Path(__file__).with_name("console.css"), media_type="text/css")

    async def enter(self, request: Request) -> Response:
        now = self._now_s()
        cookie = request.cookies.get(cookie_name(request.scope), "")
        if request.method == "POST":
            body = (await request.body())[:4096].decode("utf-8", "replace")
            entered = self._access.is_token(_form_field(body, "token"))
        else:
            code = request.query_params.get("code", "")
            entered = self._access.session(cookie, now) or self._access.redeem(code, now)
        if not entered:
            return self._page("enter.html", status=401, tried=True)
        # A page, not a redirect: a strict cookie is not sent along a redirect that began on another site.
        response = self._page("entered.html", onward=local_path(request.query_params.get("next", "/")))
        response.set_cookie(
            cookie_name(request.scope), self._access.new_session(now), max_age=SESSION_LIFE_S, path="/",
            httponly=True, samesite="strict", secure=self._secure,
        )  # fmt: skip
        return response

    async def refused(self, scope: Any, receive: Any, send: Any) -> None:
        """401, as the caller can read it."""
        if scope["path"].startswith("/api/"):
            error = {"code": "no_token", "message": "nobody reads without a token.",
                     "remedy": "Send Authorization: Bearer TOKEN."}  # fmt: skip
            response = _json({"error": error}, 401)
        else:
            response = self._page("enter.html", status=401, tried=False)
        response.headers["www-authenticate"] = 'Bearer realm="kvtrail"'
        await response(scope, receive, send)

    async def misdirected(self, scope: Any, receive: Any, send: Any) -> None:
        """421: the Host header is not ours."""
        text = "This console does not answer to that host name. Add it to serve.names if it should.\n"
        await PlainTextResponse(text, status_code=421)(scope, receive, send)

    async def on_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, KvtrailError)
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        if status >= 500:
            log.warning("%s: %s", request.url.path, error)
        candidates = list(error.candidates) if isinstance(error, AmbiguousQuestion) else []
        if request.url.path.startswith("/api/"):
            told: dict[str, Any] = {"code": error.code, "field": error.field, "message": error.message,
                                    "remedy": error.remedy}  # fmt: skip
            if candidates:
                told["candidates"] = msgspec.to_builtins(candidates)
            return _json({"error": told}, status)
        return self._message(error, status, candidates)

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = KvtrailError("there is nothing here." if error.status_code == 404 else error.detail)
        if request.url.path.startswith("/api/"):
            return _json({"error": {"code": "http", "message": told.message, "remedy": ""}}, error.status_code)
        return self._message(told, error.status_code, [])

    def _message(self, error: KvtrailError, status: int, candidates: list[Question]) -> HTMLResponse:
        heading = _HEADINGS.get(status, "This page cannot be shown")
        return self._page("message.html", status=status, error=error, candidates=candidates, heading=heading)

    def _page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._pages.render(template, **values), status_code=status)

    def _question(self, request: Request) -> Question:
        given = request.query_params
        return question(
            request=given.get("request"), key=given.get("key"), finding=given.get("finding"),
            store=given.get("store", ""),
        )  # fmt: skip

    def _wanted(self, request: Request) -> Wanted:
        given = request.query_params
        limit = given.get("limit", "200")
        if not limit.isascii() or not limit.isdigit() or len(limit) > 6:
            raise BadQuestion("is no number.", field="limit", remedy="Leave it out.")
        return wanted(
            now_us=int(self._now_s() * 1e6), since=given.get("since", ""), severity=given.get("severity", ""),
            cause=given.get("cause", ""), cause_id=given.get("incident", ""), status=given.get("status", "open"),
            limit=int(limit),
        )  # fmt: skip


def _form_field(body: str, name: str) -> str:
    try:
        return parse_qs(body, max_num_fields=8).get(name, [""])[0].strip()
    except ValueError:  # more fields than our form has
        return ""


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status_code=status, media_type="application/json")

"""The inspector: a web page that shows sessions live, and why each one stopped.

`AgentServer(…, inspector=True)` serves it at its own address. The page is static and holds no data: it
requests everything from the API of the server, under the rights of its reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

_TYPES = {
    "chat.css": "text/css",
    "chat.js": "text/javascript",
    "index.html": "text/html",
    "inspector.css": "text/css",
    "inspector.js": "text/javascript",
    "worker.js": "text/javascript",
}
# Nothing inline and nothing from other hosts. The page has an empty picture as its icon.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_of(request: Request, segments: Sequence[str]) -> Response | None:
    """Return the page or one of its files; None if the path names neither.

    Args:
        request: The request.
        segments: The segments of its path, below the address of the server.
    """
    match list(segments):
        case []:  # Mounted at /agents, and asked for without the slash that relative addresses need.
            return RedirectResponse(f"{request.scope.get('root_path', '')}/")
        case [""]:
            return _answer(request, "index.html")
        case ["assets", name] if name in _TYPES and name != "index.html":
            return _answer(request, name)
    return None


def _answer(request: Request, name: str) -> Response:
    content, etag = _file(name)
    headers = {**_HEADERS, "etag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name], headers=headers)


@cache
def _file(name: str) -> tuple[bytes, str]:
    content = (files("whyloop") / "inspector" / "static" / name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:16]}"'

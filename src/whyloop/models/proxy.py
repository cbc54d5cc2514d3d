"""The proxy that the environment asks for."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass


def proxy_for(url: str) -> str | None:
    """The proxy for this address by HTTPS_PROXY, HTTP_PROXY and NO_PROXY; none for this very machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "::1") or host.startswith("127.") or proxy_bypass(host):
        return None
    proxy = getproxies_environment().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def proxy_secrets(proxy: str | None) -> list[str]:
    """The password of a proxy, if it has one."""
    password = urlsplit(proxy).password if proxy else None
    return [password] if password else []

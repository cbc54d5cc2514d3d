"""A session as one HTML file: the inspector with its script, its style and the data inside.

The file works offline and requests nothing: its policy allows its own script and style, by their hashes.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files

_PAGE = """<!doctype html>
<html lang="en" data-saved>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This file needs JavaScript. Its data is in it as JSON.</noscript>
<script type="application/json" id="whyloop-saved">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def saved_page(title: str, data: bytes) -> str:
    """Return the file.

    Args:
        title: The title of the page.
        data: The session as JSON, as `inspector/src/saved.ts` reads it.
    """
    script, style = _asset("inspector.js"), _asset("inspector.css")
    policy = (
        f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # Within JSON these characters are in texts only. Escaped, no text ends the element that it is in.
    text = data.decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return _PAGE.format(policy=policy, title=escape(title), style=style, data=text, script=script)


def _asset(name: str) -> str:
    return (files("whyloop") / "inspector" / "static" / name).read_text(encoding="utf-8").strip()


def _hash_of(content: str) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"

"""Taking keys and tokens out of text before it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

REMOVED = "[removed]"

# What looks like a credential, whoever it belongs to. No pattern reaches across a quotation mark:
# the text may be JSON, and is to stay JSON.
_PATTERNS = (
    re.compile(
        r"\b(?:sk|pk|rk|gsk|xai|csk|hf|ghp|gho|ghs|github_pat|glpat|xox[abprs])[-_][A-Za-z0-9_-]{16,}"
    ),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bAKIA[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"),
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/-]{12,}=*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"]*?-----END [A-Z ]*PRIVATE KEY-----"),
)
_TELLING_HEADER = re.compile(r"authorization|api-?key|token|secret|cookie", re.IGNORECASE)
_SHORTEST = 8  # Less than this is found in ordinary text, and gives nothing away.


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """The text with known secrets, and whatever looks like one, taken out; JSON stays JSON."""
    for secret in sorted(known, key=len, reverse=True):
        for form in {secret, msgspec.json.encode(secret).decode()[1:-1]}:
            if form:
                text = text.replace(form, REMOVED)
    for pattern in _PATTERNS:
        text = pattern.sub(REMOVED, text)
    return text


def header_secrets(headers: Mapping[str, str]) -> list[str]:
    """What of these headers is nobody's business."""
    values = [value for name, value in headers.items() if _TELLING_HEADER.search(name)]
    return [secret for value in values if len(secret := value.removeprefix("Bearer ")) >= _SHORTEST]

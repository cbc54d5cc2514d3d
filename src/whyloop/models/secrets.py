"""Taking keys and tokens out of text before it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable

REMOVED = "[removed]"

# What looks like a credential, whoever it belongs to.
_PATTERNS = (
    re.compile(
        r"\b(?:sk|pk|rk|gsk|xai|csk|hf|ghp|gho|ghs|github_pat|glpat|xox[abprs])[-_][A-Za-z0-9_-]{16,}"
    ),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bAKIA[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"),
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/-]{12,}=*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
)


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """The text with known secrets, and whatever looks like one, taken out."""
    for secret in known:
        if secret:
            text = text.replace(secret, REMOVED)
    for pattern in _PATTERNS:
        text = pattern.sub(REMOVED, text)
    return text

"""What a credential looks like, whoever it belongs to."""

from __future__ import annotations

import re

REMOVED = "[removed]"

# No pattern reaches across a quotation mark: the text may be JSON, and is to stay JSON. None looks at a
# character more than a few times, whatever the text.
PATTERNS = (
    re.compile(
        r"\b(?:sk|pk|rk|gsk|xai|csk|hf|npm|pypi|whsec|ghp|gho|ghs|ghu|ghr|github_pat|glpat|xox[abeprs])"
        r"[-_][A-Za-z0-9_-]{16,}"
    ),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"),
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/-]{12,}=*"),
    # Also one whose end was cut off.
    re.compile(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^\"-]|-(?!----))*"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
    ),
    re.compile(r"(?<=://)[^/\s:@\"']{1,100}:[^/\s@\"']{1,200}(?=@)"),
)

# Words that, somewhere in the name of a value, say that the value is nobody's business. An underscore
# stands for any separator or none: `api_key` is also X-Api-Key and apiKey.
SECRET_KEYS = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "api_key",
    "access_key",
    "private_key",
    "authorization",
    "cookie",
    "credential",
    "bearer",
    "jwt",
)

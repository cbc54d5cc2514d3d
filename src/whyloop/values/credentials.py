"""Credentials by their form: keys with a prefix, tokens, passwords in addresses.

Every pattern takes time in proportion to the text. Most begin with a literal, which makes a search thirty
times as fast.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Iterable

import msgspec

REMOVED = "[removed]"
"""The text that replaces a secret."""

# In JSON the n of an escaped line end is right before the text that follows it.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_PREFIXES = (
    r"sk[-_]|pk[-_]|rk[-_]|gsk_|xai-|csk-|pplx-|r8_|hf_|npm_|pypi-|whsec_|figd_|tskey-|sntrys_|lin_api_|ntn_"
    r"|gh[opsur]_|github_pat_|gl(?:pat|dt|rt|ptt|sa|c)[-_]|xox[abeoprs]-|xapp-|shp(?:at|ca|pa|ss)_|pscale_|dapi"
    r"|do[opr]_v1_|ya29\.|GOCSPX-|AIza|SG\.|hvs\.|dp\.pt\.|PMAK-|NRAK-|ATATT3|AGE-SECRET-KEY-1"
)
_WHOLE = (
    re.compile(rf"{_START}(?:{_PREFIXES})[A-Za-z0-9_-]{{16,}}+(?:\.[A-Za-z0-9_-]++)?"),
    re.compile(r"AKIA(?<![A-Za-z0-9]AKIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    re.compile(r"ASIA(?<![A-Za-z0-9]ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    # A JSON web token, even one whose end was cut off.
    re.compile(
        r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{10,}+\.(?:[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{5,}+|[A-Za-z0-9_-]*+\Z)"
    ),
    # A private key of any kind, even one whose end was cut off.
    re.compile(
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^\"-]*+(?:-(?!----)[^\"-]*+)*+"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
    ),
    re.compile(r"hooks\.slack\.com/[A-Za-z0-9/_+-]{16,}+"),
    re.compile(r"discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]{16,}+"),
    re.compile(r"webhook\.office\.com/[A-Za-z0-9/@_-]{16,}+"),
)
_OPTION = (
    r"--(?:(?:access|admin|auth|client|db|user)-)?"
    r"(?:password|passwd|passphrase|token|secret|(?:api|access|account|secret)-key)"
)
# The rest of a header that is a pair, ("Cookie", "…"): a list of more names is not one.
_PAIRED = r"""["']\s{0,3},\s{0,3}["'])[^"'\n]{1,4000}+(?=["']\s{0,3}[\])]|\n|\Z)"""
# The same with a part before the secret that stays: the first group.
_AFTER = (
    re.compile(r"(://)[^/\s:@\"']{0,100}:[^/\s\"']{1,200}(?=@)"),
    re.compile(r"(ig(?<=[sS]ig)(?<![A-Za-z0-9][sS]ig)(?:nature)?=)[A-Za-z0-9%+/=_-]{8,}+"),
    re.compile(r"(-Signature=)[A-Fa-f0-9]{8,}+"),
    re.compile(
        r"""(uthorization(?:(?<=[\[(]["'][aA]uthorization)|(?<=[\[(]["'][pP]roxy-[aA]uthorization))"""
        + _PAIRED
    ),
    re.compile(r"""(ookie(?:(?<=[\[(]["'][cC]ookie)|(?<=[\[(]["'][sS]et-[cC]ookie))""" + _PAIRED),
    re.compile(r"""(pi-[kK]ey(?:(?<=[\[(]["'][aA]pi-[kK]ey)|(?<=[\[(]["'][xX]-[aA]pi-[kK]ey))""" + _PAIRED),
    # An option of a command; one that begins with a dash is the next option, $NAME and <name> stand for one.
    re.compile(rf"({_OPTION}[ =][ \t]{{0,3}}[\"']?)[^\s\"'$<-][^\s\"']{{3,200}}"),
)
_BASIC = re.compile(r"(asic (?<=[bB]asic ))([A-Za-z0-9+/]{6,1000}+={0,2})")
_BEARER = re.compile(r"(earer (?<=[bB]earer ))([A-Za-z0-9._~+/-]{12,}+=*+)")
_USER = re.compile(r"""(-(?:[uU]|-user|-proxy-user)[ =]{0,3}["']?)([^\s"':]{0,100}:[^\s"']{1,200})""")
# A command, even one that continues on the next line; other programs use -u for another purpose.
_CURL = re.compile(r"curl (?:[^\n\\]++|\\[\s\S])*+")


MAY_HAVE_CREDENTIALS = re.compile(
    rf"{_OPTION}[ =]|"
    r"://|sig|akia|asia|aiza|eyj|private key|hooks?\.|discord|basic |bearer |curl |atatt3|dapi"
    r"""|[-_.][a-z0-9_-]{16}|(?:authorization|cookie|api-key)["']\s{0,3},"""
)
"""The signs of a credential in lower case. Most texts have none: it saves two thirds of the time."""


def without_credentials(text: str) -> str:
    """Return the text without its credentials."""
    for pattern in _WHOLE:
        text = pattern.sub(REMOVED, text)
    for pattern in _AFTER:
        text = pattern.sub(_after_removed, text)
    text = _BASIC.sub(_basic_removed, text)
    text = _BEARER.sub(_bearer_removed, text)
    return _CURL.sub(_user_removed, text)


def _after_removed(found: re.Match[str]) -> str:
    return found[1] + REMOVED


def _basic_removed(found: re.Match[str]) -> str:
    """Remove "user:password" in base64, but no other text after "basic"."""
    encoded = found[2].rstrip("=")
    try:
        decoded = a2b_base64(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return found[0]
    return found[1] + REMOVED if b":" in decoded else found[0]


def _bearer_removed(found: re.Match[str]) -> str:
    """Remove a token, but not the second word of "bearer authentication"."""
    token = found[2]
    return found[0] if len(token) < 16 and token.isalpha() and token.islower() else found[1] + REMOVED


def _user_removed(found: re.Match[str]) -> str:
    return _USER.sub(_after_removed, found[0])


SHORTEST_KNOWN = 8
"""A known secret that is shorter may be part of an ordinary word."""


def without_known(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these secrets; short ones are removed as whole words."""
    for secret in sorted(secrets, key=len, reverse=True):
        for form in {secret, msgspec.json.encode(secret).decode()[1:-1]}:
            if not form or form not in text:
                continue
            if len(form) >= SHORTEST_KNOWN:
                text = text.replace(form, REMOVED)
            else:
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", REMOVED, text)
    return text

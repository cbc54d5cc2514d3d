"""Credentials by their form: keys with a prefix, tokens, passwords in addresses.

Every pattern takes time in proportion to the text. Most begin with a literal, which makes a search thirty
times as fast.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

REMOVED = "[removed]"
"""The text that replaces a secret."""

SECRET_NAMES = (
    "pass_word",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "secret",
    "token",
    "api_key",
    "access_key",
    "account_key",
    "private_key",
    "signing_key",
    "encryption_key",
    "authorization",
    "cookie",
    "credential",
    "bearer",
    "jwt",
)
"""Terms that mark a value as secret if they are part of its name.

An underscore matches any separator or none: `api_key` is also X-Api-Key and apiKey. A term counts only as a
whole word: `token` matches `accessToken` and `tokens`, but not `tokenizer`.
"""

# In JSON the n of an escaped line end is right before the text that follows it.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_PREFIXES = (
    r"sk[-_]|pk[-_]|rk[-_]|gsk_|xai-|csk-|pplx-|r8_|hf_|npm_|pypi-|whsec_|figd_|tskey-|sntrys_|lin_api_|ntn_"
    r"|gh[opsur]_|github_pat_|gl(?:pat|dt|rt|ptt|sa|c)[-_]|xox[abeoprs]-|xapp-|shp(?:at|ca|pa|ss)_|pscale_|dapi"
    r"|do[opr]_v1_|ya29\.|GOCSPX-|AIza|SG\.|hv[bs]\.|dp\.[a-z]{2}\.(?:[a-z0-9_-]{1,35}\.)?|PMAK-|NRAK-|AT(?:ATT3|CTT3|BB)|AGE-SECRET-KEY-1"
    r"|dckr_pat_|rubygems_|lsv2_[a-z]{2}_|pcsk_|tvly-|sbp_|sb_secret_|nfp_|xkeysib-|CFPAT-|sq0[a-z]{3}-|HRKU-|LTAI"
    r"|EAACEdEose0cBA|dt0c01\.|GR1348941|1//0|sk\.(?=eyJ)|sl\.(?=[\w-]{40})|fw_(?=[A-Za-z]*+\d)(?=[a-z\d]*+[A-Z])"
)
_PREFIXED = re.compile(rf"{_START}(?:{_PREFIXES})[A-Za-z0-9_-]{{16,}}+(?:\.[A-Za-z0-9_-]++)?")
_LONG = re.compile(r"[A-Za-z0-9_./\\-]{18,}+")  # Only these can have a prefix, and few words are so long.
_WHOLE = (
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


class _Form(NamedTuple):
    """A form of credentials that only texts with one of its signs can have."""

    signs: tuple[str, ...]
    """Parts of such texts, in lower case."""
    pattern: re.Pattern[str]
    """What it looks like."""
    remove: Callable[[re.Match[str]], str]
    """What a match becomes."""


def _form(signs: str, pattern: str, is_secret: Callable[[re.Match[str]], bool] | None = None) -> _Form:
    """Return a form; the first group of its pattern, if there is one, stays."""

    def remove(found: re.Match[str]) -> str:
        if is_secret is not None and not is_secret(found):
            return found[0]
        return (found[1] if found.re.groups else "") + REMOVED

    return _Form(tuple(signs.split(";")), re.compile(pattern), remove)


def _program(name: str, more: str, option: str) -> _Form:
    """Return the form of a command with a secret in an option."""
    line = re.compile(rf"{name}(?<!\w{name}){more}[ ](?:[^\n\\|;&]++|\\[\s\S])*+")
    options = re.compile(option)
    return _Form((name,), line, lambda found: options.sub(_after_removed, found[0]))


# A value that may be in quotes, of which the second one stays; one that begins with a dash is an option.
_QUOTED = r"""\\?["']?)(?:(?<=["'])[^"'\n\\]{1,200}|[^\s"'\\]{1,200})"""
_ARGUMENT = r"""["']?)(?![-$<])(?:(?<=["'])[^"'\n]{1,200}|[^\s"']{1,200})"""
_NETRC = (
    r"\s{1,20}\S{1,100}\s{1,20}(?:account\s{1,20}\S{1,100}\s{1,20})?password\s{1,20})"
    r"(?!(?:is|must|was|for|to|has)\b)\S{1,200}"
)
_NOT_A_WORD = r"(?=[^\s\"'`]{0,80}[0-9])(?=[^\s\"'`]{0,80}[A-Za-z])"
_SECRET_NAME = (
    r"(?:[pP]ass(?:word|wd|phrase)|PASS(?:WORD|WD)|[tT]oken|TOKEN|[sS]ecret|SECRET|[aA]pi[_-]?[kK]ey|API_?KEY"
    r"|(?:ACCESS|PRIVATE)_?KEY|CREDENTIALS?)"
)
_USERS = (
    "db|database|smtp|mail|email|ssh|become|sudo|user|admin|root|mysql|pg|postgres|redis|ftp|ldap|proxy|http|auth"
    "|login|mongo|rabbitmq"
)
_HASHES = r"1|2[abxy]?|5|6|7|y|gy|apr1|argon2(?:id?|d)|scrypt|pbkdf2-sha\d+"


def _is_random_key(found: re.Match[str]) -> bool:
    """Return whether a value after "key" is random, and the key is not one to find data by."""
    value = found["value"].rstrip("=")
    before = found.string[max(0, found.start() - 15) : found.start()].lower()
    if before.endswith(_KEYS_OF_DATA) or before.rstrip("-_. ").endswith(_KEYS_OF_DATA):
        return False
    if _HEX.fullmatch(value):
        return len(value) >= 32
    return any(map(str.isdigit, value)) and any(map(str.isupper, value)) and any(map(str.islower, value))


def _is_user_and_password(found: re.Match[str]) -> bool:
    """Return whether a value is "user:password" in base64."""
    encoded = found["value"].rstrip("=")
    try:
        return b":" in a2b_base64(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return False


_KEYS_OF_DATA = (
    *("public", "cache", "primary", "foreign", "partition", "idempotency", "sort", "object", "dedup", "host"),
    *("routing", "row", "lookup", "publishable"),
)
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_FORMS = (
    # By their words: files of configuration, SQL, code, HTML.
    _form("login", rf"(login{_NETRC}"),
    _form("machine", rf"(machine{_NETRC}"),
    _form(
        "requirepass;masterauth", r"((?:requirepass|masterauth)[ \t]{1,3})\S{4,200}(?=[ \t]*(?:\n|\\n|\"|\Z))"
    ),
    _form("auth ", r"((?:\A|[\n\"]|\\n)AUTH )(?=\S{0,200}\d)\S{4,200}"),
    _form("psk", rf"""((?<![\w])psk[ \t]{{0,3}}[=:][ \t]{{0,3}}{_QUOTED}"""),
    _form(
        "_pass", rf"""((?i:(?<![a-z])(?:\w{{0,20}}_)?(?:{_USERS})_pass)["']?\s{{0,3}}[:=]\s{{0,3}}{_QUOTED}"""
    ),
    _form(
        "env ;setx ;set -",
        rf"((?:ENV|setx|set -[a-z]{{0,3}}x)\s{{1,3}}[A-Z0-9_]{{0,40}}{_SECRET_NAME}\w{{0,20}}\s{{1,3}})"
        r"[^\s=]\S{3,200}",
    ),
    _form("password ;secret ", r"((?:password|secret) \d )(?=\S{0,200}\d)\S{6,200}"),
    _form("$", rf"\$(?:{_HASHES})\$[A-Za-z0-9./=,$+-]{{20,}}+"),
    _form(
        "identified",
        r"""((?i:identified\s{1,9}(?:with\s{1,9}[\w'"]{1,60}\s{1,9})?by\s{1,9}(?:password\s{1,9})?)"""
        rf"""(?=["']|[^\s;]{{0,80}}\d){_QUOTED}""",
    ),
    _form("password;secret", r"((?:PASSWORD|SECRET)(?:\s{1,9}|\s{0,9}[=(]\s{0,9})N?')[^'\n]{1,200}(?=')"),
    _form(
        "password",
        r"((?i:(?:with|encrypted|(?:user|role)\s{1,9}[^\s']{1,60})\s{1,9}password\s{1,9}'))[^'\n]{1,200}(?=')",
    ),
    _form(
        "password for",
        r"((?i:set\s{1,9}password\s{1,9}for)\s{1,9}[^\s=]{1,100}\s{0,9}=\s{0,9}')[^'\n]{1,200}(?=')",
    ),
    _form(
        "auth",
        r"""([_"']auth\\{0,4}["']?\s{0,3}[:=]\s{0,3}\\{0,4}["']?)(?P<value>[A-Za-z0-9+/]{8,1000}={0,2})""",
        _is_user_and_password,
    ),
    _form(
        "auth=;auth =",
        r"""(auth\s{0,3}=\s{0,3}\w{0,40}\(\\{0,4}["'][^"'\n]{1,100}["']\s{0,3},\s{0,3}\\{0,4}["'])"""
        r"""[^"'\n\\]{1,200}""",
    ),
    _form(
        "pass",
        r"""(user(?:name)?\\{0,4}["']?\s{0,3}[:=]\s{0,3}\\{0,4}["'][^"'\n]{1,100}["']\s{0,3},\s{0,3}"""
        r"""\\{0,4}["']?pass\\{0,4}["']?\s{0,3}[:=]\s{0,3}\\{0,4}["'])[^"'\n\\]{1,200}""",
    ),
    _form(
        "name=",
        rf"""(name=\\{{0,4}}"[^"\n]{{0,40}}{_SECRET_NAME}[^"\n]{{0,40}}"(?:(?:\r|\\r)?(?:\n|\\n)){{2}})"""
        r"[^\r\n\\]{1,500}",
    ),
    _form("type=", r"""(type=\\{0,4}"password\\{0,4}"[^<>]{0,100}?value=\\{0,4}")[^"<>\\]{1,200}"""),
    _form("type=", r"""(value=\\{0,4}")[^"<>\\]{1,100}(?=\\{0,4}"[^<>]{0,60}type=\\{0,4}"password)"""),
    _form(
        "<key>",
        rf"(<key>[^<]{{0,40}}{_SECRET_NAME}[^<]{{0,20}}</key>(?:\s|\\n){{0,40}}<string>)[^<]{{1,500}}",
    ),
    _form("|", rf"(\|[ \t]{{0,9}}{_SECRET_NAME}[ \t]{{0,9}}\|[ \t]{{0,9}}){_NOT_A_WORD}[^\s|]{{6,200}}"),
    _form(
        "ssword is;sscode is;ssphrase is",
        rf"""((?:[pP]ass(?:word|code|phrase)) is[ :]{{1,3}}["'`]?){_NOT_A_WORD}[^\s"'`]{{5,200}}""",
    ),
    # Keys whose values are random: FERNET_KEY=…, client-key-data: …, ?key=…
    _form(
        "key",
        r"""([kK](?:ey|EY)(?:-data)?\\{0,4}["']?\s{0,3}[:=]\s{0,3}\\{0,4}["']?(?:base64:)?)"""
        r"(?P<value>[A-Za-z0-9+/_-]{20,}+={0,2})(?![.\w])",
        _is_random_key,
    ),
    _form("key=", r"([?&]key=)(?P<value>[A-Za-z0-9_-]{16,}+)(?![.\w])", _is_random_key),
    _form("code=", r"([?&]code=)(?P<value>[A-Za-z0-9+/_-]{40,}+(?:=|%3D){0,2})", _is_random_key),
    # Commands with the password as an argument.
    _form(
        "echo ",
        r"""(echo[ ]{1,3}(?:-n[ ]{1,3})?)(?:"[^"\n]{1,200}"|'[^'\n]{1,200}'|[^\s|'"]{1,200})"""
        r"(?=[ ]{0,3}\|[ ]{0,3}(?:sudo [^|\n]{0,40}-S|[^|\n]{0,80}--password-stdin|(?:sudo )?chpasswd))",
    ),
    # By their form alone.
    _form("key-", r"key-(?<![A-Za-z0-9]key-)[0-9a-f]{32}(?![A-Za-z0-9])"),
    _form("-us", r"(?<![0-9A-Za-z])[0-9a-f]{32}-us\d{1,2}(?!\w)"),
    _form("sk", r"SK(?<![A-Za-z0-9]SK)[0-9a-f]{32}(?![A-Za-z0-9])"),
    _form("hooks.zapier.com", r"(hooks\.zapier\.com/hooks/catch/)[\w/]{6,200}"),
    _form(".atlasv1.", r"(\.atlasv1\.)[A-Za-z0-9_=-]{40,}+"),
    _form("q~", r"(Q~(?<=\dQ~))[A-Za-z0-9_.~-]{30,40}"),
)

# The same with a colon or a dot as the only sign.
_ALWAYS_SIGN = re.compile(r":(?:[\w-]{35}|\d{2,5}:[a-z_*])|\.[\w-]{6}\.[\w-]{27}")
_ALWAYS = (
    re.compile(r"(:(?<=\d{8}:))[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),  # A bot of Telegram.
    re.compile(
        r"(\.(?<=[A-Za-z0-9]{23}\.))[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}(?![\w-])"
    ),  # One of Discord.
    # A line of .pgpass: host, port, database, user and password.
    re.compile(
        rf"(:(?<=[A-Za-z*]:)\d{{2,5}}:[A-Za-z_*][\w*-]{{0,60}}:[A-Za-z_*][\w.*-]{{0,60}}:){_NOT_A_WORD}[^\s:]{{4,200}}(?=\s|\Z)"
    ),
)

_ATTACHED = rf"([ ]-p{_ARGUMENT}"
_NEXT = rf"([ ]-p[ ]{{1,3}}{_ARGUMENT}"
_PROGRAMS = (
    _program("mysql", r"[\w-]{0,20}", _ATTACHED),
    _program("mariadb", r"[\w-]{0,20}", _ATTACHED),
    _program("7z", "a?", _ATTACHED),
    _program("sshpass", "", rf"([ ]-p[ ]{{0,3}}{_ARGUMENT}"),
    _program("docker login", "", _NEXT),
    _program("az login", "", _NEXT),
    _program("mongo", "(?:sh|dump|restore)?", _NEXT),
    _program("redis-cli", "", rf"([ ]-a[ ]{{1,3}}{_ARGUMENT}"),
    _program("ldap", "[a-z]{3,9}", rf"([ ]-w[ ]{{1,3}}{_ARGUMENT}"),
    _program("sqlcmd", "", rf"([ ]-P[ ]{{1,3}}{_ARGUMENT}"),
    _program("zip", "", rf"([ ]-P[ ]{{1,3}}{_ARGUMENT}"),
    _program("smbclient", "", rf"""([ ]-U[ ]{{0,3}}["']?[^\s%"']{{1,100}}%{_ARGUMENT}"""),
    _program("htpasswd", "", rf"([ ]-\w{{0,5}}b\w{{0,5}}(?:[ ]{{1,3}}\S{{1,200}}){{2}}[ ]{{1,3}}{_ARGUMENT}"),
    _program("openssl", "", r"""([ ]pass:)[^\s"']{1,200}"""),
)
_BY_SIGN = tuple([(sign, form) for form in (*_FORMS, *_PROGRAMS) for sign in form.signs])


MAY_HAVE_USUAL = re.compile(
    rf"{_OPTION}[ =]|"
    r"://|sig|akia|asia|aiza|eyj|private key|hooks?\.|discord|basic |bearer |curl |atatt3|dapi|atctt3"
    r"|atbb|ltai|eaacedeose0cba|gr1348941"
    r"""|[-_./][a-z0-9_-]{16}|(?:authorization|cookie|api-key)["']\s{0,3},"""
)
"""The signs of a usual credential in lower case. Most texts have none: it saves two thirds of the time."""


def may_have_credentials(lower: str) -> bool:
    """Return whether a text in lower case has a sign of a credential."""
    return (
        any([sign in lower for sign, _ in _BY_SIGN])  # noqa: C419 - a generator takes twice as long.
        or MAY_HAVE_USUAL.search(lower) is not None
        or _ALWAYS_SIGN.search(lower) is not None
    )


def without_credentials(text: str, lower: str) -> str:
    """Return the text without its credentials; `lower` is the text in lower case."""
    if _ALWAYS_SIGN.search(lower):
        for pattern in _ALWAYS:
            text = pattern.sub(_after_removed, text)
    for form in dict.fromkeys([form for sign, form in _BY_SIGN if sign in lower]):
        text = form.pattern.sub(form.remove, text)
    return _without_usual(text) if MAY_HAVE_USUAL.search(lower) else text


def _without_usual(text: str) -> str:
    text = _LONG.sub(_prefixed_removed, text)
    for pattern in _WHOLE:
        text = pattern.sub(REMOVED, text)
    for pattern in _AFTER:
        text = pattern.sub(_after_removed, text)
    text = _BASIC.sub(_basic_removed, text)
    text = _BEARER.sub(_bearer_removed, text)
    return _CURL.sub(_user_removed, text)


def _prefixed_removed(found: re.Match[str]) -> str:
    return _PREFIXED.sub(REMOVED, found[0])


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

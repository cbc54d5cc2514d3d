"""A codec that encrypts the payloads in Temporal's histories, and large ones in the store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from whyloop.errors import ConfigurationError

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
NONCE_BYTES = 12
KEY_BYTES = (16, 24, 32)


class EncryptionCodec(PayloadCodec):
    """A codec that encrypts payloads with AES-GCM; pass it to every client and worker as
    `WhyloopPlugin(codec=…)`.

    To replace a key, give every client and worker the new one first, and then name it in `key_id`. Keep the
    old one for as long as Temporal keeps the histories that were encrypted with it.

    Search attributes are not encrypted: status, stop reason, rule and the name of the agent.

    Args:
        keys: The keys by id, each of 16, 24 or 32 bytes.
        key_id: The id of the key that encrypts. Default: that of the last one in `keys`.
    """

    def __init__(self, keys: Mapping[str, bytes], key_id: str | None = None) -> None:
        if not keys:
            raise ConfigurationError(
                "no keys: pass at least one, such as {'2026-01': AESGCM.generate_key(256)}"
            )
        for name, key in keys.items():
            if not isinstance(key, bytes) or len(key) not in KEY_BYTES:
                raise ConfigurationError(f"invalid key {name!r}: use 16, 24 or 32 random bytes")
        self._key_id = list(keys)[-1] if key_id is None else key_id
        if self._key_id not in keys:
            raise ConfigurationError(f"unknown key {self._key_id!r}: the keys are {', '.join(keys)}")
        self._keys = {name: AESGCM(key) for name, key in keys.items()}

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads, with their metadata."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads; those that are not encrypted are returned as they are."""
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        name, nonce = self._key_id.encode(), os.urandom(NONCE_BYTES)
        data = self._keys[self._key_id].encrypt(nonce, payload.SerializeToString(), name)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: name}, data=nonce + data)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        name, data = payload.metadata.get(KEY_ID, b""), payload.data
        key = self._keys.get(name.decode())
        if key is None:
            known = ", ".join(self._keys)
            raise ConfigurationError(
                f"a payload was encrypted with key {name.decode()!r}: the keys here are {known}"
            )
        try:
            return Payload.FromString(key.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name))
        except InvalidTag:
            raise ConfigurationError(
                f"a payload cannot be decrypted: key {name.decode()!r} is not the one that it was "
                "encrypted with, or its bytes were changed"
            ) from None

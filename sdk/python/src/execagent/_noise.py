"""The Noise handshake of the relay: hybridIK with X25519, ML-KEM-768, AES-256-GCM and SHA-256.

docs/protocol/remote.md 6 has the pattern; its steps stand as comments over the code.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NAME = b"Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256"
_CONTEXT = b"codex-exec-server-relay-noise/v1"
_DH, _KEM, _CIPHERTEXT, TAG = 32, 1184, 1088, 16
MESSAGE_2 = _CIPHERTEXT + (_CIPHERTEXT + TAG) + _DH + _KEM + TAG
_MAX_RECORDS = (1 << 32) - 1

Encapsulate = Callable[[MLKEM768PublicKey], tuple[bytes, bytes]]


class NoiseError(Exception):
    """The handshake or a record is not what the key of the other end would make."""


class PublicKey(NamedTuple):
    """The public half of an identity."""

    x25519: bytes
    mlkem: bytes


class Identity:
    """A pair of private keys."""

    def __init__(self, x25519: bytes | None = None, mlkem_seed: bytes | None = None) -> None:
        self.dh = X25519PrivateKey.generate() if x25519 is None else X25519PrivateKey.from_private_bytes(x25519)
        self.kem = (
            MLKEM768PrivateKey.generate() if mlkem_seed is None else MLKEM768PrivateKey.from_seed_bytes(mlkem_seed)
        )
        self.public = PublicKey(self.dh.public_key().public_bytes_raw(), self.kem.public_key().public_bytes_raw())


def prologue(environment_id: str, registration_id: str, stream_id: str) -> bytes:
    """Return what both ends mix in, so that no message fits another stream."""
    parts = (_CONTEXT, environment_id.encode(), registration_id.encode(), stream_id.encode())
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def _encapsulate(key: MLKEM768PublicKey) -> tuple[bytes, bytes]:
    return key.encapsulate()


def _hkdf(ck: bytes, material: bytes, count: int) -> list[bytes]:
    key = hmac.digest(ck, material, "sha256")
    outputs: list[bytes] = []
    last = b""
    for i in range(1, count + 1):
        last = hmac.digest(key, last + bytes([i]), "sha256")
        outputs.append(last)
    return outputs


class Cipher:
    """The keys of one direction. A ciphertext is bound to its place, and none is made or opened twice."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._count = 0

    def _nonce(self) -> bytes:
        if self._count >= _MAX_RECORDS:
            raise NoiseError("the stream has had all of its records")
        nonce = struct.pack(">IQ", 0, self._count)
        self._count += 1
        return nonce

    def seal(self, data: bytes, associated: bytes | None = None) -> bytes:
        """Encrypt the next record."""
        return self._aead.encrypt(self._nonce(), data, associated)

    def open(self, data: bytes, associated: bytes | None = None) -> bytes:
        """Decrypt the next record."""
        try:
            return self._aead.decrypt(self._nonce(), data, associated)
        except (InvalidTag, ValueError):
            raise NoiseError("a record cannot be decrypted") from None


class _Symmetric:
    """The state of a handshake: the hash of all that was said, and the key so far."""

    def __init__(self, place: bytes, executor: PublicKey) -> None:
        self.h = self._ck = hashlib.sha256(_NAME).digest()
        self._cipher: Cipher | None = None
        self.mix_hash(place)
        self.mix_hash(executor.x25519)  # <- s
        self.mix_hash(executor.mlkem)

    def mix_hash(self, data: bytes) -> None:
        self.h = hashlib.sha256(self.h + data).digest()

    def mix_key(self, material: bytes) -> None:
        self._ck, key = _hkdf(self._ck, material, 2)
        self._cipher = Cipher(key)

    def mix_key_and_hash(self, material: bytes) -> None:
        self._ck, temporary, key = _hkdf(self._ck, material, 3)
        self.mix_hash(temporary)
        self._cipher = Cipher(key)

    def encrypt(self, data: bytes) -> bytes:
        sealed = data if self._cipher is None else self._cipher.seal(data, self.h)
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, data: bytes) -> bytes:
        opened = data if self._cipher is None else self._cipher.open(data, self.h)
        self.mix_hash(data)
        return opened

    def split(self) -> tuple[bytes, bytes]:
        one, two = _hkdf(self._ck, b"", 2)
        return one, two


def _shared(key: X25519PrivateKey, other: bytes) -> bytes:
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise NoiseError(f"a public key is not one: {error}") from None


class Initiator:
    """The harness's side of a handshake."""

    def __init__(
        self,
        identity: Identity,
        executor: PublicKey,
        place: bytes,
        payload: bytes,
        *,
        ephemeral: Identity | None = None,
        encapsulate: Encapsulate = _encapsulate,
    ) -> None:
        self._identity = identity
        self._ephemeral = ephemeral or Identity()
        state = self._state = _Symmetric(place, executor)
        message: list[bytes] = []
        # -> skem
        try:
            secret, ciphertext = encapsulate(MLKEM768PublicKey.from_public_bytes(executor.mlkem))
        except ValueError as error:
            raise NoiseError(f"the key of the executor is not one: {error}") from None
        message.append(state.encrypt(ciphertext))
        state.mix_key_and_hash(secret)
        # e
        for part in self._ephemeral.public:
            message.append(part)
            state.mix_hash(part)
        # es
        state.mix_key(_shared(self._ephemeral.dh, executor.x25519))
        # s
        message.extend(state.encrypt(part) for part in identity.public)
        # ss
        state.mix_key(_shared(identity.dh, executor.x25519))
        message.append(state.encrypt(payload))
        self.message = b"".join(message)
        """The first message."""

    def finish(self, message: bytes) -> tuple[bytes, bytes]:
        """Read the second message, and return the keys to and from the executor."""
        if len(message) != MESSAGE_2:
            raise NoiseError(f"the answer to the handshake has {len(message)} bytes, and not {MESSAGE_2}")
        state = self._state
        at = 0

        def take(size: int) -> bytes:
            nonlocal at
            at += size
            return message[at - size : at]

        # <- ekem
        ciphertext = take(_CIPHERTEXT)
        state.mix_hash(ciphertext)
        state.mix_key(self._ephemeral.kem.decapsulate(ciphertext))
        # skem
        state.mix_key_and_hash(self._identity.kem.decapsulate(state.decrypt(take(_CIPHERTEXT + TAG))))
        # e
        ephemeral = take(_DH)
        state.mix_hash(ephemeral)
        state.mix_hash(take(_KEM))
        # ee
        state.mix_key(_shared(self._ephemeral.dh, ephemeral))
        # se
        state.mix_key(_shared(self._identity.dh, ephemeral))
        if state.decrypt(take(TAG)):
            raise NoiseError("the answer to the handshake has a payload")
        return state.split()

    @property
    def hash(self) -> bytes:
        """The hash of the handshake."""
        return self._state.h

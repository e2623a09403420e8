"""The server's side of SCRAM (RFC 5802 section 3), for scripts."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramServer:
    """Knows one password; says at the end whether the client knew it too."""

    def __init__(self, hash_name: str, password: str, *, nonce: str = "server", iterations: int = 4096) -> None:
        self._hash = hash_name
        self._salt = b"salt"
        self._salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), self._salt, iterations)
        self._nonce = nonce
        self._iterations = iterations
        self._messages: list[str] = []
        self.username = ""

    def first(self, client_first: bytes) -> bytes:
        bare = client_first.decode().removeprefix("n,,")
        fields = dict(part.split("=", 1) for part in bare.split(","))
        self.username = fields["n"]
        salt = base64.b64encode(self._salt).decode()
        answer = f"r={fields['r']}{self._nonce},s={salt},i={self._iterations}"
        self._messages = [bare, answer]
        return answer.encode()

    def final(self, client_final: bytes) -> tuple[bytes, bool]:
        """The signature, and whether the client's proof holds."""
        without_proof, _, proof = client_final.decode().rpartition(",p=")
        message = ",".join((*self._messages, without_proof)).encode()
        client_key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        expected = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        verifier = self._hmac(self._hmac(self._salted, b"Server Key"), message)
        return b"v=" + base64.b64encode(verifier), base64.b64decode(proof) == expected

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

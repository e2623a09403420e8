"""Data keys under RSA keys: rotation, and what is said when one cannot be opened."""

from __future__ import annotations

import base64

import pytest
from Crypto.PublicKey import RSA

from tests.support.golden import AIVEN_OBJECTS
from tiersidecar.domain.errors import DataKeyError
from tiersidecar.formats.aiven.key_ring import KeyRing, RsaKeyPair, read_rsa_key_pair
from tiersidecar.formats.aiven.manifest import read_manifest

PUBLIC = (AIVEN_OBJECTS / "keys" / "rsa-public.spki.der").read_bytes()
PRIVATE = (AIVEN_OBJECTS / "keys" / "rsa-private.pkcs8.der").read_bytes()
GOLDEN_PAIR = read_rsa_key_pair(PUBLIC, PRIVATE)
DATA_KEY = bytes(range(32))


def zeros(count: int) -> bytes:
    return bytes(count)


@pytest.fixture(scope="module")
def other_pair() -> RsaKeyPair:
    key = RSA.generate(2048)
    return read_rsa_key_pair(key.public_key().export_key("PEM"), key.export_key("PEM", pkcs=8))


def test_a_wrapped_key_is_opened_again() -> None:
    ring = KeyRing(active_key_id="key1", keys={"key1": GOLDEN_PAIR})
    wrapped = ring.wrap(DATA_KEY, zeros)
    assert wrapped.startswith("key1:")
    assert ring.unwrap(wrapped) == DATA_KEY
    assert ring.wrap(DATA_KEY, zeros) == wrapped


def test_after_a_rotation_old_keys_still_open_and_new_ones_are_used(other_pair: RsaKeyPair) -> None:
    before = KeyRing(active_key_id="key1", keys={"key1": GOLDEN_PAIR})
    after = KeyRing(active_key_id="key2", keys={"key1": GOLDEN_PAIR, "key2": other_pair})
    assert after.unwrap(before.wrap(DATA_KEY, zeros)) == DATA_KEY
    assert after.wrap(DATA_KEY, zeros).startswith("key2:")


def test_pem_and_der_are_the_same_key() -> None:
    public = RSA.import_key(PUBLIC).export_key("PEM")
    private = RSA.import_key(PRIVATE).export_key("PEM", pkcs=8)
    ring = KeyRing(active_key_id="k", keys={"k": read_rsa_key_pair(public, private)})
    assert ring.unwrap(KeyRing(active_key_id="k", keys={"k": GOLDEN_PAIR}).wrap(DATA_KEY, zeros)) == DATA_KEY


def test_the_plugins_data_keys_open() -> None:
    ring = KeyRing(active_key_id="key1", keys={"key1": GOLDEN_PAIR})
    for path in (AIVEN_OBJECTS / "encrypted").rglob("*.rsm-manifest"):
        encryption = read_manifest(path.read_bytes()).encryption
        assert encryption is not None
        assert len(ring.unwrap(encryption.data_key)) == 32


@pytest.mark.parametrize(
    ("wrapped", "reason"),
    [
        pytest.param("no colon", "it is not <key id>:<base64>", id="no key id"),
        pytest.param("key9:AAAA", "the key ring has only key1, key2", id="a key that was dropped from the ring"),
        pytest.param("key2:AAAA", "no private key", id="a key that can only wrap"),
        pytest.param("key1:A*", "'key1' cannot be opened", id="no base64"),
        pytest.param("key1:AAAA", "Ciphertext with incorrect length", id="too short"),
        pytest.param("key1:" + base64.b64encode(bytes(256)).decode(), "ncorrect decryption", id="not wrapped by it"),
    ],
)
def test_a_data_key_that_does_not_open_says_why(wrapped: str, reason: str) -> None:
    ring = KeyRing(active_key_id="key1", keys={"key1": GOLDEN_PAIR, "key2": read_rsa_key_pair(PUBLIC)})
    with pytest.raises(DataKeyError, match=reason):
        ring.unwrap(wrapped)


def test_the_active_key_must_be_in_the_ring() -> None:
    with pytest.raises(ValueError, match="'key2' is not in the key ring"):
        KeyRing(active_key_id="key2", keys={"key1": GOLDEN_PAIR})


@pytest.mark.parametrize("key_id", ["", " ", "a:b"])
def test_a_key_id_that_cannot_be_written_is_refused(key_id: str) -> None:
    with pytest.raises(ValueError, match="is blank or has a colon"):
        KeyRing(active_key_id=key_id, keys={key_id: GOLDEN_PAIR})


def test_keys_that_cannot_be_used_are_told_apart(other_pair: RsaKeyPair) -> None:
    with pytest.raises(ValueError, match="public key is neither a PEM nor a DER"):
        read_rsa_key_pair(b"junk", PRIVATE)
    with pytest.raises(ValueError, match="private key is neither a PEM nor a DER"):
        read_rsa_key_pair(PUBLIC, b"junk")
    with pytest.raises(ValueError, match="private key file holds a public key"):
        read_rsa_key_pair(PUBLIC, PUBLIC)
    with pytest.raises(ValueError, match="not a pair"):
        read_rsa_key_pair(other_pair.public.export_key("DER"), PRIVATE)
    with pytest.raises(ValueError, match="1024 bits is too small"):
        read_rsa_key_pair(RSA.generate(1024).public_key().export_key("DER"))


def test_private_keys_are_in_no_repr() -> None:
    assert "Private" not in repr(GOLDEN_PAIR)

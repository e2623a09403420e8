from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.certificates import CertificateAuthority
from tiersidecar.adapters.kafka.security import PLAINTEXT, SecurityProtocol, SecuritySettings
from tiersidecar.adapters.kafka.tls import ssl_context
from tiersidecar.domain.errors import ConfigError


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "ca")


def server_context(authority: CertificateAuthority) -> ssl.SSLContext:
    """A broker with ``ssl.client.auth=required``."""
    issued = authority.issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate_path, issued.key_path)
    context.load_verify_locations(issued.authority_path)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, hostname: str = "localhost") -> str:
    """The name that the server reads in the client's certificate; both sides in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=hostname)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = {ours, theirs}
    for _ in range(10):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.discard(side)
    assert not waiting
    certificate = theirs.getpeercert(binary_form=True)
    assert certificate is not None
    (name,) = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(name.value)


def settings_for(authority: CertificateAuthority, directory: Path, name: str, **fields: object) -> SecuritySettings:
    """Settings whose certificate files are in ``directory``, copied as those of ``name``."""
    directory.mkdir(exist_ok=True)
    install(authority, directory, name)
    return SecuritySettings(
        security_protocol=SecurityProtocol.SSL,
        ssl_ca_file=str(authority.authority_path),
        ssl_certificate_file=str(directory / "client.pem"),
        ssl_key_file=str(directory / "client.key"),
        **fields,  # type: ignore[arg-type]
    )


def install(authority: CertificateAuthority, directory: Path, name: str, *, modified_s: int = 1) -> None:
    issued = authority.issue(name)
    for source, target in ((issued.certificate_path, "client.pem"), (issued.key_path, "client.key")):
        shutil.copyfile(source, directory / target)
        os.utime(directory / target, (modified_s, modified_s))


def test_there_is_no_context_without_tls() -> None:
    assert ssl_context(PLAINTEXT) is None


def test_both_sides_show_their_certificates(authority: CertificateAuthority, tmp_path: Path) -> None:
    client = ssl_context(settings_for(authority, tmp_path / "client", "alice"))

    assert client is not None
    assert shake_hands(client, server_context(authority)) == "alice"


def test_a_stranger_is_no_broker(authority: CertificateAuthority, tmp_path: Path) -> None:
    client = ssl_context(settings_for(authority, tmp_path / "client", "alice"))
    stranger = CertificateAuthority(tmp_path / "strangers", name="stranger")

    assert client is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(client, server_context(stranger))


def test_a_wrong_host_name_is_told_unless_the_check_is_off(authority: CertificateAuthority, tmp_path: Path) -> None:
    strict = ssl_context(settings_for(authority, tmp_path / "strict", "alice"))
    lenient = ssl_context(settings_for(authority, tmp_path / "lenient", "alice", ssl_check_hostname=False))

    assert strict is not None
    assert lenient is not None
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(strict, server_context(authority), hostname="elsewhere")
    assert shake_hands(lenient, server_context(authority), hostname="elsewhere") == "alice"


def test_without_host_name_check_a_stranger_is_still_no_broker(authority: CertificateAuthority, tmp_path: Path) -> None:
    lenient = ssl_context(settings_for(authority, tmp_path / "client", "alice", ssl_check_hostname=False))

    assert lenient is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(lenient, server_context(CertificateAuthority(tmp_path / "strangers", name="stranger")))


def test_a_renewed_certificate_is_used_without_a_restart(authority: CertificateAuthority, tmp_path: Path) -> None:
    client = ssl_context(settings_for(authority, tmp_path / "client", "alice"))
    assert client is not None
    assert shake_hands(client, server_context(authority)) == "alice"

    install(authority, tmp_path / "client", "alice-renewed", modified_s=2)

    assert shake_hands(client, server_context(authority)) == "alice-renewed"


def test_a_half_renewed_certificate_is_not_used_until_it_is_whole(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    directory = tmp_path / "client"
    client = ssl_context(settings_for(authority, directory, "alice"))
    assert client is not None

    renewed = authority.issue("alice-renewed")
    shutil.copyfile(renewed.certificate_path, directory / "client.pem")
    assert shake_hands(client, server_context(authority)) == "alice"

    shutil.copyfile(renewed.key_path, directory / "client.key")
    assert shake_hands(client, server_context(authority)) == "alice-renewed"


def test_a_certificate_that_vanishes_is_no_end_of_the_old_one(authority: CertificateAuthority, tmp_path: Path) -> None:
    client = ssl_context(settings_for(authority, tmp_path / "client", "alice"))
    assert client is not None
    (tmp_path / "client" / "client.pem").unlink()

    assert shake_hands(client, server_context(authority)) == "alice"


@pytest.mark.parametrize("broken", ["ssl_ca_file", "ssl_certificate_file", "ssl_key_file"])
@pytest.mark.parametrize("content", [None, b"not PEM"], ids=["missing", "not PEM"])
def test_a_file_that_cannot_be_used_is_named(
    authority: CertificateAuthority, tmp_path: Path, broken: str, content: bytes | None
) -> None:
    """Bad input is a configuration error, not a broker that cannot be reached."""
    issued = authority.issue("alice")
    files = {
        "ssl_ca_file": str(issued.authority_path),
        "ssl_certificate_file": str(issued.certificate_path),
        "ssl_key_file": str(issued.key_path),
    }
    path = tmp_path / "broken.pem"
    if content is not None:
        path.write_bytes(content)
    files[broken] = str(path)

    with pytest.raises(ConfigError, match="not a usable PEM"):
        ssl_context(SecuritySettings(security_protocol=SecurityProtocol.SSL, **files))  # type: ignore[arg-type]


def test_an_encrypted_key_needs_its_password(authority: CertificateAuthority, tmp_path: Path) -> None:
    issued = authority.issue("alice")
    key = load_pem_private_key(issued.key_path.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw")))

    def context(password: str | None) -> ssl.SSLContext | None:
        return ssl_context(
            SecuritySettings(
                security_protocol=SecurityProtocol.SSL,
                ssl_ca_file=str(issued.authority_path),
                ssl_certificate_file=str(issued.certificate_path),
                ssl_key_file=str(encrypted),
                ssl_key_password=password,
            )
        )

    client = context("pw")
    assert client is not None
    assert shake_hands(client, server_context(authority)) == "alice"
    for wrong in ("no", None):
        with pytest.raises(ConfigError):
            context(wrong)

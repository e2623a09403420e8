"""Certificates for brokers and clients in tests: a small authority of their own, valid for a day."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """PEM files: key (PKCS 8), certificate, both in one file (Kafka's keystore), and the authority's certificate."""

    key_path: Path
    certificate_path: Path
    keystore_path: Path
    authority_path: Path


class CertificateAuthority:
    """Signs certificates into ``directory``; ``name`` distinguishes one authority from another."""

    def __init__(self, directory: Path, name: str = "tiersidecar tests") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(name)
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.authority_path = directory / "ca.pem"
        self.authority_path.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, common_name: str) -> IssuedCertificate:
        """Return a certificate for servers on loopback and for clients alike."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            _builder(_common_name(common_name), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return self._write(common_name, key, certificate)

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> IssuedCertificate:
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        certificate_pem = certificate.public_bytes(Encoding.PEM)
        issued = IssuedCertificate(
            key_path=self._directory / f"{name}.key.pem",
            certificate_path=self._directory / f"{name}.pem",
            keystore_path=self._directory / f"{name}.keystore.pem",
            authority_path=self.authority_path,
        )
        issued.key_path.write_bytes(key_pem)
        issued.certificate_path.write_bytes(certificate_pem)
        issued.keystore_path.write_bytes(key_pem + certificate_pem)
        return issued


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

"""Bearer tokens and client certificates, and the users of Kafka's that they stand for (DESIGN section 4, rule 7)."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest

from tests.support.certificates import CertificateAuthority, IssuedCertificate
from tests.support.scripted_authorizer import ScriptedAuthorizer
from tests.unit.services.reader.service import Service, open_service
from tiersidecar.ports.broker import Credentials
from tiersidecar.services.reader.callers import KnownCaller, KnownCallers
from tiersidecar.services.reader.server import ReaderServiceSettings

PATH = "/topics/plain/partitions/0/batches?offset=240"
TOKEN = "0123456789abcdef0123456789abcdef"
REPORTS = Credentials(username="reports", password="its-secret")
USERS = {"reports": ("its-secret", ["plain"]), "alice": ("hers", [])}


async def test_a_token_that_is_not_listed_goes_to_the_broker_as_it_is() -> None:
    authorizer = ScriptedAuthorizer(tokens={"of.the~broker=": ["plain"]})
    async with open_service(authorizer=authorizer) as service:
        assert (await service.get(PATH, headers={"Authorization": "Bearer of.the~broker="}))[0] == 200
    assert {credentials for credentials, _ in authorizer.asked} == {Credentials(token="of.the~broker=")}


async def test_a_listed_token_is_asked_for_as_the_user_it_stands_for() -> None:
    known = KnownCallers([KnownCaller(token=TOKEN, credentials=REPORTS)])
    settings = ReaderServiceSettings(port=0, requires_credentials=True, known_callers=known)
    authorizer = ScriptedAuthorizer(users=USERS)
    async with open_service(authorizer=authorizer, settings=settings) as service:
        assert (await service.get(PATH, headers={"Authorization": f"bearer {TOKEN}"}))[0] == 200
        assert (await service.get(PATH, headers={"Authorization": f"Bearer {TOKEN}x"}))[0] == 401
        # It grants nothing by itself: the broker decides about the user.
        other = "/topics/epochs/partitions/0/batches?offset=0"
        assert (await service.get(other, headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 403
    assert authorizer.asked[0] == (REPORTS, "plain")


def server_tls(authority: CertificateAuthority, clients: CertificateAuthority, *, required: bool) -> ssl.SSLContext:
    certificate = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate_path, certificate.key_path)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    context.load_verify_locations(clients.authority_path)
    return context


async def status_with(service: Service, ca: Path, certificate: IssuedCertificate | None, login: str = "") -> int:
    context = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        context.load_cert_chain(certificate.certificate_path, certificate.key_path)
    headers = {"Authorization": aiohttp.encode_basic_auth(*login.split(":"))} if login else {}
    async with (
        aiohttp.ClientSession(service.server.url, connector=aiohttp.TCPConnector(ssl=context)) as client,
        client.get(PATH, headers=headers) as response,
    ):
        return response.status


async def test_a_client_certificate_is_asked_for_as_the_user_of_its_subject(tmp_path: Path) -> None:
    authority, clients = CertificateAuthority(tmp_path / "ca"), CertificateAuthority(tmp_path / "clients")
    known = KnownCallers([KnownCaller(subject="CN=reports", credentials=REPORTS)])
    settings = ReaderServiceSettings(
        port=0,
        host="localhost",
        ssl_context=server_tls(authority, clients, required=True),
        requires_credentials=True,
        known_callers=known,
    )
    ca = authority.authority_path
    async with open_service(authorizer=ScriptedAuthorizer(users=USERS), settings=settings) as service:
        assert await status_with(service, ca, clients.issue("reports")) == 200
        # Known to the authority and to nobody else; and the header counts before the certificate.
        assert await status_with(service, ca, clients.issue("stranger")) == 401
        assert await status_with(service, ca, clients.issue("stranger"), "reports:its-secret") == 200
        assert await status_with(service, ca, clients.issue("reports"), "alice:hers") == 403
        for certificate in (None, CertificateAuthority(tmp_path / "other").issue("reports")):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await status_with(service, ca, certificate)


async def test_where_certificates_are_requested_only_a_caller_without_one_is_anonymous(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "ca")
    settings = ReaderServiceSettings(
        port=0, host="localhost", ssl_context=server_tls(authority, authority, required=False)
    )
    async with open_service(authorizer=ScriptedAuthorizer(anonymous=["plain"]), settings=settings) as service:
        assert await status_with(service, authority.authority_path, None) == 200
        assert await status_with(service, authority.authority_path, authority.issue("nobody listed")) == 200

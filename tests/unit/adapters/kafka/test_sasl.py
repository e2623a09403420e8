from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka.answers import authenticated, handshake
from tests.unit.adapters.kafka.scram_server import ScramServer
from tests.unit.adapters.kafka.scripted_peer import Conversation, Script, scripted_peer
from tiersidecar.adapters.kafka.connection import ConnectionLimits, open_socket
from tiersidecar.adapters.kafka.sasl import log_in
from tiersidecar.adapters.kafka.security import SaslMechanism, SecurityProtocol, SecuritySettings, TokenFile
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError


def settings_of(mechanism: SaslMechanism) -> SecuritySettings:
    return SecuritySettings(
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl_mechanism=mechanism,
        username=None if mechanism is SaslMechanism.OAUTHBEARER else "alice",
        password=None if mechanism is SaslMechanism.OAUTHBEARER else "secret",
        oauth_token_source=TokenFile(path="unused") if mechanism is SaslMechanism.OAUTHBEARER else None,
    )


class OneToken:
    async def token(self) -> str:
        return "abc.def"


async def log_in_to(script: Script, mechanism: SaslMechanism) -> float | None:
    async with scripted_peer(script) as peer:
        limits = ConnectionLimits(request_timeout_s=5)
        connection = await open_socket(peer.address, client_id="x", tls=None, limits=limits)
        try:
            return await log_in(connection, settings_of(mechanism), OneToken())
        finally:
            await connection.close()


async def shake_hands(talk: Conversation, mechanism: str) -> None:
    await talk.tell_versions()
    header, request = await talk.hear()
    assert (header.api_key, header.api_version, request.mechanism) == (17, 1, mechanism)
    talk.answer(header, handshake(ErrorCode.none, mechanism))


async def test_plain_sends_name_and_password_in_one_message() -> None:
    """RFC 4616, without an authorization identity, as Java clients do."""

    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "PLAIN")
        header, request = await talk.hear()
        assert request.auth_bytes == b"\0alice\0secret"
        talk.answer(header, authenticated())

    assert await log_in_to(script, SaslMechanism.PLAIN) is None


async def test_the_session_lifetime_is_told() -> None:
    """KIP-368: after it the broker wants a new login."""

    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "PLAIN")
        header, _ = await talk.hear()
        talk.answer(header, authenticated(lifetime_s=90))

    assert await log_in_to(script, SaslMechanism.PLAIN) == 90


async def test_a_refused_password_is_told_with_name_and_reason_but_not_the_password() -> None:
    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "PLAIN")
        header, _ = await talk.hear()
        failed = ErrorCode.sasl_authentication_failed
        talk.answer(header, authenticated(error_code=failed, message="Invalid username or password"))

    with pytest.raises(BrokerRefusedError) as refusal:
        await log_in_to(script, SaslMechanism.PLAIN)

    assert refusal.value.error == "SASL_AUTHENTICATION_FAILED"
    assert not refusal.value.retriable
    assert "PLAIN as alice (Invalid username or password)" in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_a_mechanism_that_the_broker_lacks_is_told_with_those_it_has() -> None:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        talk.answer(header, handshake(ErrorCode.unsupported_sasl_mechanism, "GSSAPI", "OAUTHBEARER"))

    with pytest.raises(BrokerRefusedError, match=r"offers GSSAPI, OAUTHBEARER.*UNSUPPORTED_SASL_MECHANISM"):
        await log_in_to(script, SaslMechanism.PLAIN)


def scram_script(mechanism: SaslMechanism, server: ScramServer) -> Script:
    async def script(talk: Conversation) -> None:
        await shake_hands(talk, mechanism)
        header, request = await talk.hear()
        talk.answer(header, authenticated(server.first(request.auth_bytes)))
        header, request = await talk.hear()
        signature, _ = server.final(request.auth_bytes)
        talk.answer(header, authenticated(signature, lifetime_s=60))

    return script


@pytest.mark.parametrize(
    ("mechanism", "hash_name"), [(SaslMechanism.SCRAM_SHA_256, "sha256"), (SaslMechanism.SCRAM_SHA_512, "sha512")]
)
async def test_scram_logs_in_and_checks_the_server(mechanism: SaslMechanism, hash_name: str) -> None:
    server = ScramServer(hash_name, "secret")

    assert await log_in_to(scram_script(mechanism, server), mechanism) == 60
    assert server.username == "alice"


async def test_a_broker_that_does_not_know_our_password_is_no_broker_of_ours() -> None:
    mechanism = SaslMechanism.SCRAM_SHA_256

    with pytest.raises(BrokerRefusedError, match="does not know the password"):
        await log_in_to(scram_script(mechanism, ScramServer("sha256", "another")), mechanism)


async def test_a_bearer_token_is_sent_as_rfc_7628_says() -> None:
    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "OAUTHBEARER")
        header, request = await talk.hear()
        assert request.auth_bytes == b"n,,\1auth=Bearer abc.def\1\1"
        talk.answer(header, authenticated(lifetime_s=3600))

    assert await log_in_to(script, SaslMechanism.OAUTHBEARER) == 3600


async def test_a_refused_token_is_told_with_the_brokers_reason() -> None:
    """RFC 7628 section 3.2.3: the reason comes as a challenge, the refusal after our kvsep."""

    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "OAUTHBEARER")
        header, _ = await talk.hear()
        talk.answer(header, authenticated(b'{"status":"invalid_token"}'))
        header, request = await talk.hear()
        assert request.auth_bytes == b"\1"
        failed = ErrorCode.sasl_authentication_failed
        talk.answer(header, authenticated(error_code=failed, message='{"status":"invalid_token"}'))

    with pytest.raises(BrokerRefusedError, match="invalid_token") as refusal:
        await log_in_to(script, SaslMechanism.OAUTHBEARER)
    assert "abc.def" not in str(refusal.value)


async def test_a_challenge_that_no_refusal_follows_is_a_refusal_all_the_same() -> None:
    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "OAUTHBEARER")
        for challenge in (b'{"status":"invalid_token"}', b""):
            header, _ = await talk.hear()
            talk.answer(header, authenticated(challenge))

    with pytest.raises(BrokerRefusedError, match="invalid_token"):
        await log_in_to(script, SaslMechanism.OAUTHBEARER)


async def test_a_broker_that_goes_away_in_the_middle_is_unreachable() -> None:
    async def script(talk: Conversation) -> None:
        await shake_hands(talk, "PLAIN")
        await talk.hear()

    with pytest.raises(BrokerUnreachableError, match="closed the connection"):
        await log_in_to(script, SaslMechanism.PLAIN)

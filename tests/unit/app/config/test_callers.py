"""Callers whom the read service knows by a token or a certificate, and the users that they are at the broker."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.support.certificates import CertificateAuthority
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.builders.security import caller_listener, known_callers, server_tls
from tiersidecar.app.config.report import effective_settings, warnings_of
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.broker import Credentials

TOKEN = "0123456789abcdef0123456789abcdef"
SECRETS = {"PW": "user-secret", "TOKEN": TOKEN, "SHORT": TOKEN[1:]}
USER = "sasl.username: u, sasl.password: {env: PW}"
ONE_OF_EACH = """\
read:
  ssl.certificate.location: /c
  ssl.client.ca.location: /ca
  callers:
  - {bearer.token: {env: TOKEN}, sasl.username: reports, sasl.password: {env: PW}}
  - {certificate.subject: 'CN=billing,O=Example', sasl.username: billing, sasl.password: {env: PW}}
"""


def test_each_caller_becomes_a_user_of_the_brokers(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + ONE_OF_EACH, SECRETS)
    known = known_callers(config.read)
    presented = Credentials(token=TOKEN)
    assert known.credentials_of(presented) == Credentials(username="reports", password="user-secret")
    assert known.credentials_of(Credentials(token=TOKEN + "0")) == Credentials(token=TOKEN + "0")
    shown = str(effective_settings(config, units=True))
    assert "billing" in shown
    assert not any(secret in shown for secret in SECRETS.values())


def test_callers_without_sasl_to_log_them_in_are_warned_of(tmp_path: Path) -> None:
    assert any("are not used" in warning for warning in warnings_of(load(tmp_path, LEAST + ONE_OF_EACH, SECRETS)))


def test_tokens_that_the_broker_judges_are_passed_on_where_it_is_said(tmp_path: Path) -> None:
    read = "read: {authorization.security.protocol: SASL_SSL, authorization.sasl.mechanism: OAUTHBEARER}\n"
    assert caller_listener(load(tmp_path, LEAST + read)).sasl_mechanism == "OAUTHBEARER"


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        pytest.param(
            "read:\n  ssl.client.ca.location: /ca\n",
            ["line 7: read.ssl.certificate.location: is required with ssl.client.ca.location"],
            id="client certificates without TLS",
        ),
        pytest.param(
            f"read:\n  authorization.sasl.mechanism: OAUTHBEARER\n  callers:\n  - {{{USER}, bearer.token: {{env: TOKEN}}}}\n",
            ["line 9: read.callers: have passwords, which authorization.sasl.mechanism OAUTHBEARER does not take"],
            id="listed callers where the broker wants tokens",
        ),
        pytest.param(
            "read:\n  callers:\n  - {sasl.username: u, sasl.password: {env: PW}}\n",
            ["line 9: read.callers[0]: needs either bearer.token or certificate.subject"],
            id="a caller without a proof",
        ),
        pytest.param(
            "read:\n  callers:\n  - {sasl.username: u, sasl.password: {env: PW}, bearer.token: {env: SHORT}}\n",
            [
                "line 9: read.callers[0].bearer.token: a bearer token has 32 or more characters,"
                " letters, digits and . _ ~ + / = - alone"
            ],
            id="a token that can be guessed",
        ),
        pytest.param(
            "read:\n  callers:\n  - {sasl.username: u, sasl.password: {env: PW}, certificate.subject: reports}\n",
            [
                "line 9: read.callers[0].certificate.subject: 'reports' is not a distinguished name such as"
                " CN=reports,O=Example"
            ],
            id="a subject that is no name",
        ),
        pytest.param(
            "read:\n  callers:\n  - {sasl.username: u, sasl.password: {env: PW}, certificate.subject: CN=reports}\n",
            ["line 9: read.callers[0].certificate.subject: needs read.ssl.client.ca.location"],
            id="a subject without an authority",
        ),
        pytest.param(
            f"read:\n  callers:\n  - {{{USER}, bearer.token: {{env: TOKEN}}}}\n  - {{{USER}, bearer.token: {{env: TOKEN}}}}\n",
            ["line 10: read.callers[1]: has the token or the subject of an earlier one"],
            id="a token of two callers",
        ),
    ],
)
def test_what_is_wrong_with_a_caller_is_told_with_its_line(tmp_path: Path, lines: str, faults: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, LEAST + lines, SECRETS)
    assert list(caught.value.faults) == faults


@pytest.mark.parametrize(
    ("auth", "mode"), [("required", ssl.CERT_REQUIRED), ("requested", ssl.CERT_OPTIONAL), (None, ssl.CERT_NONE)]
)
def test_client_certificates_are_required_requested_or_not_looked_at(
    tmp_path: Path, auth: str | None, mode: ssl.VerifyMode
) -> None:
    authority = CertificateAuthority(tmp_path / "ca")
    certificate = authority.issue("read")
    lines = f"read:\n  ssl.certificate.location: {certificate.keystore_path}\n"
    if auth is not None:
        lines += f"  ssl.client.ca.location: {certificate.authority_path}\n  ssl.client.auth: {auth}\n"
    context = server_tls(load(tmp_path, LEAST + lines).read)
    assert context is not None
    assert context.verify_mode is mode


def test_an_authority_that_cannot_be_read_is_a_fault_and_not_an_open_door(tmp_path: Path) -> None:
    certificate = CertificateAuthority(tmp_path / "ca").issue("read")
    read = f"{{ssl.certificate.location: {certificate.keystore_path}, ssl.client.ca.location: /nowhere}}"
    with pytest.raises(ConfigError, match=r"read.ssl.client.ca.location: /nowhere cannot be used"):
        server_tls(load(tmp_path, f"{LEAST}read: {read}\n").read)

"""Who asks, and how, as obstore is given it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tiersidecar.adapters.stores.azure_settings import AzureSettings

LEAST = AzureSettings(account_name="kafkatier", container="kafka-tier")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (LEAST, "auto"),
        (replace(LEAST, client_id="id"), "auto"),
        (replace(LEAST, account_key="a2V5"), "access_key"),
        (replace(LEAST, sas_token="?sv=1&sig=2"), "sas_token"),
        (replace(LEAST, client_secret="s", tenant_id="t", client_id="c"), "client_secret"),
        (replace(LEAST, federated_token_file="/t", tenant_id="t", client_id="c"), "workload_identity"),
    ],
    ids=["the environment's", "a managed identity", "a key", "a token", "a secret", "workload identity"],
)
def test_what_is_configured_is_what_logs_in(settings: AzureSettings, kind: str) -> None:
    assert settings.store_config()["credential_type"] == kind


def test_a_sas_token_may_begin_as_the_portal_writes_it() -> None:
    assert replace(LEAST, sas_token="?sv=1&sig=2").store_config()["sas_key"] == "sv=1&sig=2"


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(replace(LEAST, account_key="hidden", sas_token="hidden", client_secret="hidden"))


def test_http_is_allowed_where_the_endpoint_says_so() -> None:
    assert LEAST.client_options()["allow_http"] is False
    assert replace(LEAST, endpoint_url="http://127.0.0.1:1/a").client_options()["allow_http"] is True


def test_attempts_and_their_time_are_bounded() -> None:
    settings = replace(LEAST, max_attempts=3, attempt_timeout_s=7)
    assert settings.retry_config()["max_retries"] == 2
    assert settings.client_options()["timeout"] == timedelta(seconds=7)

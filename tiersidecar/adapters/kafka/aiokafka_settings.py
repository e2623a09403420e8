"""Turn security settings into arguments of aiokafka's producers and consumers."""

from __future__ import annotations

from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from tiersidecar.adapters.kafka.security import SaslMechanism, SecuritySettings
from tiersidecar.adapters.kafka.tls import ssl_context
from tiersidecar.adapters.kafka.tokens import Tokens, open_tokens
from tiersidecar.domain.errors import BrokerUnreachableError


def aiokafka_kwargs(settings: SecuritySettings) -> dict[str, Any]:
    """Return the keyword arguments for ``AIOKafkaProducer`` and ``AIOKafkaConsumer``: all that concerns security.

    Raises:
        ConfigError: certificates that cannot be used.
    """
    found: dict[str, Any] = {
        "security_protocol": settings.security_protocol.value,
        "ssl_context": ssl_context(settings),
    }
    if settings.sasl_mechanism is not None:
        found["sasl_mechanism"] = settings.sasl_mechanism.value
        found["sasl_plain_username"] = settings.username
        found["sasl_plain_password"] = settings.password
    if settings.sasl_mechanism is SaslMechanism.OAUTHBEARER and settings.oauth_token_source is not None:
        found["sasl_oauth_token_provider"] = _TokenProvider(open_tokens(settings.oauth_token_source))
    return found


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def token(self) -> str:
        try:
            return await self._tokens.token()
        except BrokerUnreachableError as error:
            # The only kind of failure that aiokafka's clients survive: they try again.
            raise KafkaConnectionError(str(error)) from error

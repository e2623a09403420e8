"""The daemon as a gateway only, in a process of its own, in front of one broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, daemon_settings
from tests.support.kafka_broker import KafkaBroker
from tests.support.loopback_ports import free_port


class GatewayDaemon(Daemon):
    """``tiersidecar run --roles gateway``: one listener, by default in front of the broker's internal one.

    ``listeners`` and ``broker_section`` are those of the configuration.
    """

    def __init__(
        self,
        directory: Path,
        broker: KafkaBroker,
        *,
        listeners: list[dict[str, Any]] | None = None,
        topics: list[dict[str, Any]] | None = None,
        broker_section: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.broker = broker
        listeners = listeners if listeners is not None else [{"listen": f"127.0.0.1:{free_port()}"}]
        self.bootstrap_server = str(listeners[0]["listen"])
        gateway = {"listeners": listeners, **settings.pop("gateway", {})}
        super().__init__(
            directory,
            daemon_settings(
                directory,
                bootstrap_servers=broker.bootstrap_server,
                log_dirs=list(broker.log_dirs),
                topics=topics or [],
                gateway=gateway,
                **({} if broker_section is None else {"broker": broker_section}),
                **settings,
            ),
            roles="gateway",
        )

    @property
    def client_settings(self) -> dict[str, str]:
        """Return the settings for aiokafka's clients."""
        return {"bootstrap_servers": self.bootstrap_server}

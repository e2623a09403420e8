"""Where a sidecar says that its status service is reached."""

from __future__ import annotations

import pytest

from tiersidecar.app.config.services import StatusSection
from tiersidecar.app.config.values import Address


@pytest.mark.parametrize(
    ("listen", "advertised", "told"),
    [
        pytest.param("127.0.0.1:8091", None, "127.0.0.1:8091", id="a loopback address: only this machine reaches it"),
        pytest.param("10.0.0.7:8091", None, "10.0.0.7:8091", id="an address"),
        pytest.param("0.0.0.0:8091", None, "kafka-1:8091", id="any address: the machine's name"),
        pytest.param("[::]:8091", None, "kafka-1:8091", id="any address of IPv6, too"),
        pytest.param("0.0.0.0:8091", "b1.example:80", "b1.example:80", id="what is configured counts"),
    ],
)
def test_the_address_that_is_told(listen: str, advertised: str | None, told: str) -> None:
    section = StatusSection(
        listen=Address.parse(listen), advertised=None if advertised is None else Address.parse(advertised)
    )
    assert str(section.advertised_by("kafka-1")) == told

"""What an operator is told when a command fails: the thing, and where to look."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tiersidecar.app.commands.complaints import FAILED, WRONG_USAGE, complain
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    ConfigError,
    MetadataNotReadyError,
    MountRefusedError,
    TiersidecarError,
)

FILE = Path("/etc/tiersidecar/tiersidecar.yaml")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        pytest.param(
            BrokerUnreachableError(address="kafka:9092", reason="connection refused"),
            FAILED,
            ("kafka:9092", "connection refused", "broker.bootstrap.servers", str(FILE)),
            id="no broker there",
        ),
        pytest.param(
            BrokerRefusedError(api="Metadata", subject="topic nope", error="UNKNOWN_TOPIC_OR_PARTITION"),
            FAILED,
            ("topic nope", "Describe"),
            id="no such topic, or none that one may see",
        ),
        pytest.param(
            BrokerRefusedError(
                api="IncrementalAlterConfigs", subject="topic orders", error="TOPIC_AUTHORIZATION_FAILED"
            ),
            FAILED,
            ("IncrementalAlterConfigs", f"{FILE} may not AlterConfigs there", "docs/operations/acls.md"),
            id="a right is missing",
        ),
        pytest.param(
            BrokerRefusedError(api="Fetch", subject="state", error="[Error 29] TopicAuthorizationFailedError: state"),
            FAILED,
            ("Fetch", f"{FILE} may not Read there", "docs/operations/acls.md"),
            id="a right is missing, in the words of aiokafka",
        ),
        pytest.param(
            BrokerRefusedError(
                api="SaslAuthenticate", subject="kafka:9093", error="SASL_AUTHENTICATION_FAILED", retriable=False
            ),
            FAILED,
            ("SASL_AUTHENTICATION_FAILED", "broker.sasl."),
            id="a wrong password",
        ),
        pytest.param(
            MetadataNotReadyError(subject="orders-0"), FAILED, ("orders-0",), id="no hint: the sentence alone"
        ),
        pytest.param(
            ConfigError(source="a.yaml", faults=("line 1: x", "line 2: [y]")),
            WRONG_USAGE,
            ("error: a.yaml: line 1: x\nerror: a.yaml: line 2: [y]\n",),
            id="every fault of a configuration on a line of its own",
        ),
    ],
)
def test_the_error_is_named_and_where_to_look(error: TiersidecarError, code: int, words: tuple[str, ...]) -> None:
    said = StringIO()
    assert complain(error, Console(file=said, width=40), FILE) == code
    for word in words:
        assert word in said.getvalue()
    assert said.getvalue().startswith("error: ")


def test_what_a_bucket_says_does_not_reach_the_terminal_as_it_is() -> None:
    """Ids of clusters and names of topics come from objects that others may have written (issue 21)."""
    printed = StringIO()
    complain(MountRefusedError(reason="data of \x1b[2Jevil"), Console(file=printed, force_terminal=False))
    assert printed.getvalue() == "error: data of \\x1b[2Jevil\n"

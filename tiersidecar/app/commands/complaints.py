"""Print the error of a failed command on standard error, and where to look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, ConfigError, TiersidecarError
from tiersidecar.domain.readable import printable

if TYPE_CHECKING:
    from tiersidecar.app.config.services import LoggingSection

FAILED, WRONG_USAGE = 1, 2
_RIGHTS = {
    "Metadata": "Describe",
    "ListOffsets": "Describe",
    "Fetch": "Read",
    "Produce": "Write",
    "CreateTopics": "Create",
    "DescribeConfigs": "DescribeConfigs",
    "IncrementalAlterConfigs": "AlterConfigs",
    "DeleteRecords": "Delete",
}
"""The right that Kafka's authorizer asks for, by request; for CreateTopics it may also be Create on the cluster."""


def log_errors_alone(section: LoggingSection) -> None:
    """Let the libraries and parts that a command uses log what has failed, and nothing else."""
    # Imported late: structlog takes a seventh of the start of a command that only asks sidecars, which log for themselves.
    from tiersidecar.app.logging import configure_logging

    configure_logging(section.model_copy(update={"level": "error"}))


def complain(error: TiersidecarError, console: Console, config_file: Path | None = None) -> int:
    """Print ``error`` and return the exit code; with ``config_file``, the configuration used, also print a hint."""
    for sentence in str(error).splitlines():
        console.print(f"[red]error:[/red] {escape(printable(sentence))}", soft_wrap=True)
    if config_file is not None and (hint := _hint(error, config_file)):
        console.print(escape(printable(hint)), soft_wrap=True)
    return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


def _hint(error: TiersidecarError, config_file: Path) -> str:
    match error:
        case BrokerUnreachableError():
            keys = "broker.bootstrap.servers and broker.security.protocol"
            return f"Is the broker running, and do {keys} in {config_file} belong to one of its listeners?"
        case BrokerRefusedError(error="UNKNOWN_TOPIC_OR_PARTITION"):
            return f"It does not exist, or the user of the broker section in {config_file} may not Describe it."
        case BrokerRefusedError() if error.is_missing_right:
            missing = (
                f"The user of the broker section in {config_file} may not {right} there. "
                if (right := _RIGHTS.get(error.api))
                else ""
            )
            return f"{missing}docs/operations/acls.md lists the rights that the daemon and its commands need."
        case BrokerRefusedError() if "SASL" in error.error:
            return f"Check broker.sasl.* in {config_file}."
        case _:
            return ""

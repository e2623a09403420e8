"""What a command that failed says on standard error: the error's own sentences, and where to look."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, ConfigError, TiersidecarError

FAILED, WRONG_USAGE = 1, 2


def complain(error: TiersidecarError, console: Console, config_file: Path | None = None) -> int:
    """Print it, and give the exit code.  ``config_file`` is the configuration that the command ran with, if it got so far."""
    for sentence in str(error).splitlines():
        console.print(f"[red]error:[/red] {escape(sentence)}", soft_wrap=True)
    if config_file is not None and (hint := _hint(error, config_file)):
        console.print(escape(hint), soft_wrap=True)
    return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


def _hint(error: TiersidecarError, config_file: Path) -> str:
    match error:
        case BrokerUnreachableError():
            keys = "broker.bootstrap.servers and broker.security.protocol"
            return f"Does the broker run, and are {keys} in {config_file} those of a listener of its?"
        case BrokerRefusedError(error="UNKNOWN_TOPIC_OR_PARTITION"):
            return (
                f"There is none of this name, or the user of the broker section in {config_file} may not Describe it."
            )
        case BrokerRefusedError() if "AUTHORIZATION" in error.error:
            return "docs/operations/acls.md has the rights that the daemon and its commands need."
        case BrokerRefusedError() if "SASL" in error.error:
            return f"Look at broker.sasl.* in {config_file}."
        case _:
            return ""

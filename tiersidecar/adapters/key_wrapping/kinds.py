"""Kinds of key services: the built-in one, and those of other packages (entry points of ``tiersidecar.key_wrapping``)."""

from __future__ import annotations

from importlib.metadata import entry_points

from tiersidecar.adapters.key_wrapping.aws_kms import AwsKmsKind
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.key_wrapping import ENTRY_POINTS, KeyWrappingKind

AWS_KMS = "aws-kms"


def load_wrapping_kind(name: str) -> KeyWrappingKind:
    """Return the kind of that name; a built-in one takes precedence.

    Raises:
        ConfigError: no package has it, two do, or it cannot be imported.
    """
    if name == AWS_KMS:
        return AwsKmsKind()
    found = tuple(entry_points(group=ENTRY_POINTS, name=name))
    if len(found) != 1:
        which = "no installed package brings it" if not found else "several packages bring it"
        raise ConfigError(source="store", faults=(f"encryption.key.wrapping: {name!r}: {which}",))
    try:
        kind: KeyWrappingKind = found[0].load()
    except (ImportError, AttributeError) as error:
        reason = f"encryption.key.wrapping: {name!r}: {found[0].value} cannot be loaded: {error}"
        raise ConfigError(source="store", faults=(reason,)) from error
    return kind

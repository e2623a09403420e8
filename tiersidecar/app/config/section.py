"""The common part of every section of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tiersidecar.app.config.document import KeyPath


def dotted(field_name: str) -> str:
    """Return the key of an attribute: ``request_timeout_ms`` is written ``request.timeout.ms``."""
    return field_name.replace("_", ".")


def undotted(key: str) -> str:
    """Invert :func:`dotted`."""
    return key.replace(".", "_")


class Section(BaseModel):
    """Keys are the attributes' names with dots; what follows an attribute as its docstring is the key's documentation.

    A file gives keys only; code (tests, benchmarks) may construct a section by attribute names.
    """

    model_config = ConfigDict(
        alias_generator=dotted,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )


class CrossFaultsError(ValueError):
    """Settings that are right one by one and wrong together; each with its key path below the section that raises."""

    def __init__(self, faults: list[tuple[KeyPath, str]]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "; ".join(message for _, message in self.faults)


def refuse(faults: list[tuple[KeyPath, str]]) -> None:
    """Raise when there is any fault.

    Raises:
        CrossFaultsError: with all of them.
    """
    if faults:
        raise CrossFaultsError(faults)

"""Section store of a kind that another package brings: its name, and options that only that package knows."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from tiersidecar.adapters.stores.installed import load_kind
from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.options import Option, revealed
from tiersidecar.app.config.section import refuse
from tiersidecar.app.config.store_base import StoreBase
from tiersidecar.domain.errors import ConfigError


class InstalledStore(StoreBase):
    """A kind of store that an installed package brings."""

    type: Annotated[str, Field(min_length=1, examples=["hdfs"])]
    """Name of the kind: an entry point of the group `tiersidecar.stores`."""

    options: Annotated[dict[str, Option], Field(examples=[{}])] = Field(default_factory=dict)
    """Options of the package; see its documentation. A value may be a secret: `{env: NAME}` or `{file: /path}`."""

    @property
    def revealed_options(self) -> dict[str, Any]:
        """Return the options with secrets as texts, as the package takes them."""
        return revealed(self.options)

    @property
    def location(self) -> tuple[str, str]:
        return f"{self.type} with {sorted(self.revealed_options.items())}", self.key_prefix

    @property
    def place(self) -> str:
        return self.type

    @model_validator(mode="after")
    def _the_package_takes_the_options(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        try:
            kind = load_kind(self.type)
        except ConfigError as error:
            faults += [(("type",), fault.removeprefix("type: ")) for fault in error.faults]
        else:
            faults += [(("options", option), reason) for option, reason in kind.faults(self.revealed_options)]
        refuse(faults)
        return self

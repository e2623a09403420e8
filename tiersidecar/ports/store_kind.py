"""What a package brings that adds a kind of store: an object of this protocol, named by an entry point of the group
``tiersidecar.stores``.  docs/stores.md says how to write one, and ``tiersidecar.testing.store_contract`` what it must keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.store import Store

ENTRY_POINTS = "tiersidecar.stores"

Options = Mapping[str, object]
"""The section ``options`` as the file has it: texts, numbers, booleans, lists, mappings; secrets are resolved, as texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTools:
    """``key_prefix`` begins all our keys, and is where :meth:`Store.check_writable` may write.  Files and other blocking calls
    go through ``blocking``."""

    key_prefix: str
    blocking: Blocking
    clock: Clock
    ids: Ids


class StoreKind(Protocol):
    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        """What is wrong with ``options``: the option, and a sentence that says what it must be.  No I/O."""

    def open_store(self, options: Options, tools: StoreTools) -> AbstractAsyncContextManager[Store]:
        """The store, closed at the end.  One that is away does not fail here, but when it is used."""

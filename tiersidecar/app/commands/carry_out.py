"""Run a command that changes something: look, show, ask, look again, apply.

The output begins with the present state and the steps; a refusal gives its reason and changes nothing (exit code 1).
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from tiersidecar.adapters.ending_loop import ask, run_to_end
from tiersidecar.app.commands.complaints import FAILED, complain, log_errors_alone
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.top_level import Mode
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.readable import printable

if TYPE_CHECKING:  # adapters are slow to import, and --help needs none
    from tiersidecar.app.commands.session import Session

DONE, MUST_ACT = 0, 3
"""Exit codes.  3: it was done, and an operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Findings and plan of a command: ``facts`` are the present state, ``steps`` the changes in order.

    ``refusal`` says why nothing is changed.  ``details`` are facts for ``--json`` alone, and ``notes`` summarize them.  Without
    steps and refusal nothing needs to change.  ``apply`` carries out the steps and returns the result; it may be called again
    after a failure.  Its ``complete`` of False says that something is left to be done: exit code 3.  ``complete`` says the same
    where there are no steps, None where the command does not say.
    """

    facts: Mapping[str, Any]
    steps: tuple[str, ...] = ()
    refusal: str = ""
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    apply: Callable[[], Awaitable[Mapping[str, Any] | None]] | None = None
    complete: bool | None = None


Look = Callable[["Session"], Awaitable[Intent]]


class StepProgress:
    """Passes on which step a long command is at: to the terminal's spinner, or, elsewhere, as a line for each new step (what is
    before a colon)."""

    def __init__(self) -> None:
        self._show: Callable[[str], None] | None = None
        self._step = ""

    def __call__(self, text: str) -> None:
        if self._show is not None:
            self._show(text)

    @contextmanager
    def on(self, console: Console, text: str) -> Iterator[None]:
        """Show ``text``, and then each step that is reported while the body runs."""
        with console.status(text) as status:
            self._show = status.update if console.is_terminal else lambda step: self._print(console, step)
            try:
                yield
            finally:
                self._show = None

    def _print(self, console: Console, text: str) -> None:
        step = text.partition(":")[0]
        if step != self._step:
            self._step = step
            console.print(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """Options of the operator: which file, whether to ask, and how to print.

    Without ``makes_topics`` a topic of ours that is missing is not made.
    """

    config_file: Path
    yes: bool
    dry_run: bool
    as_json: bool
    makes_topics: bool = True
    progress: StepProgress = field(default_factory=StepProgress)
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))


def carry_out(look: Look, manner: Manner, *, with_metadata: bool = True) -> None:
    """Open a session for ``look``, show its intent, and carry it out.

    Raises:
        typer.Exit: always, with the exit code.
    """
    if manner.as_json and not (manner.yes or manner.dry_run):
        raise typer.BadParameter("--json does not ask: add --yes or --dry-run")
    try:
        config = load_config(manner.config_file, os.environ)
        log_errors_alone(config.logging)
        code = run_to_end(_carry_out(config, look, manner, with_metadata=with_metadata))
    except TiersidecarError as error:
        if manner.as_json:
            typer.echo(json.dumps({"done": False, "error": str(error)}, indent=2, ensure_ascii=False))
        code = complain(error, manner.console, manner.config_file)
    raise typer.Exit(code)


async def _carry_out(config: Config, look: Look, manner: Manner, *, with_metadata: bool) -> int:
    from tiersidecar.app.commands.session import open_session

    if not manner.makes_topics:
        config = config.model_copy(update={"mode": Mode.OBSERVE})
    async with AsyncExitStack() as stack:
        with manner.console.status("connecting to the broker and reading the sidecars' topics"):
            session = await stack.enter_async_context(open_session(config, with_metadata=with_metadata))
        with manner.progress.on(manner.console, "reading the present state"):
            intent = await look(session)
        if not manner.as_json:
            _show(intent, manner.console)
        done = False
        outcome: Mapping[str, Any] = {}
        if intent.steps and not intent.refusal and not manner.dry_run and await _is_confirmed(config, manner):
            if not manner.yes:
                intent = await _looked_at_again(session, look, intent, manner.console)
            if not intent.refusal:
                assert intent.apply is not None  # steps come with their doing
                with manner.progress.on(manner.console, "applying the changes"):
                    outcome = await intent.apply() or {}
                done = True
        if manner.as_json:
            typer.echo(json.dumps({**_document(intent, done=done), **outcome}, indent=2, ensure_ascii=False))
        elif done:
            _show_facts(outcome, manner.console)
            manner.console.print("[green]done[/green]")
    if intent.refusal:
        return FAILED
    if outcome.get("complete") is False or (not intent.steps and not manner.dry_run and intent.complete is False):
        return MUST_ACT
    return DONE if done or manner.dry_run or not intent.steps else FAILED


async def _looked_at_again(session: Session, look: Look, shown: Intent, console: Console) -> Intent:
    """Look again after the question: it may have waited for hours, and a step that was safe may now lose data."""
    now = await look(session)
    if now.refusal:
        console.print(f"[red]refused:[/red] {_safe(now.refusal)}", soft_wrap=True)
    elif now.steps != shown.steps:
        refusal = "the steps have changed since they were shown; run the command again"
        console.print(f"[red]refused:[/red] {refusal}", soft_wrap=True)
        return replace(now, refusal=refusal)
    return now


async def _is_confirmed(config: Config, manner: Manner) -> bool:
    if config.mode is Mode.OBSERVE:
        manner.console.print("[red]error:[/red] mode is observe: nothing was changed", soft_wrap=True)
        return False
    if manner.yes:
        return True
    return await ask(lambda: typer.confirm("Do it?", err=True))


def _show(intent: Intent, console: Console) -> None:
    _show_facts(intent.facts, console)
    for note in intent.notes:
        console.print(f"[yellow]note:[/yellow] {_safe(note)}", soft_wrap=True)
    if intent.refusal:
        console.print(f"[red]refused:[/red] {_safe(intent.refusal)}", soft_wrap=True)
        return
    for number, step in enumerate(intent.steps, 1):
        console.print(f"{number}. {_safe(step)}", soft_wrap=True)
    if not intent.steps:
        console.print("nothing to do", soft_wrap=True)


def _show_facts(facts: Mapping[str, Any], console: Console) -> None:
    for name, value in facts.items():
        console.print(f"{escape(name.replace('_', ' '))}: {_safe(_shown(value))}", soft_wrap=True)


def _safe(text: str) -> str:
    """Escape markup and control characters, which names of topics and clients may contain."""
    return escape(printable(text))


def _shown(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{key}={one}" for key, one in value.items()) or "none"


def _document(intent: Intent, *, done: bool) -> dict[str, Any]:
    return {
        **intent.facts,
        **intent.details,
        **({} if intent.complete is None else {"complete": intent.complete}),
        "steps": list(intent.steps),
        "notes": list(intent.notes),
        "refusal": intent.refusal or None,
        "done": done,
    }

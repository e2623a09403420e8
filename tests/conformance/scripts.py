"""What is known to go wrong beside a broker, and all edges of it."""

from __future__ import annotations

from tests.conformance.script import (
    END,
    Configure,
    DeleteRecords,
    End,
    Kill,
    Lead,
    LeadUncleanly,
    LoseCheckpoints,
    LoseReplica,
    MoveLogDir,
    Produce,
    Script,
    Start,
    Stop,
)

_THREE = (1, 2, 3)
_TWO = (1, 2)
"""The third broker is of the quorum only."""
_FILL = Produce(batches=4, size=200)
"""270 bytes each: a segment and the beginning of the next."""
_RESTART = (Stop(), Start())
_CRASH = (Kill(), Start())
_A, _B = Produce(producer="a", size=200), Produce(producer="b", size=200)
_LOST = (_FILL, _A, _FILL, End("a"), _FILL)
"""A transaction that begins in the second segment and is aborted in the third."""

ALONE = (
    Script(name="segments roll by size", steps=(Produce(batches=3, size=200), Produce(batches=4, size=300))),
    Script(name="a batch as large as a segment", steps=(Produce(size=930), Produce(size=10), Produce(size=930))),
    Script(name="batches of many records", steps=(Produce(batches=3, records=5, size=60), DeleteRecords(7), _FILL)),
    Script(name="a fetch into the middle of a batch", steps=(Produce(records=9, size=20), DeleteRecords(4))),
    Script(name="timestamps within a batch ascend", steps=(Produce(records=4, size=50, age_s=60, step_ms=1000), _FILL)),
    Script(
        name="timestamps of later batches are earlier",
        steps=(Produce(age_s=10), Produce(age_s=500), Produce(batches=2, size=400, age_s=90), Produce(age_s=1)),
    ),
    Script(
        name="the latest record of a segment is deleted",
        steps=(
            Produce(age_s=90),
            Produce(age_s=1),
            Produce(batches=2, age_s=90),
            Produce(size=700, age_s=60),
            DeleteRecords(2),
        ),
    ),
    Script(
        name="records are deleted up to a segment's border", steps=(_FILL, _FILL, DeleteRecords(3), DeleteRecords(6))
    ),
    Script(name="records are deleted within a segment", steps=(_FILL, _FILL, DeleteRecords(4), DeleteRecords(2))),
    Script(name="all records are deleted", steps=(_FILL, DeleteRecords(END), _FILL, DeleteRecords(END))),
    Script(name="records are deleted beyond the end", steps=(_FILL, DeleteRecords(5), DeleteRecords(4))),
    Script(name="records of an empty log are deleted", steps=(DeleteRecords(END), DeleteRecords(1), _FILL)),
    Script(name="a clean restart", steps=(_FILL, *_RESTART, _FILL, *_RESTART)),
    Script(name="a clean restart within a deleted segment", steps=(_FILL, _FILL, DeleteRecords(4), *_RESTART, _FILL)),
    Script(name="a crash", steps=(_FILL, *_CRASH, _FILL, *_CRASH)),
    Script(
        name="a crash after records were deleted", steps=(_FILL, _FILL, DeleteRecords(4), *_CRASH, DeleteRecords(5))
    ),
    Script(
        name="a crash after a clean restart and another delete",
        steps=(_FILL, _FILL, DeleteRecords(4), *_RESTART, DeleteRecords(5), *_CRASH),
    ),
    Script(
        name="a crash that loses the checkpoints",
        steps=(_FILL, _FILL, DeleteRecords(4), *_RESTART, Kill(), LoseCheckpoints(), Start(), _FILL),
    ),
    Script(
        name="a clean end whose checkpoints are lost",
        steps=(_FILL, _A, _FILL, DeleteRecords(4), Stop(), LoseCheckpoints(), Start(), End("a"), _FILL),
    ),
    Script(name="a transaction is committed", steps=(_A, _A, End("a", commit=True), _FILL)),
    Script(name="a transaction is aborted", steps=(_FILL, _A, _A, End("a"), _FILL)),
    Script(name="a transaction is open", steps=(_FILL, _A, _FILL, _B, End("b"), _FILL)),
    Script(
        name="transactions overlap and end otherwise",
        steps=(_A, _B, _A, End("b"), _FILL, _B, End("a", commit=True), _FILL, End("b"), _FILL),
    ),
    Script(name="an abort in a later segment", steps=(*_LOST, _FILL)),
    Script(name="an abort of what was deleted", steps=(_FILL, _A, _FILL, DeleteRecords(6), End("a"), _FILL, _FILL)),
    Script(name="an open transaction below the log start", steps=(_A, _FILL, DeleteRecords(END), _FILL, _B, End("b"))),
    Script(
        name="an open transaction below the log start, and a clean restart",
        steps=(_A, _FILL, DeleteRecords(4), *_RESTART, End("a"), _FILL, _FILL),
    ),
    Script(
        name="an open transaction below the log start, and a crash",
        steps=(_A, _FILL, DeleteRecords(4), *_CRASH, End("a"), _FILL, _FILL),
    ),
    Script(name="an aborted transaction and a clean restart", steps=(*_LOST, *_RESTART, _FILL)),
    Script(name="an aborted transaction and a crash", steps=(*_LOST, *_CRASH, _FILL)),
    Script(
        name="a clean restart after a trim, then a crash, with a transaction across the border",
        steps=(_FILL, _A, Produce(size=800), End("a"), DeleteRecords(5), *_RESTART, *_CRASH, _FILL, _FILL),
    ),
    Script(
        name="an open transaction across a clean restart and a crash",
        steps=(_A, _FILL, *_RESTART, _FILL, *_CRASH, End("a"), _FILL, _FILL),
    ),
    Script(
        name="an open transaction whose beginning is trimmed, a clean restart and a crash",
        steps=(_A, _FILL, _FILL, DeleteRecords(6), *_RESTART, *_CRASH, _FILL, End("a"), _FILL, _FILL),
    ),
    Script(name="a move to the other log dir", steps=(_FILL, _FILL, MoveLogDir(), _FILL, MoveLogDir())),
    Script(
        name="a move in an epoch in which nothing was written",
        steps=(_FILL, _FILL, *_RESTART, MoveLogDir(), *_RESTART, MoveLogDir(), _FILL),
    ),
    Script(
        name="an empty log is moved, led anew and moved again", steps=(MoveLogDir(), *_RESTART, MoveLogDir(), _FILL)
    ),
    Script(
        name="a move of a log that begins within a segment", steps=(_FILL, _FILL, DeleteRecords(4), MoveLogDir(), _FILL)
    ),
    Script(
        name="a move of a log that begins within a batch",
        steps=(_FILL, Produce(batches=4, records=5, size=40), DeleteRecords(12), MoveLogDir(), _FILL),
    ),
    Script(name="a move of an empty log", steps=(MoveLogDir(), _FILL, DeleteRecords(END), MoveLogDir(), _FILL)),
    Script(
        name="a move with a transaction open across the border",
        steps=(_FILL, _A, _FILL, DeleteRecords(6), MoveLogDir(), End("a"), _FILL, _FILL),
    ),
    Script(
        name="a move after an abort whose records were trimmed",
        steps=(*_LOST, _FILL, DeleteRecords(6), MoveLogDir(), _FILL),
    ),
    Script(
        name="a move with all of a transaction", steps=(*_LOST, MoveLogDir(), _FILL, _A, MoveLogDir(), End("a"), _FILL)
    ),
    Script(
        name="a move and a crash", steps=(_FILL, _A, _FILL, DeleteRecords(5), MoveLogDir(), *_CRASH, End("a"), _FILL)
    ),
    Script(name="a move after a restart", steps=(_FILL, *_RESTART, MoveLogDir(), _FILL)),
    Script(
        name="retention by time is set and reset",
        steps=(
            Produce(batches=7, size=200, age_s=7200),
            Produce(batches=3, size=200),
            Configure({"retention.ms": "3600000"}),
            Configure({"retention.ms": "-1"}),
            _FILL,
        ),
    ),
    Script(
        name="retention by time takes the active segment",
        steps=(Produce(batches=5, size=200, age_s=7200), Configure({"retention.ms": "3600000"}), _FILL),
    ),
    Script(
        name="retention by time stops at a segment that is young",
        steps=(
            Produce(batches=3, size=200, age_s=7200),
            Produce(batches=3, size=200),
            Produce(batches=6, size=200, age_s=7200),
            Configure({"retention.ms": "3600000"}),
        ),
    ),
    Script(
        name="retention by size is set and reset",
        steps=(
            _FILL,
            _FILL,
            _FILL,
            Configure({"retention.bytes": "1000"}),
            _FILL,
            Configure({"retention.bytes": "-1"}),
            _FILL,
        ),
    ),
    Script(
        name="retention takes the records of an open transaction",
        steps=(_A, _FILL, _FILL, _FILL, Configure({"retention.bytes": "900"}), End("a"), _FILL, _FILL),
    ),
)

TOGETHER = (
    Script(
        name="three replicas roll alike", replicas=_THREE, steps=(_FILL, _FILL, DeleteRecords(4), _A, End("a"), _FILL)
    ),
    Script(name="another leader", replicas=_THREE, steps=(_FILL, Lead(2), _FILL, Lead(1), Lead(3), _FILL, _FILL)),
    Script(
        name="another leader of a trimmed log with an open transaction",
        replicas=_THREE,
        steps=(_A, _FILL, DeleteRecords(4), Lead(2), End("a"), _FILL, _FILL),
    ),
    Script(
        name="a replaced disk, whose replica leads",
        replicas=_THREE,
        steps=(_FILL, _A, _FILL, DeleteRecords(6), Stop(2), LoseReplica(2), Start(2), Lead(2), End("a"), _FILL, _FILL),
    ),
    Script(
        name="a follower that stays behind the log start",
        replicas=_THREE,
        steps=(_FILL, Stop(3), _A, _FILL, _FILL, DeleteRecords(8), Start(3), Lead(3), End("a"), _FILL, _FILL),
    ),
    Script(
        name="the leader's broker stops and comes back",
        replicas=_THREE,
        steps=(_FILL, _A, Stop(1), _FILL, Start(1), End("a"), _FILL, _FILL),
    ),
    Script(
        name="a replaced disk of a log that begins within a batch",
        replicas=_THREE,
        steps=(
            Produce(batches=6, records=5, size=40),
            DeleteRecords(12),
            Stop(2),
            LoseReplica(2),
            Start(2),
            Lead(2),
            _FILL,
        ),
    ),
    Script(
        name="a follower crashes and comes back",
        replicas=_THREE,
        steps=(_FILL, _A, DeleteRecords(4), Kill(2), _FILL, Start(2), End("a"), Lead(2), _FILL, _FILL),
    ),
    Script(
        name="an unclean election within a segment",
        replicas=_TWO,
        steps=(_FILL, _FILL, Stop(2), _FILL, Stop(1), Start(2), LeadUncleanly(2), _FILL, Start(1), _FILL),
    ),
    Script(
        name="an unclean election at a segment's border",
        replicas=_TWO,
        steps=(
            Produce(batches=3, size=200),
            Stop(2),
            _FILL,
            Kill(1),
            Start(2),
            LeadUncleanly(2),
            Produce(),
            Start(1),
            _FILL,
        ),
    ),
    Script(
        name="an unclean election takes the abort of a transaction away",
        replicas=_TWO,
        steps=(
            _FILL,
            _A,
            Stop(2),
            _B,
            End("b"),
            _FILL,
            Kill(1),
            Start(2),
            LeadUncleanly(2),
            _FILL,
            Start(1),
            End("a"),
            _FILL,
            Lead(1),
            _FILL,
        ),
    ),
    Script(
        name="an unclean election of a broker that is behind the log start",
        replicas=_TWO,
        steps=(
            _FILL,
            Stop(2),
            _FILL,
            _FILL,
            DeleteRecords(9),
            Stop(1),
            Start(2),
            LeadUncleanly(2),
            Produce(),
            Start(1),
            _FILL,
        ),
    ),
)

SCRIPTS = (*ALONE, *TOGETHER)

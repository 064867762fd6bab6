"""Transactional ids in each state that a coordinator knows, and each request for them, over the wire: to a
server of segstore's or to a real broker, which are then held against one table.

Each pair of a state and a request has a transactional id of its own: all are brought into their states first,
so that time-outs and a restart come once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sent import of_producer
from waiting import until
from wire_client import WireClient

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

TOPIC, HELD = "t", "held"
"""The end of a transaction can be written into the first one, and can't into the second one."""
PARTITIONS = 2
TXN = 0x10
LONG, SHORT = 600_000, 1
"""Time-outs of transactions in ms; the short one is over at the coordinator's next look."""
_ADD = structs("AddPartitionsToTxnRequest").AddPartitionsToTxnTopic
_COMMIT = structs("TxnOffsetCommitRequest")
_PRODUCE = structs("ProduceRequest")
_NEW = structs("CreateTopicsRequest")

Identity = tuple[int, int]
CURRENT, PREVIOUS, NEXT = "current", "previous", "next"
EPOCHS = {CURRENT: 0, PREVIOUS: -1, NEXT: 1}


class Answer(NamedTuple):
    """The code, and by how much the epoch that is answered is above the producer's, None where none is; a
    producer id of another generation is "new".
    """

    code: Code
    epoch: int | str | None = None


class Transactions:
    """Clients of one server: what they ask is asked again where a transaction is still being ended, but for
    `once`.
    """

    def __init__(self, host: str, port: int) -> None:
        self.wire = WireClient(host, port)

    def close(self) -> None:
        self.wire.close()

    # --- requests -------------------------------------------------------------------------------

    def init(
        self, name: str, version: int = 5, me: Identity = (-1, -1), timeout_ms: int = LONG
    ) -> tuple[Code, Identity]:
        fields: dict[str, Any] = {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
        if version >= 3:
            fields |= {"producer_id": me[0], "producer_epoch": me[1]}
        answer = self.wire.ask("InitProducerId", version, **fields)
        return Code(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def add(self, name: str, me: Identity, topic: str = TOPIC, partition: int = 0) -> Code:
        answer = self.wire.ask(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=me[0],
            v3_and_below_producer_epoch=me[1],
            v3_and_below_topics=[_ADD(name=topic, partitions=[partition])],
        )
        (found,) = answer.results_by_topic_v3_and_below
        return Code(found.results_by_partition[0].partition_error_code)

    def add_offsets(self, name: str, me: Identity) -> Code:
        asked = {"transactional_id": name, "producer_id": me[0], "producer_epoch": me[1], "group_id": "g"}
        return Code(self.wire.ask("AddOffsetsToTxn", 4, **asked).error_code)

    def commit_offset(self, name: str, version: int, me: Identity) -> Code:
        part = _COMMIT.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        answer = self.wire.ask(
            "TxnOffsetCommit",
            version,
            transactional_id=name,
            group_id="g",
            producer_id=me[0],
            producer_epoch=me[1],
            topics=[_COMMIT.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
        )
        return Code(answer.topics[0].partitions[0].error_code)

    def produce(self, name: str, version: int, me: Identity, partition: int) -> Code:
        records = of_producer(pid=me[0], epoch=me[1], attributes=TXN)
        part = _PRODUCE.PartitionProduceData(index=partition, records=records)
        topics = [_PRODUCE.TopicProduceData(name=TOPIC, partition_data=[part])]
        fields = {"transactional_id": name, "acks": -1, "timeout_ms": 30_000, "topic_data": topics}
        answer = self.wire.ask("Produce", version, **fields)
        return Code(answer.responses[0].partition_responses[0].error_code)

    def end(self, name: str, version: int, me: Identity, commit: bool) -> tuple[Code, Identity]:
        asked = {"transactional_id": name, "producer_id": me[0], "producer_epoch": me[1]}
        answer = self.wire.ask("EndTxn", version, committed=commit, **asked)
        return Code(answer.error_code), (answer.producer_id, answer.producer_epoch)

    def state(self, name: str) -> str:
        """Return the state's name, "" for an id that is not known."""
        (found,) = self.wire.ask("DescribeTransactions", 0, transactional_ids=[name]).transaction_states
        return "" if found.error_code else str(found.transaction_state)


# --- states -----------------------------------------------------------------------------------------


def _patiently(ask: Callable[[], tuple[Code, Identity]]) -> Identity:
    """Ask again while the last transaction is still being ended, or the coordinator looks for its log."""
    got: list[Identity] = []

    def is_done() -> bool:
        code, made = ask()
        assert code in (Code.NONE, *PASSING), code.name
        got.append(made)
        return code is Code.NONE

    until(is_done)
    return got[-1]


PASSING = (
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
)


def _made(it: Transactions, name: str, timeout_ms: int = LONG) -> Identity:
    """Two producers come, one after the other, so that the last one has an epoch before its own."""
    _patiently(lambda: it.init(name, timeout_ms=timeout_ms))
    return _patiently(lambda: it.init(name, timeout_ms=timeout_ms))


def _ongoing(it: Transactions, name: str, topic: str = TOPIC, timeout_ms: int = LONG) -> Identity:
    me = _made(it, name, timeout_ms)
    _patiently(lambda: (it.add(name, me, topic), me))
    return me


def _ongoing_taken_over(it: Transactions, name: str) -> Identity:
    _ongoing(it, name)
    return _patiently(lambda: it.init(name))


def _ended(version: int, commit: bool, topic: str = TOPIC) -> Callable[[Transactions, str], Identity]:
    def make(it: Transactions, name: str) -> Identity:
        me = _ongoing(it, name, topic)
        code, after = it.end(name, version, me, commit)
        assert code is Code.NONE, code.name
        return after if version >= 5 else me

    return make


def _empty_aborted(it: Transactions, name: str) -> Identity:
    me = _made(it, name)
    code, after = it.end(name, 5, me, False)
    assert code is Code.NONE, code.name
    return after


def _again(version: int) -> Callable[[Transactions, str], Identity]:
    """A second transaction is open, behind one that was committed."""

    def make(it: Transactions, name: str) -> Identity:
        me = _ended(version, True)(it, name)
        _patiently(lambda: (it.add(name, me), me))
        return me

    return make


def _timed_out(it: Transactions, name: str) -> Identity:
    return _ongoing(it, name, timeout_ms=SHORT)


def _unknown(it: Transactions, name: str) -> Identity:
    return 10**9, 5


class State(NamedTuple):
    """`make` brings an id into a state and returns the identity that its producer has then; `name` is what
    DescribeTransactions calls it.
    """

    make: Callable[[Transactions, str], Identity]
    name: str


STATES: dict[str, State] = {
    "unknown": State(_unknown, ""),
    "empty": State(_made, "Empty"),
    "ongoing": State(_ongoing, "Ongoing"),
    "ongoing again, v4": State(_again(4), "Ongoing"),
    "ongoing again, v5": State(_again(5), "Ongoing"),
    "taken over while ongoing": State(_ongoing_taken_over, "Empty"),
    "prepare commit, v4": State(_ended(4, True, HELD), "PrepareCommit"),
    "prepare commit, v5": State(_ended(5, True, HELD), "PrepareCommit"),
    "prepare abort, v4": State(_ended(4, False, HELD), "PrepareAbort"),
    "prepare abort, v5": State(_ended(5, False, HELD), "PrepareAbort"),
    "complete commit, v4": State(_ended(4, True), "CompleteCommit"),
    "complete commit, v5": State(_ended(5, True), "CompleteCommit"),
    "complete abort, v4": State(_ended(4, False), "CompleteAbort"),
    "complete abort, v5": State(_ended(5, False), "CompleteAbort"),
    "abort of nothing, v5": State(_empty_aborted, "CompleteAbort"),
    "timed out": State(_timed_out, "CompleteAbort"),
}


# --- requests ---------------------------------------------------------------------------------------

Told = tuple[Code, Identity | None]
Request = Callable[[Transactions, str, Identity], Told]


def _with_epochs(name: str, ask: Request) -> dict[str, Request]:
    def shifted(by: int) -> Request:
        return lambda it, transactional_id, me: ask(it, transactional_id, (me[0], me[1] + by))

    return {f"{name}, {epoch} epoch": shifted(by) for epoch, by in EPOCHS.items()}


def _end(version: int, commit: bool) -> Request:
    return lambda it, name, me: it.end(name, version, me, commit)


REQUESTS: dict[str, Request] = {
    "InitProducerId v3, anew": lambda it, name, me: it.init(name, 3),
    "InitProducerId v5, anew": lambda it, name, me: it.init(name, 5),
    **_with_epochs("InitProducerId v3", lambda it, name, me: it.init(name, 3, me)),
    **_with_epochs("InitProducerId v5", lambda it, name, me: it.init(name, 5, me)),
    **_with_epochs("AddPartitionsToTxn v3", lambda it, name, me: (it.add(name, me, partition=1), None)),
    **_with_epochs("AddOffsetsToTxn v4", lambda it, name, me: (it.add_offsets(name, me), None)),
    **_with_epochs("TxnOffsetCommit v3", lambda it, name, me: (it.commit_offset(name, 3, me), None)),
    **_with_epochs("TxnOffsetCommit v5", lambda it, name, me: (it.commit_offset(name, 5, me), None)),
    **_with_epochs("Produce v11, own", lambda it, name, me: (it.produce(name, 11, me, 0), None)),
    **_with_epochs("Produce v12, own", lambda it, name, me: (it.produce(name, 12, me, 0), None)),
    **_with_epochs("Produce v11, another", lambda it, name, me: (it.produce(name, 11, me, 1), None)),
    **_with_epochs("Produce v12, another", lambda it, name, me: (it.produce(name, 12, me, 1), None)),
    **_with_epochs("EndTxn v4 commit", _end(4, True)),
    **_with_epochs("EndTxn v4 abort", _end(4, False)),
    **_with_epochs("EndTxn v5 commit", _end(5, True)),
    **_with_epochs("EndTxn v5 abort", _end(5, False)),
}


def settled(it: Transactions, ask: Request, name: str, me: Identity, state: State) -> Told:
    """Ask; while the answer is that a transaction is being ended, ask again, unless the state is one in which
    that stays so.
    """
    told: list[Told] = []

    def is_told() -> bool:
        told.append(ask(it, name, me))
        return told[-1][0] not in PASSING or state.name.startswith("Prepare")

    until(is_told)
    return told[-1]


def answer_of(told: Told, me: Identity) -> Answer:
    code, identity = told
    if identity is None or identity == (-1, -1):
        return Answer(code)
    return Answer(code, identity[1] - me[1] if identity[0] == me[0] else "new")


def prepare(it: Transactions) -> None:
    """Make the topics."""
    kind = _NEW.CreatableTopicConfig
    topics = [
        _NEW.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1),
        _NEW.CreatableTopic(
            name=HELD,
            num_partitions=PARTITIONS,
            replication_factor=1,
            configs=[kind(name="max.message.bytes", value="10")],
        ),
    ]
    answer = it.wire.ask("CreateTopics", 7, topics=topics, timeout_ms=30_000)
    assert [each.error_code for each in answer.topics] == [0, 0]
    await_coordinators(it)


def await_coordinators(it: Transactions) -> None:
    """Wait until the coordinators of transactions and of groups are there."""

    def are_there() -> bool:
        codes = []
        for kind, key in ((0, "g"), (1, "x")):
            found = it.wire.ask("FindCoordinator", 4, key_type=kind, coordinator_keys=[key]).coordinators
            codes.append(found[0].error_code)
        return not any(codes)

    until(are_there)


Cell = tuple[str, str]
Producers = dict[Cell, Identity]


def id_of(cell: Cell) -> str:
    """Return the transactional id of a state and a request."""
    return "/".join(cell)


def bring(it: Transactions, states: Iterable[str] = STATES) -> Producers:
    """Bring an id for each request into each of the states, and wait until the server says so. Those that are
    held come last: a broker may take up what can't be ended with what can.
    """
    made: Producers = {}
    for state in sorted(states, key=lambda each: STATES[each].name.startswith("Prepare")):
        cells = [(state, request) for request in REQUESTS]
        made |= {cell: STATES[state].make(it, id_of(cell)) for cell in cells}
        for cell in cells:
            await_state(it, cell, STATES[state].name)
    return made


def await_state(it: Transactions, cell: Cell, name: str) -> None:
    """Wait until the server says that an id is in a state, as a broker writes markers in its own time."""
    until(lambda: it.state(id_of(cell)) == name)


def ask_all(it: Transactions, cells: Producers) -> dict[Cell, Answer]:
    """Ask each request once."""
    found = {}
    for (state, request), me in cells.items():
        told = settled(it, REQUESTS[request], id_of((state, request)), me, STATES[state])
        found[state, request] = answer_of(told, me)
    return found

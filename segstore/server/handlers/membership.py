"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: remote members of classic groups.

JoinGroup and SyncGroup wait for the other members: the coordinator returns a ticket, an object that gets a
result later. When the ticket has its result, the loop's thread sends the answer. Threads: handlers run in the
loop's thread and call the group coordinator in worker threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from segstore.coordinator.group.classic.member import JoinGroupResult, Joining, Ticket
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared
from segstore.errors import InconsistentGroupProtocolError, MemberIdRequiredError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Later, Request

from .coordinating import coordinated, coordinator_code
from .working import guarded, work

_Joined = structs("JoinGroupResponse")
_Synced = structs("SyncGroupResponse")
_Beaten = structs("HeartbeatResponse")
_Left = structs("LeaveGroupResponse")


def _groups(node: Node) -> GroupCoordinator:
    return shared(node.store, GroupCoordinator)


def _when_done(
    node: Node,
    request: Request,
    ask: Callable[[], Ticket[Any]],
    done: Callable[[Any], Any],
    failed: Callable[[BaseException], Any],
) -> Later:
    """Answer with `done(result)`; `result` is that of the ticket that `ask` returns. If `ask`, the ticket or
    `done` raises an error, answer with `failed(error)`.
    """

    def send(ticket: Ticket[Any]) -> None:
        try:
            answer = done(ticket.get())
        except Exception as error:
            answer = failed(error)
        request.answer(answer)

    send_guarded = guarded(request, send)

    def asked(result: Ticket[Any] | BaseException) -> None:
        if isinstance(result, BaseException):
            request.answer(failed(result))
        else:
            result.when_done(lambda: node.loop.soon(partial(send_guarded, result)))

    return work(node, request, ask, asked, waits=True)


# --- JoinGroup -----------------------------------------------------------------------------------

# The first versions of JoinGroup that implement KIP-394, KIP-559 and KIP-814.
_NEEDS_ID, _HAS_TYPE, _SKIPS = 4, 7, 9


def join_group(node: Node, request: Request) -> Later:
    """Let a member join its group. The answer is sent when all members of the group have joined."""
    body, joining = request.body, _joining(node, request)
    return _when_done(
        node,
        request,
        lambda: _groups(node).join(body.group_id, joining),
        lambda joined: _place(joined, joining),
        lambda error: _refused(request, error),
    )


def _joining(node: Node, request: Request) -> Joining:
    """Return the values of a JoinGroup request as a `Joining`, which the coordinator takes."""
    body, version = request.body, request.version
    rebalance_ms = body.rebalance_timeout_ms
    return Joining(
        protocols=tuple((each.name, each.metadata) for each in body.protocols),
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        client_id=request.client_id or "",
        client_host=f"/{request.channel.peer}",
        session_timeout_ms=body.session_timeout_ms,
        # Version 0 of the request has no rebalance timeout, so the session timeout is used (Kafka:
        # JoinGroupRequest).
        rebalance_timeout_ms=body.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
        protocol_type=body.protocol_type,
        initial_delay_ms=node.config.group_initial_rebalance_delay_ms,
        needs_member_id=version >= _NEEDS_ID,
        skips_assignment=version >= _SKIPS,
    )


def _place(joined: JoinGroupResult, joining: Joining) -> Any:
    members = [
        _Joined.JoinGroupResponseMember(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            metadata=each.subscription,
        )
        for each in joined.members
    ]
    return _Joined(
        generation_id=joined.generation,
        protocol_type=joining.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=members,
    )


def _refused(request: Request, error: BaseException) -> Any:
    needs_id = isinstance(error, MemberIdRequiredError)
    return _Joined(
        error_code=coordinator_code(error),
        protocol_name=None if request.version >= _HAS_TYPE else "",
        member_id=error.member_id if needs_id else request.body.member_id,  # type: ignore[attr-defined]
    )


# --- SyncGroup -----------------------------------------------------------------------------------

_NAMES_PROTOCOL = 5


def sync_group(node: Node, request: Request) -> Later:
    """Answer with a member's assignment when the group's leader has sent the assignments of all members."""
    body = request.body

    def ask() -> Ticket[bytes]:
        if request.version >= _NAMES_PROTOCOL and None in (body.protocol_type, body.protocol_name):
            raise InconsistentGroupProtocolError("a SyncGroup must name the group's protocol and its type")
        return _groups(node).sync(
            body.group_id,
            body.member_id,
            body.generation_id,
            body.protocol_name,
            {each.member_id: each.assignment for each in body.assignments},
            body.group_instance_id,
            body.protocol_type,
        )

    def assigned(assignment: bytes) -> Any:
        return _Synced(
            protocol_type=body.protocol_type, protocol_name=body.protocol_name, assignment=assignment
        )

    def failed(error: BaseException) -> Any:
        code = coordinator_code(error)
        # Clients don't know COORDINATOR_LOAD_IN_PROGRESS in a SyncGroup answer. The answer is
        # REBALANCE_IN_PROGRESS instead, as in brokers before Kafka 4, because this code makes clients join
        # again.
        loads = code is Code.COORDINATOR_LOAD_IN_PROGRESS
        return _Synced(error_code=Code.REBALANCE_IN_PROGRESS if loads else code)

    return _when_done(node, request, ask, assigned, failed)


# --- Heartbeat, LeaveGroup -----------------------------------------------------------------------


def heartbeat(node: Node, request: Request) -> Later:
    """Extend a member's session."""
    body = request.body

    def run() -> Any:
        _groups(node).heartbeat(body.group_id, body.member_id, body.generation_id, body.group_instance_id)
        return _Beaten()

    def failed(code: Code) -> Any:
        # As in Kafka, the answer has no error while groups are being loaded, because clients don't know
        # COORDINATOR_LOAD_IN_PROGRESS in a Heartbeat answer.
        return _Beaten(error_code=Code.NONE if code is Code.COORDINATOR_LOAD_IN_PROGRESS else code)

    return coordinated(node, request, run, failed)


_MANY_LEAVE = 3


def leave_group(node: Node, request: Request) -> Later:
    """Remove one member, or from version 3 on several members, each with its own error code (KIP-345)."""
    body = request.body
    if request.version >= _MANY_LEAVE:
        leaving = [(each.member_id, each.group_instance_id) for each in body.members]
    else:
        leaving = [(body.member_id, None)]

    def run() -> Any:
        found = _groups(node).leave_all(body.group_id, leaving)
        codes = [Code.NONE if error is None else coordinator_code(error) for error in found]
        if request.version < _MANY_LEAVE:
            return _Left(error_code=codes[0])
        members = [
            _Left.MemberResponse(member_id=member_id, group_instance_id=instance, error_code=code)
            for (member_id, instance), code in zip(leaving, codes, strict=True)
        ]
        return _Left(members=members)

    return coordinated(node, request, run, lambda code: _Left(error_code=code))


HANDLERS = {
    Api.JOIN_GROUP: join_group,
    Api.SYNC_GROUP: sync_group,
    Api.HEARTBEAT: heartbeat,
    Api.LEAVE_GROUP: leave_group,
}

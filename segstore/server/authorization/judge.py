"""Judges: functions that authorize requests, and `whole` and `parts`, which make the judges of most APIs.

A judge does one of three things: it allows the request; it returns an answer, and the handler is not called;
or it removes the denied items from the request, and returns a `Mend`, which adds the errors of these items to
the handler's answer. Threads: the loop's thread; a `Mend` is called when the handler answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from segstore.protocol.codec import Struct
from segstore.protocol.error_codes import Code
from segstore.server.authorized import AclOperation
from segstore.server.error_answers import error_answer
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.security.allow_list import CLUSTER_NAME, ResourceType
from segstore.server.security.authorizer import Authorizer

DENIED = {
    ResourceType.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

MESSAGES = {
    Code.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    Code.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    Code.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


def denial(request: Request, code: Code) -> Any:
    """Return an answer with the error code for every item of a request."""
    return error_answer(request, code, MESSAGES.get(code))


class Caller(NamedTuple):
    """The principal that has sent a request, with the node and the authorizer."""

    node: Node
    authorizer: Authorizer
    principal: str

    def may(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the caller is allowed an operation on a resource."""
        return self.authorizer.allows(self.principal, operation, resource, name)

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the caller is allowed on a resource, as bits."""
        return self.authorizer.operations(self.principal, resource, name)


Mend = Callable[[Any], Any]
"""(the handler's answer) -> the changed answer. If the client expects no answer (acks=0), the handler's
answer is None, and the changed answer too.
"""
Verdict = Any
"""The result of a judge: None if the request is allowed; a `Mend` if the handler's answer must be changed; a
struct if the handler must not be called, and the struct is the answer.
"""
Judge = Callable[[Caller, Request], Verdict]
Name = Callable[[Caller, Any], "str | None"]
"""(caller, item of a request) -> name of the item's resource, or None if the item needs no check."""


def free(_caller: Caller, _request: Request) -> Verdict:
    """Allow a request to everybody."""
    return None


def whole(
    operation: AclOperation, resource: ResourceType, name: Callable[[Any], str] = lambda body: CLUSTER_NAME
) -> Judge:
    """Return a judge of requests about one resource; `name(body)` returns the name of that resource."""

    def judge(caller: Caller, request: Request) -> Verdict:
        if caller.may(operation, resource, name(request.body)):
            return None
        return denial(request, DENIED[resource])

    return judge


def parts(
    operation: AclOperation, resource: ResourceType, request_field: str, answer_field: str, name: Name
) -> Callable[[Caller, Request], Mend | None]:
    """Return a judge of requests that have a list of items in `request_field`. The judge removes denied
    items from the request; the judge's `Mend` adds these items with an error to the list `answer_field` of
    the answer. `name` returns the name of an item's resource.
    """

    def judge(caller: Caller, request: Request) -> Mend | None:
        def denied(each: Any) -> bool:
            found = name(caller, each)
            return found is not None and not caller.may(operation, resource, found)

        return part(request, request_field, answer_field, denied, DENIED[resource])

    return judge


def part(
    request: Request, request_field: str, answer_field: str, denied: Callable[[Any], bool], code: Code
) -> Mend | None:
    """Remove denied items from a request. Return a `Mend` that adds these items with an error to the answer,
    or None if no item is denied.
    """
    wanted = getattr(request.body, request_field) or []
    out = [each for each in wanted if denied(each)]
    if not out:
        return None
    body = copy.copy(request.body)
    setattr(body, request_field, out)
    refused = getattr(denial(copied(request, body), code), answer_field)
    request.body = copy.copy(request.body)
    setattr(request.body, request_field, [each for each in wanted if not denied(each)])

    def mend(answer: Any) -> Any:
        if answer is not None:
            setattr(answer, answer_field, [*getattr(answer, answer_field), *refused])
        return answer

    return mend


def copied(request: Request, body: Any) -> Request:
    """Return a copy of a request in which `body` replaces the request's body."""
    made = copy.copy(request)
    made.body = body
    return made


def both(*judges: Judge) -> Judge:
    """Return a new judge, which calls `judges` in order. If one of them returns an answer, the new judge
    returns this answer at once. If none of them returns an answer, the new judge returns a `Mend` that calls
    the `Mend`s of all `judges`, or None if all of them returned None.
    """

    def judge(caller: Caller, request: Request) -> Verdict:
        mends: list[Mend] = []
        for each in judges:
            verdict = each(caller, request)
            if isinstance(verdict, Struct):
                return verdict
            if verdict is not None:
                mends.append(verdict)
        return _one_after_another(mends) if mends else None

    return judge


def _one_after_another(mends: list[Mend]) -> Mend:
    def mend(answer: Any) -> Any:
        for each in mends:
            answer = each(answer)
        return answer

    return mend


def of(field: str) -> Callable[[Any], str]:
    """Return a function that returns the value of `field` in a request's body, or "" if the value is null."""
    return lambda body: getattr(body, field) or ""


def named(field: str) -> Callable[[Caller, Any], str | None]:
    """Return a `Name`: a function that returns the value of `field` in an item as the name of the item's
    resource.
    """
    return lambda caller, each: getattr(each, field)


def by_id(caller: Caller, topic: Any) -> str | None:
    """Return the name of the topic with the item's topic id. Return None if no topic has the id: the item
    then needs no check, because the handler refuses the id.
    """
    return caller.node.part(Logs).name_of(topic.topic_id)


def by_id_since(version: int, judge: Callable[[Name], Judge]) -> Judge:
    """Return a judge of requests that have topic ids from `version` on, and topic names in earlier
    versions.
    """
    of_names, of_ids = judge(named("name")), judge(by_id)
    return lambda caller, request: (of_ids if request.version >= version else of_names)(caller, request)


def itself(_caller: Caller, each: Any) -> str | None:
    """Return an item that is itself the name of a resource."""
    return str(each)

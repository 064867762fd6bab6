"""What a judge is, and the two kinds that most APIs need. A judge looks at a request: it answers in place of
the handler, or takes out of the request what its client may not do and puts errors for that into the answer
later, or both leave alone.

Threads: the loop's; what mends an answer may be called in the loop's thread later.
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
    """Return the answer that denies all that a request asks for."""
    return error_answer(request, code, MESSAGES.get(code))


class Caller(NamedTuple):
    """Who asks. `node` is what is asked."""

    node: Node
    authorizer: Authorizer
    principal: str

    def may(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the caller may do something with a resource."""
        return self.authorizer.allows(self.principal, operation, resource, name)

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return all that the caller may do with a resource, as bits."""
        return self.authorizer.operations(self.principal, resource, name)


Mend = Callable[[Any], Any]
"""Returns what becomes of the handler's answer, which is None where there is none."""
Verdict = Any
"""A structure is the answer, and the handler is not called; a Mend is called with the handler's answer; None
leaves all as it is.
"""
Judge = Callable[[Caller, Request], Verdict]
Name = Callable[[Caller, Any], "str | None"]
"""Gives the name of an element's resource; None leaves the element to the handler."""


def free(_caller: Caller, _request: Request) -> Verdict:
    """Let everybody ask."""
    return None


def whole(
    operation: AclOperation, resource: ResourceType, name: Callable[[Any], str] = lambda body: CLUSTER_NAME
) -> Judge:
    """Return the judge of requests that are about one resource, whose name is in the request's body."""

    def judge(caller: Caller, request: Request) -> Verdict:
        if caller.may(operation, resource, name(request.body)):
            return None
        return denial(request, DENIED[resource])

    return judge


def parts(
    operation: AclOperation, resource: ResourceType, asked: str, told: str, name: Name
) -> Callable[[Caller, Request], Mend | None]:
    """Return the judge of requests with a list of resources, the field `asked`: those that are denied get an
    error in the field `told` of the answer. `name` gives the name of an element's resource; None leaves it to
    the handler.
    """

    def judge(caller: Caller, request: Request) -> Mend | None:
        def denied(each: Any) -> bool:
            found = name(caller, each)
            return found is not None and not caller.may(operation, resource, found)

        return part(request, asked, told, denied, DENIED[resource])

    return judge


def part(request: Request, asked: str, told: str, denied: Callable[[Any], bool], code: Code) -> Mend | None:
    """Take elements out of a request; what is returned puts their errors into its answer."""
    wanted = getattr(request.body, asked) or []
    out = [each for each in wanted if denied(each)]
    if not out:
        return None
    body = copy.copy(request.body)
    setattr(body, asked, out)
    refused = getattr(denial(copied(request, body), code), told)
    request.body = copy.copy(request.body)
    setattr(request.body, asked, [each for each in wanted if not denied(each)])

    def mend(answer: Any) -> Any:
        if answer is not None:
            setattr(answer, told, [*getattr(answer, told), *refused])
        return answer

    return mend


def copied(request: Request, body: Any) -> Request:
    """Return a request like another, with another body."""
    made = copy.copy(request)
    made.body = body
    return made


def both(*judges: Judge) -> Judge:
    """Return the judge that asks several, in order; the first answer counts."""

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
    """Return what gives a field of a request's body, "" where it is null."""
    return lambda body: getattr(body, field) or ""


def named(field: str) -> Callable[[Caller, Any], str | None]:
    """Return what gives the name of an element, which is a field of it."""
    return lambda caller, each: getattr(each, field)


def by_id(caller: Caller, topic: Any) -> str | None:
    """Return the name of the topic that has an id; the handler knows what to say where there is none."""
    return caller.node.part(Logs).name_of(topic.topic_id)


def by_id_since(version: int, judge: Callable[[Name], Judge]) -> Judge:
    """Return the judge of requests that have topics by their names, and from a version on by their ids."""
    of_names, of_ids = judge(named("name")), judge(by_id)
    return lambda caller, request: (of_ids if request.version >= version else of_names)(caller, request)


def itself(_caller: Caller, each: Any) -> str | None:
    """Return the name of an element that is its name."""
    return str(each)

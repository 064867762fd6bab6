"""The allow list: entries that give principals rights on topics, groups, transactional ids and the cluster,
such as

    User:alice: read,write topic flights*; read group g*; describe cluster

An entry has a principal and clauses. A clause has operations, a type of resource and a pattern: a name, a
prefix that ends in "*", or "*" alone. A clause without operations has the operations of the preceding clause,
except those that do not exist for its type of resource. "User:*" means every principal. There are no
denials: an operation that no entry allows is denied. In Kafka the same rights are ACLs
(org.apache.kafka.common.acl, KIP-290). Threads: any; no state.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from segstore.errors import InvalidArgumentError
from segstore.server.authorized import ALL, AclOperation

USER = "User:"
EVERYBODY = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The resource name of the cluster (Kafka: Resource.CLUSTER_NAME)."""


class ResourceType(IntEnum):
    """The types of resources, with Kafka's codes (org.apache.kafka.common.resource.ResourceType)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5

    @property
    def word(self) -> str:
        """The name of the type in an entry of the allow list."""
        return self.name.lower().replace("_", "-")


class Pattern(IntEnum):
    """The kinds of patterns, with Kafka's codes (org.apache.kafka.common.resource.PatternType)."""

    LITERAL = 3
    PREFIXED = 4


_O = AclOperation
OPERATIONS: dict[ResourceType, frozenset[AclOperation]] = {
    ResourceType.TOPIC: frozenset(
        (
            *(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE),
            *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
        )
    ),
    ResourceType.GROUP: frozenset((_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)),
    ResourceType.CLUSTER: frozenset(
        (
            *(_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS),
            *(_O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE),
        )
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset((_O.WRITE, _O.DESCRIBE)),
}
"""The operations of each resource type (org.apache.kafka.common.acl.AclEntry.supportedOperations)."""
_IMPLIED = {
    _O.DESCRIBE: frozenset((_O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: frozenset((_O.ALTER_CONFIGS,)),
}
"""Operation -> other operations: whoever is allowed one of these is allowed the operation too
(StandardAuthorizerData.IMPLIES_DESCRIBE...).
"""


class Rule(NamedTuple):
    """One clause of an entry. `principal` is the entry's "User:NAME"; `operations` may contain ALL."""

    principal: str
    operations: frozenset[AclOperation]
    resource: ResourceType
    name: str
    pattern: Pattern

    def __str__(self) -> str:
        operations = ",".join(each.name.lower() for each in sorted(self.operations))
        star = "*" if self.pattern is Pattern.PREFIXED else ""
        return f"{self.principal}: {operations} {self.resource.word} {self.name}{star}"

    def is_of(self, principal: str) -> bool:
        """Return whether the clause applies to a principal. `principal` is "User:NAME"."""
        return self.principal in (principal, EVERYBODY)

    def covers(self, name: str) -> bool:
        """Return whether the pattern matches the name of a resource."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, "*")

    def gives(self, operation: AclOperation) -> bool:
        """Return whether the clause has an operation, or another operation that includes this right."""
        held = self.operations
        return ALL in held or operation in held or not held.isdisjoint(_IMPLIED.get(operation, ()))


def rules(entry: str) -> list[Rule]:
    """Return the clauses of an entry. An empty entry and a comment ("#...") have no clauses. Raises
    InvalidArgumentError, whose message shows the faulty part.
    """
    text = entry.strip()
    if not text or text.startswith("#"):
        return []
    principal, colon, clauses = text.partition(": ")
    if not colon or not clauses.strip():
        raise _wrong(entry, 'an entry is "User:NAME: OPERATIONS RESOURCE PATTERN; ..."')
    check_principal(principal)
    found: list[Rule] = []
    for clause in filter(None, map(str.strip, clauses.split(";"))):
        found.append(_rule(entry, principal, clause, found[-1].operations if found else frozenset()))
    return found


def _rule(entry: str, principal: str, clause: str, before: frozenset[AclOperation]) -> Rule:
    words = clause.split()
    kind, pattern, given = _kind(words[-1]), None, words[:-1]
    if len(words) > 1 and _kind(words[-2]) is not None:
        kind, pattern, given = _kind(words[-2]), words[-1], words[:-2]
    if kind is None:
        kinds = ", ".join(each.word for each in ResourceType)
        raise _wrong(entry, f"{clause!r} is no clause OPERATIONS RESOURCE PATTERN: resources are {kinds}")
    operations = _operations(entry, given, kind)
    operations = operations or frozenset(each for each in before if each is ALL or each in OPERATIONS[kind])
    if not operations:
        raise _wrong(entry, f"{clause!r} has no operation: there are {_names(kind)}")
    return Rule(principal, operations, kind, *_pattern(entry, clause, kind, pattern))


def _kind(word: str) -> ResourceType | None:
    return next((each for each in ResourceType if each.word == _word(word)), None)


def _word(text: str) -> str:
    return text.lower().replace("_", "-")


def _operations(entry: str, given: list[str], kind: ResourceType) -> frozenset[AclOperation]:
    found = set()
    for word in filter(None, ",".join(given).split(",")):
        operation = next((each for each in AclOperation if _word(each.name) == _word(word)), None)
        if operation is None or (operation is not ALL and operation not in OPERATIONS[kind]):
            raise _wrong(entry, f"{word!r} is no operation of a {kind.word}: there are {_names(kind)}")
        found.add(operation)
    return frozenset(found)


def _names(kind: ResourceType) -> str:
    return ", ".join(["all", *(_word(each.name) for each in sorted(OPERATIONS[kind]))])


def _pattern(entry: str, clause: str, kind: ResourceType, text: str | None) -> tuple[str, Pattern]:
    if kind is ResourceType.CLUSTER:
        if text not in (None, "*", CLUSTER_NAME):
            raise _wrong(entry, f"{clause!r}: there is one cluster, {CLUSTER_NAME}")
        return CLUSTER_NAME, Pattern.LITERAL
    if text is None:
        raise _wrong(entry, f"{clause!r} has no pattern: a name, a prefix with *, or * alone")
    if text != "*" and text.endswith("*"):
        return text[:-1], Pattern.PREFIXED
    return text, Pattern.LITERAL


def principals(text: str) -> frozenset[str]:
    """Parse a list of principals, "User:alice;User:bob". Raises InvalidArgumentError."""
    found = [each.strip() for each in text.split(";") if each.strip()]
    for each in found:
        check_principal(each)
        if each == EVERYBODY:
            raise InvalidArgumentError(f"{each!r} is no principal of its own: it stands for all")
    return frozenset(found)


def check_principal(text: str) -> None:
    """Raise InvalidArgumentError if the text is not "User:" followed by a name."""
    if not text.startswith(USER) or len(text) == len(USER):
        raise InvalidArgumentError(f'{text!r} is no principal: one is "User:NAME"')


def _wrong(entry: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"allow={entry!r}: {why}")

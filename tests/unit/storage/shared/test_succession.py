"""Promise: who waits for the host's end takes its place, also if the kernel takes the host's locks some time
after its socket; another host is left alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from segstore.errors import StoreLockedError
from segstore.storage.shared.members import SharedMember
from segstore.storage.store.succession import Succession

OLD, NEW = (SharedMember(slot, 100 + slot, "", 0, True, True) for slot in range(2))
CASES: dict[str, tuple[list[SharedMember | None], SharedMember | None, bool]] = {
    "a dying host seems alive": ([OLD, OLD, OLD], OLD, True),
    "it is gone, and its lock is not": ([None, None], OLD, True),
    "another one is faster": ([OLD, NEW], OLD, False),
    "one that nobody has seen hang up": ([OLD], None, False),
}
"""The host at each try in vain, the one that has hung up, and whether this member becomes host."""


class Hosts:
    """Members of which these are the host, one after the other."""

    def __init__(self, hosts: list[SharedMember | None]) -> None:
        self.left = list(hosts)

    def host(self) -> SharedMember | None:
        return self.left.pop(0)


@pytest.mark.parametrize("name", CASES)
def test_a_member_tries_as_long_as_the_host_is_dying(name: str) -> None:
    hosts, gone, expected = CASES[name]
    members: Any = Hosts(hosts)

    def become() -> None:
        if members.left:
            raise StoreLockedError("store", None)

    succession = Succession(None, members, become)  # type: ignore[arg-type]
    assert succession._try(gone) is expected
    assert members.left == []
    succession._ended.open()

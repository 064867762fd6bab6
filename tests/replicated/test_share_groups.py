"""Share groups (KIP-932) in a replicated store: what a group was told is there when its leader is gone, and
after a restart.
"""

from __future__ import annotations

from typing import Any

import pytest
from groups import coordinator
from replicated_stores import Directories, await_in_sync
from share_groups import SharingMember, key, share_info
from waiting import until

from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared
from segstore.errors import RetriableError

pytestmark = pytest.mark.kind("replicated stores")

CONFIG = {"offsets_topic_num_partitions": 1, "share_coordinator_state_topic_num_partitions": 1}


def opened(three: Directories) -> Any:
    store = three.open(min_insync_replicas=2, **CONFIG)
    store.create_topic("t", 3, replication_factor=3, exist_ok=True)
    return store


def joined(member: SharingMember) -> SharingMember:
    def answered() -> bool:
        try:
            member.join()
            return True
        except RetriableError:
            return False

    until(answered)
    return member


@pytest.mark.hangs
def test_a_group_goes_on_when_its_leader_is_gone(three: Directories) -> None:
    store = opened(three)
    a = joined(SharingMember(store, "a"))
    assert a.has == {0, 1, 2}
    led = store.describe_partition(TOPIC, 0).leader
    three.files.hang(three.paths[led])
    until(lambda: store.describe_partition(TOPIC, 0).leader not in (led, -1))
    b = joined(SharingMember(store, "b"))
    three.files.mend()
    assert [member.member_id for member in share_info(store).members] == ["a", "b"]
    assert b.epoch >= 2
    three.close()
    store = opened(three)
    await_in_sync(store)
    wanted = sorted(key(store, number) for number in range(3))
    assert coordinator(store).share_partitions("g") == wanted
    assert shared(store, StateLog).keys_of("g") == wanted
    for member in (a, b):
        member.store = store
        joined(member)
    assert {each.member_id for each in share_info(store).members} == {"a", "b"}

"""`PrimaryClient`: sends a standby's requests, except for fetches, to its primary: the registration of
the standby (Kafka: BrokerRegistration), and the leader epoch under which the standby begins to lead (Kafka:
BeginQuorumEpoch).

Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from typing import Any

from segstore import names
from segstore.choices import SYNC
from segstore.errors import InvalidArgumentError, UnsupportedVersionError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, broker_error
from segstore.protocol.standby_features import FEATURE, SYNC_FEATURE
from segstore.replica_fetcher.source_answers import check_epoch
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.store.primary import STANDBY_ID
from segstore.wire.cluster import Cluster

_EPOCHS = 10
"""The largest number of leader epochs that `begin_epoch` tries if the primary answers each try with a later
epoch.
"""
_REFUSALS = {
    Code.CLUSTER_AUTHORIZATION_FAILED: ", which takes this standby if its setting standby.addresses names"
    " this machine, or its list of rights gives CLUSTER_ACTION",
    Code.DUPLICATE_BROKER_REGISTRATION: ", which has another standby (`demote --standby` ends that)",
    Code.NOT_CONTROLLER: ", which leads no more, or is itself a standby, a mirror or a replicated store",
    Code.INVALID_REQUEST: ", whose standby is in sync mode (`demote --standby` ends that), or which several"
    " processes share: then a standby follows in async mode",
}
"""For each error code of a primary's refusal: an explanation and a remedy."""


class PrimaryClient:
    """A client of the primary. `directory_id` is the random id of the standby's directory. The primary
    recognizes the standby by this id.
    """

    def __init__(self, cluster: Cluster, cluster_id: str, directory_id: str, mode: str) -> None:
        self._cluster, self._cluster_id = cluster, cluster_id
        self._directory_id, self._mode = directory_id, mode

    def register(self) -> int:
        """Register this standby at the primary. Return the broker epoch that the standby's fetches must have.

        Raises the errors of `Cluster.ask`, InvalidArgumentError if the other machine is not a primary of
        segstore, and BrokerError if the primary refuses the registration.
        """
        kind = structs("BrokerRegistrationRequest")
        features = [FEATURE, *([SYNC_FEATURE] if self._mode == SYNC else [])]
        try:
            answer = self._cluster.ask(
                "BrokerRegistration",
                broker_id=STANDBY_ID,
                cluster_id=self._cluster_id,
                incarnation_id=names.topic_id_bytes(self._directory_id),
                features=[
                    kind.Feature(name=name, min_supported_version=1, max_supported_version=1)
                    for name in features
                ],
            )
        except UnsupportedVersionError as error:
            raise InvalidArgumentError(
                f"{self._cluster.bootstrap[0]} is no primary that a standby can follow, which is a store with"
                f' mode "rw" that `segstore serve` serves; `segstore mirror` follows any Kafka: {error}'
            ) from None
        if answer.error_code:
            why = _REFUSALS.get(answer.error_code, "")
            raise broker_error(answer.error_code, f"the registration at {self._cluster.bootstrap[0]}{why}")
        return int(answer.broker_epoch)

    def begin_epoch(self, epoch: int) -> int:
        """Fence the primary. Return the leader epoch under which this standby begins to lead: `epoch`, or a
        later epoch if the primary knows one. Raises UnusableAnswerError, the errors of `Cluster.ask`, and
        BrokerError if the primary refuses, or answers each try with a later epoch.
        """
        for _ in range(_EPOCHS):
            part = self._begin(epoch)
            if part.error_code != Code.FENCED_LEADER_EPOCH:
                break
            check_epoch(part.leader_epoch, self._cluster.bootstrap[0])
            epoch = max(epoch, int(part.leader_epoch)) + 1
        if part.error_code:
            raise broker_error(part.error_code, f"the fence of {self._cluster.bootstrap[0]}")
        return epoch

    def announce(self, epoch: int) -> None:
        """Fence the primary with the leader epoch `epoch`. Raises the errors of `Cluster.ask`, and
        BrokerError if the primary refuses.
        """
        part = self._begin(epoch)
        if part.error_code:
            raise broker_error(part.error_code, f"the fence of {self._cluster.bootstrap[0]}")

    def _begin(self, epoch: int) -> Any:
        kind = structs("BeginQuorumEpochRequest")
        part = kind.PartitionData(
            partition_index=0,
            voter_directory_id=names.topic_id_bytes(self._directory_id),
            leader_id=STANDBY_ID,
            leader_epoch=epoch,
        )
        topic = kind.TopicData(topic_name=CLUSTER_METADATA, partitions=[part])
        answer = self._cluster.ask("BeginQuorumEpoch", cluster_id=self._cluster_id, topics=[topic])
        if answer.error_code:
            raise broker_error(answer.error_code, f"the fence of {self._cluster.bootstrap[0]}")
        return answer.topics[0].partitions[0]

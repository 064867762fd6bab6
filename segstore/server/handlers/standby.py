"""BrokerRegistration, BeginQuorumEpoch, UnregisterBroker: the requests that register a standby, remove it,
and fence its primary (stop the primary's writes) after the standby's promotion (KIP-631, KIP-595; Kafka:
ClusterControlManager.registerBroker, KafkaRaftClient.handleBeginQuorumEpochRequest).

Only clients that the operator allows (`may_change_standby`) register or remove a standby. Only the registered
standby can fence the store, because nobody else knows the random id of its directory.
"""

from __future__ import annotations

from typing import Any

from segstore import names
from segstore.errors import FencedLeaderEpochError, InvalidRequestError, SegstoreError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.protocol.standby_features import FEATURE, SYNC_FEATURE
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.notices import Notices
from segstore.server.primary import may_change_standby, primary_of
from segstore.server.request import Request
from segstore.storage.meta.fence import Fence
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.store.primary import STANDBY_ID

from .working import in_worker

log = Logger("segstore")
_Registered = structs("BrokerRegistrationResponse")
_Begun = structs("BeginQuorumEpochResponse")
_Unregistered = structs("UnregisterBrokerResponse")
_VERSION = 1
_NO_ID = bytes(16)
_UNKNOWN = "the setting standby.addresses does not name that address"


def register(node: Node, request: Request) -> Any:
    """Register a standby durably, if `may_change_standby` allows the client to do so. A standby that is
    already registered may register again from any address.
    """
    is_known, notices = may_change_standby(node, request), node.part(Notices)
    return in_worker(node, request, lambda: _register(node, request, notices, is_known))


def _register(node: Node, request: Request, notices: Notices, is_known: bool) -> Any:
    primary, body, peer = primary_of(node), request.body, request.channel.peer
    features = {each.name: each for each in body.features}
    who = _id(body.incarnation_id), _has(features, SYNC_FEATURE)
    if primary is None or (primary.fence is not None and not primary.hands_over(*who)):
        _warn(notices, peer, "%r can have no standby: it does not lead by itself", node.store)
        return _Registered(error_code=Code.NOT_CONTROLLER)
    if body.cluster_id != node.cluster_id:
        return _Registered(error_code=Code.INCONSISTENT_CLUSTER_ID)
    if body.broker_id != STANDBY_ID or not _has(features, FEATURE) or body.incarnation_id == _NO_ID:
        return _Registered(error_code=Code.INVALID_REQUEST)
    if not is_known and primary.registration.directory_id != who[0]:
        _warn(notices, peer, "%r takes no standby: %s", node.store, _UNKNOWN)
        return _Registered(error_code=Code.CLUSTER_AUTHORIZATION_FAILED, broker_epoch=-1)
    try:
        epoch = primary.register(*who, peer)
    except SegstoreError as error:
        _warn(notices, peer, "a standby was refused: %s", error)
        return _Registered(error_code=code_of(error), broker_epoch=-1)
    return _Registered(broker_epoch=epoch)


def _warn(notices: Notices, peer: str, message: str, *given: object) -> None:
    """Log a refused request, but only at a limited rate, because anybody may send many such requests."""
    notices.log(message, peer, f"{message} (asked by %s)", *given, peer)


def _has(features: dict[str, Any], name: str) -> bool:
    found = features.get(name)
    return found is not None and found.min_supported_version <= _VERSION <= found.max_supported_version


def _id(incarnation: bytes) -> str:
    return names.topic_id_of(incarnation)


def begin_epoch(node: Node, request: Request) -> Any:
    """Fence the store durably: it refuses writes from now on, because its standby leads from the request's
    epoch on. If the store could have a standby, but has none, the connection is closed without an answer.
    """
    primary, notices = primary_of(node), node.part(Notices)
    if primary is not None and not primary.registration.is_there:
        _warn(notices, request.channel.peer, "%r has no standby that could lead", node.store)
        request.channel.close()
        return None
    return in_worker(node, request, lambda: _begin_epoch(node, request, notices))


def _begin_epoch(node: Node, request: Request, notices: Notices) -> Any:
    body = request.body
    if body.cluster_id is not None and body.cluster_id != node.cluster_id:
        return _Begun(error_code=Code.INCONSISTENT_CLUSTER_ID)
    topics = [
        _Begun.TopicData(
            topic_name=topic.topic_name,
            partitions=[_begun(node, request, notices, topic.topic_name, each) for each in topic.partitions],
        )
        for topic in body.topics
    ]
    return _Begun(topics=topics)


def _begun(node: Node, request: Request, notices: Notices, topic: str, asked: Any) -> Any:
    answer = _Begun.PartitionData(partition_index=asked.partition_index, leader_id=-1, leader_epoch=-1)
    if (topic, asked.partition_index) != (CLUSTER_METADATA, 0):
        answer.error_code = Code.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    primary = primary_of(node)
    if primary is None or asked.leader_id != STANDBY_ID:
        answer.error_code = Code.NOT_CONTROLLER if primary is None else Code.INVALID_REQUEST
        return answer
    who = "" if asked.voter_directory_id == _NO_ID else _id(asked.voter_directory_id)
    now = node.store.context.clock()
    fence = Fence(asked.leader_epoch, asked.leader_id, who, now, "it was promoted")
    try:
        primary.demote(fence)
        answer.leader_id, answer.leader_epoch = asked.leader_id, asked.leader_epoch
    except FencedLeaderEpochError:
        answer.error_code, answer.leader_epoch = Code.FENCED_LEADER_EPOCH, primary.largest_epoch()
    except InvalidRequestError as error:
        _warn(notices, request.channel.peer, "%r was not fenced: %s", node.store, error)
        answer.error_code = code_of(error)
    except SegstoreError as error:
        log.error("%r was not fenced: %s", node.store, error)
        answer.error_code = code_of(error)
    return answer


def unregister(node: Node, request: Request) -> Any:
    """Remove the standby's registration, if `may_change_standby` allows the client to do so."""
    if not may_change_standby(node, request):
        why = f"{request.channel.peer}: {_UNKNOWN}"
        return _Unregistered(error_code=Code.CLUSTER_AUTHORIZATION_FAILED, error_message=why)
    return in_worker(node, request, lambda: _unregister(node, request.body))


def _unregister(node: Node, body: Any) -> Any:
    primary = primary_of(node)
    if primary is None:
        return _Unregistered(error_code=Code.NOT_CONTROLLER, error_message="this store has no standby")
    try:
        if body.broker_id == STANDBY_ID and primary.unregister():
            return _Unregistered(error_message=None)
    except SegstoreError as error:
        return _Unregistered(error_code=code_of(error), error_message=str(error))
    why = f"broker {body.broker_id} is not registered"
    return _Unregistered(error_code=Code.BROKER_ID_NOT_REGISTERED, error_message=why)


HANDLERS = {
    Api.BROKER_REGISTRATION: register,
    Api.BEGIN_QUORUM_EPOCH: begin_epoch,
    Api.UNREGISTER_BROKER: unregister,
}

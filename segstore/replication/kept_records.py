"""What the layers above have a replicated store keep beside its topics: settings of groups, as Kafka keeps
them, and settings of the cluster, of segstore's own names (Kafka has ClientQuotaRecord and ProducerIdsRecord
for them).

On disk are ConfigRecords in the metadata log: the files of one directory would be lost with it, or come back
older. A copy of the limits and of the credentials lies in each directory that works, for who reads that by
itself. Threads: any; who
changes a value has a lock for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from segstore.config import GroupConfig
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.replication.core.controller import Controller
from segstore.replication.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, MetadataImage
from segstore.replication.metadata.records import ConfigRecord, MetadataRecord
from segstore.replication.quorum_controller import Decision, QuorumController
from segstore.replication.replica_manager import ReplicaManager
from segstore.storage.meta import sealed_file
from segstore.storage.meta.client_quotas import QUOTAS, Entity, Limits
from segstore.storage.meta.client_quotas import from_json as limits_of
from segstore.storage.meta.client_quotas import to_json as limits_json
from segstore.storage.meta.group_configs import GROUP_CONFIGS, GroupConfigs
from segstore.storage.meta.scram_credentials import SCRAM, Credentials, from_json, to_json

LIMITS = "segstore.client.quotas"
PRODUCER_ID = "segstore.next.producer.id"
CREDENTIALS = "segstore.scram.credentials"


class KeptRecords:
    """See `storage.store.kept_files.Keeping`."""

    def __init__(self, controller: QuorumController, manager: ReplicaManager) -> None:
        self._controller, self._manager = controller, manager

    def limits(self) -> Limits:
        """See `Keeping`."""
        return limits_in(self._controller.image)

    def set_limits(self, limits: Mapping[Entity, Mapping[str, int]]) -> None:
        """See `Keeping`. Raises QuorumLostError."""
        self._keep(_limits_record(limits))
        held = {each: dict(rates) for each, rates in limits.items()}
        for directory in self._manager.online:
            with suppress(SegstoreError, OSError):  # the directory's own thread will notice
                QUOTAS.write(directory.writer.context.files, directory.path, held)

    def credentials(self) -> Credentials:
        """See `Keeping`."""
        return credentials_in(self._controller.image)

    def set_credentials(self, credentials: Credentials) -> None:
        """See `Keeping`. Raises QuorumLostError."""
        self._keep(_record(CREDENTIALS, json.dumps(to_json(credentials))))
        for directory in self._manager.online:
            with suppress(SegstoreError, OSError):  # the directory's own thread will notice
                SCRAM.write(directory.writer.context.files, directory.path, credentials)

    def group_configs(self) -> GroupConfigs:
        """See `Keeping`."""
        return group_configs_in(self._controller.image)

    def set_group_configs(self, configs: GroupConfigs) -> None:
        """See `Keeping`. Raises QuorumLostError."""
        changes = _group_changes(self.group_configs(), configs)
        if changes:
            self._keep(*changes)
        for directory in self._manager.online:
            with suppress(SegstoreError, OSError):  # the directory's own thread will notice
                GROUP_CONFIGS.write(directory.writer.context.files, directory.path, configs)

    def producer_id(self) -> int | None:
        """See `Keeping`."""
        return producer_id_in(self._controller.image)

    def set_producer_id(self, first: int) -> None:
        """See `Keeping`. Raises QuorumLostError."""
        self._keep(_record(PRODUCER_ID, str(first)))

    def _keep(self, *records: ConfigRecord) -> None:
        def decide(core: Controller, now: int) -> Decision:
            return Decision(list(records))

        self._controller.call(decide)


def limits_in(image: MetadataImage) -> Limits:
    """Return the limits of clients that the metadata has."""
    held = json.loads(image.cluster_config.get(LIMITS, "{}"))
    is_whole = type(held.get("version")) is int  # else it has the limits of client ids alone
    return limits_of(held if is_whole else {"version": 1, "clients": held})


def _limits_record(limits: Mapping[Entity, Mapping[str, int]]) -> ConfigRecord:
    held = limits_json(limits)
    return _record(LIMITS, json.dumps(held if "users" in held else held["clients"]))


def producer_id_in(image: MetadataImage) -> int | None:
    """Return the first producer id that was not handed out, None where none was."""
    held = image.cluster_config.get(PRODUCER_ID)
    return None if held is None else int(held)


def credentials_in(image: MetadataImage) -> Credentials:
    """Return the credentials of users that the metadata has."""
    return from_json(json.loads(image.cluster_config.get(CREDENTIALS, "{}")))


def group_configs_in(image: MetadataImage) -> GroupConfigs:
    """Return the settings of groups that the metadata has."""
    return {group: GroupConfig.parse(made) for group, made in image.group_configs.items() if made}


def _group_changes(before: GroupConfigs, after: GroupConfigs) -> list[ConfigRecord]:
    """Return the records by which settings of groups become others (Kafka: ConfigRecord of a group)."""
    found = []
    for group in sorted({*before, *after}):
        old, new = (each[group].to_mapping() if group in each else {} for each in (before, after))
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                value = None if name not in new else str(new[name])
                found.append(ConfigRecord(GROUP_RESOURCE, group, name, value))
    return found


def _record(name: str, value: str) -> ConfigRecord:
    return ConfigRecord(BROKER_RESOURCE, "", name, value)


# --- from a plain store, and to one --------------------------------------------------------------


def records_of_files(files: Files, root: str) -> list[MetadataRecord]:
    """Return the records of what a plain store has kept in its files. Raises CorruptCheckpointError,
    StorageError, OSError.
    """
    limits, first = (QUOTAS.read(files, root) or {}), sealed_file.PRODUCER_ID.hint(files, root)
    made: list[MetadataRecord] = [] if not limits else [_limits_record(limits)]
    credentials = SCRAM.read(files, root) or {}
    if credentials:
        made.append(_record(CREDENTIALS, json.dumps(to_json(credentials))))
    made += _group_changes({}, (GROUP_CONFIGS.read(files, root) or {}))
    return made if first is None else [*made, _record(PRODUCER_ID, str(first))]


def write_files(files: Files, root: str, image: MetadataImage) -> None:
    """Write the files of a plain store. Raises OSError."""
    QUOTAS.write(files, root, limits_in(image))
    credentials = credentials_in(image)
    if credentials:
        SCRAM.write(files, root, credentials)
    configs = group_configs_in(image)
    if configs:
        GROUP_CONFIGS.write(files, root, configs)
    first = producer_id_in(image)
    if first is not None:
        sealed_file.PRODUCER_ID.write(files, root, first)

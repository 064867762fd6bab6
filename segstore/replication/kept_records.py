"""`KeptRecords`: quotas, credentials, group settings and the first free producer id of a replicated store, in
its metadata log. `KeptFiles` is the counterpart for a store in one directory.

On disk are ConfigRecords in the metadata log, which survive the loss of a directory. Group settings are
ConfigRecords of groups, as in Kafka. Quotas, credentials and the producer id are ConfigRecords of the
cluster, with names that only segstore uses. For these Kafka uses ClientQuotaRecord, UserScramCredentialRecord
and ProducerIdsRecord instead. The quotas, credentials and group settings are also copied into files of each
online directory, for processes that read only that directory. Threads: any. The caller of a `set_` method
holds a lock for that value.
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
    """The quotas, credentials, group settings and first free producer id of a replicated store, in its
    metadata log.
    """

    def __init__(self, controller: QuorumController, manager: ReplicaManager) -> None:
        self._controller, self._manager = controller, manager

    def limits(self) -> Limits:
        """Return the limits of users and client ids."""
        return limits_in(self._controller.image)

    def set_limits(self, limits: Mapping[Entity, Mapping[str, int]]) -> None:
        """Replace the limits, durably. Raises QuorumLostError."""
        self._keep(_limits_record(limits))
        held = {each: dict(rates) for each, rates in limits.items()}
        for directory in self._manager.online:
            # A directory with a failed disk is skipped: its own thread handles the failure.
            with suppress(SegstoreError, OSError):
                QUOTAS.write(directory.writer.context.files, directory.path, held)

    def credentials(self) -> Credentials:
        """Return the SCRAM credentials of users."""
        return credentials_in(self._controller.image)

    def set_credentials(self, credentials: Credentials) -> None:
        """Replace the credentials, durably. Raises QuorumLostError."""
        self._keep(_record(CREDENTIALS, json.dumps(to_json(credentials))))
        for directory in self._manager.online:
            # A directory with a failed disk is skipped: its own thread handles the failure.
            with suppress(SegstoreError, OSError):
                SCRAM.write(directory.writer.context.files, directory.path, credentials)

    def group_configs(self) -> GroupConfigs:
        """Return the settings of groups."""
        return group_configs_in(self._controller.image)

    def set_group_configs(self, configs: GroupConfigs) -> None:
        """Replace the settings of groups, durably. Raises QuorumLostError."""
        changes = _group_changes(self.group_configs(), configs)
        if changes:
            self._keep(*changes)
        for directory in self._manager.online:
            # A directory with a failed disk is skipped: its own thread handles the failure.
            with suppress(SegstoreError, OSError):
                GROUP_CONFIGS.write(directory.writer.context.files, directory.path, configs)

    def producer_id(self) -> int | None:
        """Return the first producer id that was never allocated, None if no producer id was allocated yet."""
        return producer_id_in(self._controller.image)

    def set_producer_id(self, first: int) -> None:
        """Replace the first free producer id, durably. Raises QuorumLostError."""
        self._keep(_record(PRODUCER_ID, str(first)))

    def _keep(self, *records: ConfigRecord) -> None:
        def decide(core: Controller, now: int) -> Decision:
            return Decision(list(records))

        self._controller.call(decide)


def limits_in(image: MetadataImage) -> Limits:
    """Return the limits of users and client ids in a metadata image."""
    held = json.loads(image.cluster_config.get(LIMITS, "{}"))
    is_whole = type(held.get("version")) is int  # A value without a version has only limits of client ids.
    return limits_of(held if is_whole else {"version": 1, "clients": held})


def _limits_record(limits: Mapping[Entity, Mapping[str, int]]) -> ConfigRecord:
    held = limits_json(limits)
    return _record(LIMITS, json.dumps(held if "users" in held else held["clients"]))


def producer_id_in(image: MetadataImage) -> int | None:
    """Return the first producer id that was never allocated, according to a metadata image. Return None if no
    producer id was allocated yet.
    """
    held = image.cluster_config.get(PRODUCER_ID)
    return None if held is None else int(held)


def credentials_in(image: MetadataImage) -> Credentials:
    """Return the SCRAM credentials in a metadata image."""
    return from_json(json.loads(image.cluster_config.get(CREDENTIALS, "{}")))


def group_configs_in(image: MetadataImage) -> GroupConfigs:
    """Return the settings of groups in a metadata image."""
    return {group: GroupConfig.parse(made) for group, made in image.group_configs.items() if made}


def _group_changes(before: GroupConfigs, after: GroupConfigs) -> list[ConfigRecord]:
    """Return the ConfigRecords that turn the group settings `before` into `after`."""
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
    """Return the quotas, credentials, group settings and first free producer id of a plain store as metadata
    records. Raises CorruptCheckpointError, StorageError, OSError.
    """
    limits, first = (QUOTAS.read(files, root) or {}), sealed_file.PRODUCER_ID.hint(files, root)
    made: list[MetadataRecord] = [] if not limits else [_limits_record(limits)]
    credentials = SCRAM.read(files, root) or {}
    if credentials:
        made.append(_record(CREDENTIALS, json.dumps(to_json(credentials))))
    made += _group_changes({}, (GROUP_CONFIGS.read(files, root) or {}))
    return made if first is None else [*made, _record(PRODUCER_ID, str(first))]


def write_files(files: Files, root: str, image: MetadataImage) -> None:
    """Write the quotas, credentials, group settings and first free producer id of a metadata image into the
    files that a plain store has for them. Raises OSError.
    """
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

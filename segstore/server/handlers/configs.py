"""DescribeConfigs, ListConfigResources, AlterConfigs, IncrementalAlterConfigs: settings of topics, of single
groups, and of the one broker.

Settings of topics and of groups may be changed. The broker's settings are read-only: they were set when the
server and the store were opened. Sources: Kafka's ConfigHelper, ConfigAdminManager and
ConfigurationControlManager (KIP-133, KIP-226, KIP-339).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from segstore import names
from segstore.config import TopicConfig
from segstore.config.settings import KafkaSettings, options
from segstore.coordinator import config_entries
from segstore.coordinator.config_entries import ConfigEntry, settings_of
from segstore.coordinator.group_settings import group_settings
from segstore.errors import copy_of
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.topics import shown
from segstore.storage.meta.topic_info import TopicInfo, check_not_internal

from .refusal import REFUSED, Refusal, code_and_message
from .working import in_worker

_Described = structs("DescribeConfigsResponse")
_Listed = structs("ListConfigResourcesResponse")
_Changes = dict[str, str | None]
_Changing = Callable[[KafkaSettings, Any], _Changes]
"""(current settings, settings in the request) -> (name of a setting -> new value). The value None resets the
setting to its default.
"""


class ConfigResourceCode(IntEnum):
    """The types of resources that have settings, with Kafka's codes
    (org.apache.kafka.common.config.ConfigResource.Type).
    """

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterConfigOp(IntEnum):
    """Operations on a setting (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# --- DescribeConfigs ------------------------------------------------------------------------------


def describe_configs(node: Node, request: Request) -> Any:
    """Answer with all settings of each resource, or with only those in `configuration_keys`."""
    body = request.body
    return _Described(results=[_described(node, each, body) for each in body.resources])


def _described(node: Node, resource: Any, body: Any) -> Any:
    # As in Kafka, the message that means "no error" is "" for loggers, and null for other resources.
    no_error = "" if resource.resource_type == ConfigResourceCode.BROKER_LOGGER else None
    result = _Described.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=no_error
    )
    wanted = resource.configuration_keys or None
    try:
        for entry, read_only in _settings(node, resource):
            if wanted is None or entry.name in wanted:
                result.configs.append(_entry(entry, read_only, body))
    except REFUSED as error:
        result.error_code, result.error_message = code_and_message(error)
    return result


def _settings(node: Node, resource: Any) -> Iterator[tuple[ConfigEntry, bool]]:
    """Yield (setting, whether the setting is read-only) for each setting of a resource. Raises Refusal."""
    if resource.resource_type == ConfigResourceCode.TOPIC:
        info = _topic(node, resource.resource_name)
        held = settings_of(node.store)
        yield from ((entry, False) for entry in config_entries.of_topic(info.settings, held))
    elif resource.resource_type == ConfigResourceCode.GROUP:
        if not resource.resource_name:
            raise Refusal(Code.INVALID_REQUEST, "a group must be named")
        made, held = group_settings(node.store).made(resource.resource_name), settings_of(node.store)
        yield from ((entry, False) for entry in config_entries.of_group(made, held))
    elif resource.resource_type == ConfigResourceCode.BROKER_LOGGER:
        _check_loggers(node, resource)  # this broker has no loggers, so nothing is yielded
    else:
        entries = _of_broker(node) if _checked_broker(node, resource) else _of_all_brokers(node)
        yield from ((entry, True) for entry in entries)


def _topic(node: Node, name: str) -> TopicInfo:
    info = shown(node.store).get(names.check_topic(name))
    if info is None:
        raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    if info.error is not None:
        raise copy_of(info.error)
    return info


def _checked_broker(node: Node, resource: Any) -> bool:
    """Return True if the resource is this broker. Return False if the resource's name is "", which stands for
    all brokers (cluster-wide defaults). Raises Refusal for any other resource.
    """
    if resource.resource_type != ConfigResourceCode.BROKER:
        raise Refusal(
            Code.INVALID_REQUEST,
            f"resource type {resource.resource_type}: only topics (2), the broker (4) and groups (32) have "
            "settings here",
        )
    if resource.resource_name not in ("", str(node.node_id)):
        raise Refusal(
            Code.INVALID_REQUEST,
            f"broker {resource.resource_name!r}: there is one, {str(node.node_id)!r}",
        )
    return bool(resource.resource_name)


def _check_loggers(node: Node, resource: Any) -> None:
    if resource.resource_name != str(node.node_id):
        raise Refusal(
            Code.INVALID_REQUEST,
            f"loggers of broker {resource.resource_name!r}: there is one broker, {str(node.node_id)!r}",
        )


def _of_broker(node: Node) -> list[ConfigEntry]:
    """Return the settings of the server and of its store. If both have a setting of the same name, the
    server's setting is returned.
    """
    held = settings_of(node.store)
    found = {} if held is None else {entry.name: entry for entry in config_entries.of_store(held)}
    found.update({entry.name: entry for entry in config_entries.of_server(node.config)})
    listeners = config_entries.of_listeners(node.config.security_protocol, *node.endpoint)
    found[listeners.name] = listeners
    return sorted(found.values())


def _of_all_brokers(node: Node) -> Iterator[ConfigEntry]:
    held = settings_of(node.store)
    return iter(()) if held is None else config_entries.of_all_brokers(held)


def _entry(entry: ConfigEntry, read_only: bool, body: Any) -> Any:
    synonyms = entry.synonyms if body.include_synonyms else []
    return _Described.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[_Described.DescribeConfigsSynonym(**each._asdict()) for each in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if body.include_documentation else None,
    )


# --- ListConfigResources --------------------------------------------------------------------------


def list_config_resources(node: Node, request: Request) -> Any:
    """Answer with the resources of the requested types, or of all types if the request names no type
    (KIP-1142, KafkaApis.handleListConfigResources).

    Groups are listed if settings were set for them. This server has no loggers and no client metrics. A
    request of version 0 asks only for client metrics, so its answer is empty.
    """
    asked = [ConfigResourceCode.CLIENT_METRICS] if request.version == 0 else request.body.resource_types
    if not {*asked} <= {*ConfigResourceCode}:
        return _Listed(error_code=Code.UNSUPPORTED_VERSION)
    found = {
        ConfigResourceCode.BROKER: [str(node.node_id)],
        ConfigResourceCode.TOPIC: list(shown(node.store)),
        ConfigResourceCode.GROUP: group_settings(node.store).groups(),
    }
    return _Listed(
        config_resources=[
            _Listed.ConfigResource(resource_name=name, resource_type=kind)
            for kind, resources in found.items()
            if not asked or kind in asked
            for name in resources
        ]
    )


# --- AlterConfigs, IncrementalAlterConfigs --------------------------------------------------------


def alter_configs(node: Node, request: Request) -> Any:
    """Set the settings in the request for topics and groups, and reset all other settings of these topics and
    groups to their defaults.
    """
    return in_worker(node, request, lambda: _alter_all(node, request, _replacing))


def incremental_alter_configs(node: Node, request: Request) -> Any:
    """Apply the operations in the request to settings of topics and groups. All other settings stay as they
    are.
    """
    return in_worker(node, request, lambda: _alter_all(node, request, _changing))


def _alter_all(node: Node, request: Request, changes: _Changing) -> Any:
    response, body, results = structs(f"{request.api.message}Response"), request.body, []
    times = Counter((each.resource_type, each.resource_name) for each in body.resources)
    for each in body.resources:
        result = response.AlterConfigsResourceResponse(
            resource_type=each.resource_type, resource_name=each.resource_name, error_message=None
        )
        try:
            if times[each.resource_type, each.resource_name] > 1:
                raise Refusal(Code.INVALID_REQUEST, "the resource is in the request twice")
            _alter(node, each, changes, validate_only=body.validate_only)
        except REFUSED as error:
            result.error_code, result.error_message = code_and_message(error)
        results.append(result)
    return response(responses=results)


def _alter(node: Node, resource: Any, changes: _Changing, *, validate_only: bool) -> None:
    given = Counter(each.name for each in resource.configs)
    twice = [name for name, count in given.items() if count > 1]
    if twice:
        raise Refusal(Code.INVALID_REQUEST, f"{', '.join(twice)}: in the request twice")
    if resource.resource_type == ConfigResourceCode.GROUP:
        settings, group = group_settings(node.store), resource.resource_name
        wanted = changes(settings.made(group), resource.configs)
        settings.alter(group, wanted, validate_only=validate_only)
        return
    if resource.resource_type == ConfigResourceCode.BROKER_LOGGER:
        _check_loggers(node, resource)
        for each in resource.configs:
            raise Refusal(Code.INVALID_CONFIG, f"there is no logger {each.name!r}")
        return
    if resource.resource_type != ConfigResourceCode.TOPIC:
        _checked_broker(node, resource)
        if all(_is_deleted(each) for each in resource.configs):
            return  # no setting of a broker is dynamic, so none can be deleted
        raise Refusal(
            Code.INVALID_REQUEST,
            "the broker's settings are read-only: they are made when the server and the store are opened",
        )
    info = _topic(node, resource.resource_name)
    wanted = changes(info.settings, resource.configs)
    if not validate_only:
        node.store.alter_topic(info.name, wanted)
        return
    node.store.context.check_writable()
    if info.settings.replace(wanted).cleanup_policy != "compact":
        check_not_internal(info.name, "it is compacted always, so its cleanup.policy is not changed")


def _replacing(held: KafkaSettings, configs: Any) -> _Changes:
    """Return changes that set `configs`, and reset all other settings that were set explicitly."""
    _refuse_null(configs)
    return {**dict.fromkeys(held.explicit), **{each.name: each.value for each in configs}}


def _changing(held: KafkaSettings, configs: Any) -> _Changes:
    """Return the changes that the operations in `configs` make. As in Kafka, deleting an unknown setting
    changes nothing.
    """
    _refuse_null(each for each in configs if not _is_deleted(each))
    known = options(type(held))
    return {
        each.name: _operated(held, each) for each in configs if not _is_deleted(each) or each.name in known
    }


def _is_deleted(config: Any) -> bool:
    """Return whether a setting in a request has the operation DELETE. A setting in an AlterConfigs request
    has no operation, which means SET.
    """
    return getattr(config, "config_operation", AlterConfigOp.SET) == AlterConfigOp.DELETE


def _refuse_null(configs: Any) -> None:
    null = [each.name for each in configs if each.value is None]
    if null:
        raise Refusal(Code.INVALID_REQUEST, f"null is no value of {', '.join(null)}")


def _operated(held: KafkaSettings, config: Any) -> str | None:
    """Return the value of a setting after the operation in `config`, None to reset the setting to its
    default.
    """
    if config.config_operation == AlterConfigOp.SET:
        return str(config.value)
    if config.config_operation == AlterConfigOp.DELETE:
        return None
    if config.config_operation not in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
        raise Refusal(
            Code.INVALID_REQUEST,
            f"{config.name}: operation {config.config_operation} is none of set (0), delete (1), append (2), "
            "subtract (3)",
        )
    if config.name not in config_entries.LISTS or not isinstance(held, TopicConfig):
        raise Refusal(
            Code.INVALID_CONFIG,
            f"{config.name} is no list, to which something is appended or subtracted from: set it",
        )
    return _edited(held, config)


def _edited(settings: TopicConfig, config: Any) -> str:
    """Return the new value of a setting whose value is a list of words: the current words, with the words of
    `config` appended or removed.
    """
    current = next(each for each in config_entries.of_topic(settings, None) if each.name == config.name)
    held, given = (
        [word.strip() for word in text.split(",")] if text else [] for text in (current.value, config.value)
    )
    if config.config_operation == AlterConfigOp.APPEND:
        return ",".join(dict.fromkeys([*held, *given]))
    return ",".join(word for word in held if word not in given)


HANDLERS = {
    Api.DESCRIBE_CONFIGS: describe_configs,
    Api.LIST_CONFIG_RESOURCES: list_config_resources,
    Api.ALTER_CONFIGS: alter_configs,
    Api.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}

"""A server's places: where it listens, and what it tells clients of itself."""

from __future__ import annotations

import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from leftovers import descriptors, threads
from replicated_stores import QUICK

import segstore
from segstore.errors import ConfigError, InvalidArgumentError, InvalidTypeError, ListenError, StoreClosedError
from segstore.server.cluster_id import cluster_id_of
from segstore.server.network.server import endpoint
from segstore.storage.meta.sealed_file import CLUSTER_ID


def test_localhost_is_all_of_its_addresses(store: segstore.Store) -> None:
    with segstore.serve(store, "localhost", 0) as server:
        assert server.bootstrap_servers == f"localhost:{server.port}"
        families = {each[0]: each[4][0] for each in socket.getaddrinfo("localhost", 0)}
        for family, address in families.items():
            with socket.socket(family) as client:
                try:
                    client.bind((address, 0))
                except OSError:  # this machine does not have that address
                    continue
                client.connect((address, server.port))


TOLD = {
    "where it listens": ("127.0.0.1", None, "127.0.0.1:PORT"),
    "another host": ("127.0.0.1", "log.example", "log.example:PORT"),
    "another port": ("127.0.0.1", "log.example:19092", "log.example:19092"),
    "an address of IPv6": ("127.0.0.1", "[::1]:7", "[::1]:7"),
    "all addresses": ("0.0.0.0", None, f"{socket.gethostname()}:PORT"),
}


@pytest.mark.parametrize(("host", "advertised", "text"), TOLD.values(), ids=TOLD)
def test_what_clients_are_told(store: segstore.Store, host: str, advertised: str | None, text: str) -> None:
    with segstore.serve(store, host, 0, advertised) as server:
        assert server.bootstrap_servers == text.replace("PORT", str(server.port))
        assert (server.host, server.node.endpoint.port != 0) == (host, True)
        assert server.bootstrap_servers in repr(server)


def test_endpoints() -> None:
    assert [endpoint("x", text, 5) for text in ("h", "h:1", "[::1]", "[::1]:2", ":3")] == [
        *(("h", 5), ("h", 1), ("::1", 5), ("::1", 2), ("", 3))
    ]


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no host": ({"host": "no.such.host.invalid"}, ListenError, "no such host"),
    "not this machine's": ({"host": "192.0.2.1"}, ListenError, "192.0.2.1:0"),
    "a host that is no text": ({"host": 7}, InvalidTypeError, "host must be a str"),
    "a port too high": ({"port": 65536}, InvalidArgumentError, "port=65536"),
    "a negative port": ({"port": -1}, InvalidArgumentError, "port=-1"),
    "no address to tell": ({"advertised": "a:b"}, InvalidArgumentError, "advertised='a:b'"),
    "a setting that is none": ({"num_partition": 1}, ConfigError, "did you mean num_partitions"),
    "a value that is none": ({"max_connections": 0}, ConfigError, "max_connections=0"),
}


@pytest.mark.parametrize(("given", "kind", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing(
    store: segstore.Store, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    before = descriptors(), threads()
    with pytest.raises(kind, match=text.replace("'", ".")):
        segstore.serve(store, **{"port": 0, **given})
    assert (descriptors(), threads()) == before


def test_a_port_that_is_taken(store: segstore.Store) -> None:
    with segstore.serve(store, port=0) as server:
        with pytest.raises(ListenError, match="in use") as caught:
            segstore.serve(store, port=server.port)
        assert caught.value.filename == server.bootstrap_servers


def test_only_an_open_store_is_served(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        pass
    before = descriptors(), threads()
    with pytest.raises(StoreClosedError):
        segstore.serve(store, port=0)
    with pytest.raises(InvalidTypeError, match="store must be a Store, not str"):
        segstore.serve(str(store_dir), port=0)  # type: ignore[arg-type]
    assert (descriptors(), threads()) == before


def test_the_cluster_id_stays_the_same_where_the_directory_is_moved(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        first = cluster_id_of(store)
        assert cluster_id_of(store) == first
        with segstore.open(store_dir, "r") as reader:
            assert cluster_id_of(reader) == first
    moved = store_dir.rename(tmp_path / "moved")
    with segstore.open(moved) as store:
        assert cluster_id_of(store) == first
    assert segstore.check(moved) == []
    with segstore.open(store_dir) as other:
        assert cluster_id_of(other) != first
    assert len(first) == 22


def test_servers_that_are_begun_together_have_one_cluster_id(store: segstore.Store) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len({*threads.map(lambda _: cluster_id_of(store), range(8))}) == 1


def test_a_store_that_is_read_and_was_never_served_is_known_by_its_path(store_dir: Path) -> None:
    segstore.open(store_dir).close()
    with segstore.open(store_dir, "r") as reader, segstore.serve(reader, port=0) as server:
        assert len(server.node.cluster_id) == 22
        assert cluster_id_of(reader) == server.node.cluster_id
    assert not (store_dir / ".segstore" / "cluster-id").exists()


def test_a_full_disk_is_served_all_the_same(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CLUSTER_ID, "write", full)
    assert cluster_id_of(store) == cluster_id_of(store)


def test_a_damaged_cluster_id_is_told_and_made_anew(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        first = cluster_id_of(store)
    path = store_dir / ".segstore" / "cluster-id"
    path.write_bytes(path.read_bytes().replace(first.encode(), first[::-1].encode()))
    assert [finding.path for finding in segstore.check(store_dir)] == [str(path)]
    with segstore.open(store_dir) as store:
        assert [mended.path for mended in store.mended] == [str(path)]
        assert cluster_id_of(store) not in (first, first[::-1])


def test_a_store_keeps_its_cluster_id_as_it_gets_replicas_and_loses_them(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with segstore.open(paths[0]) as store:
        store.create_topic("t")
        first = cluster_id_of(store)
    with segstore.open_replicated(paths, adopt=True, config=QUICK) as store:
        assert cluster_id_of(store) == first
    segstore.unreplicate(paths, 0, config=QUICK)
    with segstore.open(paths[0]) as store:
        assert cluster_id_of(store) == first


def test_the_cluster_id_of_a_brokers_directory_is_its_own(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        given = "MkU3OEVBNTcwNTJENDM2Qg"
        path = store_dir / "meta.properties"
        path.write_text(f"version=1\ncluster.id={given}\nnode.id=1\ndirectory.id={given}\n")
        assert cluster_id_of(store) == given
        path.write_text("version=0\n")
        assert len(cluster_id_of(store)) == 22
        path.unlink()

"""`segstore config check`, and files of settings for `segstore serve --config`: what they may have, what is
said of what is wrong, and that nothing is made.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import certificates
from cli import COMMAND, ok, run, start_program
from waiting import PATIENCE

from segstore.cli.config_file import read_config
from segstore.cli.ignored_settings import IGNORED
from segstore.cli.server_plan import ServerOptions, plan
from segstore.server.settings import ServerConfig

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRET = "swordfish"


def written(directory: Path, text: str) -> Path:
    path = directory / "server.properties"
    path.write_text(text, encoding="utf-8")
    return path


def options(config: Path | None, **given: object) -> ServerOptions:
    path = None if config is None else str(config)
    held = ServerOptions("store", (), (), {}, path)
    return held._replace(**given)  # type: ignore[arg-type]


# --- what a file may have ------------------------------------------------------------------------

FILES: dict[str, tuple[str, dict[str, object]]] = {
    "nothing": ("# only a comment\n", {}),
    "a server's setting": ("num.partitions=4\n", {"num_partitions": "4"}),
    "a store's setting": ("group.max.size = 7", {"group_max_size": "7"}),
    "units": (
        "connections.max.idle.ms=10min\nfetch.max.bytes 2MiB",
        {"connections_max_idle_ms": "600000", "fetch_max_bytes": "2097152"},
    ),
    "rights, a line each": (
        "allow=User:a: read topic *\nallow=User:b: \\\n  write topic b",
        {"allow": ("User:a: read topic *", "User:b: write topic b")},
    ),
    "rights in one value": (
        r"allow=User:a: read topic *\nUser:b: write topic b",
        {"allow": ("User:a: read topic *", "User:b: write topic b")},
    ),
    "users": (
        f'sasl.jaas.config={LOGIN} required user_a="1" \\\n  user_b="2";',
        {"sasl_users": {"a": "1", "b": "2"}},
    ),
    "users of a listener, by mechanism": (
        f'listener.name.out.plain.sasl.jaas.config={LOGIN} required user_a="1";\n'
        f'listener.name.out.scram-sha-256.sasl.jaas.config={LOGIN} required user_b="2";',
        {"listener_name_out_sasl_users": {"a": "1", "b": "2"}},
    ),
    "what has no effect": ("broker.id=1\nzookeeper.connect=z:2181", {}),
}


@pytest.mark.parametrize(("text", "settings"), FILES.values(), ids=FILES)
def test_a_file_has_settings(tmp_path: Path, text: str, settings: dict[str, object]) -> None:
    found = read_config(str(written(tmp_path, text)))
    assert (found.settings, found.problems) == (settings, [])


def test_paths_are_those_of_the_files_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    written(tmp_path / "etc", "log.dirs=data\nssl.keystore.location=tls/key.pem\nsasl.users=/users")
    monkeypatch.chdir(tmp_path)
    found = read_config("etc/server.properties")
    assert found.directory == str(tmp_path / "etc" / "data")
    assert found.settings == {
        "ssl_keystore_location": str(tmp_path / "etc" / "tls" / "key.pem"),
        "sasl_users": "/users",
    }


def test_what_is_ignored_is_no_setting() -> None:
    assert not IGNORED.keys() & {row.name.replace("_", ".") for row in ServerConfig.describe()}


# --- the command line goes first -----------------------------------------------------------------

VALUES = {
    "num_partitions": ("3", "5"),
    "sasl_enabled_mechanisms": ("PLAIN", "SCRAM-SHA-256"),
    "super_users": ("User:a", "User:b"),
    "allow": (("User:a: read topic *",), ("User:b: read topic *",)),
    "auto_create_topics_enable": ("true", "false"),
    "max_connections": ("8", "9"),
    "group_max_size": ("10", "11"),
}


def test_the_command_line_counts_more_than_the_file(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEGSTORE_SEED", "0")) or random.randrange(1 << 30)
    draw = random.Random(seed)
    for _ in range(40):
        of_file = {name: draw.choice(v) for name, v in VALUES.items() if draw.random() < 0.6}
        of_line = {name: draw.choice(v) for name, v in VALUES.items() if draw.random() < 0.6}
        rows = [
            f"{name.replace('_', '.')}={value if isinstance(value, str) else value[0]}"
            for name, value in draw.sample([*of_file.items()], len(of_file))
        ]
        made = plan(options(written(tmp_path, "\n".join(rows)), settings=of_line))
        found = made.of_server | {n.replace(".", "_"): v for n, v in made.of_store.items()}
        assert found == {**of_file, **of_line}, f"seed {seed}"


PLACES: dict[str, tuple[str, dict[str, object], dict[str, object], dict[str, object]]] = {
    "neither": ("", {}, {"host": "127.0.0.1", "port": 9092, "advertised": None}, {}),
    "the file": (
        "listeners=PLAINTEXT://:1",
        {},
        {},
        {"listeners": "PLAINTEXT://:1"},
    ),
    "an address in place of the file's": (
        "listeners=PLAINTEXT://:1\nadvertised.listeners=PLAINTEXT://a:1",
        {"listen": ("127.0.0.1:2",)},
        {"host": "127.0.0.1", "port": 2, "advertised": None},
        {},
    ),
    "a protocol in place of the file's": (
        "listeners=SASL_PLAINTEXT://:1",
        {"listen": ("PLAINTEXT://127.0.0.1:2",)},
        {"host": "127.0.0.1", "port": 2, "advertised": None},
        {"security_protocol": "PLAINTEXT"},
    ),
    "the protocol of the file": (
        "security.protocol=SASL_PLAINTEXT",
        {"listen": ("127.0.0.1:2",)},
        {"host": "127.0.0.1", "port": 2, "advertised": None},
        {"security_protocol": "SASL_PLAINTEXT"},
    ),
    "what clients are told of the file's listeners": (
        "listeners=PLAINTEXT://:1,B://:2\nlistener.security.protocol.map=B:SASL_PLAINTEXT",
        {"advertise": ("a:1", "b:2")},
        {},
        {
            "listeners": "PLAINTEXT://:1,B://:2",
            "advertised_listeners": "PLAINTEXT://a:1,B://b:2",
            "listener_security_protocol_map": "B:SASL_PLAINTEXT",
        },
    ),
}


@pytest.mark.parametrize(("given", "http"), [(None, "9100"), ("9200", "9200")])
def test_the_pages_are_where_option_or_file_say(tmp_path: Path, given: str | None, http: str) -> None:
    file = written(tmp_path, "http.listener=9100")
    assert plan(options(file, http=given)).http == http


@pytest.mark.parametrize("case", PLACES)
def test_a_listener_of_the_command_line_goes_first(tmp_path: Path, case: str) -> None:
    text, given, place, settings = PLACES[case]
    made = plan(options(written(tmp_path, text), **given))
    assert (made.place, made.of_server) == (place, settings)


def test_a_secured_listener_is_not_replaced_by_a_bare_address(tmp_path: Path) -> None:
    path = written(tmp_path, "listeners=SASL_PLAINTEXT://:1")
    result = run("serve", "-s", tmp_path / "store", "--config", path, "--listen", "127.0.0.1:0")
    assert (result.exit_code, (tmp_path / "store").exists()) == (1, False)
    assert "of which some are secured: give PROTOCOL://HOST:PORT" in result.stderr


@pytest.mark.kind("programs")
@pytest.mark.parametrize("given", ["option", "variable", "file"])
def test_the_store_is_named_by_option_variable_or_file(tmp_path: Path, given: str) -> None:
    text = "listeners=PLAINTEXT://127.0.0.1:0\nbroker.id=1\n" + "log.dirs=of-file\n"
    option = ("--store", tmp_path / "of-option") if given == "option" else ()
    variables = {"SEGSTORE_PATH": str(tmp_path / "of-variable")} if given == "variable" else {}
    path = written(tmp_path, text)
    with start_program("serve", "--config", path, *option, variables=variables) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline().decode()
            assert re.fullmatch(rf"{tmp_path}/of-{given} listens on 127\.0\.0\.1:[0-9]+\n", line)
            program.send_signal(signal.SIGTERM)
            assert program.wait(PATIENCE) == 0
        finally:
            program.kill()
    assert {each.name for each in tmp_path.iterdir()} == {f"of-{given}", "server.properties"}


# --- what is wrong ------------------------------------------------------------------------------

WRONG = f"""\
broker.idd=1
num.partition=4
num.partitions=0

# a comment
num.partitions=3
MIIE{SECRET}xyz=
{SECRET}
log.retention.hours=168
connections.max.idle.ms=3years
allow=User:alice: fly topic *
ssl.key.password=
listeners=PLAINTEXT://127.0.0.1:0
listener.name.x.ssl.client.auth=none
listener.name.plaintext.ssl.client.auth=maybe
authorizer.class.name=kafka.Acls
log.dirs=/a,/b
sasl.jaas.config={LOGIN} required username="{SECRET}";
group.consumer.assignors=\\
  sticky
sasl.users=alice:{SECRET}/of
delete.topic.enable=True
log.cleaner.enable=false
http.listener=nowhere
http.listener=9100
"""
TOLD = {
    1: "no setting 'broker.idd'; did you mean broker.id?",
    2: "no setting 'num.partition'; did you mean num.partitions?",
    3: "num.partitions='0': must be an integer from 1",
    6: "num.partitions is given in line 3 already",
    7: "what stands before the = is no name of a setting",
    8: "must be NAME=VALUE",
    9: "no setting 'log.retention.hours'; it is a broker's setting, which a topic has as retention.ms",
    10: "connections.max.idle.ms=3years: the unit 'years' is none of ms, s, min, h, d, w",
    11: "'fly' is no operation of a topic",
    12: "ssl.key.password=a secret value: must be a password",
    14: "begins with the name of none of the listeners PLAINTEXT",
    15: "listener.name.plaintext.ssl.client.auth='maybe': must be one of none, requested, required",
    16: "authorizer.class.name is refused: allow and super.users say who may do what",
    17: "log.dirs='/a,/b': must be one directory",
    18: "sasl.jaas.config must have users",
    19: "group.consumer.assignors='sticky': must be one or more, by commas, of uniform, range",
    21: "sasl.users is the path of a file of users, and no user with a password",
    23: "log.cleaner.enable='false': must be true: the log cleaner runs; log.cleaner.threads=0 ends it",
    24: "http.listener='nowhere': must be HOST:PORT, :PORT or PORT",
    25: "http.listener is given in line 24 already",
}


def test_every_problem_is_told_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, WRONG)
    result = run("config", "check", path)
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout, len(lines)) == (2, "", len(TOLD))
    for (number, told), line in zip(TOLD.items(), lines, strict=True):
        assert line.startswith(f"{path}, line {number}: ")
        assert told in line
    assert SECRET not in result.output


KAFKAS = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""As Kafka 4 has it in config/server.properties."""


def test_kafkas_own_file_needs_three_changes(tmp_path: Path) -> None:
    path = written(tmp_path, KAFKAS)
    assert [line.removeprefix(f"{path}, ") for line in run("config", "check", path).stderr.splitlines()] == [
        "line 4: listeners: CONTROLLER is for controllers (controller.listener.names);"
        " here clients would be served there",
        "line 22: no setting 'log.retention.hours'; it is a broker's setting, which a topic has as"
        " retention.ms",
        "line 23: no setting 'log.segment.bytes'; it is a broker's setting, which a topic has as"
        " segment.bytes",
    ]
    left = [line for line in KAFKAS.splitlines() if not line.startswith(("log.retention.h", "log.segment"))]
    changed = written(tmp_path, re.sub(",CONTROLLER://[^\n]*", "", "\n".join(left)))
    told = ok("config", "check", changed).stdout
    assert told.count("no effect: ") == 14
    assert told.count("listens for ") == 1


def test_a_server_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    path = written(tmp_path, WRONG + "log.dir=/c\n")
    result = run("serve", "--config", path, "--store", tmp_path / "store")
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, (tmp_path / "store").exists()) == (1, False)
    assert line.startswith(
        f"segstore: {path}, line 1: no setting 'broker.idd'; did you mean broker.id? (and 1"
    )
    assert line.endswith(f"more: see `segstore config check {path}`)")
    assert SECRET not in line


WHOLE: dict[str, tuple[str, int, str]] = {
    "TLS without a key": ("security.protocol=SSL", 1, "security.protocol=SSL needs ssl.keystore.location"),
    "no such key": ("num.partitions=1\nssl.keystore.location=none.pem", 2, "none.pem': no certificate with"),
    "no such users": ("\nsasl.users=none.txt", 2, "none.txt': No such file or directory"),
    "users of another form": ("sasl.users=server.properties", 1, "line 1 is not NAME:PASSWORD"),
    "a listener that says nothing": ("num.partitions=1\nlisteners=INSIDE://:1", 2, "what INSIDE speaks"),
    "two that contradict each other": (
        "\nlease.interval.ms=10s\nlease.renew.deadline.ms=9s",
        3,
        "lease.renew.deadline.ms must be above lease.interval.ms",
    ),
    "no text": ("\ud800", 0, "the file is not UTF-8"),
}


@pytest.mark.parametrize(("text", "number", "told"), WHOLE.values(), ids=WHOLE)
def test_the_whole_is_judged(tmp_path: Path, text: str, number: int, told: str) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    result = run("config", "check", path)
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert line.startswith(f"{path}, line {number}: " if number else f"{path}: ")
    assert told in line


OTHERS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
NAMED = ("itself", "sasl.users", "ssl.keystore.location", "ssl.truststore.location")


@pytest.mark.kind("programs")
@pytest.mark.parametrize("setting", NAMED)
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_is_no_regular_file_is_one_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], object], setting: str
) -> None:
    make(tmp_path / "other")
    own = certificates(tmp_path) if setting == "ssl.truststore.location" else None
    text = f"{setting}=other\nsecurity.protocol={'SASL_PLAINTEXT' if setting == 'sasl.users' else 'SSL'}\n"
    text += f"ssl.keystore.location={own.server}\n" if own else ""
    path = tmp_path / "other" if setting == "itself" else written(tmp_path, text)
    store = tmp_path / "store"
    for arguments, status in (
        (("config", "check", path), 2),
        (("serve", "-s", store, "--config", path), None),
    ):
        with start_program(*arguments) as program:
            try:
                told = program.communicate(timeout=PATIENCE)[1].decode()
            finally:
                program.kill()
        assert program.returncode == (status or program.returncode) > 0
        assert re.search("not a regular file|is a directory", told, re.I), told
        assert told.splitlines()[-1].count(str(tmp_path / "other")) == 1
    assert not store.exists()


def test_a_right_file_is_summed_up_and_nothing_is_made(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    (tmp_path / "users").write_text(f"alice:{SECRET}\n")
    path = written(
        tmp_path,
        f"""\
broker.id=0
log.dirs=data
listeners=PLAINTEXT://127.0.0.1:0,OUT://0.0.0.0:9093
advertised.listeners=OUT://log.example:9093
listener.security.protocol.map=OUT:SASL_SSL
listener.name.out.ssl.keystore.location={files.server}
listener.name.out.sasl.users=users
super.users=User:root
allow=User:alice: read topic *
http.listener=:9100
""",
    )
    before = sorted(tmp_path.iterdir())
    assert ok("config", "check", path).stdout.splitlines() == [
        f"{path} is right",
        f"store: {tmp_path}/data",
        "listens for PLAINTEXT://127.0.0.1:0",
        "  not encrypted, clients are anonymous",
        "listens for OUT://0.0.0.0:9093",
        "  clients are told log.example:9093",
        "  TLS, PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512; 1 user",
        "metrics and health: http://0.0.0.0:9100",
        "allowed by 1 clause of allow and 1 super user",
        "super users: User:root",
        "no effect: broker.id (line 1): the server is one broker, with the id 1",
    ]
    assert sorted(tmp_path.iterdir()) == before


def test_keys_may_stand_in_the_file(tmp_path: Path) -> None:
    pem = certificates(tmp_path).server.read_text()
    key, _, chain = pem.partition("-----BEGIN CERTIFICATE-----")
    texts = {"key": key, "certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}"}
    lines = [f"ssl.keystore.{name}=" + "\\n\\\n".join(text.splitlines()) for name, text in texts.items()]
    path = written(tmp_path, "\n".join(["security.protocol=SSL", *lines]))
    assert "  TLS, clients are anonymous" in ok("config", "check", path).stdout.splitlines()
    broken = written(tmp_path, path.read_text().replace("BEGIN CERT", "BEGIN THE CERT"))
    result = run("config", "check", broken)
    assert result.exit_code == 2
    assert "ssl.keystore.certificate.chain: no certificate with its private key" in result.stderr
    assert key.splitlines()[1] not in result.stderr


def test_settings_of_a_listener_may_be_set(tmp_path: Path) -> None:
    given = {
        "listeners": "OUT://127.0.0.1:0",
        "listener_security_protocol_map": "OUT:SASL_PLAINTEXT",
        "listener_name_out_connections_max_reauth_ms": "5",
    }
    assert plan(options(None, settings=given)).of_server == given


@pytest.mark.kind("programs")
def test_the_command_is_a_program(tmp_path: Path) -> None:
    assert COMMAND[-1] == "segstore"
    with start_program("config", "check", written(tmp_path, "num.partitions=x")) as program:
        _, told = program.communicate(timeout=PATIENCE)
    assert (program.returncode, b"line 1: num.partitions='x'" in told) == (2, True)

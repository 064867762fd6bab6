"""An S3 server for tests: versitygw, a Go program that keeps objects as files of a directory. Go's own client
fetches and builds it once, into .cache/programs of the repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import built_programs
import pytest
from kafka_broker import free_port
from waiting import PATIENCE

MODULE, VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
KEY, SECRET = "testing", "a/secret+of=tests"
BUILD_PATIENCE = 900


def why_not() -> str | None:
    """Return the reason why the server can't run here; None if it can."""
    return built_programs.missing("go")


def program() -> Path:
    """Return the server's program."""

    def build(target: Path) -> None:
        environment = {**os.environ, "GOBIN": str(target), "CGO_ENABLED": "0"}
        done = subprocess.run(
            ["go", "install", "-ldflags=-s -w", f"{MODULE}@{VERSION}"],
            env=environment, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL,
            timeout=BUILD_PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"go install ended with {done.returncode}:\n{done.stderr}"

    return built_programs.kept(f"versitygw-{VERSION}", build) / "versitygw"


class S3Server:
    """A running server, whose buckets are the directories of `root`."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.port = root, free_port()
        self._log = root.with_suffix(".log")
        self.start()

    def start(self) -> None:
        """Start the server, again after a `kill`; wait until it answers."""
        account = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [program(), "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", str(self.root)],
                env={**os.environ, **account}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self._log.read_text(errors="replace"))
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=1).close()
        except urllib.error.HTTPError:  # no anonymous requests: it runs
            return True
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End the server by SIGKILL."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def bucket(self, name: str) -> str:
        """Make a bucket, and return its URI."""
        (self.root / name).mkdir()
        return self.uri(name)

    def uri(self, path: str, secret: str = SECRET, **query: Any) -> str:
        """Return the URI of a path, whose first part is a bucket."""
        asked = {"scheme": "http", "endpoint_override": f"127.0.0.1:{self.port}", "region": "us-east-1"}
        user = urlencode({KEY: secret}).replace("=", ":")
        return f"s3://{user}@{path}?{urlencode({**asked, **query})}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The S3 server of a test run. A test that kills it starts it again."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server = S3Server(tmp_path_factory.mktemp("s3") / "buckets")
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def s3_bucket(s3_server: S3Server, request: pytest.FixtureRequest) -> str:
    """The URI of a new bucket of the S3 server."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    return s3_server.bucket(f"{name}-{len(os.listdir(s3_server.root))}")

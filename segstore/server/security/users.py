"""`Users`: users and their passwords, from a mapping or a file; or a function that checks passwords (Kafka:
PlainServerCallbackHandler).

On disk: the file is read once. It has either a line `name:password` for each user, and comment lines that
begin with "#", or Kafka's JAAS entry with `user_NAME="password"`. Threads: any.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any

from segstore.errors import InvalidArgumentError
from segstore.files.given_files import is_there, read_given
from segstore.storage.context import os_errors

_MOST_BYTES = 1 << 24
_JAAS = re.compile(r'\buser_([^\s="]+)\s*=\s*"((?:[^"\\]|\\.)+)"')


class Users:
    """Passwords by user name, or a function that checks passwords. The repr shows no password."""

    def __init__(
        self, passwords: Mapping[str, str] | None = None, check: Callable[[str, str], object] | None = None
    ) -> None:
        self._passwords, self._check = dict(passwords or {}), check

    def __repr__(self) -> str:
        return f"<Users: {len(self._passwords)} with passwords>"

    def __len__(self) -> int:
        return len(self._passwords)

    def may_enter(self, name: str, password: str) -> bool:
        """Return whether `password` is the user's password. If there is a function that checks passwords,
        return its answer. A comparison takes the same time for all passwords of the same length.
        """
        if self._check is not None:
            return bool(self._check(name, password))
        held = self._passwords.get(name)
        same = hmac.compare_digest(_bytes(password), _bytes(held or ""))
        return same and held is not None

    def knows(self, name: str) -> bool:
        """Return whether a user of this name exists. Return True for every name if a function checks
        passwords.
        """
        return self._check is not None or name in self._passwords

    def password_of(self, name: str) -> str | None:
        """Return a user's password, None if there is no such user, or a function checks passwords."""
        return self._passwords.get(name)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def users_of(source: Any) -> Users:
    """Return the users that the parsed setting `sasl_users` gives. Raises StorageError, and
    InvalidArgumentError if the file is malformed.
    """
    if source is None:
        return Users()
    if isinstance(source, Mapping):
        return Users(source)
    if isinstance(source, str):
        return Users(_read(source))
    return Users(check=source)


def check_path_of_users(path: str) -> None:
    """Raise InvalidArgumentError if the path is probably NAME:PASSWORD. The message does not have the path in
    it.
    """
    if ":" in path and not is_there(path):
        raise InvalidArgumentError("sasl_users is the path of a file of users, and no user with a password")


def _read(path: str) -> dict[str, str]:
    check_path_of_users(path)
    with os_errors():
        data = read_given(path, _MOST_BYTES)
    try:
        text = data.decode("utf-8-sig")  # Windows editors write a byte order mark
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"sasl_users={path!r}: the file is not UTF-8") from None
    if "LoginModule" in text:
        return jaas_users(text)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if _counts(line):
            name, password = _line(path, number, line)
            if name in found:
                raise InvalidArgumentError(f"sasl_users={path!r}: line {number} has the user {name!r} again")
            found[name] = password
    return found


def jaas_users(text: str) -> dict[str, str]:
    """Return user name -> password, from the entries `user_NAME="password"` of a JAAS configuration."""
    return {name: re.sub(r"\\(.)", r"\1", password) for name, password in _JAAS.findall(text)}


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _line(path: str, number: int, line: str) -> tuple[str, str]:
    """Return (name, password) of a line; the password may contain colons."""
    name, _, password = line.partition(":")
    if not name.strip() or not password or "\0" in line:
        raise InvalidArgumentError(f"sasl_users={path!r}: line {number} is not NAME:PASSWORD")
    return name.strip(), password

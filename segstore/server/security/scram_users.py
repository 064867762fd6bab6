"""`ScramUsers`: finds the SCRAM credential of a user: the stored credential, or if there is none, a
credential that is derived from the user's password.

On disk: the store's SCRAM credentials. Threads: any.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from segstore.coordinator.credentials import ScramCredentials
from segstore.mutex import Mutex
from segstore.storage.meta.scram_credentials import ScramCredential

from .scram import of_nobody, of_password
from .users import Users


class ScramUsers:
    """Finds SCRAM credentials. A credential that is derived from a password is derived once, in a worker
    thread, and cached.
    """

    def __init__(self, stored: ScramCredentials, users: Users) -> None:
        self._stored, self._users = stored, users
        self._made: dict[tuple[str, str], ScramCredential] = {}
        self._lock, self._secret = Mutex(), secrets.token_bytes(32)

    def finder(self, mechanism: str) -> Callable[[str], ScramCredential]:
        """Return a function: user name -> the user's credential for this mechanism."""
        return partial(self._find, mechanism)

    def knows(self, name: str, mechanism: str) -> bool:
        """Return whether the store has a credential of this user for this mechanism."""
        return self._stored.find(name, mechanism) is not None

    def _find(self, mechanism: str, name: str) -> ScramCredential:
        held = self._stored.find(name, mechanism)
        if held is not None:
            return held
        password = self._users.password_of(name)
        if password is None:
            return of_nobody(mechanism, self._secret, name)
        with self._lock:
            if (name, mechanism) not in self._made:
                self._made[name, mechanism] = of_password(mechanism, password)
            return self._made[name, mechanism]

"""`Reloading`: reads the settings files of a running server again, and applies changed settings to the
server.

On disk: these files are read. Threads: one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from segstore.cli.app import one_line
from segstore.cli.server_plan import ServerOptions, ServerPlan, plan
from segstore.cli.setting_names import names_of_the_command
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.server.network.server import Server
from segstore.server.security.settings import may_change

log = Logger("segstore")


class Reloading:
    """Reloads the settings of a server. `held` has the settings that the server uses now."""

    def __init__(self, server: Server, options: ServerOptions, held: ServerPlan) -> None:
        self._server, self._options, self._held = server, options, held

    def reload(self) -> None:
        """Read the files again, and apply changed settings. After an error, log the error, and change
        nothing. If a changed setting needs a restart, log a warning.
        """
        try:
            new = plan(self._options)
            changes = _changes(self._held.of_server, new.of_server)
            taken = {name: value for name, value in changes.items() if may_change(name)}
            with names_of_the_command(new.of_server):
                self._server.reload(**taken)
        except (SegstoreError, OSError, click.UsageError) as error:
            log.error("nothing was changed by SIGHUP: %s", one_line(error))
            return
        except Exception as error:
            log.error("nothing was changed by SIGHUP, by a defect", exc_info=error)
            return
        self._held = self._held._replace(of_server={**self._held.of_server, **taken})
        log.info("certificates, users, the allow list and super users were read again")
        fixed = self._fixed(new)
        if fixed:
            log.warning("SIGHUP can't change %s: that needs a restart", ", ".join(fixed))

    def _fixed(self, new: ServerPlan) -> list[str]:
        """Return the names of changed settings that were not applied."""
        of_server = [name.replace("_", ".") for name in _changes(self._held.of_server, new.of_server)]
        of_store = _changes(self._held.of_store, new.of_store)
        places = ["log.dirs"] * (self._held.path != new.path)
        places += ["http.listener"] * (self._held.http != new.http)
        return sorted({*of_server, *of_store, *places})


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name of a changed setting: new value}. The value is None if the setting was removed."""
    return {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}

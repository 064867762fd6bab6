"""`take_claim` makes an archiver the writer of an archive. `check_claim` checks that it is still the writer.

A claim is an object below `claims/` in the archive, and is never changed. Threads: any; functions without
state.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from segstore.archiving.chain import Objects, claims
from segstore.archiving.object_names import ArchiverClaim, claim_object
from segstore.errors import ArchiveFencedError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class WritableObjects(Objects, Protocol):
    """The methods of `remote.RemoteFiles` that an archiver uses."""

    def write(self, name: str, parts: Iterable[Buffer]) -> int: ...

    def delete(self, names: Iterable[str]) -> None: ...

    def delete_unfinished(self) -> int: ...


def take_claim(objects: WritableObjects) -> ArchiverClaim:
    """Make an archiver the writer of an archive: write a claim that is higher than all other claims, and
    return the claim. Raises ArchiveError.
    """
    found = claims(objects)
    claim = ArchiverClaim(found[0].epoch + 1 if found else 1, secrets.token_hex(8))
    objects.write(claim_object(claim), [b"{}"])
    return claim


def check_claim(objects: Objects, claim: ArchiverClaim) -> list[ArchiverClaim]:
    """Return the claims of all archivers, the highest first. Raises ArchiveError, and ArchiveFencedError if
    there is a higher claim than `claim`.
    """
    found = claims(objects)
    if found and found[0] > claim:
        raise ArchiveFencedError(
            f"{objects.uri}: another archiver has taken the archive over, with claim {found[0]}; this one had"
            f" {claim}"
        )
    return found

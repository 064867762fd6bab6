"""Promise: whoever sealed a manifest may take it back: then nothing is adopted, or it is told that it was too
late.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from staging import begin, contents, left_in_inbox, stage
from waiting import until

import segstore
from segstore.files import Files
from segstore.storage.inbox.manifest import Manifest
from segstore.storage.inbox.sealing import SealedManifest, remove_unsealed


class At(HookedFiles):
    """Files of a writer that makes a call before its first call `name` for a path that ends so."""

    def __init__(self, name: str, end: str, call: Callable[[], object]) -> None:
        super().__init__()
        self._at, self._call, self.said = (name, end), call, list[Any]()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.said and name == self._at[0] and str(args[0]).endswith(self._at[1]):
            self.said.append(self._call())


CALLS = {
    "as it is read": ("read_file", ".manifest", True),
    "as its intent is written": ("write_atomic", ".intent", True),
    "as it is cleared": ("unlink", ".intent", False),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_manifest_is_adopted_or_taken_back(store_dir: Path, name: str) -> None:
    begin(store_dir)
    call, end, in_time = CALLS[name]
    with segstore.open(store_dir) as store:
        before = contents(store)
    message = stage(store_dir, "a")
    sealed = SealedManifest(Files(), str(store_dir), Manifest("", "one", message.files))
    sealed.begin()
    files = At(call, end, sealed.take_back)
    with segstore.open(store_dir, files=files) as store:
        until(lambda: len(files.said) == 1)
        assert files.said == [in_time]
        assert (contents(store) == before) is in_time
        assert (sealed.recorded() is None) is in_time
        assert store.mended == ()
        assert not sealed.is_begun()
    remove_unsealed(sealed.folder, message.files)
    assert left_in_inbox(store_dir) == []

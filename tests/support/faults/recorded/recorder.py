"""The recorder as the program that is recorded sees it."""

from __future__ import annotations

import ctypes
import os
import pickle
from typing import Any


class Recorder:
    """Notes in the trace what the program was told, and lets a sync fail."""

    def __init__(self) -> None:
        self._shim = ctypes.CDLL(None)
        self._refuse = int(os.environ.get("SEGSTORE_RECORDING_REFUSE", "0"))
        self._begun = False

    def begin(self) -> None:
        """Let cuts and failures come from now on."""
        self._begun = True
        if self._refuse:
            self._shim.recording_refuse(ctypes.c_long(self._refuse))

    @property
    def refusing(self) -> bool:
        """Whether a sync of this run is to fail."""
        return self._refuse > 0

    def note(self, **told: Any) -> None:
        """Note what must, and what may, be there from now on."""
        self._call(self._shim.recording_note, told)

    def end(self, **told: Any) -> None:
        """Note it, and end the process as a SIGKILL does."""
        self._call(self._shim.recording_end, told)

    def _call(self, call: Any, told: dict[str, Any]) -> None:
        data = pickle.dumps({"begun": self._begun, **told})
        call(data, ctypes.c_size_t(len(data)))

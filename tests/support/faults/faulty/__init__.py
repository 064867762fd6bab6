"""`Files` on a disk that can lose power, and of which every call can fail.

    files = FaultyFiles(root)                    # what lies below `root` counts as synced
    store = segstore.open(path, files=files)     # path: root or below it
    files.fail(3, errno.ENOSPC)                  # the third change from now fails; part=0.5: half written
    files.watch = lambda call: ...               # told of every change before it is made
    image = files.image("sectors", rng)          # what a cut now would leave; the store goes on
    files.power_cut("sectors", rng)              # every later call fails, `root` is what the disk has

After a cut the same directory is opened with a new FaultyFiles. MODES says what a cut can do.
"""

from .content import Draw
from .cuts import MODES, draw_of
from .files import CHANGES, Call, FaultyFiles
from .image import Image

__all__ = ["CHANGES", "MODES", "Call", "Draw", "FaultyFiles", "Image", "draw_of"]

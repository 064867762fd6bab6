"""`python -m segstore`: the command line. Nothing on disk."""

from __future__ import annotations

import sys

from segstore.cli import main

sys.exit(main())

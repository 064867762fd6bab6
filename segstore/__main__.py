"""`python -m segstore`: the command line. Nothing is on disk."""

from __future__ import annotations

import sys

from segstore.cli import main

sys.exit(main())

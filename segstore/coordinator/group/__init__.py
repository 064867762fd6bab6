"""Consumer groups: who has which partitions, and what was committed. Knows only `storage` and its columns."""

"""Hot standbys: directories that replicate a primary, and can be promoted in its place."""

"""Hot standbys: directories that follow a primary as its replica, and may take its place."""

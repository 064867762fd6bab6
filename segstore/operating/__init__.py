"""Metrics and health over HTTP, for those who operate a server, a standby or a mirror."""

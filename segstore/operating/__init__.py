"""Metrics and health over HTTP, for the operators of a server, a standby, a mirror or an archive."""

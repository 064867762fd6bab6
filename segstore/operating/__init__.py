"""Metrics and health over HTTP, for operators of a server, a standby, a mirror or an archive."""

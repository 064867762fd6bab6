"""Sockets: the loop, connections, and who may connect."""

"""Sockets, requests and answers of a server: one loop in one thread."""

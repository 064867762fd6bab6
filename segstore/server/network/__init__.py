"""The sockets, requests and answers of a server. Each listener has one event loop in one thread."""

"""Authentication and authorization of clients: TLS, SASL, users and their credentials, the allow list."""

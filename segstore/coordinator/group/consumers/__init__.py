"""Consumer groups (KIP-848): groups whose members are assigned by the coordinator."""

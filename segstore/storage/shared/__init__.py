"""A store that several processes write: its members, its host and guests, and what they share."""

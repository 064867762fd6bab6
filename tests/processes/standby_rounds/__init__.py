"""Rounds in which a primary and its hot standby fail, change roles and come together again."""

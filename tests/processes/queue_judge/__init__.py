"""Runs rounds of one share group, whose consumers, server and connections fail, and judges what all were
told: see `__main__`.
"""

"""Runs clients of several libraries against `segstore serve`, has everything fail, and judges what they were
told: see `__main__`.
"""

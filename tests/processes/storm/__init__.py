"""Runs storms of Ctrl-C: operations with single and paired interrupts at any moment, see `__main__`."""

"""Zygotes and workers: the processes that run the user's code, and the daemon's hold on them."""

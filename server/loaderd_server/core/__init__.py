"""The daemon's decisions: events in, actions out; no I/O, no clock, no randomness, no torch."""

"""The loaderd daemon: it owns dataset workers, slots and cursors, and serves trainers."""

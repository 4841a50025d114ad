"""The auditor: real trainers on real daemons, against a reference that was made without either."""

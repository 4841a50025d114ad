"""The command line: ``loaderd serve``, ``check`` and ``status``."""

"""The command line: ``loaderd serve``, ``check``, ``status`` and ``audit``."""

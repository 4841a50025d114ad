"""Built-in datasets; your own is any importable callable that returns an object with ``[i]``."""

from loaderd_server.datasets.image_folder import ImageFolder
from loaderd_server.datasets.images import ImageError
from loaderd_server.datasets.token_file import TokenFile

__all__ = ["ImageError", "ImageFolder", "TokenFile"]

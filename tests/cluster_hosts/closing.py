"""What is closed at the end of a `with` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager of itself."""

    @abstractmethod
    def close(self) -> None:
        """End all of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""What the person at `muxcluster top` looks at, changed by keys. No terminal in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.cli.watching.rows import COLUMNS, Column

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
_BACK = ("escape", "left", "backspace")


@dataclass(slots=True)
class Browser:
    """The state of the screen; models are known by name, as their order changes."""

    column_index: int = 0  # of COLUMNS: what models are sorted by
    selected: str | None = None
    opened: str | None = None  # the model that is shown alone
    typed: str = ""  # digits of a model's number so far

    @property
    def column(self) -> Column:
        return COLUMNS[self.column_index]

    def press(self, key: str, numbered: Sequence[str], shown: Sequence[str]) -> bool:
        """Follow a key. Return False where it quits.

        numbered: the models in order of their numbers, which begin at 1; shown: in order of the
        rows.
        """
        if key == "q":
            return False
        if key == "s":
            self.column_index = (self.column_index + 1) % len(COLUMNS)
        elif key in _BACK:
            self._go_back()
        elif key in _STEPS:
            self._step(_STEPS[key], shown)
        elif key in ("enter", "right"):
            self._open(numbered)
        elif key in tuple("0123456789"):
            self.typed += key
            # no model has a longer number that begins so
            if int(self.typed) * 10 > len(numbered):
                self._open(numbered)
        return True

    def _go_back(self) -> None:
        if self.typed:
            self.typed = ""
        else:
            self.opened = None

    def _step(self, step: int, shown: Sequence[str]) -> None:
        if not shown:
            return
        at = shown.index(self.selected) + step if self.selected in shown else 0
        self.selected = shown[max(0, min(len(shown) - 1, at))]
        if self.opened is not None:
            self.opened = self.selected

    def _open(self, numbered: Sequence[str]) -> None:
        number, self.typed = int(self.typed or 0), ""
        if 1 <= number <= len(numbered):
            self.selected = numbered[number - 1]
        if number <= len(numbered):
            self.opened = self.selected

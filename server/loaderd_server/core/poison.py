"""The search for the one row of a batch that ends its worker, by trying parts of it."""

from __future__ import annotations


class PoisonSearch:
    """Says which rows to try next; told what came of it, names the culprit or gives up.

    The row that the worker had begun last is tried alone first; if it does no harm, the batch is
    halved until a single row has ended its worker.
    """

    def __init__(self, rows: int, suspect: int | None) -> None:
        self._rows = rows
        self._halving = suspect is None or not 0 <= suspect < rows
        #: The row that ended its worker alone.
        self.culprit: int | None = None
        if self._halving or suspect is None:
            self._to_try = _halves(range(rows))
        else:
            self._to_try = [range(suspect, suspect + 1)]

    @property
    def trying(self) -> range | None:
        """The rows to try now; None when the search is over."""
        return self._to_try[0] if self._to_try and self.culprit is None else None

    def died(self) -> None:
        """The worker ended on the rows tried."""
        tried = self._to_try[0]
        if len(tried) == 1:
            self.culprit = tried[0]
            return
        self._to_try = _halves(tried)

    def survived(self) -> None:
        """The rows tried did no harm."""
        self._to_try.pop(0)
        if not self._to_try and not self._halving:
            self._halving = True
            self._to_try = _halves(range(self._rows))


def _halves(rows: range) -> list[range]:
    middle = len(rows) // 2
    return [half for half in (rows[:middle], rows[middle:]) if len(half)]

"""The rows of one series while they are sorted out, each still known by its line."""

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.readers.columns import Series
from scalerl.scaling.readers.table import Table, not_a_number
from scalerl.scaling.sigmoid import Floats


class Rows:
    """The rows of a series as they are sorted out; `index` are positions in the table."""

    def __init__(self, table: Table, series: Series) -> None:
        self.table = table
        self.series = series
        self.notes = [*table.notes, *series.notes]
        rows = range(len(table.lines)) if series.rows is None else series.rows
        self.index = list(rows)

    def values(self, column: str) -> Floats:
        """The column's numbers on the rows left, NaN where there is none. Text is an error."""
        out = np.full(len(self.index), np.nan)
        for k, i in enumerate(self.index):
            value = self.table.columns[column][i]
            if isinstance(value, str):
                raise InputError(not_a_number(self.table, column, i))
            if value is not None:
                out[k] = value
        return out

    def optional(self, column: str | None) -> Floats | None:
        """The column's numbers where it exists and has any."""
        if column is None or column not in self.table.columns or not self.table.numeric(column):
            return None
        return self.values(column)

    def keep(self, mask: np.ndarray, why: str) -> None:
        """Leave the rows where mask is false, and note how many and which."""
        if mask.all():
            return
        self.notes.append(f"{int((~mask).sum())} rows {why}: {self.named(~mask)}")
        self.index = [i for i, ok in zip(self.index, mask, strict=True) if ok]

    def line(self, k: int) -> str:
        """The place of the k-th row left, such as `line 12`."""
        return f"{self.table.row_word} {self.table.lines[self.index[k]]}"

    def named(self, mask: np.ndarray) -> str:
        """The places of the rows where mask is true: the first few, and how many more."""
        lines = [self.table.lines[i] for i, hit in zip(self.index, mask, strict=True) if hit]
        return f"{self.table.row_word} {shown(lines)}"

    def order(self, order: np.ndarray) -> None:
        """Put the rows in another order."""
        self.index = [self.index[int(k)] for k in order]


def shown(numbers: list[int], most: int = 6) -> str:
    """Numbers for a message: the first few, then how many more."""
    text = ", ".join(str(n) for n in numbers[:most])
    return text if len(numbers) <= most else f"{text} and {len(numbers) - most} more"

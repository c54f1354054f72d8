"""Find what a store refuses of many things that it takes only together.

**A bad record neither blocks nor vanishes.** A store that refuses one row refuses all that came
with it and seldom says which one it was. So what is refused is written again in halves, down to the
single row, which is set aside; all others are written, in their order.
"""

from collections.abc import Callable


def write_in_halves(
    count: int,
    write: Callable[[int, int], int],
    set_aside: Callable[[int, Exception], None],
    refused: Callable[[Exception], bool],
) -> int:
    """Write the things numbered [0, count) and return how many rows that made. `write` takes the
    part [low, high) or raises and leaves nothing of it; if the error is one for which `refused`
    holds, the part is halved, and of a single one `set_aside` hears, with the error."""

    def part(low: int, high: int) -> int:
        if low >= high:
            return 0
        try:
            return write(low, high)
        except Exception as error:
            if not refused(error):
                raise
            if high - low == 1:
                set_aside(low, error)
                return 0
        middle = (low + high) // 2
        return part(low, middle) + part(middle, high)

    return part(0, count)

# SPDX-License-Identifier: Apache-2.0
"""What a plan gains, with the same names everywhere: your run now, 1F1B on the best stages, this plan."""

from collections.abc import Sequence

Beside = tuple[
    str, int, int
]  # its name, what it is predicted to take, and a whole step as it ran (0: not known); nanoseconds


KNOWN = 0.2  # by which a measured step may differ from what its layers add up to


def gain(beside: Sequence[Beside], predicted: int) -> str:
    """Of the first over `predicted`, this plan's; "" where there is nothing to compare with."""
    if not beside or not predicted:
        return ""
    (name, time, measured), *more = beside
    notes = [f"measured: {measured / 1e6:.1f} ms with the optimizer{_doubt(time, measured)}"] * bool(measured)
    notes += [f"{other}: {takes / 1e6:.1f} ms" for other, takes, _ in more]
    known = f" ({'; '.join(notes)})" if notes else ""
    return f"expected to be {time / predicted:.2f} times as fast as {name}: {time / 1e6:.1f} -> {predicted / 1e6:.1f} ms a step{known}"


def _doubt(predicted: int, measured: int) -> str:
    """Where figures of layers say little of the run."""
    off = measured / predicted if predicted else 1.0
    if abs(off - 1) <= KNOWN:
        return ""
    return f", {off:.2f} times what its layers add up to, so expect another gain"

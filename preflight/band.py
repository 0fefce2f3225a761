"""A number with its uncertainty: low, mid and high edge, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """low <= mid <= high are p10, p50 and p90. `source`: formula, calibrated (n runs), given, ..."""

    low: float
    mid: float
    high: float
    source: str

    def __post_init__(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise ValueError(f"a band must be ordered, got {self.low}, {self.mid}, {self.high}")

    def scaled(self, factor: float) -> Band:
        """The same band in another unit, or of a multiple (factor >= 0)."""
        return Band(low=self.low * factor, mid=self.mid * factor, high=self.high * factor, source=self.source)

    def plus(self, constant: float) -> Band:
        """Shifted by something that is known exactly."""
        return Band(low=self.low + constant, mid=self.mid + constant, high=self.high + constant, source=self.source)


def exact(value: float, source: str) -> Band:
    """A number without uncertainty."""
    return Band(low=value, mid=value, high=value, source=source)


def around(mid: float, low_factor: float, high_factor: float, source: str) -> Band:
    """`mid` with edges at `mid * low_factor` and `mid * high_factor`."""
    return Band(low=mid * low_factor, mid=mid, high=mid * high_factor, source=source)

# SPDX-License-Identifier: Apache-2.0
"""Paired ratios: the median of log ratios with a 99 % bootstrap interval."""
import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Ratio:
    median: float
    low: float
    high: float

    def verdict(self):
        """Of a ratio peer / ours."""
        if self.low > 1:
            return "ahead"
        return "behind" if self.high < 1 else "even"

    def same(self, tolerance=0.02):
        """Is it 1, as an A/A control must be? A median within the tolerance passes, however sure it is."""
        return self.low <= 1 <= self.high or abs(math.log(self.median)) <= tolerance


def paired(ours, theirs, seed=1, resamples=4000):
    """Ratio theirs / ours of times taken in pairs."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} times: there must be as many of both, and some")
    logs = np.log(np.asarray(theirs, float)) - np.log(np.asarray(ours, float))
    draws = np.random.default_rng(seed).integers(0, len(logs), (resamples, len(logs)))
    medians = np.median(logs[draws], axis=1)
    low, high = np.quantile(medians, [0.005, 0.995])
    return Ratio(math.exp(np.median(logs)), math.exp(low), math.exp(high))

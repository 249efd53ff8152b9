#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decode loop on NumPy: one plan, a cache that grows by a token a step, and the receipt of the last step."""
import numpy as np

import tileproof

HEADS, KV_HEADS, DIM, MAX_KEYS, STEPS = 8, 2, 64, 1024, 100
random = np.random.default_rng(1)
keys, values = (np.zeros((1, MAX_KEYS, KV_HEADS, DIM), np.float16) for _ in range(2))
plan = tileproof.plan((1, 1, HEADS, DIM), keys, values, dtype=np.float16)
for step in range(STEPS):
    keys[:, step] = random.standard_normal((1, KV_HEADS, DIM))
    values[:, step] = random.standard_normal((1, KV_HEADS, DIM))
    q = random.standard_normal((1, 1, HEADS, DIM)).astype(np.float16)
    out, receipt = plan.run(q, keys[:, : step + 1], values[:, : step + 1], return_receipt=True)
print(plan)
print(receipt)

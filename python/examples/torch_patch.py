#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of a PyTorch layer whose attention goes to tileproof, and what ran by the receipts."""
import torch

import tileproof.torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 8, 512, dropout=0.0, batch_first=True)
x = torch.randn(2, 128, 256)
with tileproof.torch.patch() as log:
    layer(x).square().mean().backward()
print(log)
for receipt in log.receipts:
    print(f"{receipt.problem}: kernel {receipt.kernel}, {receipt.scores_written} scores written")

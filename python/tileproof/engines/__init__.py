# SPDX-License-Identifier: Apache-2.0
"""Other engines of attention: how each is given a call, and what it is seen to run.

    python -m tileproof.engines torch        the runner behind `tileproof qualify --engine torch` (docs/runner-protocol.md)

A module an engine. `Engine` serves cells for the runner; `variants(cell, threads)`, where there is one, gives the ways that
`make peers` times."""
NAMES = ("torch", "flex", "onnxruntime", "openvino", "vllm", "ggml", "flash_attn")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of model types of docs/models.md, from python/tests/model_table.py and the transformers that
python/tests/requirements.txt names (kept as scripts/test_torch.py keeps it).

    python3 scripts/model_table.py"""
import importlib.util
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def write():
    sys.path.insert(0, str(ROOT / "python/tests"))
    import model_table
    import tiny_models
    import transformers

    others = {*model_table.reasons(model_table.OUT_OF_SCOPE), *model_table.reasons(model_table.REFUSED)}
    known = [x for x in tiny_models.types() if x not in others]
    page = ROOT / "docs/models.md"
    before, _, rest = page.read_text().partition(model_table.BEGIN)
    _, _, after = rest.partition(model_table.END)
    page.write_text(before + model_table.text(known, transformers.__version__) + after)
    print(f"docs/models.md: {len(known)} known, {len(others)} others")


if __name__ == "__main__":
    if importlib.util.find_spec("transformers"):
        write()
    else:
        import test_torch

        sys.exit(subprocess.run([test_torch.environment(), __file__]).returncode)

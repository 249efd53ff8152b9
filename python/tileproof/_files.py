# SPDX-License-Identifier: Apache-2.0
"""Files that are written."""
from __future__ import annotations

import os


def write_file(path: str, text: str) -> None:
    """Whole or not at all, for whoever reads meanwhile. What is no regular file is written as it is."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w") as out:
            out.write(text)
        return
    path = os.path.realpath(path)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise

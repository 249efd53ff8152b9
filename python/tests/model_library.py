# SPDX-License-Identifier: Apache-2.0
"""libtileproof_proof by ctypes, through the flat functions of tests/models/shim.c: a config becomes layer groups and problem
texts, and a problem text with tensors a result. TILEPROOF_MODELS names the library."""
import ctypes
import json
import os

import torch

_TEXT, _POINTER, _INT64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
UNSUPPORTED = 2
_DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class Refused(Exception):
    """status and text as tp_error has them."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def _load():
    library = ctypes.CDLL(os.environ["TILEPROOF_MODELS"])
    library.models_read.restype = _POINTER
    library.models_read.argtypes = [_TEXT, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int), _TEXT, ctypes.c_size_t]
    library.models_close.argtypes = [_POINTER]
    library.models_close.restype = None
    library.models_json.restype = ctypes.c_size_t
    library.models_json.argtypes = [_POINTER, _TEXT, ctypes.c_size_t]
    library.models_problem.argtypes = [_POINTER, ctypes.c_int, _INT64, _INT64, _INT64, _TEXT, ctypes.c_size_t]
    library.models_rotate.argtypes = [_POINTER, *[ctypes.c_int] * 3, *[_POINTER] * 3, ctypes.c_float, ctypes.c_int, _POINTER,
                                      _TEXT, ctypes.c_size_t]
    library.models_attention.argtypes = [_TEXT, _POINTER, _POINTER, _INT64, _INT64, _POINTER, _TEXT, ctypes.c_size_t]
    return library


library = _load() if "TILEPROOF_MODELS" in os.environ else None


class Model:
    """A config, as a dict, read by tp_model_parse."""

    def __init__(self, config):
        text, status, why = json.dumps(config).encode(), ctypes.c_int(), ctypes.create_string_buffer(1024)
        self.handle = library.models_read(text, len(text), ctypes.byref(status), why, len(why))
        if not self.handle:
            raise Refused(status.value, why.value.decode())
        size = library.models_json(self.handle, None, 0) + 1
        room = ctypes.create_string_buffer(size)
        library.models_json(self.handle, room, size)
        self.groups = json.loads(room.value)["groups"]

    def __del__(self):
        if getattr(self, "handle", None):
            library.models_close(self.handle)

    def rotate(self, layer, rows, positions, angle="double", norm=None):
        """Rows [batch, token, head, dim] as this layer of the text rotates them; positions [batch, token], or [3, batch, token].
        norm: weight, eps, and whether 1 is added to the weight."""
        out = rows.contiguous().clone()
        shape, positions = torch.tensor(rows.shape), positions.contiguous().to(torch.int64)
        weight, eps, one_plus = norm or (None, 0, False)
        why = ctypes.create_string_buffer(1024)
        status = library.models_rotate(
            self.handle, layer, ("double", "float32").index(angle), _DTYPES[rows.dtype], shape.data_ptr(), positions.data_ptr(),
            None if weight is None else weight.data_ptr(), eps, one_plus, out.data_ptr(), why, len(why),
        )  # fmt: skip
        if status:
            raise Refused(status, f"tp_rope_from_model of layer {layer}: {why.value.decode()}")
        return out

    def problem(self, group, batch, q_len, kv_len):
        text = ctypes.create_string_buffer(512)
        status = library.models_problem(self.handle, group, batch, q_len, kv_len, text, len(text))
        if status:
            raise Refused(status, f"tp_layer_group_problem of group {group}")
        return text.value.decode()


def attention(text, q, k, v, sinks=None, slopes=None, q_spans=None, k_spans=None, borders=None, lists=None):
    """What the problem text gives for tensors [batch, token, head, dim]: o of the same kind. lists: [batch, row, n] keys in
    ascending order, filled up with -1."""
    hold = [x if x is None else x.contiguous().float() for x in (q, k, v, sinks, slopes)]
    whole = [x if x is None else x.contiguous().to(torch.int64) for x in (q_spans, k_spans, borders, lists)]
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"))
    address = lambda tensors: (_POINTER * len(tensors))(*[x if x is None else x.data_ptr() for x in tensors])
    segments = 0 if borders is None else len(borders) - 1
    why = ctypes.create_string_buffer(1024)
    width = 0 if lists is None else lists.shape[-1]
    status = library.models_attention(
        text.encode(), address(hold), address(whole), segments, width, out.data_ptr(), why, len(why)
    )
    if status:
        raise Refused(status, f"{text}: {why.value.decode()}")
    return out

# SPDX-License-Identifier: Apache-2.0
"""tileproof, called through the flat shim."""
import ctypes

import numpy as np

from problem import E4M3_SCALE, load, placed
from timing import NotServed, Variant

_TEXT = ctypes.c_char_p
_POINTER = ctypes.c_void_p
SIGNATURES = {
    "peers_open": (_POINTER, [ctypes.c_int, _TEXT, ctypes.c_size_t]),
    "peers_close": (None, [_POINTER]),
    "peers_prepare": (_POINTER, [_POINTER, _TEXT, _TEXT, ctypes.c_size_t]),
    "peers_bind": (None, [_POINTER] * 5),
    "peers_bind_scales": (None, [_POINTER] * 2),
    "peers_bind_gradients": (ctypes.c_int, [_POINTER] * 6),
    "peers_run": (ctypes.c_int, [_POINTER]),
    "peers_text": (_TEXT, [_POINTER]),
    "peers_kernel": (_TEXT, [_POINTER]),
    "peers_error": (_TEXT, [_POINTER]),
    "peers_release": (None, [_POINTER]),
    "peers_amx": (ctypes.c_int, []),
    "peers_machine": (ctypes.c_int, [_POINTER, _TEXT, ctypes.c_size_t]),
    "tp_version": (_TEXT, []),
}


class Tileproof:
    """The library and one context a thread count."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        self.contexts = {}

    @property
    def version(self):
        return self.library.tp_version().decode()

    def amx(self):
        """1: the host has AMX and it works; 0: it does not say so; -1: it says so, but tiles cannot be used."""
        return self.library.peers_amx()

    def machine(self):
        """As the library prints it: architecture, ISA, caches."""
        text = ctypes.create_string_buffer(512)
        self.library.peers_machine(self.context(1), text, len(text))
        return text.value.decode()

    def context(self, threads):
        if threads not in self.contexts:
            why = ctypes.create_string_buffer(512)
            self.contexts[threads] = self.library.peers_open(threads, why, len(why))
            if not self.contexts[threads]:
                raise NotServed(why.value.decode())
        return self.contexts[threads]

    def prepare(self, text, threads=1):
        why = ctypes.create_string_buffer(512)
        call = self.library.peers_prepare(self.context(threads), text.encode(), why, len(why))
        if not call:
            raise ValueError(f"{text}: {why.value.decode()}")
        return call

    def canonical(self, text):
        """The text form as the library prints it."""
        call = self.prepare(text)
        try:
            return self.library.peers_text(call).decode()
        finally:
            self.library.peers_release(call)

    def variant(self, case, threads, name="tileproof"):
        return Call(self, case, threads, name).variant


class Call:
    """One problem bound to its tensors."""

    def __init__(self, tileproof, case, threads, name):
        self.library, self.case = tileproof.library, case
        self.call = tileproof.prepare(case.problem.text, threads)
        self.o = placed(np.zeros_like(case.stored["q"]))
        tensors = [(case.stored | case.codes)[x] for x in "qkv"] + [self.o]
        self.library.peers_bind(self.call, *(x.ctypes.data for x in tensors))
        if case.problem.cache == "e4m3":  # other codes have their scales in their blocks
            self.scale = np.array([E4M3_SCALE], np.float32)
            self.library.peers_bind_scales(self.call, self.scale.ctypes.data)
        if case.problem.backward:
            self.bind_gradients()
        self.variant = Variant(name, self.run, self.output)
        self.variant.kernel = lambda: self.library.peers_kernel(self.call).decode()

    def bind_gradients(self):
        stored = self.case.stored
        self.lse = np.zeros(stored["q"].shape[:2], np.float32)
        self.gradients = [placed(np.zeros_like(stored[x])) for x in "qkv"]
        tensors = [self.lse, stored["d_o"]] + self.gradients
        self.served(self.library.peers_bind_gradients(self.call, *(x.ctypes.data for x in tensors)))

    def served(self, status):
        if status:
            raise NotServed(f"status {status}: {self.library.peers_error(self.call).decode()}")

    def run(self):
        self.served(self.library.peers_run(self.call))

    def output(self):
        dtype = self.case.problem.dtype
        if self.case.problem.backward:
            return [load(x, dtype) for x in self.gradients]
        return load(self.o, dtype)

    def __del__(self):
        if getattr(self, "call", None):
            self.library.peers_release(self.call)

# SPDX-License-Identifier: Apache-2.0
"""The entry points in Python: names, types and docstrings. The extension takes everything by position (_core.arguments)."""
from __future__ import annotations

import os
import re
import sys
from typing import Any, Literal, Optional, Sequence, Tuple, Union

from . import _core
from ._reports import Decision, Receipt
from ._torch_log import note_receipt, wants_receipts

Align = Literal["bottom_right", "top_left"]
Layout = Literal["bshd", "bhsd", "thd"]
Fallback = Literal["refuse", "permit"]
Window = Optional[Tuple[Optional[int], Optional[int]]]
Array = Any  # NumPy, PyTorch on the CPU, or anything with the buffer protocol or __dlpack__
Shape = Union[Sequence[int], Array]


def _omp_num_threads() -> Optional[int]:
    """OMP_NUM_THREADS, as OpenMP reads it: when the process starts, the first number of a list; None: not set, or no number."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if re.fullmatch("0{0,9}[1-9][0-9]{0,8}", first) else None


_OMP_NUM_THREADS = _omp_num_threads()


def _most_threads(q: Any, dtype: Any = None) -> Optional[int]:
    """What a call that names no number of threads may take: PyTorch's number for its tensors, otherwise OMP_NUM_THREADS;
    None: as many as affinity and cgroup allow."""
    torch = sys.modules.get("torch")
    if torch is not None and (hasattr(q, "requires_grad") or isinstance(dtype, torch.dtype)):
        return torch.get_num_threads()
    return _OMP_NUM_THREADS


def _refuse_tangents(torch: Any, tensors: tuple) -> None:
    forward = torch.autograd.forward_ad
    if forward._current_level < 0:
        return
    for x in tensors:
        if isinstance(x, torch.Tensor) and forward.unpack_dual(x).tangent is not None:
            raise TypeError(
                "a tensor has a tangent: there is no forward-mode derivative here, and it would be lost; use PyTorch's "
                "scaled_dot_product_attention inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH), which has one"
            )


def _needs_torch(*tensors: Any) -> bool:
    """PyTorch tensors that gradients flow through, or that are being traced by torch.compile or a dispatch mode."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    _refuse_tangents(torch, tensors)
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def _refuse_lost_gradient(name: str, first: Any, *others: Any) -> None:
    """A gradient could flow to the others, but the result follows the first, which knows none."""
    torch = sys.modules.get("torch")
    if torch is not None:
        _refuse_tangents(torch, others)
    if torch is not None and torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in others):
        raise TypeError(
            f"{name} is a {type(first).__name__} and another argument a PyTorch tensor that requires grad: its gradient "
            f"would be lost; {name} must be a PyTorch tensor too, or detach() the other"
        )


def _with_receipt(result: tuple) -> tuple:
    (text, fields), rewrites = result[-1]
    return (*result[:-1], Receipt(text, fields, rewrites))


def _told(result: tuple, wanted: bool) -> Any:
    """The result of a call with a receipt, without it unless wanted, after watchers and logs have heard of it."""
    made = _with_receipt(result)
    note_receipt(made[-1])
    return made if wanted else made[0] if len(made) == 2 else made[:-1]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    causal_align: Align = "bottom_right",
    window: Window = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    mask: Optional[Array] = None,
    bias: Optional[Array] = None,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    q_lens: Optional[Array] = None,
    kv_lens: Optional[Array] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    page_table: Optional[Array] = None,
    layout: Layout = "bshd",
    out: Optional[Array] = None,
    return_lse: bool = False,
    return_receipt: bool = False,
    fallback: Fallback = "refuse",
    kernel: Optional[str] = None,
    threads: Optional[int] = None,
    p_dtype: Optional[str] = None,
) -> Any:
    """softmax(scale * Q K^T + bias, masked) V, without the score matrix.

    q, k, v     one dtype: float32, float16 or bfloat16 (ml_dtypes, PyTorch). Nothing is copied unless the last
                dimension is not contiguous or a stride is negative; the receipt's `rewrites` then says so.
    layout      "bshd" (batch, tokens, heads, head dim), "bhsd", or "thd" (tokens, heads, head dim), in which sequences
                lie one after another and cu_seqlens_q and cu_seqlens_k hold their starts and the end, int32 or int64.
                Without cu_seqlens_k, k has the starts of q. q may have a multiple of k's heads. With "thd" k and v may also
                be a cache, (batch, tokens, heads, head dim), of which kv_lens says how much each sequence uses.
    page_table  int32 or int64 (sequences, columns): k and v are a pool of pages, (pages, tokens of a page, heads, head dim), or
                (pages, heads, tokens of a page, head dim) with "bhsd". Key j of sequence s is token j % size of page
                page_table[s, j // size]. kv_lens says how many keys each sequence uses; entries beyond may hold anything.
                With "thd" rows are packed as without it. No gradients.
    causal      row i sees key j if j <= i + keys - rows ("bottom_right") or j <= i ("top_left"). Rows and keys are those
                the sequence uses.
    window      (left, right): keys so far to the left and right of the row's own position, which counts on neither side;
                None for an unbounded side. "sliding window W" of a causal model is (W - 1, 0).
    mask        bool, True: visible. bias: float32, float16 or bfloat16, added to the scores; -inf hides a key. Both in any
                shape that broadcasts to (sequences, query heads, rows, keys), together with all other masks.
    alibi_slopes, sinks   float32 (query heads,); slopes also (sequences, query heads).
    q_lens, kv_lens       how many tokens each sequence uses. Rows beyond are not written; in a new tensor they are 0.
    out         written instead of a new tensor; it may have another of the three dtypes.
    fallback    "refuse": FallbackRefused if only a slower path than this host's best would serve. "permit": it serves, and
                the receipt is flagged.
    kernel      only this one, by name (tileproof.kernels).
    threads     exactly so many. Default is what affinity and cgroup allow, and not more than torch.get_num_threads() for
                PyTorch tensors, or OMP_NUM_THREADS (read at import) for others.
    p_dtype     "bfloat16": probabilities may be rounded to it where they meet v, by kernels that are faster so; the receipt's
                arithmetic says whether they were. None: they stay float32.

    Returns out; with return_lse also the log-sum-exp, float32 (batch, heads, rows), or (heads, tokens) for "thd"; with
    return_receipt also a Receipt. A row that sees no key gives 0, and -inf as its lse.

    With PyTorch tensors it is differentiable, and one node of a torch.compile graph. It has no forward-mode derivative:
    a tensor with a tangent is refused.

    >>> import numpy as np
    >>> q = np.array([[[[0.0]]]], np.float32)  # one row, one head of one dimension
    >>> k, v = np.zeros((1, 2, 1, 1), np.float32), np.array([[[[1.0]], [[3.0]]]], np.float32)
    >>> attention(q, k, v).item()
    2.0
    >>> attention(q, k, v, mask=np.array([False, True])).item()
    3.0
    >>> attention(q, k, v.astype(np.float64))
    Traceback (most recent call last):
    TypeError: v is float64: it must be float32, float16 or bfloat16
    """
    arrays = None if page_table is None else (page_table,)
    if hasattr(q, "requires_grad") and _needs_torch(q, k, v, bias, alibi_slopes, sinks):
        from ._torch_ops import differentiable

        return differentiable(
            q, k, v, causal=causal, causal_align=causal_align, window=window, scale=scale, softcap=softcap, mask=mask,
            bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, q_lens=q_lens, kv_lens=kv_lens, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k, arrays=arrays, layout=layout, out=out, return_lse=return_lse, return_receipt=return_receipt,
            fallback=fallback, kernel=kernel, threads=threads, p_dtype=p_dtype,
        )  # fmt: skip
    if not hasattr(q, "requires_grad"):
        _refuse_lost_gradient("q", q, k, v, bias, alibi_slopes, sinks)
    wanted, return_receipt = return_receipt, return_receipt or wants_receipts()
    result = _core.attention(
        q, k, v, causal, causal_align, window, scale, softcap, mask, bias, alibi_slopes, sinks, q_lens, kv_lens,
        cu_seqlens_q, cu_seqlens_k, arrays, layout, out, return_lse, return_receipt, fallback, kernel, threads, p_dtype, 0.0,
        0, 0, _most_threads(q),
    )  # fmt: skip
    return _told(result, wanted) if return_receipt else result


def _shape(x: Shape) -> tuple:
    return tuple(getattr(x, "shape", x))


def _dtype_name(dtype: Any, q: Any) -> str:
    """'bf16', 'bfloat16', numpy.float32, torch.bfloat16, or that of q."""
    given = dtype if dtype is not None else getattr(q, "dtype", "float32")
    if isinstance(given, str):
        return given
    return getattr(given, "name", None) or getattr(given, "__name__", None) or str(given).removeprefix("torch.")


_NOT_OF_A_PLAN = ("arrays", "out", "return_lse", "return_receipt", "dropout_seed", "dropout_offset", "most_threads")


def _shapes_only(q, k, v, dtype, options):
    """The arguments of a call by position, with shapes for tensors, then the dtype."""
    known = dict(
        causal=False, causal_align="bottom_right", window=None, scale=None, softcap=0.0, mask=None, bias=None,
        alibi_slopes=None, sinks=None, q_lens=None, kv_lens=None, cu_seqlens_q=None, cu_seqlens_k=None, arrays=None, layout="bshd",
        out=None, return_lse=False, return_receipt=False, fallback="refuse", kernel=None, threads=None, p_dtype=None, dropout_p=0.0,
        dropout_seed=0, dropout_offset=0, most_threads=_most_threads(q, dtype),
    )  # fmt: skip
    for name in options:
        if name in _NOT_OF_A_PLAN or name not in known and name != "page_table":
            raise TypeError(f"{name!r} is no option of a plan")
    known.update(options)
    page_table = known.pop("page_table", None)
    known["arrays"] = None if page_table is None else (_shape(page_table),)
    return [_shape(q), _shape(k), _shape(k if v is None else v), *known.values(), _dtype_name(dtype, q)]


def explain(q: Shape, k: Shape, v: Optional[Shape] = None, *, dtype: Any = None, **options: Any) -> Decision:
    """Which kernel would serve, and why not the others; from shapes alone (or tensors, of which only the shape is read).

    Options are those of attention(); where there is no tensor yet, `mask=True`, `bias="float32"`, `alibi_slopes=True` and
    `sinks=True` say that there will be one. v is shaped like k unless given.

    >>> decision = explain((1, 512, 32, 128), (1, 4096, 8, 128), dtype="bfloat16", causal=True)
    >>> decision.problem
    'prefill b1 h32/8 q512 k4096 d128 bf16 causal'
    >>> [c["kernel"] for c in decision.candidates if c["chosen"]] == [decision.kernel]
    True
    """
    return Decision(*_core.explain(*_shapes_only(q, k, v, dtype, options)))


class Plan:
    """A decision and its workspace, for loops; made by plan()."""

    def __init__(self, q: Shape, k: Shape, v: Optional[Shape], dtype: Any, options: dict) -> None:
        arguments = _shapes_only(q, k, v, dtype, options)
        self._plan = _core.plan(*arguments)
        self._given = dict(zip(_core.arguments, arguments))

    @property
    def decision(self) -> Decision:
        return Decision(*_core.plan_about(self._plan)[0])

    @property
    def workspace_bytes(self) -> int:
        return _core.plan_about(self._plan)[1]

    def run(
        self, q: Array, k: Array, v: Array, *, mask: Optional[Array] = None, bias: Optional[Array] = None,
        alibi_slopes: Optional[Array] = None, sinks: Optional[Array] = None, q_lens: Optional[Array] = None,
        kv_lens: Optional[Array] = None, cu_seqlens_q: Optional[Array] = None, cu_seqlens_k: Optional[Array] = None,
        page_table: Optional[Array] = None, out: Optional[Array] = None, return_lse: bool = False, return_receipt: bool = False,
    ) -> Any:  # fmt: skip
        """attention() with the plan's options. Batch and lengths may be smaller than the plan's, nothing else may differ.
        Gradients do not flow through it."""
        g, noted = self._given, return_receipt or wants_receipts()
        result = _core.plan_run(
            q, k, v, g["causal"], g["causal_align"], g["window"], g["scale"], g["softcap"], mask, bias, alibi_slopes,
            sinks, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, None if page_table is None else (page_table,), g["layout"], out,
            return_lse, noted, g["fallback"], g["kernel"], g["threads"], g["p_dtype"], 0.0, 0, 0, None, self._plan,
        )  # fmt: skip
        return _told(result, return_receipt) if noted else result

    def __repr__(self) -> str:
        return f"<tileproof.Plan {self.decision.problem!r} on {self.decision.kernel}, workspace {self.workspace_bytes}>"


def plan(q: Shape, k: Shape, v: Optional[Shape] = None, *, dtype: Any = None, **options: Any) -> Plan:
    """Decides once, for every call up to these shapes; arguments as for explain().

    >>> import numpy as np
    >>> step = plan((1, 1, 4, 64), (1, 4096, 2, 64), dtype="float32")
    >>> q, cache = np.zeros((1, 1, 4, 64), np.float32), np.ones((1, 4096, 2, 64), np.float32)
    >>> [float(step.run(q, cache[:, :n], cache[:, :n]).sum()) for n in (1, 2, 4096)]
    [256.0, 256.0, 256.0]
    """
    return Plan(q, k, v, dtype, options)

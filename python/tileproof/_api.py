# SPDX-License-Identifier: Apache-2.0
"""The entry points in Python: names, types and docstrings. The extension takes everything by position (_core.arguments)."""
from __future__ import annotations

import inspect
import math
import os
import re
import sys
from typing import Any, Literal, Optional, Sequence, Tuple, TypedDict, Union, Unpack

from . import _core
from ._mask import Mask
from ._reports import Decision, Receipt
from ._torch_log import note_receipt, wants_receipts

Align = Literal["bottom_right", "top_left"]
Layout = Literal["bshd", "bhsd", "thd"]
Fallback = Literal["refuse", "permit", "serve", "locked"]
Latent = Union[None, int, Tuple[int, int]]
Format = str  # of a cache, in the words of docs/quantised.md: "i8", "e4m3/token", "plain:i8"
Strategy = Literal["prefill", "decode"]
KvFormat = Union[None, Format, Tuple[Optional[Format], Optional[Format]]]
Window = Optional[Tuple[Optional[int], Optional[int]]]
Array = Any  # NumPy, PyTorch on the CPU, or anything with the buffer protocol or __dlpack__
Shape = Union[Sequence[int], Array]


def _omp_num_threads() -> Optional[int]:
    """OMP_NUM_THREADS, as OpenMP reads it: when the process starts, the first number of a list; None: not set, or no number."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if re.fullmatch("0{0,9}[1-9][0-9]{0,8}", first) else None


_OMP_NUM_THREADS = _omp_num_threads()


def _max_threads(q: Any, dtype: Any = None) -> Optional[int]:
    """What a call that names no number of threads may take: PyTorch's number for its tensors, otherwise OMP_NUM_THREADS;
    None: as many as affinity and cgroup allow."""
    torch = sys.modules.get("torch")
    if torch is not None and (hasattr(q, "requires_grad") or isinstance(dtype, torch.dtype)):
        return int(torch.get_num_threads())
    return _OMP_NUM_THREADS


def _refuse_tangents(torch: Any, tensors: tuple[Any, ...]) -> None:
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


def _refuse_gradient(what: str, **given: Any) -> None:
    """PyTorch tensors that a gradient could flow through, where there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    _refuse_tangents(torch, tuple(given.values()))
    for name, x in given.items():
        if torch.is_grad_enabled() and getattr(x, "requires_grad", False):
            raise ValueError(f"{name} requires grad: no gradient goes through {what}; call it under torch.no_grad(), or detach() it")


def _written(x: Any) -> None:
    """Autograd hears of a write in place to a tensor of PyTorch's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and not x.is_inference():
        torch.autograd.graph.increment_version(x)


def _with_receipt(result: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*result[:-1], Receipt(*result[-1]))


def _told(result: tuple[Any, ...], wanted: bool) -> Any:
    """The result of a call with a receipt, without it unless wanted, after watchers and logs have heard of it."""
    made = _with_receipt(result)
    note_receipt(made[-1])
    return made if wanted else made[0] if len(made) == 2 else made[:-1]


class Tags(TypedDict, total=False):
    """Whose call it is."""

    model: str
    layer: int
    request: str


class More(TypedDict, total=False):
    """Arguments of attention() that few calls have. They are apart because each that Python fills in costs a plain call time."""

    page_table: Optional[Array]
    v_page_table: Optional[Array]
    indices: Optional[Array]
    q_positions: Optional[Array]
    kv_positions: Optional[Array]
    q_scale: Optional[Tuple[float, int, int]]
    indices_sorted: bool
    latent: Latent
    k_scales: Union[None, float, Array]
    v_scales: Union[None, float, Array]
    kv_format: KvFormat
    kv_loss: Optional[float]
    shared_with: Optional[Array]
    shared_lens: Optional[Array]
    invariant: bool
    dropout_p: float
    dropout_seed: Union[int, Array]
    dropout_offset: Union[int, Array]
    tags: Optional[Tags]
    strategy: Optional[Strategy]
    disable: Optional[str]


def _more(
    mask: Any, *, page_table: Any = None, v_page_table: Any = None, indices: Any = None, q_positions: Any = None,
    kv_positions: Any = None, shared_with: Any = None, shared_lens: Any = None, q_scale: Any = None, indices_sorted: bool = False,
    latent: Any = None, k_scales: Any = None, v_scales: Any = None, kv_format: Any = None, kv_loss: Any = None, invariant: bool = False,
    dropout_p: float = 0.0, dropout_seed: Any = 0, dropout_offset: Any = 0, tags: Any = None,
    strategy: Any = None, disable: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Those arguments and the mask, as the extension takes them."""
    return (
        *_data(mask, page_table, v_page_table, indices, q_positions, kv_positions, shared_with, shared_lens), q_scale, indices_sorted,
        None if latent is None else _part(latent), _codes(kv_format, k_scales, v_scales, kv_loss), invariant, dropout_p, dropout_seed,
        dropout_offset, _tags(tags), strategy, disable,
    )  # fmt: skip


_more.__qualname__ = "attention"  # in the error for an argument that nobody knows


def _tags(tags: Any) -> Optional[tuple[Any, ...]]:
    if tags is None:
        return None
    if not isinstance(tags, dict) or set(tags) - {"model", "layer", "request"}:
        raise ValueError(f"tags is {tags!r}: it must be None or a dict with model, layer and request, or some of them")
    return tags.get("model"), tags.get("layer"), tags.get("request")


def _codes(kv_format: Any, k_scales: Any, v_scales: Any, kv_loss: Any = None) -> Optional[tuple[Any, ...]]:
    """Formats of k and v, their scales, and what they lost; None: nothing is said of any."""
    if isinstance(kv_format, tuple) and any(isinstance(x, str) and ":" in x for x in kv_format):
        raise ValueError(f"kv_format is {kv_format!r}: a pair has a word for k and one for v, or None; as K:V it is one word for both")
    formats = kv_format if isinstance(kv_format, tuple) and len(kv_format) == 2 else (kv_format, kv_format)
    if kv_loss is not None and not isinstance(kv_loss, (int, float)):
        raise TypeError(f"kv_loss is {kv_loss!r}: it must be a number, or None")
    if kv_loss is not None and not 0 <= kv_loss < math.inf:
        raise ValueError(f"kv_loss is {kv_loss}: it must be finite and not negative, as tileproof.quantise says it of finite values; None says nothing")
    codes = (*formats, k_scales, v_scales, kv_loss)
    return None if all(x is None for x in codes) else codes


def _data(mask: Any, *call: Any) -> tuple[Any, ...]:
    """A mask of bools, a tree of masks, and every array that the call reads."""
    tree = None
    own: dict[str, Any] = {}
    if isinstance(mask, Mask):
        mask, tree, own = mask._arrays.get("mask"), mask._tree, mask._arrays
    arrays = (*call, *[own.get(name) for name in _core.arrays[len(call) :]])
    return mask, tree, None if all(x is None for x in arrays) else arrays


def _part(latent: Any) -> Tuple[int, int]:
    start, stop = latent if isinstance(latent, tuple) and len(latent) == 2 else (0, latent)
    if isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop:
        return start, stop
    raise ValueError(f"latent is {latent!r}: it must be N or (start, stop), integers, start below stop")


def attention(
    q: Array,
    k: Array,
    v: Optional[Array] = None,
    *,
    causal: bool = False,
    causal_align: Align = "bottom_right",
    window: Window = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    mask: Union[None, Mask, Array] = None,
    bias: Optional[Array] = None,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    q_lens: Optional[Array] = None,
    kv_lens: Optional[Array] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    layout: Layout = "bshd",
    out: Optional[Array] = None,
    return_lse: bool = False,
    return_receipt: bool = False,
    fallback: Fallback = "refuse",
    kernel: Optional[str] = None,
    threads: Optional[int] = None,
    p_dtype: Optional[str] = None,
    **more: Unpack[More],
) -> Any:
    """softmax(scale * Q K^T + bias, masked) V, without the score matrix.

    q, k, v     float32, float16 or bfloat16 (ml_dtypes, PyTorch), in any mix; k and v also codes, with scales. out has q's dtype. Nothing is copied unless the last
                dimension is not contiguous or a stride is negative; the receipt's `rewrites` then says so.
    layout      "bshd" (batch, tokens, heads, head dim), "bhsd", or "thd" (tokens, heads, head dim), in which sequences
                lie one after another and cu_seqlens_q and cu_seqlens_k hold their starts and the end, int32 or int64.
                Without cu_seqlens_k, k has the starts of q. q may have a multiple of k's heads. With "thd" k and v may also
                be a cache, (batch, tokens, heads, head dim), of which kv_lens says how much each sequence uses.
    page_table  int32 or int64 (sequences, columns): k and v are a pool of pages, (pages, tokens of a page, heads, head dim), or
                (pages, heads, tokens of a page, head dim) with "bhsd". Key j of sequence s is token j % size of page
                page_table[s, j // size]. kv_lens says how many keys each sequence uses; entries beyond may hold anything.
                With "thd" rows are packed as without it. v_page_table: v's own, where it differs. No gradients.
    k_scales, v_scales   k and v are codes (docs/quantised.md), as tileproof.quantise makes them: a scale for each token and head, (batch, tokens,
                heads) or as the layout has it; for "i4" a float16 for each 32 elements of a row; for e4m3 also one number. The result is exact
                for what is stored; receipts say `lossy`. kv_format: a word of docs/quantised.md, "i8", "i8/q8_0", "i4", "e4m3" (one number),
                "e4m3/token", "plain:i8", or a pair of words and None; needed where the dtype does not say it (uint8). No gradients.
    kv_loss     what k and v lost when they were stored, the greater of what quantise said of them: the receipt has it.
    shared_with, shared_lens   int32 or int64 (sequences,): sequence s begins with the first shared_lens[s] keys of the earlier sequence
                shared_with[s], on the same pages (-1: of none); those are read once for all. Cache.prefixes() makes both. No gradients.
    latent      N or (start, stop): v is not given, because its rows are the first N, or these, elements of k's. No gradients.
    indices     int32 or int64 (batch, rows, N), or (tokens, N) with "thd": the keys that a row may see, by index in its sequence; -1 ends a
                row early. indices_sorted promises that they ascend, no key twice, which causal and window need. No gradients.
    causal      row i sees key j if j <= i + keys - rows ("bottom_right") or j <= i ("top_left"). Rows and keys are those
                the sequence uses.
    window      (left, right): keys so far to the left and right of the row's own position, which counts on neither side;
                None for an unbounded side. "sliding window W" of a causal model is (W - 1, 0).
    q_positions, kv_positions   positions by row and by key for causal, window, ALiBi, q_scale and a Mask, in any order, in place of those
                that causal_align makes: (batch, rows) and (batch, keys), or (tokens) where packed; int32 or int64, broadcast.
    q_scale     (beta, length, offset): scores are scaled by 1 + beta * log(1 + floor(max(position + offset, 0) / length)) as well.
    mask        a tileproof.Mask, or bool, True: visible. bias: float32, float16 or bfloat16, added to the scores; -inf hides a key. Both in any
                shape that broadcasts to (sequences, query heads, rows, keys), together with all other masks.
    alibi_slopes, sinks   float32 (query heads,); slopes also (sequences, query heads).
    q_lens, kv_lens       how many tokens each sequence uses. Rows beyond are not written; in a new tensor they are 0.
    out         written instead of a new tensor; it may have another of the three dtypes.
    fallback    "refuse": FallbackRefused if only a slower path than this host's best would serve. "permit": it serves, and
                the receipt is flagged. "serve": tileproof.events() hears of it, too. "locked": only what proof.preflight() let in; NotLocked otherwise.
    kernel      only this one, by name (tileproof.kernels). strategy: "prefill" or "decode" for all sequences; without it each goes by its
                number of rows. disable: names of kernels that must not serve, "avx512,avx2".
    threads     exactly so many. Default is what affinity and cgroup allow, and not more than torch.get_num_threads() for
                PyTorch tensors, or OMP_NUM_THREADS (read at import) for others.
    invariant   a row's bits depend on its own q and keys alone: decode, prefill in chunks and at once agree. No gradients.
    dropout_p   each probability is dropped with this probability, others grow by 1 / (1 - p): the same ones for the same
                dropout_seed and dropout_offset, whatever else differs. Both are integers of 64 bits, or tensors of one.
    tags        {"model": ..., "layer": ..., "request": ...}: whose call it is, for metrics, trace and events.
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
    TypeError: v is float64: it must be float32, float16 or bfloat16, or codes with scales (tileproof.quantise)
    """
    mask_tree = arrays = q_scale = latent = codes = tags = strategy = disable = None
    indices_sorted = invariant = False
    dropout_p, dropout_seed, dropout_offset = 0.0, 0, 0
    if more or type(mask) is Mask:
        (
            mask, mask_tree, arrays, q_scale, indices_sorted, latent, codes, invariant, dropout_p, dropout_seed, dropout_offset, tags,
            strategy, disable,
        ) = _more(mask, **more)  # fmt: skip
    if not hasattr(q, "requires_grad"):
        _refuse_lost_gradient("q", q, k, v, bias, alibi_slopes, sinks)
    elif _needs_torch(q, k, v, bias, alibi_slopes, sinks) and type(k).__name__ != "PyCapsule":  # a batch of a Cache's
        from ._torch_ops import differentiable

        return differentiable(
            q, k, v, latent=latent, codes=codes, causal=causal, causal_align=causal_align, window=window, scale=scale, softcap=softcap,
            q_scale=q_scale, mask=mask, mask_tree=mask_tree, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, q_lens=q_lens, kv_lens=kv_lens, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k, arrays=arrays, indices_sorted=indices_sorted, invariant=invariant, layout=layout, out=out,
            return_lse=return_lse, return_receipt=return_receipt, fallback=fallback, kernel=kernel, strategy=strategy, disable=disable, threads=threads,
            p_dtype=p_dtype, dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset, tags=tags,
        )  # fmt: skip
    wanted, return_receipt = return_receipt, return_receipt or wants_receipts()
    if dropout_p:
        dropout_seed, dropout_offset = int(dropout_seed), int(dropout_offset)
    result = _core.attention(
        q, k, v, latent, codes, causal, causal_align, window, scale, softcap, q_scale, mask, mask_tree, bias, alibi_slopes, sinks, q_lens,
        kv_lens, cu_seqlens_q, cu_seqlens_k, arrays, indices_sorted, invariant, layout, out, return_lse, return_receipt, fallback,
        kernel, strategy, disable, threads, p_dtype, dropout_p, dropout_seed, dropout_offset, tags, _max_threads(q) if threads is None else None,
    )  # fmt: skip
    if out is not None:
        _written(out)
    return _told(result, wanted) if return_receipt else result


def _signature(function: Any) -> inspect.Signature:
    """With the arguments of More by name."""
    own = [x for x in inspect.signature(function).parameters.values() if x.kind is not x.VAR_KEYWORD]
    more = list(inspect.signature(_more).parameters.values())[1:]
    return inspect.signature(function).replace(
        parameters=[*own, *(x.replace(annotation=More.__annotations__[x.name]) for x in more)]
    )


attention.__signature__ = _signature(attention)  # type: ignore[attr-defined]


def _shape(x: Shape) -> tuple[Any, ...]:
    return tuple(getattr(x, "shape", x))


def _dtype_name(given: Any) -> str:
    """Of 'bf16', 'bfloat16', numpy.float32, torch.bfloat16."""
    if isinstance(given, str):
        return given
    return getattr(given, "name", None) or getattr(given, "__name__", None) or str(given).removeprefix("torch.")


def _dtypes(q: Any, *others: Any) -> str:
    """Of tensors, as the text form has them; of shapes and codes q's, and float32 where q is a shape."""
    first = _dtype_name(getattr(q, "dtype", "float32"))
    names = [_dtype_name(getattr(x, "dtype", first)) for x in others]
    return ":".join([first, *(first if x in ("int8", "uint8", "float8_e4m3fn") else x for x in names)])


_OF_A_PLAN = {"q_scale", "indices_sorted", "latent", "invariant", "dropout_p", "kv_format", "strategy", "disable"}
_NOT_OF_A_PLAN = ("arrays", "codes", "mask_tree", "out", "return_lse", "return_receipt", "dropout_seed", "dropout_offset", "tags", "max_threads")


_SAID = {  # dtypes that say their format, and whether each token has a scale
    ("int8", None): "i8", ("int8", True): "i8", ("float8_e4m3fn", None): "e4m3/tensor", ("float8_e4m3fn", True): "e4m3/token",
}  # fmt: skip


def _codes_of_shapes(k: Any, v: Any, latent: Any, stored: dict[str, Any]) -> Optional[tuple[Any, ...]]:
    """Formats of k and v, where they are tensors by their dtypes; True: there will be a scale for each token."""
    given = _codes(*stored.values()) or (None,) * 5
    many = [x is True or (not isinstance(x, (int, float)) and getattr(x, "shape", x) not in (None, (), (1,))) or None for x in given[2:4]]
    words = [word or _SAID.get((_dtype_name(getattr(x, "dtype", "")), each)) for word, x, each in zip(given, (k, v), many)]
    if latent is not None:
        words[1] = None
    return None if words == [None, None] and many == [None, None] else (*words, *many, None)


def _shapes_only(q: Shape, k: Shape, v: Optional[Shape], dtype: Any, options: dict[str, Any]) -> list[Any]:
    """The arguments of a call by position, with shapes for tensors, then the dtypes."""
    said = _dtypes(q, k, k if v is None else v) if dtype is None else _dtype_name(dtype)
    known: dict[str, Any] = dict(
        latent=None, codes=None, causal=False, causal_align="bottom_right", window=None, scale=None, softcap=0.0, q_scale=None, mask=None,
        mask_tree=None, bias=None, alibi_slopes=None, sinks=None, q_lens=None, kv_lens=None, cu_seqlens_q=None, cu_seqlens_k=None,
        arrays=None, indices_sorted=False, invariant=False, layout="bshd", out=None, return_lse=False, return_receipt=False,
        fallback="refuse", kernel=None, strategy=None, disable=None, threads=None, p_dtype=None, dropout_p=0.0, dropout_seed=0, dropout_offset=0,
        tags=None, max_threads=_max_threads(q, dtype),
    )  # fmt: skip
    read: dict[str, Any] = dict.fromkeys(_core.arrays[:7])
    stored = dict.fromkeys(("kv_format", "k_scales", "v_scales"))
    for name in options:
        if name in _NOT_OF_A_PLAN or not any(name in x for x in (known, read, stored)):
            raise TypeError(f"{name!r} is no option of a plan")
    known.update((name, x) for name, x in options.items() if name in known)
    for name in read.keys() & options.keys():
        x = options[name]
        read[name] = None if x is None else name.endswith("positions") or name.startswith("shared") or _shape(x)
    stored.update((name, x) for name, x in options.items() if name in stored)
    mask = known["mask"]
    if isinstance(mask, Mask):  # what it reads is not there yet
        known["mask_tree"], known["mask"] = mask._tree, True if "mask" in mask._arrays else None
    known["arrays"] = _data(None, *read.values())[2]
    known["codes"] = _codes_of_shapes(k, k if v is None else v, known["latent"], stored)
    if known["latent"] is not None:
        known["latent"] = _part(known["latent"])
    elif v is None:
        v = k
    return [_shape(q), _shape(k), None if v is None else _shape(v), *known.values(), said]


def explain(q: Shape, k: Shape, v: Optional[Shape] = None, *, dtype: Any = None, **options: Any) -> Decision:
    """Which kernel would serve, and why not the others; from shapes alone (or tensors, of which only the shape is read).

    dtype is one word, or one for each of q, k, v and out, as in "f32:bf16:bf16->f32"; without it tensors have their own.
    Options are those of attention(); where there is no tensor yet, `mask=True`, `bias="float32"`, `alibi_slopes=True`,
    `sinks=True`, `q_positions=True` and `kv_positions=True` say that there will be one, and page tables and indices are shapes. v is
    shaped like k unless given.

    >>> decision = explain((1, 512, 32, 128), (1, 4096, 8, 128), dtype="bfloat16", causal=True)
    >>> decision.problem
    'prefill b1 h32/8 q512 k4096 d128 bf16 causal'
    >>> [c["kernel"] for c in decision.candidates if c["chosen"]] == [decision.kernel]
    True
    """
    return Decision(*_core.explain(*_shapes_only(q, k, v, dtype, options)))


_FIXED = (
    "latent", "causal", "causal_align", "window", "scale", "softcap", "q_scale", "indices_sorted", "invariant", "layout", "fallback",
    "kernel", "strategy", "disable", "threads", "p_dtype", "dropout_p", "codes",
)  # fmt: skip


class Plan:
    """A decision and its workspace, for loops; made by plan()."""

    def __init__(self, q: Shape, k: Shape, v: Optional[Shape], dtype: Any, options: dict[str, Any]) -> None:
        arguments = _shapes_only(q, k, v, dtype, options)
        self._plan = _core.plan(*arguments)
        given = dict(zip(_core.arguments, arguments))
        self._fixed = tuple(given[name] for name in _FIXED)

    @property
    def decision(self) -> Decision:
        return Decision(*_core.plan_about(self._plan)[0])

    @property
    def workspace_bytes(self) -> int:
        return _core.plan_about(self._plan)[1]

    def run(
        self, q: Array, k: Array, v: Optional[Array] = None, *, mask: Union[None, Mask, Array] = None, bias: Optional[Array] = None,
        alibi_slopes: Optional[Array] = None, sinks: Optional[Array] = None, q_lens: Optional[Array] = None,
        kv_lens: Optional[Array] = None, cu_seqlens_q: Optional[Array] = None, cu_seqlens_k: Optional[Array] = None,
        out: Optional[Array] = None, return_lse: bool = False, return_receipt: bool = False, **more: Unpack[More],
    ) -> Any:  # fmt: skip
        """attention() with the plan's options. Batch and lengths may be smaller than the plan's, nothing else may differ.
        `more` is what else the call reads: page tables, indices, positions, the seed and offset of dropout. Gradients do not
        flow through it."""
        noted = return_receipt or wants_receipts()
        (
            latent, causal, causal_align, window, scale, softcap, q_scale, indices_sorted, invariant, layout, fallback, kernel,
            strategy, disable, threads, p_dtype, dropout_p, formats,
        ) = self._fixed  # fmt: skip
        tree = arrays = codes = tags = None
        seed = offset = 0
        if more or type(mask) is Mask:
            for name in more.keys() & _OF_A_PLAN:
                raise TypeError(f"{name!r} is an option of the plan: give it to tileproof.plan()")
            mask, tree, arrays, _, _, _, codes, _, _, seed, offset, tags, _, _ = _more(mask, **more)
            seed, offset = int(seed), int(offset)
        if formats is not None:
            codes = (*formats[:2], *(codes or (None,) * 5)[2:])
        result = _core.plan_run(
            q, k, v, latent, codes, causal, causal_align, window, scale, softcap, q_scale, mask, tree, bias, alibi_slopes, sinks, q_lens,
            kv_lens, cu_seqlens_q, cu_seqlens_k, arrays, indices_sorted, invariant, layout, out, return_lse, noted, fallback, kernel,
            strategy, disable, threads, p_dtype, dropout_p, seed, offset, tags, None, self._plan,
        )  # fmt: skip
        if out is not None:
            _written(out)
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

# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, q, k, v as [batch][head][token][dim]; softcap and sinks, which it does not have, by
products and a softmax as transformers' eager attention writes them. The kernel is the one that hooks in the dispatcher saw
(tileproof.watch), never the one that the arguments suggest."""
from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import host, measure
from .cell import Answer, Cell, NotServed, Variant

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def name() -> str:
    return f"torch {torch.__version__.split('+')[0]}"


def tensor(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """Elements as Cell stores them, without a copy where they may be written."""
    stored = stored if stored.flags.writeable else stored.copy()
    return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(stored)


def elements(x: torch.Tensor) -> np.ndarray:
    """Back: as Cell stores them."""
    x = x.detach().cpu().contiguous()
    made: np.ndarray[Any, Any] = x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()
    return made


def bhsd(stored: np.ndarray, dtype: str, device: str = "cpu") -> torch.Tensor:
    return tensor(stored, dtype).to(device).transpose(1, 2).contiguous()


# ---- the runner ----


def written_out(cell: Cell, q: Any, k: Any, v: Any, bias: Any) -> Callable[[], Any]:
    """As transformers' eager attention: products, softcap, mask, a column of sinks, softmax in float32, product."""
    group = cell.group
    sinks = None if cell.sinks is None else torch.from_numpy(cell.sinks.copy()).to(q.dtype).to(q.device)

    def run() -> Any:
        keys, values = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
        scores = torch.matmul(q, keys.transpose(2, 3)) * cell.scale
        if cell.softcap:
            scores = torch.tanh(scores / cell.softcap) * cell.softcap
        if bias is not None:
            scores = scores + bias
        if sinks is not None:
            scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)], dim=-1)
            scores = scores - scores.max(dim=-1, keepdim=True).values
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights[..., : keys.shape[2]], values)

    return run


def call(cell: Cell, device: str) -> tuple[Callable[[], Any], list[str]]:
    """The call that a model makes for one of cell.parts(), and what it could not ask PyTorch for."""
    batch, (q_len, kv_len) = cell.batch, cell.lengths[0]
    q = bhsd(cell.scaled_q().reshape(batch, q_len, cell.q_heads, -1), cell.dtype, device)
    k, v = (bhsd(cell.stored[x].reshape(batch, kv_len, cell.kv_heads, -1), cell.dtype, device) for x in "kv")
    square = q_len == kv_len
    needs_bias = cell.slopes is not None or not (cell.mask == "full" or (cell.mask == "causal" and square))
    absent = [x for x, there in (("softcap", cell.softcap), ("sinks", cell.sinks is not None)) if there]
    if absent:
        bias = torch.from_numpy(cell.bias()).to(DTYPES[cell.dtype]).to(device) if needs_bias or cell.mask != "full" else None
        reason = f"scaled_dot_product_attention has no {' and no '.join(absent)}: written out as transformers' eager attention"
        return written_out(cell, q, k, v, bias), [reason]
    options: dict[str, Any] = {"scale": cell.scale, "enable_gqa": cell.group > 1}
    if cell.slopes is not None:
        options["attn_mask"] = torch.from_numpy(cell.bias()).to(DTYPES[cell.dtype]).to(device)[None]
    elif needs_bias:
        options["attn_mask"] = torch.from_numpy(cell.visible(0)).to(device)[None, None]
    elif cell.mask == "causal":
        options["is_causal"] = True
    return lambda: functional.scaled_dot_product_attention(q, k, v, **options), []


def together(parts: list[Callable[[], Any]]) -> Callable[[], list[Any]]:
    return lambda: [run() for run in parts]


def seen(run: Callable[[], Any]) -> tuple[Any, str, str, list[str]]:
    """(result, kernels, fused, rules that were broken) of a call, by hooks in the dispatcher."""
    from ..watch.records import Watch

    with Watch(every=1 << 30) as watch:
        result = run()
    records = [x for x in watch.records.values() if x.calls]
    fused = "unknown" if not records else "yes" if all(x.fused for x in records) else "no"
    reasons = list(dict.fromkeys(text for x in records for _, text in x.reasons))
    return result, "+".join(dict.fromkeys(x.kernel for x in records)), fused, reasons


def temporary(run: Callable[[], Any], device: str) -> int:
    if device == "cuda":  # not run here
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        kept = sum(x.numel() * x.element_size() for x in result)
        return max(int(torch.cuda.max_memory_allocated() - before - kept), 1)
    from ..watch.measure import measured

    peak = measured(run, False)[1]
    return 0 if peak is None else max(peak, 1)


def need_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise NotServed("PyTorch sees no CUDA device")


class Engine:
    name = "torch"

    def __init__(self, options: Any) -> None:
        self.device = options.device or "cpu"
        need_device(self.device)
        self.compiled = bool(options.compiled)
        self.mode = "compiled" if self.compiled else "eager"
        torch.set_num_threads(host.threads(options.threads))
        self.versions = {"torch": torch.__version__, **host.versions("transformers", "triton")}
        self.host = {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
        if self.device == "cuda":  # not run here
            self.versions |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
            self.host |= {"gpu": torch.cuda.get_device_name(), "driver": host.driver()}

    def routed(self) -> contextlib.AbstractContextManager[Any]:
        """Tests put sdpa_kernel(...) here: what is observed must follow."""
        return contextlib.nullcontext()

    def serve(self, cell: Cell) -> Answer:
        made = [call(part, self.device) for part in cell.parts()]
        run = together([x for x, _ in made])
        if self.compiled:
            run = torch.compile(run, dynamic=False)
        with self.routed():
            run()  # warms up, and compiles
            peak = temporary(run, self.device)
            result, kernel, fused, broken = seen(run)
            time_ns = measure.median_ns(run, cell.time_ns, settle=torch.cuda.synchronize if self.device == "cuda" else lambda: None)
        output = np.concatenate([elements(x.transpose(1, 2)).reshape(-1, cell.q_heads, cell.head_dim_v) for x in result])
        reasons = dict.fromkeys(reason for _, found in made for reason in found)
        return Answer(output, kernel, "dispatcher", fused, (*reasons, *broken), peak, time_ns)


# ---- make peers ----


def variants(cell: Cell, threads: int) -> list[Variant]:
    torch.set_num_threads(threads)
    makers = [plain] if cell.uniform else [loop, padded]
    found = [v for maker in makers for v in maker(cell)]
    if cell.mask == "causal_window":
        from .flex import variant

        try:
            made = variant(cell)
            made.run()  # compiles
            found.append(made)
        except Exception as error:  # no compiler, or one that it cannot use
            print(f"    flex_attention: {str(error).strip().splitlines()[0][:160]}", file=sys.stderr)
    return found


def keyword(cell: Cell) -> dict[str, Any]:
    """The causal flag is top-left, so it serves square problems only; a window needs a dense mask, made here and
    not timed, in the dtype of q, which is the form that the kernel takes without a conversion."""
    if cell.mask == "full":
        return {}
    if cell.mask == "causal_window":
        return {"attn_mask": torch.from_numpy(cell.bias()).to(DTYPES[cell.dtype])[None]}
    if not cell.square:
        raise NotServed("causal is top-left only")
    return {"is_causal": True}


def heads(cell: Cell, q: Any, k: Any, v: Any) -> list[Any]:
    """Names and arguments of the ways to serve a group: the op's own, or k and v repeated beforehand."""
    if cell.group == 1:
        return [("sdpa", (q, k, v), {})]
    repeated = [x.repeat_interleave(cell.group, 1).contiguous() for x in (k, v)]
    return [("sdpa enable_gqa", (q, k, v), {"enable_gqa": True}), ("sdpa, k and v repeated", (q, *repeated), {})]


def fused(run: Callable[[], Any]) -> bool:
    """Does the fused kernel serve it? Unless it is forced the dispatcher takes the unfused one without a word."""
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            run()
        return True
    except RuntimeError:
        return False


def batch_variants(cell: Cell, rest: dict[str, Any], title: str) -> Iterator[Variant]:
    q, k, v = (bhsd(cell.padded(x, stored=True), cell.dtype) for x in "qkv")
    for label, arguments, group in heads(cell, q, k, v):
        result: list[Any] = []

        def run(arguments: Any = arguments, group: Any = group, result: Any = result) -> None:
            result[:] = [functional.scaled_dot_product_attention(*arguments, **rest, **group)]

        def output(result: Any = result) -> Any:
            return cell.unpad(result[0].transpose(1, 2).float().numpy())

        if fused(run):
            yield Variant(title + label, run, output)


def plain(cell: Cell) -> Iterable[Variant]:
    return batch_variants(cell, keyword(cell), "")


def padded(cell: Cell) -> Iterable[Variant]:
    """Padding stands at the end, where causal rows do not see it, so no mask is needed."""
    if cell.mask != "causal" or not cell.square:
        return ()
    return batch_variants(cell, {"is_causal": True}, "padded, ")


def loop(cell: Cell) -> Iterator[Variant]:
    """One call a sequence: nothing is padded."""
    result: list[Any] = []
    parts = [[bhsd(cell.sequence(x, i, stored=True)[None], cell.dtype) for x in "qkv"] for i in range(cell.batch)]
    rest = dict(keyword(cell), enable_gqa=cell.group > 1)

    def run() -> None:
        result[:] = [functional.scaled_dot_product_attention(*part, **rest) for part in parts]

    def output() -> Any:
        return np.concatenate([x[0].transpose(0, 1).float().numpy() for x in result])

    yield Variant("a call a sequence", run, output)


def gradients(cell: Cell, threads: int) -> Iterator[Variant]:
    """What autograd calls for the fused op; the forward call is not timed."""
    torch.set_num_threads(threads)
    result: list[Any] = []
    if not cell.uniform or cell.mask == "causal_window":
        raise NotServed("gradients of packed or windowed problems are not set up")
    inputs = [bhsd(cell.padded(x, stored=True), cell.dtype).requires_grad_() for x in "qkv"]
    d_o = bhsd(cell.padded("d_o", stored=True), cell.dtype)
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            o = functional.scaled_dot_product_attention(*inputs, **keyword(cell), **({"enable_gqa": True} if cell.group > 1 else {}))
    except RuntimeError as error:
        raise NotServed(f"no fused kernel: {error}") from error

    def run() -> None:
        result[:] = [torch.autograd.grad(o, inputs, d_o, retain_graph=True)]

    def output() -> Any:
        return [x.transpose(1, 2).float().numpy().reshape(-1, *x.shape[1::2]) for x in result[0]]

    yield Variant(f"autograd of sdpa ({type(o.grad_fn).__name__})", run, output)

# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, q, k, v contiguous as [batch][head][token][dim]."""
import sys

import numpy as np
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from timing import NotServed, Variant

torch.set_grad_enabled(False)
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def name():
    return f"torch {torch.__version__.split('+')[0]}"


def tensor(stored, dtype):
    """Elements as Case stores them, without a copy."""
    if dtype == "bf16":
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stored)


def bhsd(stored, dtype):
    return tensor(stored, dtype).transpose(1, 2).contiguous()


def variants(case, threads):
    torch.set_num_threads(threads)
    makers = [loop, padded] if case.problem.packed else [plain]
    found = [v for maker in makers for v in maker(case)]
    if case.problem.windowed:
        try:
            variant = flex(case)
            variant.run()  # compiles
            found.append(variant)
        except Exception as error:  # no compiler, or one that it cannot use
            print(f"    flex_attention: {str(error).strip().splitlines()[0][:160]}", file=sys.stderr)
    return found


def keyword(problem):
    """The causal flag is top-left, so it serves square problems only; a window needs a dense mask, made here and
    not timed, in the dtype of q, which is the form that the kernel takes without a conversion."""
    if not problem.masked:
        return {}
    if problem.windowed:
        seen = problem.visible(problem.q_len, problem.kv_len, range(problem.q_len))
        mask = torch.zeros(seen.shape, dtype=DTYPES[problem.dtype])
        return {"attn_mask": mask.masked_fill_(torch.from_numpy(~seen), float("-inf"))[None, None]}
    if not problem.square:
        raise NotServed("causal is top-left only")
    return {"is_causal": True}


def heads(problem, q, k, v):
    """Names and arguments of the ways to serve a group: the op's own, or k and v repeated beforehand."""
    if problem.group == 1:
        return [("sdpa", (q, k, v), {})]
    repeated = [x.repeat_interleave(problem.group, 1).contiguous() for x in (k, v)]
    return [("sdpa enable_gqa", (q, k, v), {"enable_gqa": True}), ("sdpa, k and v repeated", (q, *repeated), {})]


def fused(run):
    """Does the fused kernel serve it? Unless it is forced the dispatcher takes the unfused one without a word."""
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            run()
        return True
    except RuntimeError:
        return False


def batch_variants(case, rest, title):
    q, k, v = (bhsd(case.batch(x, stored=True), case.problem.dtype) for x in "qkv")
    for label, arguments, group in heads(case.problem, q, k, v):
        result = []

        def run(arguments=arguments, group=group, result=result):
            result[:] = [functional.scaled_dot_product_attention(*arguments, **rest, **group)]

        def output(result=result):
            return case.unpad(result[0].transpose(1, 2).float().numpy())

        if fused(run):
            yield Variant(title + label, run, output)


def plain(case):
    return batch_variants(case, keyword(case.problem), "")


def padded(case):
    """Padding stands at the end, where causal rows do not see it, so no mask is needed."""
    if not case.problem.causal or not case.problem.square:
        return ()
    return batch_variants(case, {"is_causal": True}, "padded, ")


def loop(case):
    """One call a sequence: nothing is padded."""
    problem, result = case.problem, []
    parts = [
        [bhsd(case.sequence(x, i, stored=True)[None], problem.dtype) for x in "qkv"] for i in range(problem.batch)
    ]
    rest = dict(keyword(problem), enable_gqa=problem.group > 1)

    def run():
        result[:] = [functional.scaled_dot_product_attention(*part, **rest) for part in parts]

    def output():
        return np.concatenate([x[0].transpose(0, 1).float().numpy() for x in result])

    yield Variant("a call a sequence", run, output)


def flex(case):
    """flex_attention skips what a window hides; it is compiled for each problem, which needs a C++ compiler."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    problem, result = case.problem, []
    q, k, v = (bhsd(case.batch(x, stored=True), problem.dtype) for x in "qkv")
    shift = problem.kv_len - problem.q_len

    def seen(_batch, _head, row, key):
        return (key <= row + shift) & (key >= row + shift - problem.left)

    mask = create_block_mask(seen, None, None, problem.q_len, problem.kv_len, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)

    def run():
        result[:] = [compiled(q, k, v, block_mask=mask, enable_gqa=problem.group > 1)]

    def output():
        return case.unpad(result[0].transpose(1, 2).float().numpy())

    return Variant("flex_attention", run, output)


def gradients(case, threads):
    """What autograd calls for the fused op; the forward call is not timed."""
    torch.set_num_threads(threads)
    problem, result = case.problem, []
    if problem.packed or problem.windowed:
        raise NotServed("gradients of packed or windowed problems are not set up")
    inputs = [bhsd(case.batch(x, stored=True), problem.dtype).requires_grad_() for x in "qkv"]
    d_o = bhsd(case.batch("d_o", stored=True), problem.dtype)
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            o = functional.scaled_dot_product_attention(
                *inputs, **keyword(problem), **({"enable_gqa": True} if problem.group > 1 else {})
            )
    except RuntimeError as error:
        raise NotServed(f"no fused kernel: {error}") from error

    def run():
        result[:] = [torch.autograd.grad(o, inputs, d_o, retain_graph=True)]

    def output():
        return [case.unpad_as(name, x.transpose(1, 2).float().numpy()) for name, x in zip("qkv", result[0])]

    yield Variant(f"autograd of sdpa ({type(o.grad_fn).__name__})", run, output)

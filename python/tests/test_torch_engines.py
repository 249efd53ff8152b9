# SPDX-License-Identifier: Apache-2.0
"""PyTorch behind a runner: right results, and kernels that were seen rather than guessed; CUDA's from traces written here."""
import argparse
import json
import os
import tempfile
import unittest

import numpy as np
import torch
from tileproof.engines import cuda
from tileproof.engines.cell import NotServed, load
from tileproof.engines.torch import Engine
from test_numpy_engines import attention, make
from test_torch_watch import setUpModule, tearDownModule  # noqa: F401
from torch.nn.attention import SDPBackend, sdpa_kernel

OPTIONS = argparse.Namespace(device=None, threads=1, compiled=False)
CELLS = {
    "causal": (dict(mask="causal"), "flash_for_cpu", "yes"),
    "bf16": (dict(dtype="bf16", mask="causal"), "flash_for_cpu", "yes"),
    "decode": (dict(lengths=((1, 40), (1, 40))), "flash_for_cpu", "yes"),
    "window": (dict(mask="causal_window", window=3, lengths=((9, 14),)), "flash_for_cpu", "yes"),
    "packed": (dict(mask="causal", lengths=((4, 4), (1, 9), (0, 3), (7, 7))), "flash_for_cpu", "yes"),
    "alibi": (dict(mask="causal", slopes=np.linspace(0.1, 1, 4, dtype=np.float32)[None]), "flash_for_cpu", "yes"),
    "factors": (dict(mask="causal", q_factors=np.linspace(1, 2, 9, dtype=np.float32)), "flash_for_cpu", "yes"),
    "visible": (dict(mask="visible", shown=np.tri(9, 9, 2, np.uint8).reshape(-1)), "flash_for_cpu", "yes"),
    "value dim": (dict(mask="causal", dims=(16, 8)), "math", "no"),
    "softcap": (dict(mask="causal", softcap=5.0), "eager", "no"),
    "sinks": (dict(mask="causal_window", window=4, sinks=np.linspace(-1, 2, 4, dtype=np.float32)), "eager", "no"),
}


class Forced(Engine):
    backend = SDPBackend.MATH

    def routed(self):
        return sdpa_kernel(self.backend)


def profiled(run):
    """The kernels of attention that torch.profiler names."""
    from tileproof.watch.profile import OP_KERNELS

    with torch.profiler.profile() as prof:
        run()
    return {OP_KERNELS[x.name] for x in prof.events() if x.name in OP_KERNELS} - {None}


class Torch(unittest.TestCase):
    def test_results_are_right_and_kernels_are_observed(self):
        engine = Engine(OPTIONS)
        for name, (words, kernel, fused) in CELLS.items():
            with self.subTest(name):
                cell = make(**words)
                answer = engine.serve(cell)
                output = load(answer.output, cell.dtype)
                self.assertLess(np.abs(output - attention(cell)).max(), 0.05 if cell.dtype == "bf16" else 1e-5)
                self.assertEqual((answer.kernel, answer.fused, answer.observed), (kernel, fused, "dispatcher"))
                self.assertGreater(answer.temporary, 0)
                self.assertEqual(bool(answer.reasons), fused == "no")

    def test_forcing_math_changes_what_is_observed(self):
        cell = make(mask="causal", lengths=((64, 64),))
        plain, forced = Engine(OPTIONS).serve(cell), Forced(OPTIONS).serve(cell)
        self.assertEqual((plain.kernel, plain.fused), ("flash_for_cpu", "yes"))
        self.assertEqual((forced.kernel, forced.fused), ("math", "no"))
        self.assertIn("flash is switched off", " ".join(forced.reasons))
        self.assertGreater(forced.temporary, plain.temporary)

    def test_kernels_are_those_that_the_profiler_names(self):
        for name in ("causal", "window", "value dim"):
            for kind in (Engine, Forced):
                with self.subTest(f"{name} {kind.__name__}"):
                    engine, cell = kind(OPTIONS), make(**CELLS[name][0])
                    named = profiled(lambda: engine.serve(cell))
                    self.assertEqual({engine.serve(cell).kernel}, named)

    def test_time_is_taken_where_it_is_asked_for(self):
        engine = Engine(OPTIONS)
        self.assertEqual(engine.serve(make()).time_ns, 0)
        self.assertGreater(engine.serve(make(time_ns=1e5)).time_ns, 0)

    def test_versions_are_detected(self):
        engine = Engine(OPTIONS)
        self.assertEqual((engine.versions["torch"], engine.mode, engine.device), (torch.__version__, "eager", "cpu"))

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_without_a_gpu_cuda_is_not_available(self):
        with self.assertRaisesRegex(NotServed, "no CUDA device"):
            Engine(argparse.Namespace(device="cuda", threads=1, compiled=False))


class Traces(unittest.TestCase):
    """As torch.profiler writes them on a GPU; not run here."""

    def read(self, *names):
        events = [{"ph": "X", "cat": "kernel", "name": x, "ts": i, "dur": 1} for i, x in enumerate(names)]
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::scaled_dot_product_attention", "ts": 0, "dur": 9})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.json")
            with open(path, "w") as file:
                json.dump({"traceEvents": events}, file)
            return cuda.from_trace(path)

    def test_kernels_by_name(self):
        split = "void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>"
        combine = "void pytorch_flash::flash_fwd_splitkv_combine_kernel<4>"
        self.assertEqual(self.read(split, combine), ("flash", "yes"))
        self.assertEqual(self.read("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(...)"), ("efficient", "yes"))
        self.assertEqual(self.read("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16"), ("cudnn", "yes"))
        self.assertEqual(self.read("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>"), ("flash_attn_3", "yes"))

    def test_products_and_a_softmax_are_unfused(self):
        gemm, soft = "ampere_bf16_s16816gemm_bf16_128x64", "void (anonymous namespace)::softmax_warp_forward<float, float, 9>"
        self.assertEqual(self.read(gemm, soft, gemm), ("softmax between products", "no"))
        self.assertEqual(self.read(gemm), ("", "unknown"))
        self.assertEqual(self.read(), ("", "unknown"))


if __name__ == "__main__":
    unittest.main()

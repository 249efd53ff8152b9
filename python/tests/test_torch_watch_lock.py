# SPDX-License-Identifier: Apache-2.0
"""Locks and drift, metrics, trace lines, the command line, flash_attn's functions, profiles of CUDA."""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

import small_models
import tileproof
import torch
import torch.nn.functional as F
from tileproof.watch import hooks
from tileproof.watch.lock import Lock, LockError, save
from tileproof.watch.profile import ProfileError, counts, kernel_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from test_torch_watch import setUpModule, tearDownModule  # noqa: F401


TOOL = os.environ.get("TILEPROOF_TOOL")  # the tool of the same build, where there is one


def read(path):
    return pathlib.Path(path).read_text()


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self.x = torch.randn(1, 2, 8, 16)
        self.addCleanup(self._folder.cleanup)

    def path(self, name, text=None):
        if text is not None:
            (self.folder / name).write_text(text)
        return str(self.folder / name)

    def attend(self, **more):
        return F.scaled_dot_product_attention(self.x, self.x, self.x, **more)

    def locked(self):
        with tileproof.watch() as seen:
            self.attend(is_causal=True)
        seen.save_lock(self.path("lock.json"))
        return self.path("lock.json")


class Drift(Case):
    def test_what_was_locked_does_not_drift(self):
        with warnings.catch_warnings(), tileproof.watch(lock=self.locked(), on_drift="raise") as seen:
            warnings.simplefilter("error")
            for _ in range(3):
                self.attend(is_causal=True)
        self.assertEqual((seen.calls, seen.drifted, seen.stale), (3, 0, []))
        self.assertIn("tileproof_lock_loaded 1\n", seen.metrics())
        self.assertIn("tileproof_lock_stale 0\n", seen.metrics())

    def test_another_class_and_another_kernel(self):
        lock = self.locked()
        with tileproof.watch(lock=lock, on_drift="count") as seen:
            self.attend()
            self.attend()
            with sdpa_kernel(SDPBackend.MATH):
                self.attend(is_causal=True)
            self.attend(is_causal=True)
        drift = {x["kernel"]: x["drift"] and x["drift"]["by"] for x in seen.to_dict()["rows"] if x["drift"]}
        self.assertEqual((drift, seen.drifted), ({"flash_for_cpu": "class", "math": "kernel"}, 3))
        text = seen.metrics()
        self.assertRegex(text, r'tileproof_drift_total\{engine="torch",kernel="math",.*reason="kernel"\} 1\n')
        self.assertRegex(text, r'tileproof_drift_total\{engine="torch",kernel="flash_for_cpu",.*reason="class"\} 2\n')
        self.assertIn("tileproof_lock_stale 1\n", text)
        table = seen.table()
        self.assertRegex(table.splitlines()[2], "^  3 drifted from .*lock.json")
        self.assertLess(table.rindex("DRIFT"), table.rindex("flash_for_cpu "))  # worst first
        self.assertEqual([x for x in table.splitlines() if len(x) > 80 and "lock.json" not in x], [])

    def test_each_mode_has_kernels_of_its_own(self):
        name, path = "prefill few-rows h2/2 d16 f32", self.path("modes.json")
        saved = [("torch", name, "compiled", "math", "prefill"), ("torch", name, "eager", "flash_for_cpu", "prefill")]
        save(path, {"torch": "1"}, saved)
        drift = lambda mode, kernel: (Lock(path).drift("torch", name, mode, kernel) or [None])[0]
        self.assertEqual([drift("compiled", "math"), drift("eager", "flash_for_cpu")], [None, None])
        self.assertEqual([drift("compiled", "flash_for_cpu"), drift("eager", "math")], ["kernel", "kernel"])
        save(path, {"torch": "1"}, saved[:1])
        self.assertEqual(drift("compiled", "math"), None)
        self.assertIn(", but compiled", Lock(path).drift("torch", name, "eager", "math")[1])

    def test_it_warns_once_a_class(self):
        with warnings.catch_warnings(record=True) as told, tileproof.watch(lock=self.locked()):
            warnings.simplefilter("always")
            for _ in range(4):
                self.attend()
        self.assertEqual([x.category for x in told], [tileproof.watch.DriftWarning])
        self.assertIn("does not have 'prefill", str(told[0].message))

    def test_it_raises_and_nothing_runs(self):
        lock, trace = self.locked(), self.path("trace")
        with tileproof.watch(lock=lock, on_drift="raise", trace=trace) as seen:
            with sdpa_kernel(SDPBackend.MATH), self.assertRaisesRegex(tileproof.watch.DriftError, "served by math; .* has flash_for_cpu"):
                self.attend(is_causal=True)
            self.attend(is_causal=True)
            with self.assertRaises(tileproof.watch.DriftError):
                torch.softmax(self.x @ self.x.mT, -1) @ self.x
        self.assertEqual((seen.calls, seen.drifted), (1, 2))
        self.assertRegex(seen.metrics(), r'tileproof_refusals_total\{engine="torch",.*reason="not_locked"\} 2\n')
        lines = [json.loads(x) for x in read(trace).splitlines()]
        self.assertEqual([x["status"] for x in lines], ["TP_NOT_LOCKED", "TP_OK", "TP_NOT_LOCKED"])

    def test_a_model_whose_head_dim_changes(self):
        """The incident: a config changes, everything still answers, and another class runs."""
        lock = self.path("lock.json")
        with tileproof.watch() as seen:
            small_models.generate(small_models.llama())
        seen.save_lock(lock)
        with tileproof.watch(lock=lock, on_drift="raise") as seen:
            small_models.generate(small_models.llama())
            with self.assertRaisesRegex(tileproof.watch.DriftError, "d32"):
                small_models.generate(small_models.llama(head_dim=32))
        self.assertEqual((seen.calls, seen.drifted), (12, 1))

    def test_another_engine_is_stale(self):
        lock = self.locked()
        text = json.loads(read(lock))
        text["revisions"][0]["versions"]["torch"] = "1.0"
        self.path("lock.json", json.dumps(text))
        with warnings.catch_warnings(record=True) as told, tileproof.watch(lock=lock) as seen:
            warnings.simplefilter("always")
            self.attend(is_causal=True)
        self.assertEqual(len(seen.stale), 1)
        self.assertIn("torch: lock '1.0', here", str(told[0].message))
        self.assertEqual(seen.drifted, 0)
        self.assertIn("tileproof_lock_stale 1\n", seen.metrics())

    def test_a_lock_of_qualify(self):
        cells = [{"problem": "prefill b1 h2/1 q509 k509 d16 f32 causal", "kernel": "avx2"}]
        ours, theirs = ({"revision": {"config": "00"}, "engine": {"name": x}, "groups": [{"cells": cells}]} for x in ("tileproof", "torch"))
        for text in (
            {"schema": "tileproof.lock/2", "revisions": [ours, theirs]},
            {"schema": "tileproof.lock/1", "isas": {"avx2": {"cells": cells}}},
        ):
            lock = self.path("q.lock", json.dumps(text))
            with tileproof.watch(lock=lock, on_drift="count") as seen:
                self.attend(is_causal=True)
                self.attend()  # masks are not compared: models put them into tensors
                self.assertEqual(seen.drifted, 0)
                F.scaled_dot_product_attention(self.x[..., :8], self.x[..., :8], self.x[..., :8])
                self.assertEqual(seen.drifted, 1)
                tileproof.attention(self.x, self.x, self.x, layout="bhsd")
            self.assertEqual(seen.drifted, 2)

    def test_the_schema_is_the_one_of_locks(self):
        lock = json.loads(read(self.locked()))
        revision, = lock["revisions"]
        self.assertEqual((lock["schema"], revision["engine"]["name"], revision["engine"]["mode"]), ("tileproof.lock/2", "torch", "eager"))
        self.assertEqual(revision["versions"]["torch"], torch.__version__)
        self.assertIn("cpu", revision["hosts"][0])
        cell, = revision["groups"][0]["cells"]
        self.assertEqual((cell["status"], cell["kernel"], cell["phase"]), ("NOT_RUN", "flash_for_cpu", "prefill"))
        seal = lock.pop("checksum")
        flat = json.dumps(lock, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.assertEqual(seal, hashlib.sha256(flat.encode()).hexdigest())
        self.assertNotIn("\n", next(x for x in read(self.path("lock.json")).splitlines() if '"problem"' in x)[1:])
        if TOOL:  # which checks every field
            told = subprocess.run([TOOL, "lock", "show", self.path("lock.json"), "/torch"], text=True, capture_output=True)
            self.assertIn("flash_for_cpu", told.stdout, told.stderr)

    def test_what_was_saved_before_the_one_schema(self):
        with tileproof.watch() as seen:
            self.attend(is_causal=True)
        cell = {"engine": "torch", "class": next(iter(seen.to_dict()["rows"]))["class"], "mode": "eager", "kernel": "flash_for_cpu"}
        lock = self.path("old.lock", json.dumps({"schema": "tileproof.watch-lock/1", "identity": seen.identity, "cells": [cell]}))
        with tileproof.watch(lock=lock, on_drift="count") as again:
            self.attend(is_causal=True)
            self.attend()
        self.assertEqual((again.drifted, again.stale), (1, []))

    def test_saved_beside_qualified(self):
        """Engines that a watcher saved are held against what it saw, others against what was qualified."""
        lock = json.loads(read(self.locked()))
        cells = [{"problem": "prefill b1 h2/1 q509 k509 d16 f32", "kernel": "avx2"}]
        lock["revisions"].append({"revision": {"config": "00"}, "engine": {"name": "tileproof"}, "groups": [{"cells": cells}]})
        self.path("lock.json", json.dumps(lock))
        with tileproof.watch(lock=self.path("lock.json"), on_drift="count") as seen:
            self.attend(is_causal=True)
            self.assertEqual(seen.drifted, 0)
            self.attend()
            self.assertEqual(seen.drifted, 1)

    def test_locks_that_cannot_be_read(self):
        for text, why in (
            (None, "No such file"), ("{", "no JSON"), ("[]", "the file is"), ("{}", "schema is None"),
            ('{"schema": "tileproof.watch-lock/1"}', "identity is null: it must be an object"),
            ('{"schema": "tileproof.watch-lock/1", "identity": {}, "cells": 3}', "cells is 3: it must be a list"),
            ('{"schema": "tileproof.watch-lock/1", "identity": {}, "cells": [{"class": 1}]}', r"cells\[0\].engine"),
            ('{"schema": "tileproof.lock/1", "isas": []}', "isas is"),
            ('{"schema": "tileproof.lock/2", "revisions": {}}', "revisions is"),
            ('{"schema": "tileproof.lock/2", "revisions": [{"revision": {}, "engine": 1}]}', r"revisions\[0\].engine is 1"),
            ('{"schema": "tileproof.lock/3"}', "schema is 'tileproof.lock/3'"),
        ):  # fmt: skip
            path = self.path(f"bad{len(why)}.lock", text) if text is not None else self.path("none.lock")
            self.assertRaisesRegex(LockError, why, Lock, path)
            self.assertRaisesRegex(ValueError, why, tileproof.watch, lock=path)
        for options, why in (({"every": 0}, "every is 0"), ({"on_drift": "stop"}, "on_drift is 'stop'"), ({"metrics_seconds": 0}, "above 0")):
            self.assertRaisesRegex(ValueError, why, tileproof.watch, **options)
        self.assertEqual(hooks.listeners, ())


class Output(Case):
    def test_trace_lines(self):
        trace = self.path("trace.jsonl")
        model = small_models.llama()
        with tileproof.watch(trace=trace, model="tiny") as seen:
            small_models.generate(model, 2)
            self.attend(dropout_p=0.5)
        lines = [json.loads(x) for x in read(trace).splitlines()]
        self.assertEqual(len(lines), seen.calls)
        order = ["ts_ns", "time_ns", "thread", "status", "kernel", "problem", "class", "phase", "bucket", "fallback", "planned", "refused", "lock"]
        for x in lines:
            self.assertEqual(list(x)[: len(order)], order)
            self.assertEqual((x["model"], x["engine"], x["lock"], x["status"]), ("tiny", "torch", "absent", "TP_OK"))
            self.assertGreater(x["bytes_model"], 0)
        self.assertEqual([x.get("layer") for x in lines], [0, 1, 0, 1, None])
        self.assertEqual((lines[-1]["fallback"], lines[-1]["refused"][0]["code"]), (True, "dropout"))

    def test_metrics_are_the_sums_of_calls(self):
        path = self.path("metrics")
        with tileproof.watch(metrics=path, model='a "b"\n') as seen:
            self.assertIn("tileproof_build_info{", read(path))
            for _ in range(5):
                self.attend()
            self.attend(dropout_p=0.5)
        text = read(path)
        self.assertEqual(text, seen.metrics())
        calls = re.findall(r"^tileproof_calls_total\{(.*)\} (\d+)$", text, re.M)
        self.assertEqual(sorted(int(n) for _, n in calls), [1, 5])
        self.assertTrue(all(r'model="a \"b\"\n"' in x for x, _ in calls), calls)
        self.assertRegex(text, r'tileproof_fallbacks_total\{.*kernel="math",.*reason="dropout".*\} 1\n')
        for name in re.findall(r"^(\w+)(?:\{| )", text, re.M):
            self.assertIn(f"# TYPE {re.sub('(?<=call_seconds)_(bucket|sum|count)$', '', name)} ", text)
        # six calls of one phase and bucket: bounds that double, counts that never fall
        within = [(bound, int(n)) for bound, n in re.findall(r'^tileproof_call_seconds_bucket\{engine="torch",.*le="(.*)"\} (\d+)$', text, re.M)]
        self.assertEqual([bound for bound, _ in within], [f"{1024e-9 * 2**i:.9f}" for i in range(26)] + ["+Inf"])
        self.assertEqual([n for _, n in within], sorted(n for _, n in within))
        self.assertEqual(within[-1][1], 6)
        self.assertRegex(text, r"(?m)^tileproof_call_seconds_count\{.*\} 6$")

    def test_a_time_is_within_the_first_bound_that_is_not_below_it(self):
        from tileproof.watch import records

        for ns, bound in ((0, 0), (1, 0), (1024, 0), (1025, 1), (2048, 1), (2049, 2), (1 << 35, 25), ((1 << 35) + 1, 26), (1 << 60, 26)):
            record = records.Record("torch", "math", False, None, None)
            record.took(ns)
            self.assertEqual(record.times.index(1), bound, ns)

    def test_only_the_first_records_are_told_apart(self):
        from tileproof.watch import records

        before, records.MOST_RECORDS = records.MOST_RECORDS, 3
        try:
            with tileproof.watch() as seen:
                for n in range(1, 9):
                    self.x = torch.randn(1, n, 40, 16)
                    self.attend()
        finally:
            records.MOST_RECORDS = before
        self.assertEqual((seen.calls, len(seen.records)), (8, 4))
        self.assertIn("(other)", seen.table())


class Command(Case):
    SCRIPT = "import os, sys\nassert 'torch' not in sys.modules\nos.environ['SEEN'] = '1'\nimport torch\nx = torch.ones(1, 2, 8, 16)\ntorch.nn.functional.scaled_dot_product_attention(x, x, x)\nprint(sys.argv, __name__, __file__ if '__file__' in globals() else '')\n"

    def run_it(self, *words, **options):
        return subprocess.run([sys.executable, "-m", "tileproof.watch", *words], capture_output=True, text=True, cwd=self.folder, **options)

    def test_a_script(self):
        self.path("script.py", self.SCRIPT + "sys.exit(7)\n")
        done = self.run_it("--json", "out.json", "--save-lock", "lock.json", "--metrics", "m", "--trace", "t", "script.py", "--json", "3")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertEqual(done.stdout.strip(), "['script.py', '--json', '3'] __main__ script.py")
        self.assertIn("1 calls of attention, 0 of them not fused", done.stderr)
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["rows"][0]["kernel"], "flash_for_cpu")
        self.assertEqual(len((self.folder / "t").read_text().splitlines()), 1)
        self.assertIn('kernel="flash_for_cpu"', (self.folder / "m").read_text())
        again = self.run_it("--lock", "lock.json", "--on-drift", "raise", "--quiet", "script.py")
        self.assertEqual((again.returncode, again.stderr), (7, ""))
        self.path("script.py", self.SCRIPT.replace("16", "24"))
        drifted = self.run_it("--lock", "lock.json", "--on-drift", "raise", "script.py")
        self.assertEqual(drifted.returncode, 1)
        self.assertIn("DriftError: attention drifted", drifted.stderr)
        self.assertIn("1 drifted from lock.json", drifted.stderr)

    def test_a_module_and_a_program_without_torch(self):
        self.path("mine.py", "import sys\nprint(sys.argv[1:], __name__)\n")
        done = self.run_it("-m", "mine", "-x", "1")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "['-x', '1'] __main__"))
        self.assertIn("did not import torch", done.stderr)

    def test_wrong_words(self):
        self.path("script.py", "")
        for words, why in (
            ((), "a script or -m module is needed"), (("none.py",), "none.py: no such file"), (("--every", "0", "script.py"), "--every is 0"),
            (("--lock", "none", "script.py"), "none: No such file"), (("--on-drift", "stop", "script.py"), "invalid choice: 'stop'"),
            (("--read-profile", "script.py"), "no JSON"), (("--trace", "no/where", "script.py"), "no/where: there is no such folder"),
            (("--metrics-seconds", "0", "script.py"), "--metrics-seconds is 0"),
        ):  # fmt: skip
            done = self.run_it(*words)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertIn(why, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


FLASH_ATTN = '''
import torch
@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=(), device_types="cpu")
def _flash_attn_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: torch.Tensor | None, return_softmax: bool) -> torch.Tensor:
    return q.clone()
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
    scale = softmax_scale or q.shape[-1] ** -0.5
    return torch.ops.flash_attn._flash_attn_forward(q, k, v, dropout_p, scale, causal, *window_size, softcap, None, False)
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1)):
    return q.clone()
'''


class FlashAttn(Case):
    """A package with the names and the signatures of flash_attn 2.8, for the CPU: the real one was not run here."""

    def test_its_functions(self):
        package = self.folder / "flash_attn"
        package.mkdir()
        (package / "__init__.py").write_text("from .flash_attn_interface import *\n")
        (package / "flash_attn_interface.py").write_text(FLASH_ATTN)
        self.path("script.py", """
import torch, tileproof
with tileproof.watch() as seen:
    from flash_attn import flash_attn_func, flash_attn_with_kvcache
    x = torch.ones(2, 5, 4, 16)
    flash_attn_func(x, x[:, :, :2], x[:, :, :2], causal=True, window_size=(3, 0))
    flash_attn_func(x, x, x, softcap=30.0)
    flash_attn_with_kvcache(x[:, :1], x, x, causal=True)
for row in seen.to_dict()["rows"]:
    print(row["engine"], row["kernel"], row["calls"], row["problem"])
""")
        done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(done.stdout.splitlines()), {
            "flash_attn flash_attn_2 1 prefill b2 h4/2 q5 k5 d16 f32 causal window=3,0",
            "flash_attn flash_attn_2 1 prefill b2 h4/4 q5 k5 d16 f32 softcap=30",
            "flash_attn flash_attn_2 1 decode b2 h4/4 q1 k5 d16 f32 causal",
        })  # fmt: skip


class Profiles(Case):
    """Names of CUDA kernels, in traces that are written here: no GPU was at hand."""

    NAMES = {
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>": "flash",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>": "flash_attn_2",
        "void flash::flash_fwd_splitkv_combine_kernel<>": "",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>": "flash_attn_3",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object": "flash_attn_4",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)": "efficient",
        "fmha_cutlassB_bf16_aligned_64x64_k64_sm80": "efficient backward",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob": "cudnn",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16": "cudnn backward",
        "triton_tem_fused_flex_attention_0": "flex",
        "kernel_unified_attention_2d": "vllm_triton",
        "ampere_bf16_s16816gemm_bf16_128x64": None,
    }

    def test_names(self):
        for name, kernel in self.NAMES.items():
            self.assertEqual(kernel_of(name), kernel, name)

    def test_a_trace(self):
        events = [{"ph": "X", "cat": "kernel", "name": x} for x in self.NAMES] + [{"ph": "X", "cat": "cpu_op", "name": "aten::_scaled_dot_product_flash_attention"}] * 3
        path = self.path("trace.json", json.dumps({"traceEvents": events}))
        found = counts(path)
        self.assertEqual(dict(found["ops"]), {"flash": 3})
        self.assertEqual(dict(found["cuda"]), {x: 1 for x in self.NAMES.values() if x})
        done = subprocess.run([sys.executable, "-m", "tileproof.watch", "--read-profile", path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("        3  flash\n", done.stdout)
        self.assertIn("\nCUDA: not run here: ", done.stdout)
        self.assertRaisesRegex(ProfileError, "no traceEvents", counts, self.path("other.json", "{}"))

    def test_a_trace_of_this_host(self):
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as made:
            self.attend()
        made.export_chrome_trace(self.path("real.json"))
        self.assertEqual(dict(counts(self.path("real.json"))["ops"]), {"flash_for_cpu": 1})
        done = subprocess.run([sys.executable, "-m", "tileproof.watch", "--read-profile", self.path("real.json")], capture_output=True, text=True)
        self.assertTrue("flash_for_cpu" in done.stdout and "not run here" not in done.stdout, done.stdout)

    def test_a_table_on_a_gpu_says_that_nobody_ran_it(self):
        with tileproof.watch() as seen:
            self.attend()
        self.assertNotIn("CUDA: not run here", seen.table())
        seen.identity["gpu"] = "a GPU"
        self.assertIn("\n  CUDA: not run here: ", seen.table())


class Fork(Case):
    def test_a_child_writes_nothing(self):
        trace = self.path("trace")
        with tileproof.watch(trace=trace) as seen:
            self.attend()
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                try:
                    self.attend()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        self.assertEqual((seen.calls, len(read(trace).splitlines())), (1, 1))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Threads: how many a call takes, and whose receipts are whose when several call."""
import contextlib
import os
import subprocess
import sys
import threading
import unittest
from unittest import mock

import numpy as np
import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F
from tileproof import _core, _torch_ops, _torch_patch
from torch._subclasses.fake_tensor import FakeTensorMode

CALLS = """
import sys, torch, tileproof, torch.nn.functional as F
x = torch.randn(1, 8, 256, 64)
if sys.argv[1] != "0":
    torch.set_num_threads(int(sys.argv[1]))
with tileproof.torch.patch() as log:
    F.scaled_dot_product_attention(x, x, x)
    F.scaled_dot_product_attention(x, x, x.clone().requires_grad_()).sum().backward()
receipts = [*log.receipts, tileproof.attention(x, x, x, return_receipt=True)[1]]
receipts.append(tileproof.plan(x, x).run(x, x, x, return_receipt=True)[1])
receipts.append(tileproof.plan(x.shape, x.shape, dtype=torch.float32).run(x, x, x, return_receipt=True)[1])
receipts.append(tileproof.attention(x, x, x, threads=3, return_receipt=True)[1])
print(*(r.tasks for r in receipts))
"""


class Numbers(unittest.TestCase):
    def tasks(self, set_to, omp):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment |= {"OMP_NUM_THREADS": omp} if omp else {}
        done = subprocess.run([sys.executable, "-c", CALLS, set_to], capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [int(x) for x in done.stdout.split()]

    def test_pytorchs_number_is_kept(self):
        for set_to, omp in (("1", None), ("0", "1"), ("1", "2")):
            self.assertEqual(self.tasks(set_to, omp), [1] * 6 + [3], (set_to, omp))

    def test_more_than_the_host_has_is_the_hosts(self):
        x = np.ones((1, 256, 8, 64), np.float32)
        with mock.patch.object(tileproof._api, "_OMP_NUM_THREADS", None):
            allowed = tileproof.attention(x, x, x, return_receipt=True)[1].tasks
        self.assertEqual(self.tasks("64", None), [allowed] * 6 + [3])


POOLS = """
import os, sys, numpy as np
early = sys.argv[1] == "early"
x = np.random.default_rng(0).standard_normal((1, 256, 8, 64), np.float32)
import tileproof
from tileproof import _core
def threads():
    return int(next(line for line in open("/proc/self/status") if line.startswith("Threads")).split()[1])
def regions(call):
    before = _core.regions()
    call()
    return _core.regions() - before
if early:
    tileproof.attention(x, x, x)
    assert _core.regions() == 0
import torch
torch.set_num_threads(2)
q = torch.from_numpy(x)
(q.reshape(2048, 64) @ q.reshape(2048, 64).T).sum()  # PyTorch's threads are there now
count = threads()
plan = tileproof.plan(x.shape, x.shape, dtype="float32")
results = []
seen = [regions(call) for call in (
    lambda: results.append(tileproof.attention(q, q, q)), lambda: results.append(tileproof.attention(x, x, x)),
    lambda: results.append(plan.run(q, q, q)),
    lambda: tileproof.attention(q.clone().requires_grad_(), q, q).sum().backward(),
    lambda: tileproof.attention(q[:, :2], q[:, :2], q[:, :2]))]
assert threads() == count, (threads(), count)
seen.append(regions(lambda: results.append(tileproof.attention(q, q, q, threads=2))))
assert all(np.array_equal(np.asarray(r), np.asarray(results[0])) for r in results)
child = os.fork()
if child == 0:  # OpenMP's threads are not there: it must not wait for them
    os._exit(not all(np.array_equal(np.asarray(r), np.asarray(results[0])) for r in (tileproof.attention(q, q, q), plan.run(q, q, q))))
print(*(int(n > 0) for n in seen), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Pools(unittest.TestCase):
    """Where PyTorch is in the process, its threads do the work."""

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "not run here: one CPU")
    @unittest.skipIf("backend: OpenMP" not in torch.__config__.parallel_info(), "not run here: this PyTorch has other threads")
    def test_pytorchs_threads_are_taken(self):
        for when in ("late", "early"):
            done = subprocess.run([sys.executable, "-c", POOLS, when], capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stderr)
            # attention of PyTorch and of NumPy, a plan, forward and backward; not one row, and not an exact number; the child is well
            self.assertEqual(done.stdout.split(), ["1", "1", "1", "1", "0", "0", "0"], (when, done.stdout))


class Receipts(unittest.TestCase):
    def between(self, module, name, act):
        """module.name as it is, and act() in another thread when it has just returned."""
        real = getattr(module, name)

        def both(*args, **options):
            made = real(*args, **options)
            with mock.patch.object(module, name, real):
                other = threading.Thread(target=act)
                other.start()
                other.join()
            return made

        return mock.patch.object(module, name, both)

    def test_a_log_that_opens_during_a_call_has_whole_receipts(self):
        x, masked = torch.randn(1, 2, 5, 8), {"attn_mask": torch.zeros(5, 5)}
        for module, name, options, words in ((_core, "sdpa", {}, ""), (_torch_patch, "_attend", masked, " bias=f32")):
            with contextlib.ExitStack() as stack:
                logs = []
                opens = lambda: logs.append(stack.enter_context(tileproof.torch.log()))
                with tileproof.torch.patch(limit=0) as none_kept:
                    with self.between(module, name, opens):
                        F.scaled_dot_product_attention(x, x, x, **options)
                    self.assertEqual((logs[0].receipts, none_kept.forgotten), ([], 1))
                    self.assertIn("none", repr(logs[0]))
                    F.scaled_dot_product_attention(x, x, x, **options)
                problems = [r.problem for r in logs[0].receipts]
                self.assertEqual((problems, none_kept.forgotten), ([f"prefill b1 h2/2 q5 k5 d8 f32 top-left{words}"], 2))
                self.assertIn("1 on ", repr(logs[0]))

    def test_a_calls_receipt_is_its_own(self):
        x, other = torch.randn(1, 5, 2, 8).requires_grad_(), torch.randn(1, 9, 2, 8).requires_grad_()
        with self.between(_torch_ops, "_call", lambda: tileproof.attention(other, other, other)):
            for options in ({}, {"return_lse": True}):
                got = tileproof.attention(x, x, x, return_receipt=True, **options)
                self.assertEqual(got[-1].problem, "prefill b1 h2/2 q5 k5 d8 f32")
                self.assertEqual(len(got), 2 + len(options))

    def test_where_nothing_runs_there_is_no_receipt(self):
        x = torch.randn(1, 5, 2, 8, requires_grad=True)
        tileproof.attention(x, x, x, return_receipt=True)
        with FakeTensorMode():
            x = torch.empty(1, 5, 2, 8)
            with self.assertRaisesRegex(ValueError, "return_receipt is True .* nothing ran .* must be False"):
                tileproof.attention(x, x, x, return_receipt=True)
            self.assertEqual(tileproof.attention(x, x, x).shape, x.shape)


if __name__ == "__main__":
    unittest.main()

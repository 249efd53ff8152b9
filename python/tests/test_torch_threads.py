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
from tileproof import _torch_ops, _torch_patch
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
        x = torch.randn(1, 2, 5, 8)
        with contextlib.ExitStack() as stack:
            logs = []
            opens = lambda: logs.append(stack.enter_context(tileproof.torch.log()))
            with tileproof.torch.patch(limit=0) as none_kept:
                with self.between(_torch_patch, "_attend", opens):
                    F.scaled_dot_product_attention(x, x, x)
                self.assertEqual((logs[0].receipts, none_kept.forgotten), ([], 1))
                self.assertIn("none", repr(logs[0]))
                F.scaled_dot_product_attention(x, x, x)
            self.assertEqual(([r.problem for r in logs[0].receipts], none_kept.forgotten), (["prefill b1 h2/2 q5 k5 d8 f32 top-left"], 2))
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

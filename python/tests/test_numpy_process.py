# SPDX-License-Identifier: Apache-2.0
"""Threads, fork, memory."""
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import unittest

import letting_go
import numpy as np
import tileproof

random = np.random.default_rng(5)


NEWPID = 0x20000000  # CLONE_NEWPID of <sched.h>
unshare = ctypes.CDLL(None, use_errno=True).unshare


def in_a_child(work):
    """The exit code of a forked child: work() gives one, or True for 0 and False for 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            made = work()
            code = int(not made) if isinstance(made, (bool, np.bool_)) else made
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def qkv(m=64, n=256, h=4, d=64):
    return tuple(random.standard_normal((1, x, h, d)).astype(np.float32) for x in (m, n, n))


class Process(unittest.TestCase):
    def test_any_number_of_threads_gives_the_same_bits(self):
        q, k, v = qkv()
        want = tileproof.attention(q, k, v)
        for threads in (1, 2, 3, 7):
            self.assertTrue((tileproof.attention(q, k, v, threads=threads) == want).all())

    def test_omp_num_threads_is_kept(self):
        code = """
import numpy as np, tileproof
x = np.ones((1, 256, 8, 64), np.float32)
calls = [tileproof.attention(x, x, x, **o, return_receipt=True)[1] for o in ({}, dict(threads=3))]
print(*(r.tasks for r in [*calls, tileproof.plan(x, x).run(x, x, x, return_receipt=True)[1]]))"""
        plain = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

        def tasks(**more):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**plain, **more})
            self.assertEqual(done.returncode, 0, done.stderr)
            return [int(word) for word in done.stdout.split()]

        (host, _, _) = whole = tasks()
        self.assertEqual(whole, [host, 3, host])
        for text in ("1", " 01", "1,4,2"):
            self.assertEqual(tasks(OMP_NUM_THREADS=text), [1, 3, 1], text)
        for text in ("", "0", "-1", "many", "1.5", "9999", "9" * 5000):
            self.assertEqual(tasks(OMP_NUM_THREADS=text), whole, text[:9])

    def test_many_thread_counts_leave_few_contexts(self):
        q, k, v = qkv(4, 4)
        before = len(os.listdir("/proc/self/task"))
        for threads in range(2, 14):
            tileproof.attention(q, k, v, threads=threads)
        kept = sum(threads - 1 for threads in range(14 - 9, 14))  # eight idle ones and the one in use
        self.assertLessEqual(len(os.listdir("/proc/self/task")), before + kept)

    def test_the_gil_is_released(self):
        q, k, v = qkv(2048, 4096, 4, 128)
        done = threading.Event()

        def work():
            tileproof.attention(q, k, v, threads=1)
            done.set()

        worker = threading.Thread(target=work)
        worker.start()
        turns = 0
        while not done.is_set():
            turns += 1
            time.sleep(0)
        worker.join()
        self.assertGreater(turns, 10)

    def test_many_python_threads(self):
        q, k, v = qkv()
        plan = tileproof.plan(q, k, v)
        want = tileproof.attention(q, k, v)
        wrong = []

        def work(which):
            for i in range(20):
                got = plan.run(q, k, v) if (i + which) % 2 else tileproof.attention(q, k, v, threads=1 + which % 2)
                if not (got == want).all():
                    wrong.append(which)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for x in workers:
            x.start()
        for x in workers:
            x.join()
        self.assertEqual(wrong, [])

    def test_arrays_whose_owner_lets_go_of_them_during_a_call(self):
        arrays = qkv(1024, 1024)
        got = letting_go.during(tileproof.attention, arrays, np.copy, lambda x: np.full_like(x, np.nan))
        self.assertTrue((got == tileproof.attention(*arrays)).all())

    def test_an_interrupt_comes_when_the_call_is_done(self):
        code = """
import os, signal, threading, time, numpy as np, tileproof
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
x = np.random.default_rng(1).standard_normal((1, 4096, 4, 64)).astype(np.float32)
q, want, told = x[:, -64:], tileproof.attention(x[:, -64:], x, x), 0
plan, out = tileproof.plan(x, x), np.zeros_like(x)
for call in (lambda: tileproof.attention(x, x, x, out=out), lambda: plan.run(x, x, x, out=out)):
    out[:] = 0
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    end = time.monotonic() + 60
    try:
        call()
        while time.monotonic() < end:
            pass
    except KeyboardInterrupt:
        told += 1
    assert np.allclose(out[:, -64:], want, atol=1e-6)  # whole
    assert (tileproof.attention(q, x, x) == want).all()
print(told)"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["2"]), done.stderr)

    def test_fork(self):
        q, k, v = qkv()
        plan = tileproof.plan(q, k, v)
        want = plan.run(q, k, v)
        tileproof.attention(q, k, v, threads=2)

        def same():
            fine = (tileproof.attention(q, k, v) == want).all() and (plan.run(q, k, v) == want).all()
            return fine and (tileproof.attention(q, k, v, threads=2) == want).all()

        def child():
            nonlocal plan
            fine = same()
            del plan
            gc.collect()
            return fine

        self.assertEqual(in_a_child(child), 0)
        self.assertTrue(same())

    def test_process_one_and_its_child_which_is_process_one_too(self):
        q, k, v = qkv()
        want = tileproof.attention(q, k, v)

        def first_process():
            if os.getpid() != 1:
                return 2
            plan = tileproof.plan(q, k, v, threads=2)
            same = lambda: (plan.run(q, k, v) == want).all() and (tileproof.attention(q, k, v, threads=2) == want).all()
            if not same() or unshare(NEWPID):
                return 3
            return in_a_child(lambda: same() if os.getpid() == 1 else 4)

        made = in_a_child(lambda: 77 if unshare(NEWPID) else in_a_child(first_process))
        if made == 77:
            self.skipTest("not run here: pid namespaces, which this user may not make")
        self.assertEqual(made, 0)

    def test_a_child_that_may_take_more_threads_has_room_for_them(self):
        q, k, v = qkv(512, 512, 8, 576)
        allowed = os.sched_getaffinity(0)
        want = tileproof.attention(q, k, v)

        def parent():
            os.sched_setaffinity(0, {min(allowed)})
            plan = tileproof.plan(q, k, v)
            plan.run(q, k, v)
            before = plan.workspace_bytes

            def child():
                os.sched_setaffinity(0, allowed)
                fine = all((plan.run(q, k, v) == want).all() for _ in range(3))
                return fine and plan.workspace_bytes >= before

            return in_a_child(child)

        self.assertEqual(in_a_child(parent), 0)

    def test_pytorch_is_imported_when_it_is_asked_for_and_may_be_missing(self):
        code = """
import sys
sys.modules["torch"] = None  # as where it is not installed
import tileproof
assert not hasattr(tileproof, "torch") and not hasattr(tileproof, "nosuch")
try:
    tileproof.torch.patch()
except AttributeError as refused:
    print(refused)"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("tileproof.torch needs PyTorch (pip install torch)", done.stdout, done.stderr)

    def test_nothing_is_kept(self):
        q, k, v = qkv(8, 8)
        lens, mask = np.array([8]), np.ones((8, 8), bool)
        wrong = np.zeros(3)

        def once():
            tileproof.attention(q, k, v, mask=mask, kv_lens=lens, return_lse=True, return_receipt=True)
            tileproof.attention(q[..., ::-1], k[..., ::-1], v, bias=mask.astype(np.float16))
            for bad in (dict(mask=lens), dict(sinks=wrong), dict(out=q), dict(kv_lens=wrong)):
                try:
                    tileproof.attention(q, k, v, **bad)
                except (TypeError, ValueError):
                    pass
            tileproof.explain(q, k)
            tileproof.plan(q, k).run(q, k, v)

        for _ in range(20):
            once()
        gc.collect()
        things = (q, k, v, lens, mask, wrong, None, True, np.float32, np.ndarray)
        grown = []
        for _ in range(2):  # what is kept grows both times; a cache that fills does so once
            counts, blocks = [sys.getrefcount(x) for x in things], sys.getallocatedblocks()
            for _ in range(200):
                once()
            gc.collect()
            for thing, before in zip(things, counts):
                self.assertLess(abs(sys.getrefcount(thing) - before), 100, type(thing))
            grown.append(sys.getallocatedblocks() - blocks)
        self.assertLess(min(grown), 100, grown)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""tileproof.proof: models, qualification, locks, preflight and capacity from Python."""
import fcntl
import json
import os
import pathlib
import signal
import tempfile
import threading
import unittest

import numpy as np
import tileproof
from tileproof import proof

ROOT = pathlib.Path(__file__).resolve().parents[2]


def small(problem="h2/1 d16 f32 causal", layers="0-1", **more):
    group = {"layers": layers, "max_positions": 64, "problem": problem}
    return proof.Model(json.dumps({"tileproof_model": 1, "groups": [group]}), "small.json", **more)


def decoder():
    """A decoder that keeps rows of 32 elements."""
    return small("h4/2 d32 f32 causal")


FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def with_scheme():
    """A config that wants e4m3 caches."""
    config = json.loads((ROOT / "models/llama-3.2-1b.json").read_text())
    return proof.Model(json.dumps({**config, "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": FP8}}), "fp8.json")


def tensors(rows=7, heads=2, kv_heads=1, dim=16):
    random = np.random.default_rng(rows)
    return [random.standard_normal((1, rows, n, dim), np.float32) for n in (heads, kv_heads, kv_heads)]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(proof.permit_nothing)
        self.folder = folder.name
        self.path = os.path.join(folder.name, "a.lock")


class Models(unittest.TestCase):
    def test_a_shipped_config(self):
        model = proof.Model.read(ROOT / "models/gemma-2-2b.json")
        self.assertEqual((model.label, len(model.groups)), ("gemma-2-2b.json", 2))
        self.assertEqual({x["q_heads"] for x in model.groups}, {8})
        self.assertEqual(sorted(x["mask"]["formula"] for x in model.groups), ["causal", "causal & window"])
        self.assertRegex(repr(model), "gemma-2-2b.json', 2 groups, config [0-9a-f]{12}>")
        self.assertEqual(model.to_dict()["groups"], model.groups)

    def test_labels_and_families(self):
        self.assertEqual(small(label="mine").label, "mine")
        text = json.dumps({"model_type": "nobody_knows", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
                           "max_position_embeddings": 128, "vocab_size": 9, "intermediate_size": 64})  # fmt: skip
        with self.assertRaisesRegex(tileproof.Unsupported, "nobody_knows"):
            proof.Model(text)
        self.assertEqual(proof.Model(text, assume="llama").label, "config.json (as llama)")

    def test_wrong_files(self):
        with self.assertRaisesRegex(ValueError, r"x.json:1: not JSON"):
            proof.Model("{", "x.json")
        with self.assertRaises(FileNotFoundError):
            proof.Model.read("/no/such/file.json")
        with self.assertRaises(TypeError):
            proof.Model(7)
        with self.assertRaisesRegex(ValueError, "assume"):
            small(assume="no family")


class CacheFormats(unittest.TestCase):
    """The words are the C library's, in every argument that names a cache."""

    def test_words_are_the_librarys(self):
        for word, name in ((None, "plain"), ("plain", "plain"), ("i8", "i8/token"), ("i8/q8_0", "i8/q8_0"), ("i4", "i4/group"), ("e4m3", "e4m3/tensor"),
                           ("e4m3/token", "e4m3/token"), ("plain:i8", "plain:i8/token"), ("e4m3/token:i4", "e4m3/token:i4/group")):  # fmt: skip
            self.assertEqual(proof.cache_format(word), name)
        with self.assertRaisesRegex(ValueError, "words is 'q8_0': it must be plain, i8, i8/q8_0, i4, e4m3 or e4m3/token, or two of these as K:V"):
            proof.cache_format("q8_0")

    def test_a_wrong_word_is_named_everywhere(self):
        model, lock = small(), proof.Lock()
        for call in (
            lambda cache: proof.cells(model, cache=cache),
            lambda cache: proof.qualify(model, cache=cache),
            lambda cache: proof.preflight(lock, model, cache=cache),
            lambda cache: proof.capacity(model, context=64, concurrency=1, cache=cache),
            lambda cache: tileproof.Cache.plan(model, bytes=1 << 20, sequences=1, cache=cache),
        ):
            with self.assertRaisesRegex(ValueError, "cache is 'fp8': it must be plain, i8, i8/q8_0, i4, e4m3 or e4m3/token"):
                call("fp8")
            with self.assertRaisesRegex(TypeError, 'cache is 8: it must be a str that names the format of a cache, such as "i8", or None'):
                call(8)

    def test_cells_read_that_cache(self):
        done = proof.qualify(decoder(), quick=True, phases=["decode"], cache="e4m3/token:i4")
        done.check()
        self.assertEqual({x.problem.split(" d32 ")[1].split()[0] for x in done.cells}, {"f32:e4m3:i4->f32"})
        self.assertTrue(all("scales=token:group" in x.problem and 0 < x.seen["loss"] < 0.08 for x in done.cells))
        plain = proof.qualify(decoder(), quick=True, phases=["decode"], cache="plain")
        self.assertTrue(all(" d32 f32 " in x.problem and not x.seen.get("loss") for x in plain.cells))

    def test_a_config_that_wants_one(self):
        model = with_scheme()
        self.assertEqual((model.cache, small().cache), ("e4m3/tensor", ""))
        for call in (lambda **more: proof.cells(model, quick=True, **more), lambda **more: proof.capacity(model, context=64, concurrency=1, **more),
                     lambda **more: proof.preflight(proof.Lock(), model, **more),
                     lambda **more: tileproof.Cache.plan(model, bytes=1 << 24, sequences=1, tokens=64, **more)):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "cache is not said, and the file of fp8.json wants keys and values kept as e4m3/tensor"):
                call()
        made = [tileproof.Cache.plan(model, bytes=1 << 24, sequences=1, tokens=64, cache=x)["token_bytes"] for x in ("plain", model.cache)]
        self.assertEqual(made[0], 2 * made[1])
        plain, codes = (proof.capacity(model, context=64, concurrency=1, cache=x)["kept"] for x in ("plain", model.cache))
        self.assertEqual(plain["bytes"], 2 * codes["bytes"])
        self.assertEqual({"e4m3:e4m3" in x.problem for x in proof.cells(model, quick=True, phases=["decode"], cache="e4m3").cells}, {True})


class Qualification(unittest.TestCase):
    def test_cells_run_and_are_used(self):
        heard = []
        done = proof.qualify(small(), quick=True, progress=lambda cell, ended: heard.append((cell.index, ended, cell.status)))
        self.assertEqual(done.status, "QUALIFIED")
        done.check()
        self.assertEqual([x[:2] for x in heard], [(i, e) for i in range(len(done.cells)) for e in (False, True)])
        self.assertEqual({x[2] for x in heard if not x[1]}, {"NOT_RUN"})
        self.assertEqual({x.phase for x in done.uses}, {"prefill", "decode", "varlen", "mixed"})
        self.assertEqual({(x.model, x.part, x.layers) for x in done.uses}, {("small.json", "text", "0-1")})
        for cell in done.cells:
            self.assertTrue(cell.served and cell.kernel in tileproof.kernels and 0 <= cell.seen["error"] <= cell.seen["allowed"], cell)

    def test_phases_and_times(self):
        done = proof.cells(small(), phases=["decode"], quick=True)
        self.assertEqual((done.status, {x.phase for x in done.cells}), ("NOT_RUN", {"decode"}))
        with self.assertRaisesRegex(proof.NotQualified, "NOT_RUN: decode .*it was not run; and [0-9]+ more"):
            done.check()
        done.run(seconds=0.001, threads=1)
        self.assertTrue(any(x.seen.get("time_ns", 0) > 0 for x in done.cells))
        self.assertEqual(len(proof.cells(small(), phases="decode", max_cells=1).cells), 1)

    def test_stopped_and_gone_on(self):
        done = proof.qualify(small(), quick=True, progress=lambda cell, ended: ended and cell.index == 1)
        self.assertEqual([x.status for x in done.cells[:3]], ["QUALIFIED", "QUALIFIED", "NOT_RUN"])
        self.assertEqual(done.run().status, "QUALIFIED")

    def test_what_progress_raises_and_an_interrupt(self):
        def fails(cell, ended):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            proof.qualify(small(), quick=True, progress=fails)
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))  # background jobs of a shell ignore it
        with self.assertRaises(KeyboardInterrupt):
            proof.qualify(small(), quick=True, progress=lambda cell, ended: signal.raise_signal(signal.SIGINT))

    def test_refused_and_permitted(self):
        wide = small("h1/1 d640 f32 causal")
        refused = proof.qualify(wide, quick=True, phases=["prefill"])
        with self.assertRaisesRegex(proof.NotQualified, "UNSUPPORTED: prefill .*head_dim"):
            refused.check()
        self.assertEqual(proof.qualify(wide, quick=True, phases=["prefill"], fallback="permit").status, "QUALIFIED_FALLBACK")

    def test_one_thread_at_a_time(self):
        done, inside, said = proof.cells(small(), quick=True), threading.Event(), []

        def other():
            inside.wait()
            try:
                done.run()
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()

        def wait(cell, ended):
            inside.set()
            if cell.index == 0 and ended:
                thread.join()

        done.run(progress=wait)
        self.assertRegex(said[0], "runs in another thread")

    def test_wrong_arguments(self):
        for call, kind, text in (
            (lambda: proof.cells(small(), phases=["fast"]), ValueError, "phases has 'fast'"),
            (lambda: proof.cells("small.json"), TypeError, "is no tileproof.proof.Model"),
            (lambda: proof.cells(small(), dtype="float7"), ValueError, "float7"),
            (lambda: proof.cells(small(), page_size=5000), ValueError, "page_size is 5000"),
            (lambda: proof.qualify(small(), fallback="serve"), ValueError, "fallback is 'serve'"),
            (lambda: proof.cells(small(), max_cells=-1), ValueError, "max_cells is -1: it must be in 0"),
            (lambda: proof.cells(small(), page_size=2**70), ValueError, "page_size is 1180591620717411303424"),
            (lambda: proof.cells(small(), page_size=1.5), TypeError, "page_size is 1.5"),
            (lambda: proof.qualify(small(), threads=2**32 + 1), ValueError, "threads is 4294967297: it must be in 1..1024"),
            (lambda: proof.qualify(small(), threads=0), ValueError, "threads is 0"),
        ):  # fmt: skip
            with self.assertRaisesRegex(kind, text):
                call()
        with self.assertRaisesRegex(proof.NotQualified, "there is no cell"):
            proof.cells().check()


class Locks(Folder):
    def deploy(self, model, reason="test", **more):
        done = proof.qualify(model, quick=True)
        with proof.updated(self.path) as lock:
            done.update(lock, reason=reason, **more)
        return done

    def test_written_and_compared(self):
        done = self.deploy(small(), "first")
        self.assertEqual(os.listdir(self.folder), ["a.lock"])
        lock = proof.Lock.read(self.path)
        (revision,) = lock.revisions()
        self.assertEqual((revision.model, revision.engine, revision.status, revision.cells, revision.stale),
                         ("small.json", "tileproof", "QUALIFIED", len(done.cells), ""))  # fmt: skip
        self.assertEqual([x["reason"] for x in lock.history()], ["first"])
        self.assertEqual(done.compare(lock), [])
        self.assertRegex(done.compare(lock, declared="engine=2")[0], "engine")
        self.assertIn("engine", lock.revisions(declared="engine=2")[0].stale)
        self.assertEqual(done.compare(lock), [])

    def test_revisions_differ(self):
        self.deploy(small())
        other = self.deploy(small("h4/2 d16 f32 causal"), "more heads")
        lock = proof.Lock.read(self.path)
        self.assertEqual([x.model for x in lock.revisions()], ["small.json"] * 2)
        changes = lock.diff(0, 1)
        self.assertIn("config", [x["what"] for x in changes])
        self.assertIn(("heads", "2/1", "4/2"), [(x["what"], x["from"], x["to"]) for x in changes])
        self.assertEqual(lock.diff(0, 0), [])
        with self.assertRaisesRegex(IndexError, "revision 0 or 7"):
            lock.diff(0, 7)
        self.assertEqual(other.compare(lock), [])

    def test_a_block_that_fails_changes_nothing(self):
        done = self.deploy(small())
        before = pathlib.Path(self.path).read_bytes()
        with self.assertRaisesRegex(KeyError, "mine"):
            with proof.updated(self.path) as lock:
                done.update(lock, reason="never")
                raise KeyError("mine")
        self.assertEqual((pathlib.Path(self.path).read_bytes(), os.listdir(self.folder)), (before, ["a.lock"]))
        with self.assertRaisesRegex(ValueError, "reason"):
            with proof.updated(self.path) as lock:
                done.update(lock, reason="  ")
        self.assertEqual(pathlib.Path(self.path).read_bytes(), before)

    def test_another_update_is_waited_for(self):
        with open(self.path + ".tileproof-guard", "w") as held:  # as the tool takes it
            fcntl.flock(held, fcntl.LOCK_EX)
            with self.assertRaisesRegex(TimeoutError, "is being changed by another process"):
                with proof.updated(self.path, wait=0.1):
                    self.fail("it was let in")
        self.assertFalse(os.path.exists(self.path))

    def test_a_refused_cell_is_not_written(self):
        done = proof.qualify(small("h1/1 d640 f32 causal"), quick=True)
        with self.assertRaisesRegex(tileproof.Unsupported, "a cell is refused"):
            done.update(proof.Lock(), reason="no")
        done.update(proof.Lock(), reason="yes", served_only=False)
        with self.assertRaisesRegex(ValueError, "a cell has no result"):
            proof.cells(small(), quick=True).update(proof.Lock(), reason="no")

    def test_wrong_files(self):
        for text in ("{", "[]", '{"schema": "tileproof.lock/9"}'):
            with self.assertRaisesRegex(ValueError, "x.lock:1"):
                proof.Lock(text, "x.lock")

    def test_locked(self):
        q, k, v = tensors()
        with self.assertRaisesRegex(tileproof.NotLocked, "not permitted by policy locked"):
            tileproof.attention(q, k, v, causal=True, fallback="locked")
        model = small()
        self.deploy(model)
        lock = proof.Lock.read(self.path)
        proof.preflight(lock, model)
        for threads in (None, 1, 2, 3):  # contexts that were there and new ones
            out = tileproof.attention(q, k, v, causal=True, fallback="locked", threads=threads)
            np.testing.assert_array_equal(out, tileproof.attention(q, k, v, causal=True))
        tileproof.plan(q, k, causal=True, fallback="locked").run(q, k, v)
        with self.assertRaises(tileproof.NotLocked):  # nobody qualified this mask
            tileproof.attention(q, k, v, fallback="locked")
        child = os.fork()
        if child == 0:
            try:
                tileproof.attention(q, k, v, causal=True, fallback="locked")
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        proof.permit_nothing()
        with self.assertRaises(tileproof.NotLocked):
            tileproof.attention(q, k, v, causal=True, fallback="locked", threads=4)

    def test_preflight_refuses(self):
        self.deploy(small())
        lock = proof.Lock.read(self.path)
        with self.assertRaisesRegex(tileproof.Unsupported, "config"):
            proof.preflight(lock, small("h4/2 d16 f32 causal"))
        with self.assertRaisesRegex(tileproof.Unsupported, "engine"):
            proof.preflight(lock, small(), declared="engine=2")
        q, k, v = tensors()
        with self.assertRaises(tileproof.NotLocked):
            tileproof.attention(q, k, v, causal=True, fallback="locked")
        with self.assertRaises((TypeError, ValueError, AttributeError)):
            proof.preflight(lock, lock)


class LockedCaches(Folder):
    """A cache of codes is served under policy locked by its own revision, and by no other."""

    def serve(self, cache, **more):
        """Prompts, single rows and a chunk beside one; every call locked, and right for what is stored."""
        made = tileproof.Cache(decoder(), bytes=1 << 20, sequences=2, cache=cache, **more)
        one, two = made.open(), made.open()
        random = np.random.default_rng(3)
        for tokens in ([20, 7], [1, 1], [5, 1]):
            made.extend([one, two], tokens)
            for layer in range(2):
                q, k, v = (random.standard_normal((sum(tokens), heads, 32)).astype(np.float32) for heads in (4, 2, 2))
                made.append(layer, [one, two], k, v, tokens=tokens)
                out, receipt = made.attention(layer, [one, two], q, tokens=tokens, causal=True, fallback="locked", return_receipt=True)
                np.testing.assert_array_equal(out, made.attention(layer, [one, two], q, tokens=tokens, causal=True))
        return receipt

    def test_each_format_by_its_own_revision(self):
        e4m3 = {"k_scale": 0.01, "v_scale": [0.01, 0.02]}
        formats = {"plain": {}, "i8": {}, "e4m3/token": {}, "e4m3": e4m3, "plain:i8": {}, "i4": {}, "i8/q8_0": {}}
        with proof.updated(self.path) as lock:
            for cache in formats:
                proof.qualify(decoder(), quick=True, cache=cache).update(lock, reason=cache)
        lock = proof.Lock.read(self.path)
        self.assertEqual([x.cache for x in lock.revisions()], [proof.cache_format(x) for x in formats])
        self.assertEqual({x.stale for x in lock.revisions()}, {""})  # of this process, whatever the cache
        self.assertTrue(all("engine" in x.stale for x in lock.revisions(declared="engine=2")))
        for at, (cache, scales) in enumerate(formats.items()):
            with self.subTest(cache):
                with self.assertRaises(tileproof.NotLocked):
                    self.serve(cache, **scales)
                proof.preflight(lock, decoder(), cache=cache)
                self.assertEqual(bool(self.serve(cache, **scales).lossy), cache != "plain")
                other, of_other = list(formats.items())[at - 1]
                with self.assertRaises(tileproof.NotLocked):
                    self.serve(other, **of_other)
                proof.permit_nothing()

    def test_two_kinds_of_cache_and_contexts_that_come_later(self):
        model, lock = decoder(), proof.Lock()
        for cache in ("plain", "i8"):
            proof.qualify(model, quick=True, cache=cache).update(lock, reason=cache)
            proof.preflight(lock, model, cache=cache)
        self.serve("plain")
        self.serve("i8")
        made = tileproof.Cache(model, bytes=1 << 20, sequences=1, cache="i8")
        s, x = made.open(), np.ones((3, 2, 32), np.float32)
        made.extend(s, 3)
        made.append(0, s, x, x)
        for threads in (1, 2, 3, 5):
            made.attention(0, s, np.ones((3, 4, 32), np.float32), causal=True, fallback="locked", threads=threads)

    def test_another_cache_is_refused_at_load(self):
        lock = proof.Lock()
        proof.qualify(decoder(), quick=True, cache="i8").update(lock, reason="8 bits")
        for cache, text in ((None, "plain"), ("plain", "plain"), ("e4m3", "e4m3/tensor"), ("i8/q8_0", "i8/q8_0")):
            with self.assertRaisesRegex(tileproof.Unsupported, f"the lock has it with cache i8/token, and not with {text}"):
                proof.preflight(lock, decoder(), cache=cache)
        with self.assertRaises(tileproof.NotLocked):
            self.serve("i8")

    def test_compared_with_its_own(self):
        lock = proof.Lock()
        done = proof.qualify(decoder(), quick=True, cache="i8")
        done.update(lock, reason="8 bits")
        self.assertEqual(done.compare(lock), [])
        self.assertTrue(proof.qualify(decoder(), quick=True).compare(lock))


class Capacity(unittest.TestCase):
    def test_counted_by_hand(self):
        model = proof.Model.read(ROOT / "models/llama-3.1-8b.json")
        seen = proof.capacity(model, context=4096, concurrency=3, limit=8 << 30)
        token = 32 * 8 * (128 + 128) * 2
        self.assertEqual((seen["kept"]["token_bytes"], seen["kept"]["bytes"]), (token, 3 * 4096 * token))
        self.assertEqual((seen["kept"]["dtype"], len(seen["groups"])), ("bf16", 1))
        self.assertGreater(seen["kept"]["concurrency_max"], 3)
        self.assertIn("q4096 k4096", seen["groups"][0]["prefill"]["problem"])
        half = proof.capacity(model, context=4096, concurrency=3, page_size=16, gflops=100, read_gbps=10)
        self.assertEqual(half["kept"]["pages"], 3 * 32 * 4096 // 16)
        self.assertGreater(half["decode"]["seconds"], 0)
        self.assertEqual(half["decode"]["bound"], "reads")

    def test_codes_and_scales_are_counted(self):
        model = decoder()
        for cache, token in (("plain", 4 * (32 + 32)), ("i8", 2 * (32 + 4)), ("e4m3", 2 * 32), ("e4m3/token", 2 * (32 + 4)), ("i4", 2 * (16 + 2)),
                             ("i8/q8_0", 2 * 34), ("plain:i8", 128 + 36)):  # fmt: skip
            kept = proof.capacity(model, context=64, concurrency=3, cache=cache)["kept"]
            self.assertEqual((kept["token_bytes"], kept["bytes"]), (2 * 2 * token, 3 * 64 * 2 * 2 * token), cache)
        mixed = proof.capacity(model, context=64, concurrency=3, cache="plain:i8", cache_dtype="bfloat16")["kept"]
        self.assertEqual((mixed["dtype"], mixed["token_bytes"]), ("bf16", 2 * 2 * (64 + 36)))

    def test_wrong_arguments(self):
        model = small()
        for more, text in ((dict(context=10**9), "context is 1000000000"), (dict(context=0), "context"), (dict(page_size=-1), "page_size"),
                           (dict(cache_dtype="float7"), "float7"), (dict(cache_dtype="i8"), "cache_dtype is 'i8': .*; codes are named by cache=")):  # fmt: skip
            with self.assertRaisesRegex(ValueError, text):
                proof.capacity(model, **{"context": 64, "concurrency": 1, **more})


if __name__ == "__main__":
    unittest.main()

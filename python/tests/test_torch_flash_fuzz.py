# SPDX-License-Identifier: Apache-2.0
"""tileproof.flash_attn against its meaning in float64, with all arguments drawn at once. TILEPROOF_SEED names the seed (default: the
date), TILEPROOF_CASES how many cases of each kind."""
import os
import random
import time
import unittest

import flash_reference as reference
import tileproof.flash_attn as fa
import torch
from tileproof.flash_attn import flash_attn_interface

SEED = int(os.environ.get("TILEPROOF_SEED", time.strftime("%Y%m%d")))
CASES = int(os.environ.get("TILEPROOF_CASES", 40))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WORST = {}  # what was measured -> the largest error of a run, for whoever sets the limits
OUT, LSE, GRADIENT = 2, 5, 12  # units in the last place of the largest value; that of lse is float32's


class Draw(random.Random):
    """What both kinds of cases have in common."""

    def one_of(self, *values):
        return values[self.randrange(len(values))]

    def tensor(self, dtype, *shape):
        """Random numbers, sometimes a view with a gap or with its dims in another order."""
        kind = self.one_of("plain", "plain", "gap", "turned")
        if kind == "turned" and len(shape) == 4:
            return torch.randn(shape[0], shape[2], shape[1], shape[3]).to(dtype).transpose(1, 2)
        if kind == "gap":
            return torch.randn(*shape[:-1], shape[-1] + 3).to(dtype)[..., : shape[-1]]
        return torch.randn(*shape).to(dtype)

    def length(self):
        return self.one_of(0, 1, 2, self.randrange(1, 40), self.randrange(1, 40), self.randrange(100, 300))

    def window(self, keys):
        sides = [self.one_of(-1, 0, self.randrange(0, keys + 2)) for _ in range(2)]
        return self.one_of(tuple(sides), sides, torch.tensor(sides))

    def common(self, batch, heads, keys):
        """Arguments of all functions, and the same for the reference, slopes (batch, heads)."""
        given = {
            "causal": self.one_of(False, True), "window_size": self.one_of((-1, -1), self.window(keys)),
            "softmax_scale": self.one_of(None, None, self.uniform(0.02, 0.4)), "softcap": self.one_of(0.0, 0.0, self.uniform(0.5, 30)),
            "alibi_slopes": self.one_of(None, None, torch.rand(heads), torch.rand(batch, heads)),
        }  # fmt: skip
        slopes = given["alibi_slopes"]
        slopes = None if slopes is None else slopes.expand(batch, heads)
        names = {"causal": "causal", "window": "window_size", "scale": "softmax_scale", "softcap": "softcap"}
        return given, {a: given[b] for a, b in names.items()}, slopes


def leave_out_defaults(draw, given):
    defaults = {"causal": False, "softmax_scale": None, "softcap": 0.0, "alibi_slopes": None}
    for name, value in defaults.items():
        if (given[name] is value or given[name] == value is not None) and draw.one_of(True, False):
            del given[name]


class Flash(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        if "TILEPROOF_CASES" in os.environ:
            print(*(f"{what} {dtype}: {found:.2f}" for (what, dtype), found in sorted(WORST.items(), key=str)), sep="\n")

    def near(self, what, got, want, dtype, limit, size=0.0, most=0.0):
        found = reference.error(got, want, dtype, size, most)
        WORST[what, dtype] = max(found, WORST.get((what, dtype), 0))
        self.assertLessEqual(found, limit, what)

    def cases(self, kind, function):
        print(f"flash {kind}: TILEPROOF_SEED={SEED}, {CASES} cases", flush=True)
        for case in range(CASES):
            draw = Draw(f"{SEED} {kind} {case}")
            torch.manual_seed(draw.randrange(2**32))
            with self.subTest(TILEPROOF_SEED=SEED, kind=kind, case=case):
                function(draw)

    def test_functions(self):
        self.cases("functions", self.function)

    def test_seqused_and_leftpad(self):
        self.cases("seqused", self.seqused)

    def function(self, draw):
        dtype, dim, batch = draw.one_of(*DTYPES), draw.one_of(draw.randrange(1, 72), 8, 64, 111), draw.randrange(1, 4)
        varlen, packed = draw.one_of(False, True), draw.one_of("", "", "kv", "qkv")
        group = 1 if packed == "qkv" else draw.one_of(1, 1, 2, 3)
        kv_heads = draw.one_of(1, 2)
        heads = kv_heads * group
        m, n = ([draw.length() for _ in range(batch)] if varlen else [draw.length()] * batch for _ in range(2))
        n = m if packed == "qkv" else n
        gap = draw.one_of(0, 0, 3) if varlen else 0  # tokens of no sequence at the end
        sizes = [(sum(x) + gap,) if varlen else (batch, x[0]) for x in (m, n)]
        parts = {"": 0, "kv": 2, "qkv": 3}[packed]
        if packed == "qkv":
            inputs = [draw.tensor(dtype, *sizes[0], 3, heads, dim)]
        else:
            inputs = [draw.tensor(dtype, *sizes[0], heads, dim)]
            wide = [draw.tensor(dtype, *sizes[1], *([2] if parts else []), kv_heads, dim) for _ in range(1 if parts else 2)]
            inputs += wide
        inputs = [x.detach().requires_grad_(True) for x in inputs]
        given, meant, slopes = draw.common(batch, heads, max(n))
        p = draw.one_of(0.0, 0.0, 0.17) if given["softcap"] == 0 else 0.0
        given["deterministic"] = draw.one_of(False, True)
        leave_out_defaults(draw, given)
        arguments = list(inputs)
        if varlen:
            starts = [torch.tensor([0, *x]).cumsum(0).int() for x in (m, n)]
            longest = [max(x) + draw.one_of(0, 0, 5) for x in (m, n)]
            arguments += [starts[0], longest[0]] if packed == "qkv" else [*starts, *longest]
        function = getattr(fa, f"flash_attn_{'varlen_' if varlen else ''}{packed + 'packed_' if packed else ''}func")
        result = function(*arguments, p, **given, return_attn_probs=True)
        out, lse, dmask = result
        self.assertEqual((out.dtype, lse.dtype, dmask.dtype), (dtype, torch.float32, dtype))
        self.assertEqual(dmask.dim(), 4 if p > 0 else 1)
        seen = [x.detach().double().requires_grad_(True) for x in inputs]
        q, k, v = seen[0].unbind(-3) if packed == "qkv" else (seen[0], *seen[1].unbind(-3)) if packed else seen
        want, want_lse = torch.zeros(q.shape, dtype=torch.float64), torch.full(lse.shape, torch.inf, dtype=torch.float64)
        most = 0.0
        for s in range(batch):
            row = slice(sum(m[:s]), sum(m[: s + 1])) if varlen else s
            key = slice(sum(n[:s]), sum(n[: s + 1])) if varlen else s
            keep = dmask[s, :, : m[s], : n[s]] >= 0 if p else None
            own = None if slopes is None else slopes[s]
            o, l, e, top = reference.sequence(q[row], k[key], v[key], slopes=own, keep=keep, p=p, **meant)
            want = want.index_put((torch.arange(len(want))[row] if varlen else torch.tensor(s),), o)
            most = max(most, top)
            want_lse[(slice(None), row) if varlen else s] = l.detach()
            if p:
                self.near("probabilities", dmask[s, :, : m[s], : n[s]].abs(), e, dtype, GRADIENT, 0.0, top)
                self.assertFalse(dmask[s, :, m[s] :].any() or dmask[s, :, :, n[s] :].any())
        scale = float(v.detach().abs().max()) if v.numel() else 0.0
        self.near("out", out, want, dtype, OUT, scale, most)
        self.near("lse", lse, want_lse, torch.float32, LSE, 1.0, most)
        if p == 0:
            self.assertTrue(torch.equal(function(*arguments, p, **given), out))
        g = draw.tensor(dtype, *out.shape)
        made = torch.autograd.grad(out, inputs, g, retain_graph=True)
        for x, y, z in zip(torch.autograd.grad(want, seen, g.double()), made, torch.autograd.grad(out, inputs, g)):
            self.near("gradient", y, x, dtype, GRADIENT, 1.0, most)
            self.assertTrue(torch.equal(y, z))

    def seqused(self, draw):
        dtype, dim, batch, heads = draw.one_of(*DTYPES), draw.randrange(1, 72), draw.randrange(1, 4), draw.one_of(1, 2)
        m, n = ([draw.length() for _ in range(batch)] for _ in range(2))
        starts = [torch.tensor([0, *x]).cumsum(0).int() for x in (m, n)]
        q, k, v = (draw.tensor(dtype, sum(x), heads, dim) for x in (m, n, n))
        given, meant, slopes = draw.common(batch, heads, max(n))
        left, right = given.pop("window_size")
        used = draw.one_of(None, torch.tensor([draw.randrange(x + 1) for x in n]).int())
        pad = draw.one_of(None, torch.tensor([draw.randrange(x + 1) for x in n]).int())
        out, lse, dmask, _ = flash_attn_interface._flash_attn_varlen_forward(
            q, k, v, *starts, max(m), max(n), 0.0, window_size_left=int(left), window_size_right=int(right), seqused_k=used,
            leftpad_k=pad, **given,
        )  # fmt: skip
        self.assertEqual(dmask.numel(), 0)
        for s in range(batch):
            row, key = slice(starts[0][s], starts[0][s + 1]), slice(starts[1][s], starts[1][s] + (n if used is None else used)[s])
            own = None if slopes is None else slopes[s]
            o, l, _, top = reference.sequence(q[row], k[key], v[key], 0 if pad is None else pad[s], slopes=own, **meant)
            self.near("out", out[row], o, dtype, OUT, float(v.abs().max()) if v.numel() else 0.0, top)
            self.near("lse", lse[:, row], l, torch.float32, LSE, 1.0, top)

    def test_caches(self):
        self.cases("caches", self.cache)

    def cache(self, draw):
        dtype, dim, batch = draw.one_of(*DTYPES), draw.one_of(16, 24, 40, 64), draw.randrange(1, 4)
        kv_heads = draw.one_of(1, 2)
        heads, rows = kv_heads * draw.one_of(1, 2, 3), draw.one_of(1, 1, 2, draw.randrange(1, 20))
        kind = draw.one_of("rows", "indexed", "paged")
        size, columns = (256, draw.one_of(1, 2)) if kind == "paged" else (draw.randrange(24, 90), 1)
        pool = batch * (columns if kind == "paged" else 1) + draw.one_of(0, 2)
        caches = [draw.tensor(dtype, pool, size, kv_heads, dim) for _ in range(2)]
        table = torch.randperm(pool)[: batch * columns].view(batch, columns) if kind != "rows" else torch.arange(batch)[:, None]
        room = size * columns
        new = draw.one_of(0, rows, draw.randrange(1, 20))
        at = [draw.one_of(0, room - new, draw.randrange(0, room - new + 1)) for _ in range(batch)]
        given, meant, slopes = draw.common(batch, heads, room)
        leave_out_defaults(draw, given)
        window = given["window_size"]
        local = given.get("causal", False) or int(window[0]) >= 0 or int(window[1]) >= 0
        if kind == "paged":
            given["block_table"] = torch.cat([table, torch.full((batch, 1), -7)], 1).int() if draw.one_of(False, True) else table.int()
        elif kind == "indexed":
            given["cache_batch_idx"] = table[:, 0].int()
        given["cache_seqlens"] = torch.tensor(at).int()
        how = draw.one_of("tensor", "tensor", "int", "none")
        if how == "int":
            at, given["cache_seqlens"] = [at[0]] * batch, at[0]
        elif how == "none" and not new and given.get("block_table", table).shape[1] == columns:
            at, given["cache_seqlens"] = [room] * batch, None
        pad = [0] * batch
        if kind != "paged" and draw.one_of(False, True):
            pad = [draw.randrange(x + 1) for x in at]
            given["cache_leftpad"] = torch.tensor(pad).int()
        q = draw.tensor(dtype, batch, rows, heads, dim)
        k, v = (draw.tensor(dtype, batch, new, kv_heads, dim) for _ in range(2))
        turn = draw.one_of(0, 8, dim // 16 * 8) if new else 0
        if turn:
            angles = torch.rand(room + 256 + rows, turn) * 6.3
            given |= {"rotary_cos": angles.cos().to(dtype), "rotary_sin": angles.sin().to(dtype)}
            interleaved = given["rotary_interleaved"] = draw.one_of(False, True)
        before = [x.clone() for x in caches]
        out, lse = fa.flash_attn_with_kvcache(
            q, *caches, *((k, v) if new else ()), **given, num_splits=draw.one_of(0, 1, 5), return_softmax_lse=True
        )
        for s in range(batch):
            meant_q, meant_k = q[s].double(), k[s].double()
            if turn:
                turned = lambda x, positions: reference.rotate(x, given["rotary_cos"], given["rotary_sin"], positions, interleaved)
                meant_k = turned(k[s], at[s] + torch.arange(new))
                meant_q = turned(q[s], at[s] + torch.arange(rows) * local).to(dtype)
            token = at[s] + torch.arange(new)
            place = table[s][token // size], token % size
            self.near("rotated k", caches[0][place], meant_k, dtype, 2)
            self.assertTrue(torch.equal(caches[1][place], v[s]))
            before[0][place], before[1][place] = caches[0][place], v[s]
            keys = torch.arange(at[s] + new)
            seen = [x[table[s][keys // size], keys % size] for x in caches]
            own = None if slopes is None else slopes[s]
            o, l, _, top = reference.sequence(meant_q, *seen, pad[s], slopes=own, **meant)
            self.near("out", out[s], o, dtype, OUT + 4 * bool(turn), float(caches[1].abs().max()), top)
            self.near("lse", lse[s], l, dtype if turn else torch.float32, LSE, 1.0, top)
        for now, then in zip(caches, before):
            self.assertTrue(torch.equal(now, then))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The oracle: attention in float64 on some rows, written from the definition."""
import numpy as np


def sample(q_len, count=24):
    """The borders and evenly spread rows between them."""
    wanted = [0, 1, q_len // 2, q_len - 2, q_len - 1]
    wanted += list(np.linspace(0, q_len - 1, count).astype(int))
    return sorted({int(row) for row in wanted if 0 <= row < q_len})


def attention(case, index, head, rows):
    """[rows][dim] of one sequence and query head."""
    problem = case.problem
    q_len, kv_len = problem.lengths[index]
    q = case.sequence("q", index)[rows, head].astype(np.float64)
    k = case.sequence("k", index)[:, head // problem.group].astype(np.float64)
    v = case.sequence("v", index)[:, head // problem.group].astype(np.float64)
    scores = np.where(problem.visible(q_len, kv_len, rows), problem.scale * (q @ k.T), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


class Oracle:
    """Sampled rows of a case, computed once, held against every party's output."""

    def __init__(self, case):
        self.case = case
        problem = case.problem
        heads = sorted({0, problem.q_heads // 2, problem.q_heads - 1})
        self.parts = []
        for index in sorted({0, problem.batch // 2, problem.batch - 1}):
            rows = sample(problem.lengths[index][0])
            for head in heads:
                self.parts.append((index, head, rows, attention(case, index, head, rows)))
        self.largest = max(np.abs(part[3]).max() for part in self.parts)

    def error(self, output):
        """Largest absolute error of an output [token][head][dim]; infinity if any of it is not finite."""
        problem = self.case.problem
        expected = self.case.values["q"].shape
        if output.shape != expected:
            raise ValueError(f"output is {output.shape}: it must be {expected}")
        if not np.isfinite(output).all():
            return float("inf")
        worst = 0.0
        for index, head, rows, want in self.parts:
            start = self.case.q_start[index]
            worst = max(worst, float(np.abs(output[[start + r for r in rows], head] - want).max()))
        return worst


def gradients(case, index, kv_head):
    """d_q [rows][group][dim], d_k and d_v [keys][dim] of one sequence and KV head."""
    problem = case.problem
    q_len, kv_len = problem.lengths[index]
    heads = slice(kv_head * problem.group, (kv_head + 1) * problem.group)
    q, d_o = (case.sequence(x, index)[:, heads].astype(np.float64) for x in ("q", "d_o"))
    k, v = (case.sequence(x, index)[:, kv_head].astype(np.float64) for x in "kv")
    hidden = ~problem.visible(q_len, kv_len, range(q_len))
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for g in range(problem.group):
        scores = problem.scale * (q[:, g] @ k.T)
        scores[hidden] = -np.inf
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        d_p = d_o[:, g] @ v.T
        d_s = p * (d_p - (p * d_p).sum(axis=1, keepdims=True))
        d_q[:, g] = problem.scale * (d_s @ k)
        d_k += problem.scale * (d_s.T @ q[:, g])
        d_v += p.T @ d_o[:, g]
    return d_q, d_k, d_v


class Gradients:
    """The gradients of some heads, held against a party's d_q, d_k and d_v, each in parts of its own largest."""

    largest = 1.0

    def __init__(self, case):
        problem = case.problem
        self.case = case
        self.parts = [
            (index, head, gradients(case, index, head))
            for index in sorted({0, problem.batch - 1})
            for head in sorted({0, problem.kv_heads - 1})
        ]

    def error(self, output):
        """Largest error; infinity if any of it is not finite."""
        problem, worst = self.case.problem, 0.0
        for name, found in zip("qkv", output):
            if found.shape != self.case.values[name].shape:
                raise ValueError(f"d_{name} is {found.shape}: it must be {self.case.values[name].shape}")
            if not np.isfinite(found).all():
                return float("inf")
        for index, head, wants in self.parts:
            heads = slice(head * problem.group, (head + 1) * problem.group)
            q, kv = self.case.q_start[index : index + 2], self.case.kv_start[index : index + 2]
            mine = output[0][q[0] : q[1], heads], output[1][kv[0] : kv[1], head], output[2][kv[0] : kv[1], head]
            for found, want in zip(mine, wants):
                worst = max(worst, float(np.abs(found - want).max() / np.abs(want).max()))
        return worst

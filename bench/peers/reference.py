# SPDX-License-Identifier: Apache-2.0
"""The truth: attention in float64 on some rows, written from the definition."""
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


class Truth:
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
        for index, head, rows, truth in self.parts:
            start = self.case.q_start[index]
            worst = max(worst, float(np.abs(output[[start + r for r in rows], head] - truth).max()))
        return worst

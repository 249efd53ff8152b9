# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention on NumPy: PyTorch's meaning by the definition."""
import unittest
import warnings

import numpy as np
import reference
import tileproof
from tileproof import scaled_dot_product_attention as sdpa

random = np.random.default_rng(13)


def data(*shape):
    return random.standard_normal(shape).astype(np.float32)


def definition(q, k, v, mask=None, bias=None, **rest):
    """For (batch, heads, tokens, dim)."""
    turned = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    return reference.batch(*turned, mask=mask, bias=bias, align="top_left", **rest)[0].transpose(0, 2, 1, 3)


class Sdpa(unittest.TestCase):
    def near(self, got, want):
        self.assertEqual(got.shape, want.shape)
        self.assertLess(reference.error(got, want), 2e-6)

    def test_causal_is_from_the_top_left(self):
        for m, n in ((4, 9), (9, 4), (1, 5)):
            q, k, v = data(2, 3, m, 16), data(2, 3, n, 16), data(2, 3, n, 24)
            self.near(sdpa(q, k, v, is_causal=True), definition(q, k, v, causal=True))
            self.near(sdpa(q, k, v, scale=0.3), definition(q, k, v, scale=0.3))

    def test_masks(self):
        q, k, v = data(2, 3, 4, 16), data(2, 3, 9, 16), data(2, 3, 9, 16)
        for shape in ((4, 9), (3, 4, 9), (2, 1, 1, 9), (2, 3, 4, 9)):
            mask, bias = random.random(shape) < 0.5, data(*shape)
            self.near(sdpa(q, k, v, mask), definition(q, k, v, mask=mask))
            self.near(sdpa(q, k, v, bias), definition(q, k, v, bias=bias))
        with self.assertRaisesRegex(ValueError, "attn_mask and is_causal"):
            sdpa(q, k, v, mask, is_causal=True)

    def test_the_lowest_bias_is_no_mask(self):
        """Padding as programs write it: finfo.min where a key does not count, in every key of rows that do not count."""
        q, k, v = data(2, 3, 6, 16), data(2, 3, 9, 16), data(2, 3, 9, 16)
        bias = np.where(random.random((2, 1, 6, 9)) < 0.5, np.finfo(np.float32).min, 0).astype(np.float32)
        bias[0, :, 2] = bias[1, :, 5] = np.finfo(np.float32).min
        got = sdpa(q, k, v, bias)
        self.near(got, definition(q, k, v, bias=bias))
        self.near(got[0, :, 2], v[0].mean(1))
        self.near(got[1, :, 5], v[1].mean(1))

    def test_groups_need_their_flag(self):
        q, k, v = data(2, 6, 4, 16), data(2, 2, 9, 16), data(2, 2, 9, 16)
        self.near(sdpa(q, k, v, enable_gqa=True), definition(q, k, v))
        with self.assertRaisesRegex(ValueError, "enable_gqa=True"):
            sdpa(q, k, v)
        self.near(sdpa(q, k[:, :1], v[:, :1]), definition(q, k[:, :1], v[:, :1]))

    def test_leading_dimensions_broadcast(self):
        q, k, v = data(4, 16), data(9, 16), data(9, 8)
        one = definition(q[None, None], k[None, None], v[None, None])
        self.near(sdpa(q, k, v), one[0, 0])
        self.near(sdpa(q[None], k[None], v[None]), one[0])
        q, k, v = data(5, 1, 3, 4, 16), data(2, 3, 9, 16), data(1, 3, 9, 8)
        got = sdpa(q, k, v, random.random((4, 9)) < 2)
        self.assertEqual(got.shape, (5, 2, 3, 4, 8))
        for i in range(5):
            for j in range(2):
                self.near(got[i, j], definition(q[i], k[j : j + 1], v)[0])
        mask = random.random((5, 2, 1, 4, 9)) < 0.6
        got = sdpa(q, k, v, mask)
        self.near(got[3, 1], definition(q[3], k[1:], v, mask=mask[3, 1:])[0])
        with self.assertRaisesRegex(ValueError, "do not broadcast"):
            sdpa(data(3, 2, 4, 8), data(2, 2, 4, 8), data(2, 2, 4, 8))

    def test_a_fallback_is_served_with_a_warning(self):
        wide = data(1, 1, 3, 640)
        with self.assertWarns(tileproof.FallbackWarning) as warned:
            self.near(sdpa(wide, wide, wide), definition(wide, wide, wide))
        self.assertRegex(str(warned.warning), "math")
        self.assertNotIn('fallback="permit"', str(warned.warning))  # it served
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sdpa(wide[..., :64], wide[..., :64], wide[..., :64])

    def test_dropout_of_everything(self):
        q = data(1, 2, 4, 8)
        self.assertTrue((sdpa(q, q, q, None, 1.0) == 0).all())
        self.assertEqual(sdpa(*3 * [q.astype(np.float16)], dropout_p=1.0).dtype, np.float16)

    def test_bad_input(self):
        q = data(1, 2, 4, 8)
        for args, kind in (
            ((q, q, None), ValueError),
            ((q[0, 0, 0], q, q), ValueError),
            ((q.astype(float), q, q), TypeError),
            ((q, q, q, "mask"), (TypeError, ValueError, AttributeError)),
            ((q, q, q, None, 1.5), ValueError),
            ((q, q, q, None, -0.5), ValueError),
            ((q, q, q, np.ones((4, 5), bool)), ValueError),
        ):
            with self.assertRaises(kind):
                sdpa(*args)


if __name__ == "__main__":
    unittest.main()

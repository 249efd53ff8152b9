/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector layer: the only place with intrinsics. A kernel template is compiled once per ISA with
 * TP_ISA set; this header then brings in vec_<isa>.h, which gives
 *
 *     VEC_LANES, VEC_MR, VEC_NRV, VEC_ROWS(X)      register tile: MR rows x NRV vectors
 *     VEC_STRIPS                                   strips of MR rows that attend takes at a time
 *     vec_f, vec_i, vec_u, vec_f_any               float, int32 and uint32 vectors; unaligned loads
 *     vec_fma, vec_max, vec_scale                  fused where the ISA fuses; NaN rules as written
 *     vec_max_lanes, vec_sum16                     one fixed tree: i + (i+8), then 4, 2, 1
 *     VEC_DOT_ROWS, VEC_DOT_KEYS, vec_sums         tile of qk, and vec_sum16 of all its sums
 *     VEC_TREE, vec_tree                           where a vector has sixteen lanes: those of sixteen vectors joined at once
 *     vec_load_first, vec_store_first              likewise: some lanes of a vector
 *     VEC_EIGHT_SUMS, vec_sums8                    where registers are few: qk's tile of eight sums, half of the chains at a time
 *     vec_w, vec_mul_low                           half as many numbers of 64 bits; the product of low halves
 *     vec_zip_even, vec_zip_odd                    a0 b0 a2 b2 ..., a1 b1 a3 b3 ... of two vec_w
 *     vec_load_bf16 / _f16, vec_store_bf16 / _f16, vec_transpose
 *     VEC_EVEN, VEC_ODD, VEC_LOWER, VEC_UPPER      lanes of two vectors: taken apart in pairs, joined again
 *
 * sets of bf16 pairs have vec_bf16.h besides, that of AMX vec_amx.h,
 * and adds what plain C can say for all of them. Vectors never cross a real call.
 */
#ifndef TP_VEC_H
#define TP_VEC_H

#define TP__ISA_generic 0
#define TP__ISA_avx2    1
#define TP__ISA_avx512  2
#define TP__ISA_avx512_emulated 2
#define TP__ISA_avx512_bf16 3
#define TP__ISA_avx512_bf16_emulated 3
#define TP__ISA_amx_bf16 4
#define TP__ISA_amx_bf16_emulated 4

/* Unset for editors and linters that open a template alone. */
#ifndef TP_ISA
#define TP_ISA generic
#endif

#define TP__CAT_(a, b)  a##b
#define TP__CAT(a, b)   TP__CAT_(a, b)
#define TP__ISA_NUMBER  TP__CAT(TP__ISA_, TP_ISA)
/* tp_<op>_<dtype>_<isa>, and its number in the table of kernel functions */
#define TP_FUNCTION_NAME(op_dtype) TP__CAT(TP__CAT(TP__CAT(tp_, op_dtype), _), TP_ISA)
#define TP_FUNCTION_ID(op_dtype) (TP__CAT(TP__FUNCTION_, op_dtype) + TP__CAT(TP__FIRST_FUNCTION_, TP_ISA))

/* Adding it to a small float rounds that to an integer, which then stands in the low bits. */
#define VEC_MAGIC      0x1.8p23f
#define VEC_MAGIC_BITS 0x4b400000
/* 2^y whose y rounds to less is 0: a smaller weight times a value would be subnormal, which costs a hundred
   cycles. Where weights are rounded to bf16 it would be flushed to 0: vec_bf16.h. */
#if TP__ISA_NUMBER >= TP__ISA_avx512_bf16
#define VEC_MIN      -59.0f
#else
#define VEC_MIN      -100.0f
#endif

#if TP__ISA_NUMBER == TP__ISA_amx_bf16
#include "kernels/vec/vec_avx512.h"
#include "kernels/vec/vec_bf16.h"
#include "kernels/vec/vec_amx.h"
#elif TP__ISA_NUMBER == TP__ISA_avx512_bf16
#include "kernels/vec/vec_avx512.h"
#include "kernels/vec/vec_bf16.h"
#elif TP__ISA_NUMBER == TP__ISA_avx512
#include "kernels/vec/vec_avx512.h"
#elif TP__ISA_NUMBER == TP__ISA_avx2
#include "kernels/vec/vec_avx2.h"
#else
#include "kernels/vec/vec_generic.h"
#endif

#define VEC_NR (VEC_NRV * VEC_LANES)
#ifndef VEC_TOGETHER
#define VEC_TOGETHER 1 /* elements that meet in one step */
#endif

#define VEC_INLINE static inline __attribute__((always_inline))
/* Every loop over registers is unrolled whole, or the compiler keeps accumulators in memory. */
#ifdef __clang__
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 32")
#endif

/* Keeps x, which several multiply-adds share, in a register: each would load it again otherwise. */
#ifndef VEC_HOLD
#define VEC_HOLD(x) ((void)0)
#endif

VEC_INLINE vec_f vec_load(const float *p) { return *(const vec_f_any *)p; }
VEC_INLINE void vec_store(float *p, vec_f x) { *(vec_f_any *)p = x; }
VEC_INLINE vec_f vec_set1(float x) { return x - (vec_f){0}; }

/* Two vectors' worth of bf16 elements as they lie in memory: those with even and with odd indices become
   floats by one operation each, where elements in order take two. */
typedef vec_i vec_pairs_any __attribute__((aligned(2), may_alias));
VEC_INLINE vec_i vec_load_pairs(const uint16_t *p) { return *(const vec_pairs_any *)p; }
VEC_INLINE vec_f vec_even_bf16(vec_i pairs) { return (vec_f)((vec_u)pairs << 16); }
VEC_INLINE vec_f vec_odd_bf16(vec_i pairs) { return (vec_f)(pairs & (int32_t)0xffff0000); }
/* Elements a, b in order become those with even indices and those with odd ones; and back. */
VEC_INLINE void vec_part(vec_f *a, vec_f *b) {
    vec_f even = __builtin_shufflevector(*a, *b, VEC_EVEN), odd = __builtin_shufflevector(*a, *b, VEC_ODD);
    *a = even;
    *b = odd;
}
VEC_INLINE void vec_join(vec_f *a, vec_f *b) {
    vec_f lower = __builtin_shufflevector(*a, *b, VEC_LOWER);
    vec_f upper = __builtin_shufflevector(*a, *b, VEC_UPPER);
    *a = lower;
    *b = upper;
}

/*
 * 2^(x*unit) for x <= 0 and unit > 0. x*unit = n + f with |f| <= 1/2; 2^f = 1 + f*(c1 + f*(...)), minimax of
 * degree 5 with p(0) = 1, so 2^0 is exactly 1. Where vec_fma fuses, the product costs no operation and is not
 * rounded. Relative error 1.72e-7 with fma, 1.94e-7 without, beside that of x*unit. Exactly 0 where n is below
 * VEC_MIN, for -inf too; NaN stays NaN.
 */
VEC_INLINE vec_f vec_exp2(vec_f x, vec_f unit) {
    const vec_f magic = vec_set1(VEC_MAGIC);
    vec_f t = vec_fma(x, unit, magic), n = t - magic, f = vec_fma(x, unit, -n);
    vec_f p = vec_set1(0x1.5bba14p-10f);
    p = vec_fma(p, f, vec_set1(0x1.3cea88p-7f));
    p = vec_fma(p, f, vec_set1(0x1.c6b752p-5f));
    p = vec_fma(p, f, vec_set1(0x1.ebf9bcp-3f));
    p = vec_fma(p, f, vec_set1(0x1.62e42ap-1f));
    p = vec_fma(p, f, vec_set1(1.0f));
    return vec_scale(p, t, n);
}

/*
 * With y = x*unit, unit > 0: tanh(y * ln2/2) = (1 - 2^-|y|) / (1 + 2^-|y|), with the sign of x. With
 * e = 2^-|y| - 1 this is -e / (2 + e); e keeps its relative precision near 0 because 2^f - 1 = f*(c1 + f*(...)),
 * minimax of degree 6, is never added to 1 unless n < 0. x is cut where |y| is 64, far beyond +-1. Relative error
 * 2.5e-7, beside that of unit; NaN stays NaN.
 */
VEC_INLINE vec_f vec_tanh(vec_f x, float unit) {
    const vec_f magic = vec_set1(VEC_MAGIC), by = vec_set1(unit);
    vec_i sign = (vec_i)x & (int32_t)0x80000000;
    vec_f y = vec_max(vec_set1(-64.0f / unit), (vec_f)((vec_i)x | (int32_t)0x80000000));
    vec_f t = vec_fma(y, by, magic), n = t - magic, f = vec_fma(y, by, -n);
    vec_f power = (vec_f)(((vec_u)t - (VEC_MAGIC_BITS - 127)) << 23);
    vec_f p = vec_set1(0x1.4308fap-13f);
    p = vec_fma(p, f, vec_set1(0x1.5f07b4p-10f));
    p = vec_fma(p, f, vec_set1(0x1.3b2ba0p-7f));
    p = vec_fma(p, f, vec_set1(0x1.c6af6ep-5f));
    p = vec_fma(p, f, vec_set1(0x1.ebfbdep-3f));
    p = vec_fma(p, f, vec_set1(0x1.62e430p-1f));
    vec_f e = vec_fma(power, f * p, power - vec_set1(1.0f));
    vec_f size = -e / (vec_set1(2.0f) + e);
    return (vec_f)(((vec_i)size & 0x7fffffff) | sign); /* size is -0 at 0 */
}

#endif

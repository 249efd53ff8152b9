/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/trial.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

uint64_t roll(struct trial *t) {
    uint64_t x = t->seed + ++t->rolled * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

int64_t roll_below(struct trial *t, int64_t below) { return (int64_t)(roll(t) % (uint64_t)below); }

int one_in(struct trial *t, int n) { return roll_below(t, n) == 0; }

int64_t pick(struct trial *t, const char *name, int64_t lo, int64_t hi, int64_t typical) {
    int64_t size = lo + roll_below(t, hi - lo + 1);
    if (one_in(t, 6)) size = one_in(t, 2) ? lo : hi;
    if (one_in(t, 3)) size = size / 16 * 16 + roll_below(t, 3) - 1;
    size = size < lo ? lo : size > hi ? hi : size;
    if (t->bench) size = typical;
    size_t used = strlen(t->shape);
    snprintf(t->shape + used, sizeof t->shape - used, " %s %lld", name, (long long)size);
    return size;
}

float ordinary(struct trial *t) { return (float)((double)(roll(t) >> 40) * 0x1p-22 - 2); }

float any_value(struct trial *t) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, NAN};
    uint64_t drawn = roll(t);
    float value = ordinary(t);
    if (t->content == ORDINARY || t->bench) return value;
    if (t->content == WITH_NAN) return drawn % 61 == 0 ? bad[drawn >> 60 & 3] : drawn % 7 ? value : drawn & 8 ? 0.0f : -0.0f;
    if (drawn % 3) return value;
    return t->content == WITH_SUBNORMALS ? value * (drawn & 4 ? 0x1p-148f : 0x1p-130f) : value * (drawn & 4 ? 0x1p124f : 0x1p60f);
}

float as_held(tp_dtype dtype, float value) {
    char element[4];
    tp_from_float(dtype, value, element);
    return tp_to_float(dtype, element);
}

enum { SLACK = 64 }; /* most bytes between a buffer and the page, so that it is aligned in every way */

static unsigned char pattern(size_t i) { return (unsigned char)(0xC3 ^ i * 29); }

static void *take(struct trial *t, int64_t count, size_t unit, int is_input) {
    if (t->zones == MAX_ZONES) abort();
    struct zone *z = &t->zone[t->zones++];
    z->bytes = (size_t)count * unit;
    z->is_input = is_input;
    z->memory = guard_new(z->bytes + SLACK);
    size_t slack = (size_t)roll_below(t, SLACK / 4) * 4;
    if (t->bench) slack = 0;
    z->at = roll(t) & 1 ? (char *)guard_begin(&z->memory) + (one_in(t, 2) ? slack : 0)
                        : (char *)guard_end(&z->memory, z->bytes) - (one_in(t, 2) ? slack : 0);
    z->at -= (uintptr_t)z->at % unit;
    if (z->at < (char *)guard_begin(&z->memory)) z->at += unit;
    for (char *c = guard_begin(&z->memory); c < (char *)guard_end(&z->memory, 0); c++)
        *c = (char)pattern((size_t)(c - (char *)guard_begin(&z->memory)));
    return z->at;
}

void *input(struct trial *t, int64_t count, size_t unit) { return take(t, count, unit, 1); }
void *output(struct trial *t, int64_t count, size_t unit) { return take(t, count, unit, 0); }

float *input_floats(struct trial *t, int64_t count) {
    float *floats = input(t, count, sizeof *floats);
    for (int64_t i = 0; i < count; i++) floats[i] = any_value(t);
    return floats;
}

static const uint32_t untouched = 0xFFC0BABE;

int is_untouched(float value) { return tp__bits(value) == untouched; }

float *output_floats(struct trial *t, int64_t count) {
    float *floats = output(t, count, sizeof *floats);
    for (int64_t i = 0; i < count; i++) floats[i] = tp__float(untouched);
    return floats;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Where the timing of a trial stands. */
static struct {
    double start, end, best;
    long calls, batch; /* since the start; between two looks at the clock */
} timing;

void trial_seal(struct trial *t) {
    for (int i = 0; i < t->zones; i++)
        if (t->zone[i].is_input && t->zone[i].bytes > 0) guard_protect(&t->zone[i].memory, 0);
    memset(&t->trace, 0, sizeof t->trace);
    timing.start = seconds();
    timing.end = timing.start + 0.03;
    timing.best = INFINITY;
    timing.calls = 0;
    timing.batch = 1;
}

/* The best of many stretches of about 100 microseconds. */
int trial_again(struct trial *t) {
    if (!t->bench) {
        trial_count(t);
        return 0;
    }
    if (++timing.calls % timing.batch != 0) return 1;
    double now = seconds(), ns;
    if (now - timing.start < 1e-4 && now < timing.end) {
        timing.batch = timing.calls;
        return 1;
    }
    ns = (now - timing.start) / (double)timing.calls * 1e9;
    if (ns < timing.best) timing.best = ns;
    t->ns = timing.best;
    timing.start = now;
    timing.calls = 0;
    return now < timing.end;
}

/* A kernel function counts itself once, under its own name, and nothing else. Probes count nothing. */
void trial_count(struct trial *t) {
    const char *name;
    int64_t calls = 0, others = 0;
    for (int i = 0; i < TP__FUNCTION_COUNT; i++)
        *((name = tp__function_name(i)) != NULL && strcmp(name, t->name) == 0 ? &calls : &others) += t->trace.calls[i];
    int probe = strstr(t->name, "_peak_") || strstr(t->name, "_read_") || strstr(t->name, "_exp2_") || strstr(t->name, "_tanh_");
    if (calls != !probe || others != 0)
        wrong(t, "it counted itself %lld times, and others %lld", (long long)calls, (long long)others);
    for (int i = 0; i < t->zones; i++) {
        const struct zone *z = &t->zone[i];
        const char *begin = guard_begin(&z->memory), *end = guard_end(&z->memory, 0);
        for (const char *c = begin; c < end; c++) {
            if (c == z->at) c += z->bytes;
            if (c < end && (unsigned char)*c != pattern((size_t)(c - begin)))
                wrong(t, "byte %lld of a buffer of %lld was written", (long long)(c - z->at), (long long)z->bytes);
        }
    }
}

void wrong(struct trial *t, const char *format, ...) {
    va_list arguments;
    if (t->failed || t->bench) return;
    t->failed = 1;
    va_start(arguments, format);
    vsnprintf(t->reason, sizeof t->reason, format, arguments);
    va_end(arguments);
}

void expect_same(struct trial *t, const char *what, int64_t row, int64_t column, float got, float expected) {
    if (tp__bits(got) == tp__bits(expected) || (isnan(got) && isnan(expected) && !is_untouched(got))) return;
    wrong(t, "%s[%lld][%lld] is %.9g: it must be %.9g", what, (long long)row, (long long)column, (double)got, (double)expected);
}

void expect_near(struct trial *t, const char *what, int64_t row, int64_t column, float got, double expected, double tolerance) {
    if (is_untouched(got)) {
        wrong(t, "%s[%lld][%lld] was not written", what, (long long)row, (long long)column);
        return;
    }
    if (isnan(expected) ? isnan(got) : isinf(expected) ? isnan(got) || (double)got == expected : !isfinite(tolerance)) return;
    if (fabs(expected) + tolerance > 3.4e38 && !isfinite(got)) return; /* it may overflow */
    if (isfinite(expected) && fabs((double)got - expected) <= tolerance) return;
    wrong(t, "%s[%lld][%lld] is %.9g: it must be %.9g within %.3g", what, (long long)row, (long long)column, (double)got,
          expected, tolerance);
}

/* Those outside first..last-1 lead nowhere. Each row ends at a page without access, or begins behind one. */
void keys_make(struct trial *t, struct keys *keys, tp_dtype dtype, int64_t count, int64_t first, int64_t last, int64_t d) {
    int64_t unit = (int64_t)tp_dtype_bytes(dtype), offset = roll_below(t, 5) * unit,
            apart = offset + d * unit + roll_below(t, 3) * unit;
    int64_t bytes = last > first ? (last - first - 1) * apart + offset + d * unit : 0;
    char *block = input(t, bytes / unit, (size_t)unit);
    keys->row = input(t, count, sizeof *keys->row);
    keys->value = input(t, count * d, sizeof *keys->value);
    keys->count = count;
    keys->d = d;
    for (int64_t j = 0; j < count; j++) {
        int inside = j >= first && j < last;
        /* in any order: the last key first */
        keys->row[j] = inside ? block + (last - 1 - j) * apart : (const char *)(uintptr_t)64;
        for (int64_t x = 0; x < d; x++) {
            float value = any_value(t);
            keys->value[j * d + x] = as_held(dtype, value);
            if (inside) tp_from_float(dtype, value, (char *)(uintptr_t)keys->row[j] + offset + x * unit);
        }
    }
    keys->ahead = (tp__ahead){.row = keys->row + first, .end = keys->row + last, .offset = offset, .lines = (d * unit + 63) / 64};
    keys->in = (tp__keys_in){keys->row, offset, first, last, &keys->ahead, 0, 0, NULL};
}

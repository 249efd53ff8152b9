/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A runner for an engine of your own (docs/runner-protocol.md): cc -O2 runner.c -lm -o runner
 *
 *     tileproof qualify models/llama-3.2-1b.json --quick --runner ./runner
 *
 * The engine here is a few loops. Put yours in the place of attend(), and in the place of "kernel" what your engine says
 * that it ran.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct { long heads, kv_heads, dim, dim_v; double scale, softcap; char dtype[8], lengths[4000]; } cell;
static struct { char name[16]; long at, bytes; } tensors[16];
static int count;
static char *file; /* descriptor 4, mapped */

static int find(const char *name) {
    for (int i = 0; i < count; i++) if (!strcmp(tensors[i].name, name)) return i;
    return -1;
}

/* The address of element i of an f32 or bf16 tensor; its value; a value rounded to it. */
static char *at(const char *name, long i) { return file + tensors[find(name)].at + i * (cell.dtype[0] == 'b' ? 2 : 4); }
static double get(const char *name, long i) {
    unsigned bits = 0; float value;
    if (cell.dtype[0] == 'b') memcpy((char *)&bits + 2, at(name, i), 2); else memcpy(&bits, at(name, i), 4);
    return memcpy(&value, &bits, 4), value;
}
static void put(const char *name, long i, float value) {
    unsigned bits; memcpy(&bits, &value, 4);
    if (cell.dtype[0] == 'b') bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    memcpy(at(name, i), &bits, cell.dtype[0] == 'b' ? 2 : 4);
}

/* One row r and head h of a sequence whose keys begin at k0; seen is a byte a key. */
static void attend(long r, long h, long k0, long keys, const char *seen) {
    double sum = 0, most = -INFINITY, *scores = calloc((size_t)keys, sizeof *scores), *o = calloc((size_t)cell.dim_v, sizeof *o);
    long kv = h / (cell.heads / cell.kv_heads);
    for (long key = 0; key < keys; key++) {
        for (long x = 0; seen[key] && x < cell.dim; x++)
            scores[key] +=
                get("q", (r * cell.heads + h) * cell.dim + x) * get("k", ((k0 + key) * cell.kv_heads + kv) * cell.dim + x);
        scores[key] *= cell.scale;
        if (cell.softcap > 0) scores[key] = cell.softcap * tanh(scores[key] / cell.softcap);
        if (seen[key]) most = fmax(most, scores[key]);
    }
    for (long key = 0; key < keys; key++) {
        double p = seen[key] ? exp(scores[key] - most) : 0;
        sum += p;
        for (long x = 0; seen[key] && x < cell.dim_v; x++)
            o[x] += p * get("v", ((k0 + key) * cell.kv_heads + kv) * cell.dim_v + x);
    }
    for (long x = 0; x < cell.dim_v; x++) put("o", (r * cell.heads + h) * cell.dim_v + x, (float)(sum > 0 ? o[x] / sum : 0));
    free(scores), free(o);
}

static void serve(FILE *out) {
    long rows, keys, used, q0 = 0, k0 = 0;
    if (!strcmp(cell.dtype, "f16") || find("sinks") >= 0 || find("slopes") >= 0 || find("q_factors") >= 0) {
        fprintf(out, "refused this engine has no f16, and no sinks, slopes or factors\nend\n");
        return;
    }
    char *seen = file + tensors[find("visible")].at;
    for (const char *text = cell.lengths; sscanf(text, "%ld/%ld%ln", &rows, &keys, &used) == 2; text += used) {
        for (long r = 0; r < rows; r++, seen += keys)
            for (long h = 0; h < cell.heads; h++) attend(q0 + r, h, k0, keys, seen);
        q0 += rows, k0 += keys;
    }
    fprintf(out, "served\nkernel loops\nobserved log\nfused no\nreason it has no other\nwritten %ld\nend\n",
            tensors[find("o")].bytes);
}

int main(void) {
    FILE *in = fdopen(3, "r"), *out = fdopen(3, "w");
    char line[4096];
    if (!in || !out) return fprintf(stderr, "runner: it is started by tileproof qualify --runner\n"), 2;
    fprintf(out, "tileproof-runner 1\nengine loops\nmode eager\ndevice cpu\nversion loops=1.0\nend\n");
    while (fflush(out), fgets(line, sizeof line, in)) {
        long end = 1;
        if (!strncmp(line, "cell ", 5)) count = 0;
        sscanf(line, "dtypes %7s", cell.dtype);
        sscanf(line, "heads %ld %ld", &cell.heads, &cell.kv_heads);
        sscanf(line, "head_dims %ld %ld", &cell.dim, &cell.dim_v);
        sscanf(line, "scale %lf", &cell.scale);
        sscanf(line, "softcap %lf", &cell.softcap);
        sscanf(line, "lengths %3999[^\n]", cell.lengths);
        if (count < 16 &&
            sscanf(line, "tensor %15s %ld %ld", tensors[count].name, &tensors[count].at, &tensors[count].bytes) == 3)
            count++;
        if (strcmp(line, "end\n")) continue;
        for (int i = 0; i < count; i++) if (tensors[i].at + tensors[i].bytes > end) end = tensors[i].at + tensors[i].bytes;
        file = mmap(NULL, (size_t)end, PROT_READ | PROT_WRITE, MAP_SHARED, 4, 0);
        if (file == MAP_FAILED) return 1;
        serve(out);
        munmap(file, (size_t)end);
    }
    return 0;
}

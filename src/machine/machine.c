/* SPDX-License-Identifier: Apache-2.0 */
/* What this host has. Nothing is remembered: a context keeps the value it was given. */
#include "machine/machine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/structs.h"
#include "machine/amx.h"
#include "machine/threads.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define ARCH "x86-64"
#define has __builtin_cpu_supports /* which takes nothing but a literal */

/* clang 14 knows no __builtin_cpu_supports("f16c"). The operating system's side, saving the wide
   registers, is covered by asking for avx2 as well. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#elif defined(__aarch64__)
#define ARCH "aarch64"
#else
#define ARCH "unknown"
#endif

static uint32_t detect_isa(void) {
    uint32_t isa = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#define TP_ISA_BIT(name, bit, besides, test) \
    if ((isa & (besides)) == (besides) && (test)) isa |= bit;
#include "machine/isa_bits.inc"
#undef TP_ISA_BIT
    return isa;
}

static int64_t cache_bytes(int name) {
    long bytes = sysconf(name);
    return bytes > 0 ? bytes : 0;
}

/* A name of the text form: printable ASCII, no blanks at its ends. */
static void copy_name(const char *from, size_t length, char *name, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < length && used < size - 1; i++) {
        char c = from[i];
        if (c == '\t') c = ' ';
        if (c < ' ' || c > '~' || (c == ' ' && used == 0)) continue;
        name[used++] = c;
    }
    while (used > 0 && name[used - 1] == ' ') used--;
    name[used] = 0;
}

void tp__machine_model(const char *cpuinfo, char *name, size_t size) {
    for (const char *line = cpuinfo; *line != 0;) {
        size_t length = strcspn(line, "\n");
        const char *colon = memchr(line, ':', length);
        name[0] = 0;
        if (colon != NULL && strncmp(line, "model name", 10) == 0)
            copy_name(colon + 1, length - (size_t)(colon + 1 - line), name, size);
        if (name[0] != 0) return;
        line += length + (line[length] != 0);
    }
    snprintf(name, size, "unknown");
}

tp_status tp_machine_detect_sized(tp_machine *machine, size_t size, tp_error *error) {
    TP_REQUIRE(machine != NULL, error, TP_INVALID, "tp_machine is NULL");
    TP_REQUIRE_SIZE(tp_machine, size, error);
    tp_machine found;
    char cpuinfo[4096];
    memset(&found, 0, sizeof found);
    found.threads = tp__usable_threads();
    TP_REQUIRE(found.threads > 0, error, TP_MACHINE,
               "threads is %d: neither the affinity mask nor sysconf tells how many CPUs there are",
               found.threads);
    found.isa = detect_isa();
    found.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
    found.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
    found.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
    snprintf(found.arch, sizeof found.arch, "%s", ARCH);
    if (!tp__read_text("/proc/cpuinfo", cpuinfo, sizeof cpuinfo)) cpuinfo[0] = 0;
    tp__machine_model(cpuinfo, found.name, sizeof found.name);
    tp__struct_out(machine, size, &found, sizeof found);
    return TP_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX is there when four things agree: the CPU says so; the system saves its registers; it permits them to this process,
 * which has to ask; and a product comes out right. Some virtual machines advertise AMX and trap, so a child tries it: one
 * that shares memory and sends no signal, so that neither the size of this process nor who waits for children matters.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* clone */
#endif
#include "machine/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, OSXSAVE = 1 << 27, TILE_STATES = 3 << 17 };
enum { ASK_PERMISSION = 0x1023, TILE_DATA = 18 };

static uint32_t enabled_states(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int advertised(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) || (enabled_states() & TILE_STATES) != TILE_STATES) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (AMX_BF16 | AMX_TILE)) != (AMX_BF16 | AMX_TILE)) return 0;
    /* palette 1: eight tiles of sixteen rows of 64 bytes; some virtual machines hide it */
    return __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) &&
           (b & 0xffff) == 64 && b >> 16 == 8 && (c & 0xffff) == 16;
}

/* In the child. 0: 1 * 2, 32 times, came out as it must in each place of a tile. Whatever compiles this file knows no AMX, so the
   instructions are written out. */
static int try_product(void) {
    const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64}, {16, 16, 16}};
    uint16_t one[16 * 32], two[16 * 32];
    float sum[16 * 16] = {0};
    for (int i = 0; i < 16 * 32; i++) one[i] = 0x3f80, two[i] = 0x4000;
    __asm__ volatile("ldtilecfg %[shape]\n\t"
                     "tilezero %%tmm0\n\t"
                     "tileloadd (%[one],%[stride],1), %%tmm1\n\t"
                     "tileloadd (%[two],%[stride],1), %%tmm2\n\t"
                     "tdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\t"
                     "tilestored %%tmm0, (%[sum],%[stride],1)\n\t"
                     "tilerelease"
                     :
                     : [shape] "m"(shape), [one] "r"(one), [two] "r"(two), [sum] "r"(sum), [stride] "r"((int64_t)64)
                     : "memory");
    for (int i = 0; i < 16 * 16; i++)
        if (sum[i] != 64.0f) return 1;
    return 0;
}

static void give_up(int signal_number) {
    (void)signal_number;
    _exit(1);
}

/* In the child. By handlers: where a signal would write a core file, Linux before 5.16 ends all who share the memory. */
static int attempted(void *attempt) {
    const int signals[] = {SIGILL, SIGSEGV, SIGBUS};
    sigset_t traps;
    sigemptyset(&traps);
    for (int i = 0; i < 3; i++) {
        sigaddset(&traps, signals[i]);
        signal(signals[i], give_up);
    }
    sigprocmask(SIG_UNBLOCK, &traps, NULL);
    return (*(tp__attempt **)attempt)();
}

int tp__works_in_child(tp__attempt *attempt) {
    static char stack[65536] __attribute__((aligned(64))); /* a signal's frame takes 12 KiB with tiles */
    int status;
    pid_t child = clone(attempted, stack + sizeof stack, CLONE_VM | CLONE_VFORK, &attempt);
    if (child < 0) return 0;
    while (waitpid(child, &status, __WCLONE) != child)
        if (errno != EINTR) return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int found;

static void ask(void) {
    found = advertised() && syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0 && tp__works_in_child(try_product);
}

int tp__amx_works(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return found;
}
#else
int tp__amx_works(void) { return 0; }
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's text form, detection on this host, and the texts detection reads. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine/amx.h"
#include "machine/machine.h"
#include "machine/threads.h"
#include "tileproof.h"

/* Hosts as their own detection printed them; print(parse(text)) is the same text. */
static const struct {
    const char *text;
    uint32_t isa;
    int threads;
    int64_t l2;
} recorded[] = {
    {"x86-64 isa=avx2,avx512 threads=2 l1d=49152 l2=2097152 l3=0 name=Intel(R) Xeon(R) Processor",
     TP_ISA_AVX2 | TP_ISA_AVX512, 2, 2097152},
    {"x86-64 isa=avx2 threads=16 l1d=32768 l2=524288 l3=33554432 name=AMD EPYC 7B13", TP_ISA_AVX2,
     16, 524288},
    {"x86-64 isa=none threads=1 l1d=32768 l2=262144 l3=0 name=QEMU Virtual CPU version 2.5+", 0, 1,
     262144},
    {"aarch64 isa=none threads=64 l1d=0 l2=0 l3=0 name=unknown", 0, 64, 0},
    {"x86-64 isa=avx2 threads=2147483647 l1d=9223372036854775807 l2=1 l3=1 name=a name=b =",
     TP_ISA_AVX2, INT32_MAX, 1},
};

static void test_recorded(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof recorded / sizeof recorded[0]; i++) {
        tp_machine m;
        tp_error error = TP_ERROR_INIT;
        char text[256];
        if (tp_machine_parse(recorded[i].text, &m, &error) != TP_OK) fail_msg("%s", error.text);
        assert_int_equal(m.struct_size, sizeof m);
        assert_int_equal(m.isa, recorded[i].isa);
        assert_int_equal(m.threads, recorded[i].threads);
        assert_int_equal(m.l2_bytes, recorded[i].l2);
        assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_OK);
        assert_string_equal(text, recorded[i].text);
    }
}

static void test_bad_texts(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"", "arch", "1..15"},
        {" x86-64", "arch", "1..15"},
        {"x86-64-and-much-more", "x86-64-and-much-more", "1..15"},
        {"x86-64", "''", "'isa='"},
        {"x86-64  isa=none", "''", "'isa='"},
        {"x86-64 threads=2", "'threads=2'", "'isa='"},
        {"x86-64 isa= threads=2", "'isa='", "takes none"},
        {"x86-64 isa=amx threads=2", "'isa=amx'", "takes none"},
        {"x86-64 isa=avx2,avx2 threads=2", "'isa=avx2,avx2'", "once each"},
        {"x86-64 isa=avx2, threads=2", "'isa=avx2,'", "comma between"},
        {"x86-64 isa=none,avx2 threads=2", "'isa=none,avx2'", "takes none"},
        {"x86-64 isa=avx2 threads=0", "'threads=0'", "1..2147483647"},
        {"x86-64 isa=avx2 threads=-1", "'threads=-1'", "1..2147483647"},
        {"x86-64 isa=avx2 threads=2147483648", "2147483648", "1..2147483647"},
        {"x86-64 isa=avx2 threads=2x", "'threads=2x'", "whole number"},
        {"x86-64 isa=avx2 threads=", "'threads='", "whole number"},
        {"x86-64 isa=avx2 threads=2 l1d=9223372036854775808", "9223372036854775808", "0.."},
        {"x86-64 isa=avx2 threads=2 l1d=1 l3=2", "'l3=2'", "'l2='"},
        {"x86-64 isa=avx2 threads=2 l1d=1 l2=1 l3=2", "''", "'name='"},
        {"x86-64 isa=avx2 threads=2 l1d=1 l2=1 l3=2 name=", "name is ''", "1..63"},
        {"x86-64 isa=avx2 threads=2 l1d=1 l2=1 l3=2 name= x", "name is ' x'", "no blank"},
        {"x86-64 isa=avx2 threads=2 l1d=1 l2=1 l3=2 name=x ", "name is 'x '", "no blank"},
        {"x86-64 isa=avx2 threads=2 l1d=1 l2=1 l3=2 name=x\n", "name is 'x\n'", "printable"},
        {"x86-64 isa=avx2 threads=2 l1d=1 l2=1 l3=2 name="
         "0123456789012345678901234567890123456789012345678901234567890123",
         "0123456789", "1..63"},
        {"x86-64 isa=avx2 threads=2 extra=1 l1d=1", "'extra=1'", "'l1d='"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tp_machine m = {.threads = 77};
        tp_error error = TP_ERROR_INIT;
        assert_int_equal(tp_machine_parse(cases[i][0], &m, &error), TP_INVALID);
        if (!strstr(error.text, cases[i][1]) || !strstr(error.text, cases[i][2]))
            fail_msg("'%s': %s", cases[i][0], error.text);
        assert_int_equal(m.threads, 77);
    }
    tp_machine m;
    assert_int_equal(tp_machine_parse(NULL, &m, NULL), TP_INVALID);
    assert_int_equal(tp_machine_parse(recorded[0].text, NULL, NULL), TP_INVALID);
}

static void test_print(void **state) {
    (void)state;
    tp_machine good, m;
    char text[256];
    size_t need = strlen(recorded[1].text) + 1;
    assert_int_equal(tp_machine_parse(recorded[1].text, &good, NULL), TP_OK);
    for (size_t size = 0; size < sizeof text; size++) {
        memset(text, '#', sizeof text);
        assert_int_equal(tp_machine_print(&good, text, size), size >= need ? TP_OK : TP_INVALID);
        for (size_t i = size; i < sizeof text; i++) assert_int_equal(text[i], '#');
    }
    m = good, m.struct_size = 4;
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_INVALID);
    m = good, m.isa = 1u << 30;
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_INVALID);
    m = good, m.threads = 0;
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_INVALID);
    m = good, m.l3_bytes = -1;
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_INVALID);
    m = good, memset(m.name, 'x', sizeof m.name); /* does not end */
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_INVALID);
    m = good, m.arch[3] = ' ';
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_machine_print(NULL, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_machine_print(&good, NULL, 0), TP_INVALID);
}

static void test_detect(void **state) {
    (void)state;
    tp_machine m, back;
    tp_error error = TP_ERROR_INIT;
    char text[256];
    cpu_set_t set;
    if (tp_machine_detect(&m, &error) != TP_OK) fail_msg("%s", error.text);
    assert_int_equal(m.struct_size, sizeof m);
    assert_true(m.threads >= 1);
    if (sched_getaffinity(0, sizeof set, &set) == 0) assert_true(m.threads <= CPU_COUNT(&set));
    if (m.isa & TP_ISA_AVX512) assert_true(m.isa & TP_ISA_AVX2);
    assert_true(m.l1d_bytes >= 0 && m.l2_bytes >= 0 && m.l3_bytes >= 0);
#if defined(__x86_64__)
    assert_string_equal(m.arch, "x86-64");
    if (__builtin_cpu_supports("avx512f")) assert_true(m.isa & TP_ISA_AVX2);
#endif
    assert_int_equal(tp_machine_print(&m, text, sizeof text), TP_OK);
    if (tp_machine_parse(text, &back, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    assert_memory_equal(&back, &m, sizeof m);
    assert_int_equal(tp_machine_detect(NULL, &error), TP_INVALID);
}

static void test_model(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"processor\t: 0\nmodel\t\t: 1\nmodel name\t: Some CPU\nmodel name\t: Other\n", "Some CPU"},
        {"model name\t:  Some\tCPU \xc2\xae X  \n", "Some CPU  X"},
        {"model name\t: Ends here", "Ends here"},
        {"model name\t:\nmodel name: second", "second"},
        {"model name", "unknown"},
        {"processor: 0\nBogoMIPS: 1\n", "unknown"},
        {"", "unknown"},
    };
    char name[64], small[8];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tp__machine_model(cases[i][0], name, sizeof name);
        assert_string_equal(name, cases[i][1]);
    }
    tp__machine_model("model name: abcdefghijk", small, sizeof small);
    assert_string_equal(small, "abcdefg");
}

static void test_cgroup_path(void **state) {
    (void)state;
    const char *v1 = "12:pids:/\n9:name=systemd:/x\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/no\n";
    const char *both = "1:cpuacct,cpu:/one\n0::/user.slice/two:with colon\n";
    char path[64];
    assert_int_equal(tp__cgroup_path(v1, 1, path, sizeof path), 1);
    assert_string_equal(path, "/docker/abc");
    assert_int_equal(tp__cgroup_path(v1, 2, path, sizeof path), 0);
    assert_int_equal(tp__cgroup_path(both, 1, path, sizeof path), 1);
    assert_string_equal(path, "/one");
    assert_int_equal(tp__cgroup_path(both, 2, path, sizeof path), 1);
    assert_string_equal(path, "/user.slice/two:with colon");
    assert_int_equal(tp__cgroup_path("0::/", 2, path, sizeof path), 1);
    assert_string_equal(path, "/");
    assert_int_equal(tp__cgroup_path("0::/too/long", 2, path, 8), 0);
    assert_int_equal(tp__cgroup_path("", 2, path, sizeof path), 0);
    assert_int_equal(tp__cgroup_path("\n:\n::\nrubbish", 1, path, sizeof path), 0);
    assert_int_equal(tp__cgroup_path("3:cpuset,cpuacct:/x", 1, path, sizeof path), 0);
}

static void test_cgroup_parent(void **state) {
    (void)state;
    char path[] = "/a/b";
    assert_int_equal(tp__cgroup_parent(path), 1);
    assert_string_equal(path, "/a");
    assert_int_equal(tp__cgroup_parent(path), 1);
    assert_string_equal(path, "");
    assert_int_equal(tp__cgroup_parent(path), 0);
    char root[] = "/";
    assert_int_equal(tp__cgroup_parent(root), 0);
}

static void test_cgroup_cpus(void **state) {
    (void)state;
    assert_int_equal(tp__cgroup_cpus_v2("max 100000\n"), 0);
    assert_int_equal(tp__cgroup_cpus_v2("200000 100000\n"), 2);
    assert_int_equal(tp__cgroup_cpus_v2("150000 100000\n"), 2);
    assert_int_equal(tp__cgroup_cpus_v2("1000 100000\n"), 1);
    assert_int_equal(tp__cgroup_cpus_v2("100000"), 0);
    assert_int_equal(tp__cgroup_cpus_v2("100000 0"), 0);
    assert_int_equal(tp__cgroup_cpus_v2(""), 0);
    assert_int_equal(tp__cgroup_cpus_v2("9223372036854775807 1"), INT32_MAX);
    assert_int_equal(tp__cgroup_cpus_v1("-1\n", "100000\n"), 0);
    assert_int_equal(tp__cgroup_cpus_v1("350000\n", "100000\n"), 4);
    assert_int_equal(tp__cgroup_cpus_v1("", "100000\n"), 0);
    assert_int_equal(tp__cgroup_cpus_v1("100000", "rubbish"), 0);
}

/* Every name there is comes from one table: what is printed is read again, and stands in decisions and metrics. */
static void test_isa_names(void **state) {
    (void)state;
    char text[64], line[160], *tail = " threads=1 l1d=0 l2=0 l3=0 name=x";
    uint32_t all = 0;
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if (tp_isa_print(bit, text, sizeof text) != TP_OK) continue;
        tp_machine m;
        all |= bit;
        snprintf(line, sizeof line, "x86-64 isa=%s%s", text, tail);
        assert_int_equal(tp_machine_parse(line, &m, NULL), TP_OK);
        assert_int_equal(m.isa, bit);
    }
    assert_int_equal(all & (TP_ISA_AVX2 | TP_ISA_AVX512), TP_ISA_AVX2 | TP_ISA_AVX512);
    assert_int_equal(tp_isa_print(0, text, sizeof text), TP_OK);
    assert_string_equal(text, "none");
    assert_int_equal(tp_isa_print(TP_ISA_AVX512 | TP_ISA_AVX2, text, sizeof text), TP_OK);
    assert_string_equal(text, "avx2,avx512");
    for (size_t size = 1; size <= sizeof "avx2,avx512"; size++) {
        memset(text, '#', sizeof text);
        assert_int_equal(tp_isa_print(3, text, size), size == sizeof "avx2,avx512" ? TP_OK : TP_INVALID);
        assert_int_equal(text[size], '#');
        if (size < sizeof "avx2,avx512") assert_string_equal(text, "");
    }
    assert_int_equal(tp_isa_print(all, text, sizeof text), TP_OK); /* as the header promises */
    assert_int_equal(tp_isa_print(1u << 31, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_isa_print(0, NULL, 8), TP_INVALID);
    assert_int_equal(tp_isa_print(0, text, 0), TP_INVALID);
    tp_machine odd = {.struct_size = sizeof odd, .isa = 1u << 31};
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    tp_error error = TP_ERROR_INIT;
    options.machine = &odd;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "machine.isa is 0x80000000"));
    assert_non_null(strstr(error.text, "avx2,avx512"));
}

static void test_read_text(void **state) {
    (void)state;
    char text[8];
    assert_int_equal(tp__read_text("/nowhere/at/all", text, sizeof text), 0);
    if (tp__read_text("/proc/self/status", text, sizeof text))
        assert_int_equal(strlen(text), sizeof text - 1);
}

#if defined(__x86_64__) && defined(__linux__)
static int attempt_works(void) { return 0; }
static int attempt_fails(void) { return 1; }
static int attempt_illegal(void) {
    __asm__ volatile("ud2");
    return 0;
}
static int attempt_segment(void) {
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
    return 0;
}
static int attempt_killed(void) { return kill(getpid(), SIGKILL); }

/* An instruction is tried in a child: whatever becomes of it, this process and its handlers stay as they are. */
static void test_attempts(void **state) {
    (void)state;
    sigset_t all, before, after;
    struct sigaction action = {.sa_handler = SIG_IGN}, kept;
    if (getenv("TILEPROOF_TEST_QEMU") != NULL) {
        printf("not run here: qemu-user has no child that shares memory\n");
        assert_false(tp__works_in_child(attempt_works));
        skip();
    }
    for (int blocked = 0; blocked < 2; blocked++) {
        sigfillset(&all);
        sigprocmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &all, &before);
        sigaction(SIGILL, &action, NULL);
        assert_true(tp__works_in_child(attempt_works));
        assert_false(tp__works_in_child(attempt_fails));
        assert_false(tp__works_in_child(attempt_illegal));
        assert_false(tp__works_in_child(attempt_segment));
        assert_false(tp__works_in_child(attempt_killed));
        assert_true(tp__works_in_child(attempt_works));
        sigaction(SIGILL, NULL, &kept);
        assert_true(kept.sa_handler == SIG_IGN);
        sigprocmask(SIG_SETMASK, &before, &after);
        assert_int_equal(sigismember(&after, SIGILL), blocked);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1); /* no child is left */
}
#else
static void test_attempts(void **state) {
    (void)state;
    printf("not run here: instructions are tried on x86-64 Linux alone\n");
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),      cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_print),         cmocka_unit_test(test_detect),
        cmocka_unit_test(test_model),         cmocka_unit_test(test_cgroup_path),
        cmocka_unit_test(test_cgroup_parent), cmocka_unit_test(test_cgroup_cpus),
        cmocka_unit_test(test_read_text),     cmocka_unit_test(test_isa_names),
        cmocka_unit_test(test_attempts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

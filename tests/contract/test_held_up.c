/* SPDX-License-Identifier: Apache-2.0 */
/* A backward call, one thread of which is held up while the others go on: what it holds is not taken by them. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "support/back.h"
#include "support/parallel.h"

/* d_q of each head has a page of its own, without access: who writes to it first comes here. The first head is held up
   until the third has come and the fourth has had time to. */
enum { HELD_HEADS = 7, HELD_ROWS = 8, HELD_DIM = 64 };
static struct {
    char *page;
    size_t size;
    atomic_int came[HELD_HEADS];
} held;

static void hold_up(int number, siginfo_t *info, void *context) {
    (void)context;
    size_t head = (size_t)((char *)info->si_addr - held.page) / held.size;
    if ((char *)info->si_addr < held.page || head >= HELD_HEADS) {
        signal(number, SIG_DFL); /* a crash: comes again */
        return;
    }
    if (atomic_fetch_add(&held.came[head], 1) == 0 && head == 0) {
        const struct timespec step = {0, 1000000};
        for (int i = 0; i < 10000 && !atomic_load(&held.came[2]); i++) nanosleep(&step, NULL);
        for (int i = 0; i < 300 && !atomic_load(&held.came[3]); i++) nanosleep(&step, NULL);
    }
    mprotect(held.page + head * held.size, held.size, PROT_READ | PROT_WRITE);
}

static void a_thread_that_is_held_up_keeps_its_rows(void **state) {
    (void)state;
    struct sigaction action = {.sa_sigaction = hold_up, .sa_flags = SA_SIGINFO | SA_NODEFER}, before;
    parallel p = {.threads = 2};
    back *one = back_new("h7/7 q8 k8 d64 f32", 0), *b = back_new("h7/7 q8 k8 d64 f32", 0);
    back_run(one, &(call_how){.threads = 1}, NULL);
    call_run(b->c, &(call_how){.threads = 1}, NULL);
    held.size = (size_t)sysconf(_SC_PAGESIZE);
    assert_true(HELD_ROWS * HELD_DIM * sizeof(float) <= held.size);
    held.page = mmap(NULL, HELD_HEADS * held.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(held.page != MAP_FAILED);
    const int64_t of_head = (int64_t)(held.size / sizeof(float));
    b->gradients.d_q = (tp_tensor){held.page, {HELD_HEADS * of_head, HELD_DIM, of_head}};
    tp_error error = TP_ERROR_INIT;
    alarm(60);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    tp_status status = back_try(b, &(call_how){.threads = 2, .parallel_for = parallel_threads, .user = &p}, NULL, &error);
    sigaction(SIGSEGV, &before, NULL);
    alarm(0);
    if (status) fail_msg("%s", error.text);
    for (int head = 0; head < HELD_HEADS; head++) {
        assert_true(atomic_load(&held.came[head]) > 0);
        for (int row = 0; row < HELD_ROWS; row++)
            assert_memory_equal((float *)(held.page + (size_t)head * held.size) + row * HELD_DIM,
                                back_at(one, BACK_DQ, 0, row, head), HELD_DIM * sizeof(float));
    }
    munmap(held.page, HELD_HEADS * held.size);
    back_free(b);
    back_free(one);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thread_that_is_held_up_keeps_its_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes. A worker takes trial after trial and writes its findings to a pipe; what it is at stands in
 * shared memory, so that its parent can say it of a worker that died or hangs, and starts another one.
 */
#include "check/random.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/limits.h"
#include "harness/stats.h"
#include "terminal/terminal.h"
#include "tool/device.h"

enum { MAX_WORKERS = 64, NOT_RUNNING = -1 };

struct desk { /* of a worker */
    int64_t number, since; /* of the trial; the second that it began on this kernel, or NOT_RUNNING */
    int kernel;
    char step[48];
};

struct office { /* shared */
    int64_t next;
    struct desk desk[MAX_WORKERS];
};

static int patience(const struct isolated *isolated) { return isolated->patience ? isolated->patience : 300; }

/* A child of ours ends with us, and leaves no file behind where it crashes. */
static pid_t make_child(void) {
    pid_t parent = getpid();
    fflush(stdout);
    pid_t child = fork();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    return 0;
}

static void note_step(void *user, const char *name) {
    struct desk *desk = user;
    snprintf(desk->step, sizeof desk->step, "%s", name);
}

static void tell(int pipe, const struct finding *finding) {
    if (write(pipe, finding, sizeof *finding) != (ssize_t)sizeof *finding) _exit(3);
}

/* One trial on all kernels from this one on, or on this one only. */
static void work_on(struct check_env *env, const struct isolated *isolated, const struct trial *trial, int64_t number, int kernel,
                    int only, struct desk *desk, int pipe) {
    struct subject subject = {.step = note_step, .step_user = desk};
    desk->kernel = kernel;
    desk->since = (int64_t)now_seconds();
    desk->number = number;
    int broken = subject_create(&subject, env, trial);
    for (; kernel < isolated->kernels->count; kernel++) {
        struct finding finding = {.number = number, .kernel = kernel};
        desk->kernel = kernel;
        desk->since = (int64_t)now_seconds();
        env->kernel = isolated->kernels->selected[kernel];
        char why[sizeof finding.reason];
        if (!check_takes(env, &trial->problem, why, sizeof why))
            finding.verdict = TRIAL_BEYOND;
        else if (broken || subject_try(&subject))
            finding.verdict = TRIAL_FAILED;
        finding.rows = subject.rows;
        finding.unbounded = subject.unbounded;
        finding.sums_left = subject.sums_left;
        memcpy(finding.step, desk->step, sizeof finding.step);
        if (finding.verdict != TRIAL_PASSED)
            snprintf(finding.reason, sizeof finding.reason, "%.*s", (int)sizeof finding.reason - 1,
                     finding.verdict == TRIAL_BEYOND ? why : env->reason);
        desk->since = NOT_RUNNING; /* while the parent makes a failure small, nobody empties the pipe */
        tell(pipe, &finding);
        desk->since = (int64_t)now_seconds();
        if (only) break;
    }
    subject_destroy(&subject);
}

/* In the child: everything the library makes is made here, so that no fork is ever met by it. */
static void open_env(struct check_env *env, const struct isolated *isolated) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    if (device_open_in_child()) _exit(2);
    *env = (struct check_env){.seed = isolated->seed, .workspace = {.guarded = GUARDED_END}, .device = device_number()};
    env->arithmetic = (tp_arithmetic)isolated->kernels->selected[0]->arithmetic;
    options.backend = device_backend();
    /* Most runs take a context of one thread: a pool's threads spin, and what they spin away is time for problems. */
    options.threads = 1;
    tp_status status = tp_context_create(&options, &env->context, &error);
    options.threads = isolated->threads;
    if (status == TP_OK) status = tp_context_create(&options, &env->pool, &error);
    if (status != TP_OK) {
        complain("%s", error.text);
        _exit(2);
    }
}

static void worker(const struct isolated *isolated, struct office *office, int seat, int64_t number, int kernel, double end,
                   int pipe) {
    struct check_env env;
    struct desk *desk = &office->desk[seat];
    open_env(&env, isolated);
    for (;; number = -1, kernel = 0) {
        struct trial trial;
        if (number < 0) {
            if (end > 0 && now_seconds() > end) break;
            number = __atomic_fetch_add(&office->next, 1, __ATOMIC_RELAXED);
            if (number >= isolated->count) break;
        }
        trial_draw(&trial, isolated->seed, number);
        work_on(&env, isolated, &trial, number, kernel, 0, desk, pipe);
        desk->number = -1;
    }
    workspace_free(&env.workspace);
    tp_context_destroy(env.context);
    tp_context_destroy(env.pool);
    _exit(0);
}

static pid_t start(const struct isolated *isolated, struct office *office, int seat, int64_t number, int kernel, double end,
                   const int pipes[2]) {
    office->desk[seat] = (struct desk){.number = number, .kernel = kernel, .since = (int64_t)now_seconds()};
    pid_t child = make_child();
    if (child == 0) {
        close(pipes[0]);
        worker(isolated, office, seat, number, kernel, end, pipes[1]);
    }
    if (child < 0) complain("no child process can be made: %s", strerror(errno));
    return child;
}

static int is_stopped(const struct isolated *isolated, int64_t begun) {
    return isolated->walking && isolated->walking(isolated->user, begun);
}

static void drain(struct isolated *isolated, int pipe, int wait_ms) {
    struct pollfd ready = {.fd = pipe, .events = POLLIN};
    while (poll(&ready, 1, wait_ms) > 0 && (ready.revents & POLLIN)) {
        struct finding finding;
        if (read(pipe, &finding, sizeof finding) != (ssize_t)sizeof finding) return;
        isolated->found(isolated->user, &finding);
        wait_ms = 0;
    }
}

static void say_died(const struct isolated *isolated, struct finding *finding, const struct desk *desk, int status, int late) {
    *finding = (struct finding){.number = desk->number, .kernel = desk->kernel, .verdict = TRIAL_FAILED, .late = late};
    memcpy(finding->step, desk->step, sizeof finding->step);
    finding->died = WIFSIGNALED(status) ? WTERMSIG(status) : -1;
    if (late)
        snprintf(finding->reason, sizeof finding->reason, "still at '%.40s' after %d seconds", desk->step, patience(isolated));
    else if (WIFSIGNALED(status))
        snprintf(finding->reason, sizeof finding->reason, "died of signal %d (%s) at '%.40s'", WTERMSIG(status),
                 strsignal(WTERMSIG(status)), desk->step);
    else
        snprintf(finding->reason, sizeof finding->reason, "the process ended with exit code %d at '%.40s'", WEXITSTATUS(status),
                 desk->step);
}

/* It was at no problem, so that none can be named. */
static void say_lost(int status) {
    if (WIFSIGNALED(status))
        complain("a worker died of signal %d (%s) between two problems", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        complain("a worker ended with exit code %d between two problems", WEXITSTATUS(status));
}

int isolated_walk(struct isolated *isolated) {
    pid_t child[MAX_WORKERS];
    int pipes[2], alive = 0, late[MAX_WORKERS] = {0}, status, broken = 0;
    int workers = isolated->workers < 1 ? 1 : isolated->workers > MAX_WORKERS ? MAX_WORKERS : isolated->workers;
    struct office *office = mmap(NULL, sizeof *office, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double end = isolated->seconds > 0 ? now_seconds() + isolated->seconds : 0;
    if (office == MAP_FAILED || pipe(pipes)) {
        complain("no child process can be made: %s", strerror(errno));
        return EXIT_FAILED;
    }
    for (int i = 0; i < workers; i++) {
        child[i] = start(isolated, office, i, -1, 0, end, pipes);
        alive += child[i] > 0;
    }
    if (!alive) broken = 1;
    while (alive > 0) {
        drain(isolated, pipes[0], 200);
        if (is_stopped(isolated, office->next < isolated->count ? office->next : isolated->count)) {
            for (int i = 0; i < workers; i++)
                if (child[i] > 0) kill(child[i], SIGKILL), waitpid(child[i], &status, 0);
            break;
        }
        for (int i = 0; i < workers; i++) {
            struct desk *desk = &office->desk[i];
            if (child[i] <= 0) continue;
            int64_t since = desk->since;
            if (desk->number >= 0 && since != NOT_RUNNING && now_seconds() - (double)since > patience(isolated))
                late[i] = 1, kill(child[i], SIGKILL);
            if (waitpid(child[i], &status, WNOHANG) != child[i]) continue;
            drain(isolated, pipes[0], 0);
            child[i] = 0;
            alive--;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            struct finding finding;
            if (desk->number < 0) {
                say_lost(status);
                broken = 1;
                continue;
            }
            int64_t number = desk->number;
            int kernel = desk->kernel;
            say_died(isolated, &finding, desk, status, late[i]);
            late[i] = 0;
            isolated->found(isolated->user, &finding);
            /* the rest of the same trial, then the others */
            if (kernel + 1 >= isolated->kernels->count) number = -1, kernel = -1;
            child[i] = start(isolated, office, i, number, kernel + 1, end, pipes);
            alive += child[i] > 0;
            broken |= child[i] < 0;
        }
    }
    drain(isolated, pipes[0], 0);
    isolated->done = office->next < isolated->count ? office->next : isolated->count;
    close(pipes[0]);
    close(pipes[1]);
    munmap(office, sizeof *office);
    return broken ? EXIT_FAILED : EXIT_FINE;
}

/* Waits for bytes or the end of what the child writes; kills it after the time that it has. */
static int hears(const struct isolated *isolated, pid_t child, int pipe) {
    struct pollfd ready = {.fd = pipe, .events = POLLIN};
    double end = now_seconds() + patience(isolated);
    int got, waits;
    do {
        got = poll(&ready, 1, 200);
        waits = !got || (got < 0 && errno == EINTR && !is_stopped(isolated, -1));
        progress_tick();
    } while (waits && now_seconds() < end);
    if (got > 0) return 1;
    kill(child, SIGKILL);
    return 0;
}

static void say_no_child(struct finding *finding, int kernel) {
    *finding = (struct finding){.kernel = kernel, .verdict = TRIAL_FAILED};
    snprintf(finding->reason, sizeof finding->reason, "no child process can be made: %s", strerror(errno));
}

void isolated_one(const struct isolated *isolated, const struct trial *trial, int kernel, struct finding *finding) {
    int pipes[2] = {-1, -1}, status = 0;
    pid_t child = -1;
    struct desk *desk = mmap(NULL, sizeof *desk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (desk != MAP_FAILED && pipe(pipes) == 0) child = make_child();
    if (child == 0) {
        struct check_env env;
        close(pipes[0]);
        open_env(&env, isolated);
        work_on(&env, isolated, trial, 0, kernel, 1, desk, pipes[1]);
        _exit(0);
    }
    if (child < 0) say_no_child(finding, kernel);
    if (pipes[1] >= 0) close(pipes[1]);
    if (child > 0) {
        int late = !hears(isolated, child, pipes[0]);
        int there = !late && read(pipes[0], finding, sizeof *finding) == (ssize_t)sizeof *finding;
        if (there) late = !hears(isolated, child, pipes[0]); /* it has to end, too */
        waitpid(child, &status, 0);
        if (!there || (status && finding->verdict != TRIAL_FAILED)) say_died(isolated, finding, desk, status, late);
    }
    if (pipes[0] >= 0) close(pipes[0]);
    if (desk != MAP_FAILED) munmap(desk, sizeof *desk);
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "engine/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/stats.h"

enum { CHILD_SOCKET = 3, CHILD_FILE = 4, FIRST_FREE = 16, NOT_STARTED = 127, GENTLE_MS = 1000, SLICE_MS = 250 };

static int say(char why[WIRE_WHY], const char *what, const char *detail) {
    snprintf(why, WIRE_WHY, "%s%s", what, detail);
    return 1;
}

static void close_all(struct process *p) {
    if (p->socket >= 0) close(p->socket);
    if (p->file >= 0) close(p->file);
    p->socket = p->file = -1;
}

/* How it ended, as a reason. */
static int say_ended(int status, char why[WIRE_WHY]) {
    if (WIFSIGNALED(status))
        snprintf(why, WIRE_WHY, "the runner died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) == NOT_STARTED)
        snprintf(why, WIRE_WHY, "the runner could not be started, or exited with %d", NOT_STARTED);
    else
        snprintf(why, WIRE_WHY, "the runner exited with %d before it answered", WEXITSTATUS(status));
    return 1;
}

/* Only what may be called between fork and exec in a process with threads. */
static void become_runner(int socket, int file, char *const words[]) {
    struct sigaction usual = {.sa_handler = SIG_DFL};
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigaction(SIGINT, &usual, NULL);
    sigaction(SIGTERM, &usual, NULL);
    sigaction(SIGPIPE, &usual, NULL);
    int nothing = open("/dev/null", O_RDONLY);
    /* above the places that they go to, in whatever order those are taken */
    socket = fcntl(socket, F_DUPFD, FIRST_FREE);
    file = fcntl(file, F_DUPFD, FIRST_FREE);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ||
        dup2(socket, CHILD_SOCKET) < 0 || dup2(file, CHILD_FILE) < 0)
        _exit(NOT_STARTED);
    close(socket);
    close(file);
    execvp(words[0], words);
    _exit(NOT_STARTED);
}

int process_start(struct process *p, char *const words[], char why[WIRE_WHY]) {
    int sockets[2] = {-1, -1};
    p->socket = p->file = -1;
    p->bytes.used = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) return say(why, "no socket for a runner: ", strerror(errno));
    p->socket = sockets[0];
    p->file = memfd_create("tileproof cell", MFD_CLOEXEC);
    pid_t pid = p->file < 0 ? -1 : fork();
    if (!pid) become_runner(sockets[1], p->file, words);
    int failed = errno;
    close(sockets[1]);
    if (pid < 0) {
        close_all(p);
        return say(why, "a runner could not be started: ", strerror(failed));
    }
    setpgid(pid, pid); /* whoever of the two comes first */
    p->pid = pid;
    return 0;
}

/* 1: it ended in this time, and so did what it had started. */
static int ends_within(struct process *p, int ms, int *status) {
    for (double end = now_ns() + ms * 1e6; p->pid && now_ns() < end; poll(NULL, 0, 5)) {
        if (waitpid(p->pid, status, WNOHANG) != p->pid) continue;
        kill(-p->pid, SIGKILL);
        p->pid = 0;
        return 1;
    }
    return 0;
}

/* It closed its end: did it end, too? */
static int say_gone(struct process *p, char why[WIRE_WHY]) {
    int status;
    if (!ends_within(p, GENTLE_MS, &status)) return say(why, "the runner closed its socket", "");
    close_all(p);
    return say_ended(status, why);
}

/* 0: ready. Time in which tool and runner were both stopped, as in a machine that slept, does not count: it shows as a wait
   that took longer than it was asked to. */
static int await(struct process *p, short events, double *left_ns, char why[WIRE_WHY]) {
    while (*left_ns > 0) {
        struct pollfd ready = {.fd = p->socket, .events = events};
        double begin = now_ns();
        int count = poll(&ready, 1, SLICE_MS);
        double took = now_ns() - begin, max = 2 * SLICE_MS * 1e6;
        *left_ns -= took < max ? took : max;
        if (count > 0) return 0;
        /* interrupted: a stop is asked for, which comes after this cell */
        if (count < 0 && errno != EINTR) return say(why, "a runner cannot be waited for: ", strerror(errno));
    }
    snprintf(why, WIRE_WHY, "the runner did not answer in %g s", p->timeout);
    return 1;
}

int process_send(struct process *p, const char *text, size_t size, char why[WIRE_WHY]) {
    double left_ns = p->timeout * 1e9;
    while (size) {
        if (await(p, POLLOUT, &left_ns, why)) return 1;
        ssize_t sent = send(p->socket, text, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (sent < 0) return say_gone(p, why);
        text += sent;
        size -= (size_t)sent;
    }
    return 0;
}

int process_receive(struct process *p, char line[WIRE_LINE], char why[WIRE_WHY]) {
    double left_ns = p->timeout * 1e9;
    for (;;) {
        enum wire found = wire_line(&p->bytes, line, why);
        if (found != WIRE_MORE) return found != WIRE_WHOLE;
        if (await(p, POLLIN, &left_ns, why)) return 1;
        ssize_t got =
            recv(p->socket, p->bytes.received + p->bytes.used, sizeof p->bytes.received - p->bytes.used, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) return say_gone(p, why);
        p->bytes.used += (size_t)got;
    }
}

int process_spoke(struct process *p) {
    struct pollfd ready = {.fd = p->socket, .events = POLLIN};
    return p->bytes.used > 0 || poll(&ready, 1, 0) > 0;
}

int process_write(struct process *p, const void *bytes, size_t size, int64_t at, char why[WIRE_WHY]) {
    for (size_t done = 0; done < size;) {
        ssize_t count = pwrite(p->file, (const char *)bytes + done, size - done, (off_t)(at + (int64_t)done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return say(why, "the tensors could not be written: ", strerror(errno));
        done += (size_t)count;
    }
    return 0;
}

int process_read(struct process *p, void *bytes, size_t size, int64_t at, char why[WIRE_WHY]) {
    for (size_t done = 0; done < size;) {
        ssize_t count = pread(p->file, (char *)bytes + done, size - done, (off_t)(at + (int64_t)done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return say(why, "the runner cut the file of tensors short", "");
        done += (size_t)count;
    }
    return 0;
}

void process_stop(struct process *p, int gently) {
    int status;
    if (p->socket >= 0) close(p->socket); /* the end of its input */
    p->socket = -1;
    if (!ends_within(p, gently ? GENTLE_MS : 0, &status) && p->pid) {
        kill(-p->pid, SIGKILL);
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) continue;
    }
    p->pid = 0;
    close_all(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "machine/threads.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tp__read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    size_t used = 0;
    while (used < size - 1) {
        ssize_t got = read(file, text + used, size - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    close(file);
    text[used] = 0;
    return used > 0;
}

/* Is "cpu" one of "cpu,cpuacct"? */
static int lists_cpu(const char *names, const char *end) {
    while (names < end) {
        const char *comma = memchr(names, ',', (size_t)(end - names));
        const char *stop = comma != NULL ? comma : end;
        if (stop - names == 3 && memcmp(names, "cpu", 3) == 0) return 1;
        names = stop + 1;
    }
    return 0;
}

/* Lines are "hierarchy:controllers:path"; version 2's hierarchy is 0 and names no controllers. */
int tp__cgroup_path(const char *proc_self_cgroup, int version, char *path, size_t size) {
    for (const char *line = proc_self_cgroup; *line != 0;) {
        const char *end = line + strcspn(line, "\n");
        const char *names = memchr(line, ':', (size_t)(end - line));
        const char *found = names ? memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;
        if (found != NULL) {
            int is_v2 = names - line == 1 && line[0] == '0' && found == names + 1;
            if (version == 2 ? is_v2 : !is_v2 && lists_cpu(names + 1, found)) {
                size_t length = (size_t)(end - found - 1);
                if (length >= size) return 0;
                memcpy(path, found + 1, length);
                path[length] = 0;
                return 1;
            }
        }
        line = *end != 0 ? end + 1 : end;
    }
    return 0;
}

int tp__cgroup_parent(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL || strcmp(path, "/") == 0) return 0;
    *slash = 0;
    return 1;
}

static int cpus_of(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus < INT_MAX ? (int)cpus : INT_MAX;
}

static int read_count(const char **text, long long *count) {
    char *end;
    *count = strtoll(*text, &end, 10);
    if (end == *text) return 0;
    *text = end;
    return 1;
}

int tp__cgroup_cpus_v2(const char *cpu_max) {
    long long quota, period;
    return read_count(&cpu_max, &quota) && read_count(&cpu_max, &period) ? cpus_of(quota, period)
                                                                         : 0;
}

int tp__cgroup_cpus_v1(const char *quota_us, const char *period_us) {
    long long quota, period;
    return read_count(&quota_us, &quota) && read_count(&period_us, &period) ? cpus_of(quota, period)
                                                                            : 0;
}

static int read_group(const char *root, const char *path, const char *file, char *text,
                      size_t size) {
    char name[PATH_MAX];
    int length = snprintf(name, sizeof name, "%s%s/%s", root, path, file);
    return length > 0 && (size_t)length < sizeof name && tp__read_text(name, text, size);
}

static int group_cpus(const char *root, const char *path, int version) {
    char first[128], second[128];
    if (version == 2)
        return read_group(root, path, "cpu.max", first, sizeof first) ? tp__cgroup_cpus_v2(first)
                                                                      : 0;
    return read_group(root, path, "cpu.cfs_quota_us", first, sizeof first) &&
                   read_group(root, path, "cpu.cfs_period_us", second, sizeof second)
               ? tp__cgroup_cpus_v1(first, second)
               : 0;
}

static int smaller_limit(int one, int other) {
    return one == 0 || (other != 0 && other < one) ? other : one;
}

/* A group may use no more than any of its parents. In a container the path may be the host's and
   not be mounted here; then only the root's files are found, and they are the container's. */
static int hierarchy_cpus(const char *groups, const char *root, int version) {
    char path[PATH_MAX];
    int cpus = 0;
    if (!tp__cgroup_path(groups, version, path, sizeof path)) return 0;
    do cpus = smaller_limit(cpus, group_cpus(root, path, version));
    while (tp__cgroup_parent(path));
    return cpus;
}

static int quota_cpus(void) {
    char groups[PATH_MAX + 1024];
    if (!tp__read_text("/proc/self/cgroup", groups, sizeof groups)) return 0;
    int cpus = hierarchy_cpus(groups, "/sys/fs/cgroup", 2);
    cpus = smaller_limit(cpus, hierarchy_cpus(groups, "/sys/fs/cgroup/cpu", 1));
    return smaller_limit(cpus, hierarchy_cpus(groups, "/sys/fs/cgroup/cpu,cpuacct", 1));
}

/* The mask grows until the kernel's fits. */
static int affinity_cpus(void) {
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        if (set == NULL) break;
        int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (int)online : 0;
}

int tp__usable_threads(void) {
    return smaller_limit(affinity_cpus(), quota_cpus());
}

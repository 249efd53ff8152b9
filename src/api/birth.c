/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mark is one byte of a page that Linux (4.14) clears in a child: by fork, by clone and by any other way that copies
 * memory, without a handler and without a variable of the whole process. A process id alone does not tell: the first
 * process of a container is 1, and so is its child in a pid namespace of its own. It is asked as well, for systems that
 * do not clear the page.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MADV_WIPEONFORK */
#endif
#include "api/birth.h"

#include <sys/mman.h>
#include <unistd.h>

int tp__birth_note(tp__birth *birth) {
    long page = sysconf(_SC_PAGESIZE);
    size_t bytes = page > 0 ? (size_t)page : 4096;
    void *mark = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED) return 0;
    *birth = (tp__birth){mark, bytes, getpid()};
#ifdef MADV_WIPEONFORK
    madvise(mark, bytes, MADV_WIPEONFORK); /* where it fails the process id has to do */
#endif
    *birth->mark = 1;
    return 1;
}

int tp__birth_is_here(const tp__birth *birth) {
    return birth->mark != NULL && *(volatile unsigned char *)birth->mark != 0 && birth->pid == getpid();
}

void tp__birth_forget(tp__birth *birth) {
    if (birth->mark != NULL) munmap(birth->mark, birth->bytes);
    birth->mark = NULL;
}

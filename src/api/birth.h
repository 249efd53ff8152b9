/* SPDX-License-Identifier: Apache-2.0 */
/* In which process was this made? A forked child has the memory but not the threads, and locks that another thread
   held stay locked for ever. */
#ifndef TP_API_BIRTH_H
#define TP_API_BIRTH_H

#include <stddef.h>
#include <sys/types.h>

typedef struct tp__birth {
    unsigned char *mark; /* a page that the kernel clears in a forked child; NULL: none */
    size_t bytes;
    pid_t pid;
} tp__birth;

/* 0 when there is no memory. */
int tp__birth_note(tp__birth *birth);
/* 0 in a forked child, and for a tp__birth that was never noted (all 0). */
int tp__birth_is_here(const tp__birth *birth);
void tp__birth_forget(tp__birth *birth);

#endif

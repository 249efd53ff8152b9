/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     cache.c       tileproof.Cache: a capsule, and its sequences
 *     cache_rows.c  append, and what attention reads of a cache
 */
#ifndef TILEPROOF_PYTHON_CACHE_H
#define TILEPROOF_PYTHON_CACHE_H

#include <tileproof_cache.h>

#include "core.h"

tp_cache *cache_of(PyObject *capsule); /* NULL: an exception is set */
/* Whole numbers of a tuple, `want` or any number (-1), to be freed whatever comes back; -1: an exception is set. */
int sequences_of(const char *name, PyObject *tuple, int64_t want, int64_t **made, int64_t *count);

#endif

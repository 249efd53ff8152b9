/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtileproof_proof for tileproof.proof. Models, locks and qualifications are capsules; what they hold comes as JSON.
 *
 *     proof_model.c    models, and the capacity that serving one takes
 *     proof_lock.c     locks; preflight, whose permits every context of this process gets
 *     proof_qualify.c  qualification
 */
#ifndef TILEPROOF_PYTHON_PROOF_H
#define TILEPROOF_PYTHON_PROOF_H

#include <tileproof_proof.h>

#include "core.h"

/* NULL: an exception is set. */
tp_model *model_of(PyObject *capsule);
tp_lock *lock_of(PyObject *capsule);

const char *text_of(PyObject *value);             /* of a str, or NULL for None; proof's own functions say what is missing */
int64_t number_of(const char *name, PyObject *value, int64_t min, int64_t max); /* PyErr_Occurred() says whether it is one */
int threads_of(PyObject *value);                  /* of 0: what the host has */
int dtype_or_none(const char *name, PyObject *value); /* tp_dtype, or 0 for None; -1: an exception is set */
const char *format_words(const char *name, PyObject *value); /* of a cache's format; NULL: None, or an exception is set */
/* -1: words are none, by the C library's rule; `before` is what else this argument may be. */
int raise_words(const char *name, PyObject *words, const char *before, const tp_error *error);
int bytes_of(PyObject *value, const char **bytes, Py_ssize_t *size); /* of bytes */

#endif

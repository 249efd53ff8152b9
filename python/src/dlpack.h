/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the DLPack ABI (1.0 and later, and the unversioned one before it) that is used here.
 */
#ifndef TILEPROOF_PYTHON_DLPACK_H
#define TILEPROOF_PYTHON_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6, DL_E4M3 = 10 };
#define DL_READ_ONLY ((uint64_t)1)
#define DL_MAJOR     1

typedef struct dl_version {
    uint32_t major, minor;
} dl_version;

typedef struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* strides in elements; NULL: contiguous */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *manager;
    void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_managed_versioned {
    dl_version version;
    void *manager;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

/* What a type offers under __dlpack_c_exchange_api__: the same without Python calls. */
typedef void (*dl_set_error)(void *context, const char *kind, const char *message);
typedef struct dl_exchange {
    dl_version version;
    struct dl_exchange *previous;
    int (*allocate)(dl_tensor *prototype, dl_managed_versioned **out, void *context, dl_set_error);
    int (*from_object)(void *object, dl_managed_versioned **out);
    int (*to_object)(dl_managed_versioned *tensor, void **object);
    int (*tensor_of)(void *object, dl_tensor *out); /* which lives as long as the object and is not owned; may be NULL */
} dl_exchange;

#endif

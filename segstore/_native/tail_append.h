/* Declarations for the files of the module `_tail_append`; tail_append.c has its purpose. */
#ifndef SEG_TAIL_APPEND_H
#define SEG_TAIL_APPEND_H

#include "objects.h"

#include "contract/batch.h"
#include "contract/column.h"
#include "contract/log.h"
#include "contract/records.h"

typedef int64_t (*write_function)(seg_tail *, uint8_t *, int64_t, seg_batch *, int64_t, int64_t, int64_t, int32_t);
typedef int64_t (*encode_function)(const seg_column *, const seg_column *, const seg_header_columns *, const int64_t *,
                                   int64_t, const int64_t *, int64_t, int64_t, int64_t, const seg_template *, uint8_t *,
                                   int64_t, seg_batch *, int64_t, int64_t *, int64_t *);

/* seg_tail_write and seg_encode of cffi's module; set once, when the package is imported. */
extern write_function seg_write;
extern encode_function seg_encode_list;

/* Append a list of records by one call (list_append.c). */
PyObject *seg_list_append(PyObject *module, PyObject *const *arguments, Py_ssize_t n);

#endif

/* The memory of many bytes objects, as a column that C encodes from (column.h), in one pass and without a copy.
 *
 * Thread contract: that of any object of Python's; the interpreter's lock is held. The caller keeps the objects for as
 * long as the column is read; bytes don't change.
 */
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030A0000 /* as cffi's module: one wheel for all versions */
#endif
#include <Python.h>
#include <stdint.h>

#include "cdef.h"

/* What is known of all items. */
typedef struct {
    int64_t size, longest, nulls;
} measures;

/* The span of one item; whether it is bytes or None. */
static int span_of(PyObject *item, seg_span *span, measures *m)
{
    *span = (seg_span){NULL, -1};
    if (item == Py_None) {
        m->nulls++;
        return 1;
    }
    if (!PyBytes_CheckExact(item))
        return 0;
    *span = (seg_span){(const uint8_t *)PyBytes_AsString(item), PyBytes_Size(item)};
    m->size += span->len;
    m->longest = span->len > m->longest ? span->len : m->longest;
    return 1;
}

static PyObject *seg_spans(PyObject *module, PyObject *items)
{
    measures m = {0};
    Py_ssize_t n = PyTuple_Check(items) ? PyTuple_Size(items) : -1;
    if (n < 0)
        return PyErr_Format(PyExc_TypeError, "seg_spans takes a tuple");
    PyObject *made = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(seg_span));
    if (made == NULL)
        return NULL;
    seg_span *spans = (seg_span *)PyBytes_AsString(made);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!span_of(PyTuple_GetItem(items, i), &spans[i], &m)) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
    return Py_BuildValue("(NLLL)", made, (long long)m.size, (long long)m.longest, (long long)m.nulls);
}

static PyMethodDef functions[] = {
    {"seg_spans", seg_spans, METH_O,
     "Of a tuple of bytes or None: a seg_span for each, as bytes; the sum of their lengths, the largest length, and "
     "how many are None. None where one is of another type."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._spans",
    .m_doc = "The memory of many bytes objects.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__spans(void)
{
    return PyModule_Create(&module_definition);
}

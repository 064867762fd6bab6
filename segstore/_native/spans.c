/* Columns for C's encoder (column.h), made of Python's objects in one pass: the memory of many bytes objects, without a
 * copy; and the range of their times.
 *
 * cffi and numpy release the interpreter's lock. A thread that does so while another runs Python waits up to 5 ms for
 * the lock, which is more than these functions take for a million records.
 *
 * Thread contract: that of any Python object; the interpreter's lock is held. The caller keeps the objects for as long
 * as the column is read; bytes don't change.
 */
#include "objects.h"

#include "contract/column.h"

/* The measures of all items. */
typedef struct {
    int64_t size, longest, nulls;
} measures;

/* The span of one item; returns whether it is bytes or None. */
static int span_of(PyObject *object, seg_span *span, measures *m)
{
    if (!bytes_of(object, &span->data, &span->len))
        return 0;
    m->nulls += span->len < 0;
    m->size += span->len < 0 ? 0 : span->len;
    m->longest = span->len > m->longest ? span->len : m->longest;
    return 1;
}

static PyObject *seg_spans(PyObject *module, PyObject *of)
{
    measures m = {0};
    Py_ssize_t n = PyTuple_Check(of) ? PyTuple_Size(of) : -1;
    if (n < 0)
        return PyErr_Format(PyExc_TypeError, "seg_spans takes a tuple");
    PyObject *made = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(seg_span));
    if (made == NULL)
        return NULL;
    seg_span *spans = (seg_span *)PyBytes_AsString(made);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!span_of(PyTuple_GetItem(of, i), &spans[i], &m)) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
    return Py_BuildValue("(NLLL)", made, (long long)m.size, (long long)m.longest, (long long)m.nulls);
}

static PyObject *seg_stamps(PyObject *module, PyObject *times)
{
    int64_t least = INT64_MAX, most = INT64_MIN;
    if (!PyBytes_Check(times))
        return PyErr_Format(PyExc_TypeError, "seg_stamps takes bytes");
    Py_ssize_t n = PyBytes_Size(times) / (Py_ssize_t)sizeof(int64_t);
    const int64_t *ms = (const int64_t *)PyBytes_AsString(times);
    for (Py_ssize_t i = 0; i < n; i++) {
        least = ms[i] < least ? ms[i] : least;
        most = ms[i] > most ? ms[i] : most;
    }
    return Py_BuildValue("(LL)", (long long)least, (long long)most);
}

static PyMethodDef functions[] = {
    {"seg_spans", seg_spans, METH_O,
     "Return for a tuple of bytes or None: a seg_span for each, as bytes; the sum of their lengths, the largest length, "
     "and the number of None. Return None if an item has another type."},
    {"seg_stamps", seg_stamps, METH_O,
     "Return the least and the largest of int64 numbers in bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._spans",
    .m_doc = "Columns that C encodes from, made of Python's objects.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__spans(void)
{
    return PyModule_Create(&module_definition);
}

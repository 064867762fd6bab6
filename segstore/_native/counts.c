/* count_request (counts.h) as a Python function that keeps the interpreter's lock: it counts each request that Python
 * answers, and a call by cffi would cost more than the count.
 *
 * Thread contract: that of counts.h; the interpreter's lock is held.
 */
#include "objects.h"

#include "counts.h"

enum { COUNTS, RECEIVED, SENT, BEGUN, ARGUMENTS };

static PyObject *seg_count(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    if (n != ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "seg_count takes %d arguments, not %zd", (int)ARGUMENTS, n);
    seg_counts *c = PyLong_AsVoidPtr(arguments[COUNTS]);
    int64_t received = PyLong_AsLongLong(arguments[RECEIVED]), sent = PyLong_AsLongLong(arguments[SENT]);
    double begun = PyFloat_AsDouble(arguments[BEGUN]);
    if (PyErr_Occurred())
        return NULL;
    count_request(c, received, sent, begun);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"seg_count", (PyCFunction)(void (*)(void))seg_count, METH_FASTCALL,
     "Count a request that is answered now: (address of a seg_counts, bytes of the request, bytes of its answer, its begin "
     "in seconds of CLOCK_MONOTONIC)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._counts",
    .m_doc = "Counts of requests.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__counts(void)
{
    return PyModule_Create(&module_definition);
}

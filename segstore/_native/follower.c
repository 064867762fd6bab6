/* seg_await_record (follow.c) as a method of Python's that makes the consumer's record, too, and all that `poll`
 * returns: behind a wait, code and memory of Python's lie in no cache, and each function costs some us.
 *
 * Thread contract: that of any object of Python's. One thread waits; the interpreter's lock is let go for as long.
 */
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030A0000 /* as cffi's module: one wheel for all versions */
#endif
#include <Python.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#include "cdef.h"

enum { LOOK = -1, LATE = -2 };
#define LONGEST_NS 86400000000000 /* a day */

typedef int64_t (*await_function)(seg_follower *, uint32_t, int64_t);

/* seg_await_record, which lies in cffi's module; set once, as the package is imported. */
static await_function await_record;

/* See FollowedEnds, a subclass. `follower` is the address of a seg_follower. */
typedef struct {
    PyObject_HEAD
    PyObject *keys, *kind, *came;
    unsigned long long follower;
} Follower;

static PyMemberDef members[] = {
    {"keys", T_OBJECT, offsetof(Follower, keys), 0, NULL},
    {"kind", T_OBJECT, offsetof(Follower, kind), 0, NULL},
    {"came", T_OBJECT, offsetof(Follower, came), 0, NULL},
    {"follower", T_ULONGLONG, offsetof(Follower, follower), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_follower(PyObject *object)
{
    Follower *self = (Follower *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->keys);
    Py_XDECREF(self->kind);
    Py_XDECREF(self->came);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Bytes from `at` to `end`, None where there are none. */
static PyObject *part(const seg_last_record *last, int at)
{
    int64_t from = last->numbers[at];
    return from < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(last->bytes + from, last->numbers[at + 1] - from);
}

static long long size_of(const seg_last_record *last, int at)
{
    return last->numbers[at] < 0 ? -1 : last->numbers[at + 1] - last->numbers[at];
}

/* An instance of `kind`, a subclass of tuple, with the fields of a ConsumerRecord. */
static PyObject *record_of(PyObject *kind, PyObject *key, const seg_last_record *last)
{
    const int64_t *n = last->numbers;
    PyObject *fields = Py_BuildValue(
        "((OOLLLLNN[]OLLi))", PyTuple_GetItem(key, 0), PyTuple_GetItem(key, 1), (long long)n[SEG_LAST_EPOCH],
        (long long)n[SEG_LAST_OFFSET], (long long)n[SEG_LAST_TIMESTAMP], (long long)n[SEG_LAST_TYPE],
        part(last, SEG_LAST_KEY), part(last, SEG_LAST_VALUE), Py_None, size_of(last, SEG_LAST_KEY),
        size_of(last, SEG_LAST_VALUE), -1);
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *made = fields ? make((PyTypeObject *)kind, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return made;
}

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What `came` of this partition: ({key: [record]}, its offset, its leader epoch, log start offset, bytes of its batch,
 * and when that is, in monotonic seconds). */
static PyObject *came_of(Follower *self, int64_t number, const seg_last_record *last)
{
    PyObject *key = PyTuple_GetItem(self->keys, (Py_ssize_t)number);
    PyObject *record = key ? record_of(self->kind, key, last) : NULL;
    PyObject *polled = record ? Py_BuildValue("{O[O]}", key, record) : NULL;
    Py_XDECREF(record);
    if (polled == NULL)
        return NULL;
    const int64_t *n = last->numbers;
    return Py_BuildValue("(NLLLLd)", polled, (long long)n[SEG_LAST_OFFSET], (long long)n[SEG_LAST_EPOCH],
                         (long long)n[SEG_LAST_START], (long long)n[SEG_LAST_SIZE], monotonic());
}

static int64_t ns_of(double seconds)
{
    if (!(seconds > 0))
        return 0;
    return seconds < LONGEST_NS / 1e9 ? (int64_t)(seconds * 1e9) : LONGEST_NS;
}

static PyObject *wait_for(PyObject *object, PyObject *const *arguments, Py_ssize_t n)
{
    Follower *self = (Follower *)object;
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "wait takes 2 arguments, not %zd", n);
    uint32_t nudges = (uint32_t)PyLong_AsUnsignedLongMask(arguments[0]);
    int64_t code, timeout = ns_of(PyFloat_AsDouble(arguments[1]));
    if (PyErr_Occurred())
        return NULL;
    seg_follower *follower = (seg_follower *)(uintptr_t)self->follower;
    PyObject *before = self->came;
    self->came = Py_NewRef(Py_None);
    Py_XDECREF(before);
    Py_BEGIN_ALLOW_THREADS
    code = await_record(follower, nudges, timeout);
    Py_END_ALLOW_THREADS
    if (code >= 0 && code < follower->n) {
        if (self->kind != NULL && self->kind != Py_None && follower->last->numbers[SEG_LAST_SIZE] > 0) {
            PyObject *made = came_of(self, code, follower->last);
            if (made == NULL)
                return NULL;
            before = self->came;
            self->came = made;
            Py_DECREF(before);
        }
        return PyLong_FromLongLong(code);
    }
    if (code == -ETIMEDOUT)
        return PyLong_FromLong(LATE);
    if (code >= 0 || code == -EINTR || code == -EAGAIN)
        return PyLong_FromLong(LOOK);
    errno = (int)-code;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef methods[] = {
    {"wait", (PyCFunction)(void (*)(void))wait_for, METH_FASTCALL,
     "Return the number of a partition whose ends have changed since they were last seen here, and see them; LOOK after "
     "a nudge or a signal, LATE after so many seconds; 0 or less is a look. Raises OSError. (nudges, seconds)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_dealloc, (void *)free_follower},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "segstore.storage.meta.followed_ends.Follower",
    .basicsize = sizeof(Follower),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

static PyObject *bind(PyObject *module, PyObject *address)
{
    void *function = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    await_record = (await_function)function;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, "Take the address of seg_await_record of cffi's module."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._follower",
    .m_doc = "A consumer's wait for the next record.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__follower(void)
{
    PyObject *made = PyModule_Create(&definition), *type = made ? PyType_FromSpec(&spec) : NULL;
    if (type == NULL || PyModule_AddObjectRef(made, "Follower", type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}

/* seg_await_record (await_record.c) as a Python method, which also makes the consumer's record and the whole answer of
 * `poll`: after a wait, Python's code and memory are in no cache, and each function costs some us. Also a function that
 * makes consumer records from columns.
 *
 * Thread contract: that of any Python object. One thread waits, without the interpreter's lock.
 */
#include "objects.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#include "contract/ends.h"

enum { LOOK = -1, LATE = -2 };
#define LONGEST_NS 86400000000000 /* a day */

typedef int64_t (*await_function)(seg_tailer *, uint32_t, int64_t);

/* seg_await_record of cffi's module; set once, when the package is imported. */
static await_function await_record;

/* The base class of TailedEnds. `tailer` is the address of a seg_tailer. */
typedef struct {
    PyObject_HEAD
    PyObject *keys, *kind, *came;
    unsigned long long tailer;
} Tailer;

static PyMemberDef members[] = {
    {"keys", T_OBJECT, offsetof(Tailer, keys), 0, NULL},
    {"kind", T_OBJECT, offsetof(Tailer, kind), 0, NULL},
    {"came", T_OBJECT, offsetof(Tailer, came), 0, NULL},
    {"tailer", T_ULONGLONG, offsetof(Tailer, tailer), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_tailer(PyObject *object)
{
    Tailer *self = (Tailer *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->keys);
    Py_XDECREF(self->kind);
    Py_XDECREF(self->came);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* The bytes of the last record from numbers[at] to numbers[at + 1], or None. */
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

/* The value of `came` for this partition: ({key: [record]}, offset, leader epoch, log start offset, bytes of the batch,
 * and the time in monotonic seconds). */
static PyObject *came_of(Tailer *self, int64_t number, const seg_last_record *last)
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
    Tailer *self = (Tailer *)object;
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "wait takes 2 arguments, not %zd", n);
    uint32_t nudges = (uint32_t)PyLong_AsUnsignedLongMask(arguments[0]);
    int64_t code, timeout = ns_of(PyFloat_AsDouble(arguments[1]));
    if (PyErr_Occurred())
        return NULL;
    seg_tailer *tailer = (seg_tailer *)(uintptr_t)self->tailer;
    PyObject *before = self->came;
    self->came = Py_NewRef(Py_None);
    Py_XDECREF(before);
    Py_BEGIN_ALLOW_THREADS
    code = await_record(tailer, nudges, timeout);
    Py_END_ALLOW_THREADS
    if (code >= 0 && code < tailer->n) {
        if (self->kind != NULL && self->kind != Py_None && tailer->last->numbers[SEG_LAST_SIZE] > 0) {
            PyObject *made = came_of(self, code, tailer->last);
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
     "Wait for changed ends, and update the known ends: (nudges, seconds). Return the partition's number; LOOK after a nudge "
     "or a signal, LATE after so many seconds; 0 or less checks once. Raises OSError."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_dealloc, (void *)free_tailer},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "segstore.storage.meta.tailed_ends.EndsTailer",
    .basicsize = sizeof(Tailer),
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

/* --- records of columns -------------------------------------------------------------------------- */

/* Keys or values: slices of an arena; a length of -1 is None. */
typedef struct {
    const char *arena;
    int64_t size;
    const int64_t *at, *lengths;
} Slices;

enum { KIND, TOPIC, PARTITION, EPOCHS, TYPES, OFFSETS, TIMESTAMPS, KEYS, VALUES = KEYS + 3, COUNTS = VALUES + 3, ARGUMENTS };
enum { FIELDS = 13, DELIVERED_FIELDS };

/* `n` int64 in bytes; NULL with an exception. */
static const int64_t *column_of(PyObject *bytes, Py_ssize_t n)
{
    if (PyBytes_Check(bytes) && PyBytes_Size(bytes) == n * (Py_ssize_t)sizeof(int64_t))
        return (const int64_t *)PyBytes_AsString(bytes);
    PyErr_Format(PyExc_TypeError, "a column must be bytes of %zd int64", n);
    return NULL;
}

static int slices_of(PyObject *const *a, Py_ssize_t n, Slices *s)
{
    if (!PyBytes_Check(a[0])) {
        PyErr_Format(PyExc_TypeError, "an arena must be bytes");
        return 0;
    }
    *s = (Slices){PyBytes_AsString(a[0]), PyBytes_Size(a[0]), column_of(a[1], n), column_of(a[2], n)};
    return s->at && s->lengths;
}

static PyObject *slice(const Slices *s, Py_ssize_t i)
{
    int64_t at = s->at[i], length = s->lengths[i];
    if (length < 0)
        return Py_NewRef(Py_None);
    if (at < 0 || at > s->size || length > s->size - at)
        return PyErr_Format(PyExc_ValueError, "a slice is outside of its arena");
    return PyBytes_FromStringAndSize(s->arena + at, length);
}

/* The value of record i: an item of a list, or the one value of all records. */
static PyObject *of_each(PyObject *given, Py_ssize_t i)
{
    return Py_XNewRef(PyList_Check(given) ? PyList_GetItem(given, i) : given);
}

static long long shown(int64_t length)
{
    return length < 0 ? -1 : length;
}

/* Make record i. A share consumer's record has its delivery count as the last field. */
static PyObject *record_at(PyObject *const *a, const int64_t *offsets, const int64_t *timestamps, const Slices *keys,
                           const Slices *values, Py_ssize_t i)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)a[KIND], Py_tp_alloc);
    int n = a[COUNTS] == Py_None ? FIELDS : DELIVERED_FIELDS;
    PyObject *made = allocate((PyTypeObject *)a[KIND], n);
    PyObject *fields[DELIVERED_FIELDS] = {
        Py_NewRef(a[TOPIC]),
        Py_NewRef(a[PARTITION]),
        of_each(a[EPOCHS], i),
        PyLong_FromLongLong(offsets[i]),
        PyLong_FromLongLong(timestamps[i]),
        of_each(a[TYPES], i),
        slice(keys, i),
        slice(values, i),
        PyList_New(0),
        Py_NewRef(Py_None),
        PyLong_FromLongLong(shown(keys->lengths[i])),
        PyLong_FromLongLong(shown(values->lengths[i])),
        PyLong_FromLong(-1),
        of_each(a[COUNTS], i),
    };
    int failed = made == NULL;
    if (n == FIELDS)
        Py_CLEAR(fields[FIELDS]);
    for (int f = 0; f < n; f++) {
        failed |= fields[f] == NULL;
        if (failed)
            Py_XDECREF(fields[f]);
        else
            failed = PyTuple_SetItem(made, f, fields[f]) < 0; /* takes the reference, also if it fails */
    }
    if (failed)
        Py_CLEAR(made);
    return made;
}

static PyObject *records(PyObject *module, PyObject *const *a, Py_ssize_t given)
{
    Slices keys, values;
    if (given != ARGUMENTS || !PyBytes_Check(a[OFFSETS]) || !PyType_Check(a[KIND]) ||
        !PyType_IsSubtype((PyTypeObject *)a[KIND], &PyTuple_Type))
        return PyErr_Format(PyExc_TypeError, "records takes %d arguments of other types", (int)ARGUMENTS);
    Py_ssize_t n = PyBytes_Size(a[OFFSETS]) / (Py_ssize_t)sizeof(int64_t);
    const int64_t *offsets = column_of(a[OFFSETS], n), *timestamps = column_of(a[TIMESTAMPS], n);
    if (!offsets || !timestamps || !slices_of(a + KEYS, n, &keys) || !slices_of(a + VALUES, n, &values))
        return NULL;
    PyObject *made = PyList_New(n);
    for (Py_ssize_t i = 0; made && i < n; i++) {
        PyObject *record = record_at(a, offsets, timestamps, &keys, &values, i);
        if (record == NULL || PyList_SetItem(made, i, record) < 0)
            Py_CLEAR(made);
    }
    return made;
}

static PyMethodDef functions[] = {
    {"records", (PyCFunction)(void (*)(void))records, METH_FASTCALL,
     "Make records without headers from columns: (kind, topic, partition, leader epochs, timestamp types, offsets, "
     "timestamps; arena, positions and lengths of the keys; the same of the values; delivery counts, or None). Epochs, "
     "types and counts are an int for all, or a list of one for each record; columns are int64, as bytes."},
    {"bind", bind, METH_O, "Take the address of seg_await_record of cffi's module."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._tailer",
    .m_doc = "A consumer's wait for the next record.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__tailer(void)
{
    PyObject *made = PyModule_Create(&definition), *type = made ? PyType_FromSpec(&spec) : NULL;
    if (type == NULL || PyModule_AddObjectRef(made, "EndsTailer", type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
